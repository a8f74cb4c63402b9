//! Sockets inside another network namespace, without moving the calling thread.
//!
//! A socket belongs to the namespace of the thread that created it and stays there. [`within`] therefore runs a closure on
//! a short-lived helper thread that has entered the namespace (setns(2)); the socket is used anywhere afterwards. The
//! caller waits for that thread, some tens of microseconds.
//!
//! Names are those of ip-netns(8): a plain name is a file under `/var/run/netns`, anything with a slash is a path, such as
//! `/proc/1234/ns/net`. The file is opened each time, so a namespace that was deleted and made again is found.
//!
//! Entering a namespace needs CAP_SYS_ADMIN.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread;

use crate::socket::SocketError;
use crate::sys;

/// Where ip-netns(8) keeps named namespaces.
const DIRECTORY: &str = "/var/run/netns";

/// Runs `create` on a thread of its own inside the network namespace `name`; a panic inside is passed on.
///
/// # Errors
/// [`SocketError::Netns`] when the namespace is unknown or may not be entered, with the name and the reason.
pub fn within<T: Send>(name: &str, create: impl FnOnce() -> T + Send) -> Result<T, SocketError> {
    let fault = |source| SocketError::Netns { name: name.into(), source };
    let namespace = File::open(file(name)).map_err(fault)?;
    thread::scope(|scope| {
        let entered = move || -> io::Result<T> {
            sys::enter_network_namespace(namespace.as_fd())?;
            Ok(create())
        };
        let helper =
            thread::Builder::new().name("netns".into()).spawn_scoped(scope, entered).map_err(fault)?;
        helper.join().unwrap_or_else(|panic| resume_unwind(panic)).map_err(fault)
    })
}

fn file(name: &str) -> PathBuf {
    if name.contains('/') { name.into() } else { Path::new(DIRECTORY).join(name) }
}
