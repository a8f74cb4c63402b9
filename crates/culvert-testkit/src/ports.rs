//! Free ports that stay free until the program under test binds them.
//!
//! A port taken by binding to 0 and letting go can be handed to any outgoing connection before the program binds
//! it. So ports are taken below the kernel's range for outgoing connections, and while a [`Port`] lives an abstract
//! Unix socket named after it keeps every other test process of this network namespace from choosing it too.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// Lowest port that is handed out.
const LOWEST: u16 = 10_000;

/// A port reserved for this test, for TCP and UDP on `127.0.0.1` and `::1`.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _reservation: UnixListener,
}

impl Port {
    /// Reserves a port on which nobody listens.
    ///
    /// # Errors
    /// When no port is left.
    pub fn reserve() -> io::Result<Self> {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let highest = first_outgoing_port().unwrap_or(32_768);
        let span = highest.saturating_sub(LOWEST).max(1);
        // Processes that start together begin their search far apart.
        let start = (std::process::id().wrapping_mul(40_503) >> 4) as u16 % span;
        for _ in 0..span {
            let number = LOWEST + (start + NEXT.fetch_add(1, Ordering::Relaxed) % span) % span;
            let name = UnixAddr::from_abstract_name(format!("culvert-test-port-{number}"))?;
            let Ok(reservation) = UnixListener::bind_addr(&name) else { continue };
            if is_free(number) {
                return Ok(Self { number, _reservation: reservation });
            }
        }
        Err(io::Error::new(io::ErrorKind::AddrInUse, "no free port left for tests"))
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }

    /// The port on `127.0.0.1`.
    #[must_use]
    pub fn v4(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.number).into()
    }

    /// The port on `::1`.
    #[must_use]
    pub fn v6(&self) -> SocketAddr {
        (Ipv6Addr::LOCALHOST, self.number).into()
    }
}

fn first_outgoing_port() -> Option<u16> {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
    range.split_whitespace().next()?.parse().ok()
}

/// Looks without binding: a socket that is only to try a port is alive, for an instant, in every program that another test
/// starts meanwhile, and so would keep the port from whom it is meant for.
fn is_free(number: u16) -> bool {
    let port = format!(":{number:04X}");
    ["tcp", "tcp6", "udp", "udp6"].iter().all(|table| {
        let sockets = std::fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap_or_default();
        sockets.lines().skip(1).all(|line| {
            let mut words = line.split_whitespace().skip(1);
            let (local, state) = (words.next().unwrap_or_default(), words.nth(1));
            // Connections that are over do not keep a listener out.
            !local.ends_with(&port) || state == Some("06")
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::net::{TcpListener, UdpSocket};

    #[test]
    fn ports_are_distinct_while_held() {
        let ports: Vec<_> = (0..100).map(|_| Port::reserve().unwrap()).collect();
        let numbers: HashSet<_> = ports.iter().map(Port::number).collect();
        assert_eq!(numbers.len(), 100);
    }

    #[test]
    fn reserved_port_can_be_bound() {
        let port = Port::reserve().unwrap();
        TcpListener::bind(port.v4()).unwrap();
        UdpSocket::bind(port.v6()).unwrap();
    }

    #[test]
    fn port_in_use_is_passed_over() {
        let port = Port::reserve().unwrap();
        let listener = TcpListener::bind(port.v4()).unwrap();
        assert!(!is_free(port.number()));
        drop(listener);
        assert!(is_free(port.number()));
        let _socket = UdpSocket::bind(port.v6()).unwrap();
        assert!(!is_free(port.number()));
    }
}
