//! Which program a socket of this host belongs to.
//!
//! ```text
//! sock_diag(7)   local address and port  ─▶  inode and user of the socket
//! /proc          /proc/*/fd/* ─▶ socket:[inode]  ─▶  /proc/*/exe
//! ```
//!
//! Asking the kernel for a connection of which both ends are known takes microseconds, for any other socket it walks its
//! table. Going through `/proc` takes milliseconds on a busy host: those who have been found lately are looked at first
//! ([`Finder`]).
//!
//! Source: linux/inet_diag.h, proc_pid_fd(5).

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::netlink::{DUMP, Message, REQUEST, word_at};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// Bytes of `struct inet_diag_sockid`, and where it begins in a message and in what follows it.
const SOCKET_ID: usize = 48;
const ANSWER_ID: usize = 4;
/// Programs that are looked at first.
const LATELY: usize = 16;

/// What is carried.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Transport {
    /// Streams.
    Tcp,
    /// Datagrams.
    Udp,
}

/// A socket, as the kernel knows it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Socket {
    /// Its number among files.
    pub inode: u32,
    /// Whose it is.
    pub user: u32,
}

/// A program.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Program {
    /// Its process.
    pub process: u32,
    /// Its file; empty where that may not be seen.
    pub path: PathBuf,
}

/// The socket with this local end; of a stream also with this far end, if it is known. `None` if there is none on this
/// host, or in this network namespace.
///
/// # Errors
/// The kernel's; EPERM and the like where sock_diag is not there.
pub fn socket(
    transport: Transport,
    source: SocketAddr,
    destination: Option<SocketAddr>,
) -> io::Result<Option<Socket>> {
    if let (Transport::Tcp, Some(destination)) = (transport, destination)
        && source.is_ipv4() == destination.is_ipv4()
        && let Ok(Some(found)) = ask(transport, source, Some(destination), source.is_ipv6(), false)
    {
        return Ok(Some(found));
    }
    let found = ask(transport, source, None, source.is_ipv6(), true)?;
    if found.is_some() || source.is_ipv6() {
        return Ok(found);
    }
    // A socket of both families.
    ask(transport, source, None, true, true)
}

fn ask(
    transport: Transport,
    source: SocketAddr,
    destination: Option<SocketAddr>,
    v6: bool,
    all: bool,
) -> io::Result<Option<Socket>> {
    // All states but those without a process: time-wait, closed, listening, new.
    const STATES: u32 = 0b0000_0011_0011_1110;
    let (family, protocol) = (
        if v6 { libc::AF_INET6 } else { libc::AF_INET } as u8,
        match transport {
            Transport::Tcp => libc::IPPROTO_TCP,
            Transport::Udp => libc::IPPROTO_UDP,
        } as u8,
    );
    let mut message = Message::new(SOCK_DIAG_BY_FAMILY, if all { REQUEST | DUMP } else { REQUEST });
    message.bytes(&[family, protocol, 0, 0]);
    // An unconnected UDP socket counts as closed.
    message.word(if transport == Transport::Udp { u32::MAX } else { STATES });
    message.bytes(&source.port().to_be_bytes());
    message.bytes(&destination.map_or(0, |to| to.port()).to_be_bytes());
    for end in [Some(source), destination] {
        message.bytes(&end.map_or([0; 16], |end| octets(end.ip())));
    }
    message.word(0);
    message.word(u32::MAX);
    message.word(u32::MAX);
    let mut found = None;
    let dumped = message.dump(libc::NETLINK_SOCK_DIAG, |body| {
        let Some(id) = body.get(ANSWER_ID..ANSWER_ID + SOCKET_ID) else { return };
        let rest = &body[ANSWER_ID + SOCKET_ID..];
        let (Some(user), Some(inode)) = (word_at(rest, 12), word_at(rest, 16)) else { return };
        let is_v4 = body.first() == Some(&(libc::AF_INET as u8));
        let Some(local) = address(&id[4..20], is_v4) else { return };
        let is_any = local.is_unspecified() && transport == Transport::Udp;
        if id[..2] == source.port().to_be_bytes() && (local == source.ip() || is_any) && inode != 0 {
            // The one bound to the very address counts more.
            if found.is_none() || !is_any {
                found = Some(Socket { inode, user });
            }
        }
    });
    match dumped {
        Ok(()) => Ok(found),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V6(ip) => ip.octets(),
        IpAddr::V4(ip) => {
            let mut octets = [0; 16];
            octets[..4].copy_from_slice(&ip.octets());
            octets
        }
    }
}

fn address(bytes: &[u8], is_v4: bool) -> Option<IpAddr> {
    if is_v4 {
        bytes.first_chunk::<4>().map(|bytes| IpAddr::from(*bytes))
    } else {
        bytes.first_chunk::<16>().map(|bytes| IpAddr::from(*bytes).to_canonical())
    }
}

/// Finds the programs of sockets, and remembers whose sockets they were.
#[derive(Debug, Default)]
pub struct Finder(Mutex<VecDeque<u32>>);

