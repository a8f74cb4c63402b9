//! The sockets that inbounds listen with, so that another instance of the program can go on with them.
//!
//! A reload starts the new inbounds before the old ones end. Where both listen at the same place in the same way the new
//! one gets a second descriptor of the very socket: at no moment is nobody there, and what waits in its queue is served
//! by whoever is left. That costs a descriptor per socket.

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use culvert_os::socket::{SocketError, TcpListen, UdpOptions, tcp_listener, udp_socket};

/// A socket and what was asked for to get it.
struct Kept<O, S> {
    number: u64,
    address: SocketAddr,
    options: O,
    socket: S,
    /// Whether an inbound uses it, or it was only opened ahead.
    used: bool,
}

/// All of one kind.
type Table<O, S> = Mutex<Vec<Kept<O, S>>>;

/// The listening sockets of one instance.
#[derive(Default)]
pub struct Sockets {
    streams: Table<TcpListen, TcpListener>,
    packets: Table<UdpOptions, UdpSocket>,
    /// Those of the instance before, while it still runs.
    before: Mutex<Option<Arc<Self>>>,
    next: AtomicU64,
}

/// Says that somebody listens with a socket. Dropped together with it, so that its address is free then.
pub struct Hold {
    number: u64,
    sockets: Weak<Sockets>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let Some(sockets) = self.sockets.upgrade() else { return };
        lock(&sockets.streams).retain(|kept| kept.number != self.number);
        lock(&sockets.packets).retain(|kept| kept.number != self.number);
    }
}

impl Sockets {
    /// Lets this instance go on with the sockets of `before`, until [`Self::forget_before`].
    pub fn inherit(&self, before: Arc<Self>) {
        *lock(&self.before) = Some(before);
    }

    /// The start is over, one way or the other.
    pub fn forget_before(&self) {
        *lock(&self.before) = None;
    }

    /// Lets go of all, also of those that were opened ahead and that nobody uses.
    pub fn clear(&self) {
        lock(&self.streams).clear();
        lock(&self.packets).clear();
    }

    /// A socket that listens for streams.
    ///
    /// # Errors
    /// It cannot be made as `options` ask, or the address is taken.
    pub fn tcp(
        self: &Arc<Self>,
        options: &TcpListen,
        address: SocketAddr,
    ) -> Result<(TcpListener, Hold), SocketError> {
        let (socket, number) = match opened(&self.streams, options, address, TcpListener::try_clone) {
            Some(found) => found,
            None => self.new_tcp(options, address, true)?,
        };
        Ok((socket, self.hold(number)))
    }

    /// A socket that waits for datagrams.
    ///
    /// # Errors
    /// As for [`Self::tcp`].
    pub fn udp(
        self: &Arc<Self>,
        options: &UdpOptions,
        address: SocketAddr,
    ) -> Result<(UdpSocket, Hold), SocketError> {
        let (socket, number) = match opened(&self.packets, options, address, UdpSocket::try_clone) {
            Some(found) => found,
            None => self.new_udp(options, address, true)?,
        };
        Ok((socket, self.hold(number)))
    }

    /// Opens what [`Self::tcp`] will give, and says where it listens.
    ///
    /// # Errors
    /// As there.
    pub fn open_tcp(&self, options: &TcpListen, address: SocketAddr) -> Result<SocketAddr, SocketError> {
        Ok(self.new_tcp(options, address, false)?.0.local_addr().unwrap_or(address))
    }

    /// Opens what [`Self::udp`] will give.
    ///
    /// # Errors
    /// As there.
    pub fn open_udp(&self, options: &UdpOptions, address: SocketAddr) -> Result<(), SocketError> {
        self.new_udp(options, address, false).map(drop)
    }

    fn hold(self: &Arc<Self>, number: u64) -> Hold {
        Hold { number, sockets: Arc::downgrade(self) }
    }

    fn new_tcp(
        &self,
        options: &TcpListen,
        address: SocketAddr,
        used: bool,
    ) -> Result<(TcpListener, u64), SocketError> {
        let before = lock(&self.before).clone();
        let before = before.as_ref().map(|before| &before.streams);
        let same = inherited(&self.streams, before, options, address, TcpListener::try_clone);
        let socket = same.map_or_else(|| tcp_listener(options, address), Ok)?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        keep(&self.streams, (number, used), options, address, socket.try_clone());
        Ok((socket, number))
    }

