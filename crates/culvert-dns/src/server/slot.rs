//! The one link that questions to a server share, and the rules by which it is replaced.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Mutex as AsyncMutex;
use tokio::time::{Instant, timeout};

use super::link::Link;
use crate::DnsError;
use crate::message::{Query, Reply};

/// How long a question waits before it is asked a second time.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// A link and its age.
type Current = (Arc<Link>, Instant);

/// Holds the current link.
#[derive(Debug, Default)]
pub(super) struct Slot {
    current: Mutex<Option<Current>>,
    /// Held while a link is opened, so that many askers open one; keeps the last failure, so that all who waited for
    /// it share it instead of failing one after the other.
    opening: AsyncMutex<Option<(DnsError, Instant)>>,
}

impl Slot {
    /// Asks on the current link, or on one that `open` makes.
    ///
    /// A question without an answer after a second is asked once more, and after two further seconds a third time: on the
    /// same link if anything was heard from it meanwhile, else on another, since a link may die in silence. A link that
    /// breaks, as a pooled one does when the server had closed it, costs no wait. The first reply counts; all askings
    /// go on until then. `oldest` is the age from which a link takes no more questions.
    pub(super) async fn ask<O, F>(&self, query: &Query, oldest: Duration, open: O) -> Result<Reply, DnsError>
    where
        O: Fn() -> F,
        F: Future<Output = Result<Arc<Link>, DnsError>>,
    {
        let begun = Instant::now();
        let on_link = || async {
            let link = self.link(begun, oldest, &open).await?;
            link.ask(query).await
        };
        let later = || hedge(on_link(), 2 * PATIENCE, on_link);
        hedge(on_link(), PATIENCE, later).await
    }

    /// Lets the next question open a link of its own.
    pub(super) fn forget(&self) {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    async fn link<O, F>(&self, begun: Instant, oldest: Duration, open: &O) -> Result<Arc<Link>, DnsError>
    where
        O: Fn() -> F,
        F: Future<Output = Result<Arc<Link>, DnsError>>,
    {
        if let Some(link) = self.usable(begun, oldest) {
            return Ok(link);
        }
        let waited_from = Instant::now();
        let mut opening = self.opening.lock().await;
        if let Some(link) = self.usable(begun, oldest) {
            return Ok(link);
        }
        if let Some((error, _)) = opening.as_ref().filter(|(_, failed)| *failed > waited_from) {
            return Err(error.clone());
        }
        let link = match open().await {
            Ok(link) => link,
            Err(error) => {
                *opening = Some((error.clone(), Instant::now()));
                return Err(error);
            }
        };
        let current = Some((Arc::clone(&link), Instant::now()));
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = current;
        Ok(link)
    }

    /// The current link, if a question that was first asked at `begun` may be asked on it.
    fn usable(&self, begun: Instant, oldest: Duration) -> Option<Arc<Link>> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let (link, opened) = current.as_ref()?;
        let now = Instant::now();
        let silent = now - begun >= PATIENCE && *opened <= begun && !link.heard_since(begun);
        let usable = !silent && now - *opened < oldest && !link.has_ended();
        usable.then(|| Arc::clone(link))
    }
}

/// Waits for `first`, and from `patience` on, or from its failure, for what `second` starts as well. The first success
/// wins; of two failures the later one counts.
pub(super) async fn hedge<T, S>(
    first: impl Future<Output = Result<T, DnsError>>,
    patience: Duration,
    second: impl FnOnce() -> S,
) -> Result<T, DnsError>
where
    S: Future<Output = Result<T, DnsError>>,
{
    let mut first = pin!(first);
    match timeout(patience, &mut first).await {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(error)) => {
            tracing::debug!(%error, "asking again");
            return second().await;
        }
        Err(_) => {}
    }
    let mut second = pin!(second());
    tokio::select! {
        value = &mut first => match value {
            Ok(value) => Ok(value),
            Err(_) => second.await,
        },
        value = &mut second => match value {
            Ok(value) => Ok(value),
            Err(_) => first.await,
        },
    }
}