impl Finder {
    /// The program that holds a socket. Takes milliseconds. `None` if it has ended, or may not be looked at.
    #[must_use]
    pub fn program(&self, socket: Socket) -> Option<Program> {
        let link = format!("socket:[{}]", socket.inode);
        let lately: Vec<u32> = self.lock().iter().copied().collect();
        let process = lately.iter().copied().find(|process| holds(*process, &link));
        let process = process.or_else(|| self.search(socket.user, &link, &lately))?;
        {
            let mut lately = self.lock();
            lately.retain(|one| *one != process);
            lately.push_front(process);
            lately.truncate(LATELY);
        }
        let path = std::fs::read_link(format!("/proc/{process}/exe")).unwrap_or_default();
        Some(Program { process, path: without_mark(path) })
    }

    /// Goes through all processes, those of the user first: a program may have become another user since.
    fn search(&self, user: u32, link: &str, known: &[u32]) -> Option<u32> {
        let mut others = Vec::new();
        for entry in std::fs::read_dir("/proc").ok()?.flatten() {
            let Some(process) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            if known.contains(&process) {
                continue;
            }
            if entry.metadata().is_ok_and(|data| data.uid() != user) {
                others.push(process);
            } else if holds(process, link) {
                return Some(process);
            }
        }
        others.into_iter().find(|process| holds(*process, link))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the process has a descriptor that is this.
fn holds(process: u32, link: &str) -> bool {
    let Ok(descriptors) = std::fs::read_dir(format!("/proc/{process}/fd")) else { return false };
    descriptors.flatten().any(|one| std::fs::read_link(one.path()).is_ok_and(|to| to == Path::new(link)))
}

/// The path of a file that has been replaced since, by an update say, has a mark behind it.
fn without_mark(path: PathBuf) -> PathBuf {
    match path.to_str().and_then(|text| text.strip_suffix(" (deleted)")) {
        Some(text) => text.into(),
        None => path,
    }
}

/// The name of a user, as `/etc/passwd` says.
#[must_use]
pub fn user_name(user: u32) -> Option<String> {
    let passwd = std::fs::read_to_string("/etc/passwd").ok()?;
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(user)).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, UdpSocket};

    use super::*;

    fn is_ours(socket: Option<Socket>) {
        let program = Finder::default().program(socket.expect("a socket")).expect("a program");
        assert_eq!(program.process, std::process::id());
        assert_eq!(program.path, std::env::current_exe().unwrap());
    }

    #[test]
    fn streams_belong_to_who_has_dialled() {
        for ip in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            let listener = TcpListener::bind((ip, 0)).unwrap();
            let to = listener.local_addr().unwrap();
            let stream = TcpStream::connect(to).unwrap();
            let from = stream.local_addr().unwrap();
            is_ours(socket(Transport::Tcp, from, Some(to)).unwrap());
            is_ours(socket(Transport::Tcp, from, None).unwrap());
            // The far end is somebody else to the client behind a proxy.
            is_ours(socket(Transport::Tcp, from, Some((ip, 1).into())).unwrap());
        }
    }

    #[test]
    fn sockets_of_both_families_are_found() {
        let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)) else { return };
        let to =
            SocketAddr::from((Ipv4Addr::LOCALHOST.to_ipv6_mapped(), listener.local_addr().unwrap().port()));
        let stream = TcpStream::connect(to).unwrap();
        let from = (Ipv4Addr::LOCALHOST, stream.local_addr().unwrap().port()).into();
        is_ours(socket(Transport::Tcp, from, None).unwrap());
        let bound = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).unwrap();
        let from = (Ipv4Addr::LOCALHOST, bound.local_addr().unwrap().port()).into();
        is_ours(socket(Transport::Udp, from, None).unwrap());
    }

    #[test]
    fn datagrams_belong_to_who_has_bound_the_port() {
        for ip in [Ipv4Addr::LOCALHOST, Ipv4Addr::UNSPECIFIED] {
            let bound = UdpSocket::bind((ip, 0)).unwrap();
            let from = (Ipv4Addr::LOCALHOST, bound.local_addr().unwrap().port()).into();
            is_ours(socket(Transport::Udp, from, None).unwrap());
        }
    }

    #[test]
    fn nobody_has_what_is_not_there() {
        let free = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        for transport in [Transport::Tcp, Transport::Udp] {
            assert_eq!(socket(transport, free, None).unwrap(), None);
            assert_eq!(socket(transport, "192.0.2.1:5".parse().unwrap(), None).unwrap(), None);
        }
        assert_eq!(Finder::default().program(Socket { inode: 1, user: 0 }), None);
    }

    #[test]
    fn users_have_names() {
        assert_eq!(user_name(0).as_deref(), Some("root"));
        assert_eq!(user_name(u32::MAX), None);
        assert_eq!(without_mark("/usr/bin/x (deleted)".into()), PathBuf::from("/usr/bin/x"));
    }
}