    fn new_udp(
        &self,
        options: &UdpOptions,
        address: SocketAddr,
        used: bool,
    ) -> Result<(UdpSocket, u64), SocketError> {
        let before = lock(&self.before).clone();
        let before = before.as_ref().map(|before| &before.packets);
        let same = inherited(&self.packets, before, options, address, UdpSocket::try_clone);
        let socket = same.map_or_else(|| udp_socket(options, address), Ok)?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        keep(&self.packets, (number, used), options, address, socket.try_clone());
        Ok((socket, number))
    }
}

impl<O: PartialEq, S> Kept<O, S> {
    fn is(&self, options: &O, address: SocketAddr) -> bool {
        self.address == address && self.options == *options
    }
}

/// One that was opened ahead and is not used yet, and its number.
fn opened<O: PartialEq, S>(
    own: &Table<O, S>,
    options: &O,
    address: SocketAddr,
    again: impl Fn(&S) -> io::Result<S>,
) -> Option<(S, u64)> {
    let mut own = lock(own);
    let ahead = own.iter_mut().find(|kept| !kept.used && kept.is(options, address))?;
    let socket = again(&ahead.socket).ok()?;
    ahead.used = true;
    Some((socket, ahead.number))
}

/// One that the instance before has. Where several are asked for in the same way, which they can if the system is to
/// choose the port, each stands for itself.
fn inherited<O: PartialEq, S>(
    own: &Table<O, S>,
    before: Option<&Table<O, S>>,
    options: &O,
    address: SocketAddr,
    again: impl Fn(&S) -> io::Result<S>,
) -> Option<S> {
    let number = lock(own).iter().filter(|kept| kept.is(options, address)).count();
    let before = lock(before?);
    let same = before.iter().filter(|kept| kept.is(options, address)).nth(number)?;
    again(&same.socket).ok()
}

/// Without a second descriptor there is nothing to hand over, which only a reload would notice.
fn keep<O: Clone, S>(
    table: &Table<O, S>,
    (number, used): (u64, bool),
    options: &O,
    address: SocketAddr,
    socket: io::Result<S>,
) {
    if let Ok(socket) = socket {
        lock(table).push(Kept { number, address, options: options.clone(), socket, used });
    }
}

/// A lock that guards a plain value is still good after a panic elsewhere.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpStream};

    use super::*;

    #[test]
    fn a_successor_goes_on_with_the_same_sockets_and_nobody_else_can() {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let (tcp, udp) = (TcpListen::default(), UdpOptions::default());
        let old = Arc::new(Sockets::default());
        let (streams, packets) = (old.tcp(&tcp, any).unwrap(), old.udp(&udp, any).unwrap());
        let (place, mailbox) = (streams.0.local_addr().unwrap(), packets.0.local_addr().unwrap());

        let new = Arc::new(Sockets::default());
        assert!(new.tcp(&tcp, place).is_err(), "the address is taken");
        new.inherit(Arc::clone(&old));
        // It is what was asked for that counts, so that a free port stays the same one.
        let (next, next_packets) = (new.tcp(&tcp, any).unwrap(), new.udp(&udp, any).unwrap());
        assert_eq!(next.0.local_addr().unwrap(), place);
        assert_eq!(next_packets.0.local_addr().unwrap(), mailbox);
        let second = new.tcp(&tcp, any).unwrap();
        assert_ne!(second.0.local_addr().unwrap(), place, "there was only one");
        let other = TcpListen { fast_open: true, ..TcpListen::default() };
        assert_ne!(new.tcp(&other, any).unwrap().0.local_addr().unwrap(), place, "not in the same way");
        new.forget_before();

        // One that waits while the old instance ends is served by the new one.
        let mut waiting = TcpStream::connect(place).unwrap();
        drop((streams, packets));
        next.0.set_nonblocking(false).unwrap();
        let mut served = next.0.accept().unwrap().0;
        served.set_nonblocking(false).unwrap();
        served.write_all(b"here").unwrap();
        let mut answer = [0; 4];
        waiting.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"here");

        drop((next, next_packets));
        assert!(TcpStream::connect(place).is_err(), "it is closed with its user");
    }

    #[test]
    fn what_was_opened_ahead_is_there_when_it_is_asked_for() {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let (tcp, sockets) = (TcpListen::default(), Arc::new(Sockets::default()));
        let opened = sockets.open_tcp(&tcp, any).unwrap();
        let first = sockets.tcp(&tcp, any).unwrap();
        assert_eq!(first.0.local_addr().unwrap(), opened);
        let second = sockets.tcp(&tcp, any).unwrap();
        assert_ne!(second.0.local_addr().unwrap(), opened, "another one asked for alike is another one");
        let unused = sockets.open_tcp(&tcp, any).unwrap();
        sockets.clear();
        assert!(TcpStream::connect(unused).is_err());
    }
}
