//! Sockets inside another network namespace, without moving the calling thread.
//!
//! A socket belongs to the namespace of the thread that created it and stays there. [`within`] therefore runs a closure on
//! a short-lived helper thread that has entered the namespace (setns(2)); the socket is used anywhere afterwards. The
//! caller waits for that thread, some tens of microseconds.
//!
//! Names are those of ip-netns(8): a plain name is a file under `/var/run/netns`, anything with a slash is a path, such as
//! `/proc/1234/ns/net`. The file is opened each time, so a namespace that was deleted and made again is found.
//!
//! Entering a namespace, or making one, needs CAP_SYS_ADMIN.

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

/// Moves the calling thread, and with it all threads and programs that it starts from then on, to a new network namespace
/// in which there is nothing but a loopback interface, up and unused.
///
/// It is for tests and benchmarks. There, a loopback shared with the rest of the machine carries its packet filter too, and
/// the table of a filter that follows connections is full after a few hundred thousand short ones: it then drops what would
/// open further ones, and dials take seconds.
///
/// # Errors
/// Namespaces are not permitted here (CAP_SYS_ADMIN), or not known. The thread then is where it was, or, if only the
/// loopback could not be set up, without a network.
pub fn isolate_thread() -> io::Result<()> {
    sys::new_network_namespace()?;
    let any = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))?;
    sys::set_up(any.as_fd(), c"lo")
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
    fn an_isolated_thread_has_a_loopback_of_its_own_and_passes_it_on() {
        thread::scope(|scope| {
            let test = || {
                let outside = current_network();
                if let Err(error) = isolate_thread() {
                    return eprintln!("SKIPPED an_isolated_thread_has_a_loopback_of_its_own: {error}");
                }
                let inside = current_network();
                assert_ne!(inside, outside);
                for loopback in LOOPBACKS {
                    let listener = TcpListener::bind(loopback).unwrap();
                    TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                }
                assert_eq!(thread::spawn(current_network).join().unwrap(), inside, "a thread inherits it");
                let link = Command::new("readlink").arg("/proc/self/ns/net").output().unwrap().stdout;
                assert_eq!(Path::new(str::from_utf8(&link).unwrap().trim()), inside, "a program too");
            };
            scope.spawn(test).join().unwrap_or_else(|panic| resume_unwind(panic));
        });
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
