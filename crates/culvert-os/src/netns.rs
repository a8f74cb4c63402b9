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

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::process::Command;

    use super::*;
    use crate::testing::{LOOPBACKS, current_network, in_fresh_network};

    /// A path to the network namespace of the calling thread, good while the thread lives.
    fn own_path() -> String {
        let thread = std::fs::read_link("/proc/thread-self").unwrap();
        format!("/proc/{}/ns/net", thread.display())
    }

    #[test]
    fn closure_runs_inside_and_the_caller_stays_outside() {
        in_fresh_network("closure_runs_inside_and_the_caller_stays_outside", || {
            let (inside, path) = (current_network(), own_path());
            // A third namespace, to be outside of the other two on every machine.
            in_fresh_network("nested", move || {
                let outside = current_network();
                assert_ne!(outside, inside);
                assert_eq!(within(&path, current_network).unwrap(), inside);
                assert_eq!(current_network(), outside);

                let listener = within(&path, || TcpListener::bind(LOOPBACKS[0])).unwrap().unwrap();
                let address: SocketAddr = listener.local_addr().unwrap();
                assert!(TcpStream::connect(address).is_err(), "the port is not open out here");
                within(&path, || TcpStream::connect(address)).unwrap().unwrap();
                listener.accept().unwrap();
            });
        });
    }

    #[test]
    fn name_is_looked_up_where_ip_netns_keeps_it() {
        let name = format!("culvert-test-{}", std::process::id());
        match Command::new("ip").args(["netns", "add", &name]).output() {
            Ok(output) if output.status.success() => {}
            other => return eprintln!("SKIPPED name_is_looked_up_where_ip_netns_keeps_it: {other:?}"),
        }
        let result = within(&name, current_network);
        Command::new("ip").args(["netns", "delete", &name]).status().unwrap();
        assert_ne!(result.unwrap(), current_network());
    }

    #[test]
    fn unknown_namespace_is_named_with_the_reason() {
        for name in ["culvert-no-such-namespace", "/no/such/namespace"] {
            let error = within(name, || panic!("must not run")).unwrap_err();
            assert_eq!(error.to_string(), format!("netns {name}"));
            assert_eq!(error.io().kind(), io::ErrorKind::NotFound);
        }
    }

    #[test]
    fn file_that_is_no_namespace_is_refused() {
        let error = within("/proc/self/status", || panic!("must not run")).unwrap_err();
        assert!(matches!(error, SocketError::Netns { .. }), "{error:?}");
    }

    #[test]
    fn panic_inside_reaches_the_caller() {
        in_fresh_network("panic_inside_reaches_the_caller", || {
            let path = own_path();
            let panic =
                std::panic::catch_unwind(|| within(&path, || -> () { panic!("from inside") })).unwrap_err();
            assert_eq!(panic.downcast_ref(), Some(&"from inside"));
        });
    }
}
