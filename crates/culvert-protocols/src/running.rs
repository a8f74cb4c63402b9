//! What an inbound with a socket of its own keeps while it runs.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::task::JoinHandle;

/// The task that serves a socket, the socket's address, and what else is to be closed at the end.
pub(crate) struct Running<T = ()>(Mutex<Option<(SocketAddr, JoinHandle<()>, T)>>);

impl<T> Default for Running<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T> Running<T> {
    fn lock(&self) -> MutexGuard<'_, Option<(SocketAddr, JoinHandle<()>, T)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, local: SocketAddr, task: JoinHandle<()>, more: T) {
        *self.lock() = Some((local, task, more));
    }

    /// Where it listens, if it runs.
    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        self.lock().as_ref().map(|(local, ..)| *local)
    }

    /// Ends the task, closes what else there is, and waits until the task has let go of the socket.
    pub(crate) async fn stop_and<F: Future<Output = ()>>(&self, close: impl FnOnce(T) -> F) {
        let running = self.lock().take();
        let Some((_, task, more)) = running else { return };
        task.abort();
        close(more).await;
        let _ = task.await;
    }
}

impl Running {
    pub(crate) async fn stop(&self) {
        self.stop_and(std::future::ready).await;
    }
}
