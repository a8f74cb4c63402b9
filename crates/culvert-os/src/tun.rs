//! TUN devices: an interface of the system whose packets a program reads and writes.
//!
//! With the `IFF_VNET_HDR` flag a head of ten bytes stands before each packet. It lets the kernel hand over a whole train of
//! TCP segments or datagrams in one read, without checksums, and take the same in one write; so a packet may have 64 KiB
//! whatever the MTU is.
//!
//! Source: linux/if_tun.h, linux/virtio_net.h; Documentation/networking/tuntap.rst of Linux 6.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use crate::sys;

/// Bytes before a packet: flags, kind of train, length of heads, length of a part, start and offset of the checksum.
const VNET_HEAD: usize = 10;

const NEEDS_CHECKSUM: u8 = 1;
const DATA_VALID: u8 = 2;
const TRAIN_TCP4: u8 = 1;
const TRAIN_TCP6: u8 = 4;
const TRAIN_UDP: u8 = 5;

/// What the kernel does for whoever uses the device.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Offloads {
    /// Checksums, and trains of TCP segments.
    pub tcp: bool,
    /// Trains of datagrams (Linux 6.2).
    pub udp: bool,
}

/// A TUN device, or one queue of it; the device goes when the last is dropped.
#[derive(Debug)]
pub struct Tun {
    fd: OwnedFd,
    name: String,
    offloads: Offloads,
}

/// What stands before a received packet.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Incoming {
    /// Bytes of the packet.
    pub len: usize,
    /// Nobody needs to look at the checksum: it was right, or it never was on a wire and is not even complete.
    pub checked: bool,
    /// Of a train of datagrams, how long each is. Else 0.
    pub segment: u16,
    /// Of a train of datagrams or TCP segments, how long the payload of each is. Else 0.
    pub train: u16,
    /// Where the TCP or UDP head begins and where in that its checksum is, if that is not complete.
    pub checksum: Option<(u16, u16)>,
}

/// What the kernel is to do with a packet that is sent.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Outgoing {
    /// Of a train: how long the payload of each packet is. Else 0.
    pub segment: u16,
    /// Of a train: whether it is one of datagrams.
    pub udp: bool,
    /// IPv6.
    pub v6: bool,
    /// Length of all heads.
    pub head: u16,
    /// Where the TCP or UDP head begins and where in that its checksum is, if the kernel is to complete it.
    pub checksum: Option<(u16, u16)>,
}

impl Tun {
    /// Opens a device. Without a name the system chooses one. An existing persistent device of the name is taken.
    ///
    /// # Errors
    /// `NotFound` where the system has no TUN, `PermissionDenied` without CAP_NET_ADMIN, EBUSY if somebody else has it open.
    pub fn open(name: Option<&str>) -> io::Result<Self> {
        let (fd, name) = sys::open_tun(name.unwrap_or(""), false)?;
        Ok(Self::with_offloads(fd, name))
    }

    /// Opens a device with so many queues, each by a descriptor of its own. The kernel gives a flow's packets to the queue
    /// that last sent one of that flow, so whoever answers by the queue that asked has the whole flow. An existing device
    /// of a single queue is taken with that.
    ///
    /// # Errors
    /// As [`Tun::open`].
    pub fn open_queues(name: Option<&str>, queues: usize) -> io::Result<Vec<Self>> {
        if queues < 2 {
            return Ok(vec![Self::open(name)?]);
        }
        let (fd, name) = match sys::open_tun(name.unwrap_or(""), true) {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Ok(vec![Self::open(name)?]),
            first => first?,
        };
        let mut all = vec![Self::with_offloads(fd, name)];
        while all.len() < queues {
            let (fd, name) = sys::open_tun(all[0].name(), true)?;
            all.push(Self::with_offloads(fd, name));
        }
        Ok(all)
    }

    /// Takes a device that is open already, made with the flags that [`Tun::open`] makes one with.
    #[must_use]
    pub fn from_fd(fd: OwnedFd, name: String) -> Self {
        Self::with_offloads(fd, name)
    }

    /// The most that this kernel does.
    fn with_offloads(fd: OwnedFd, name: String) -> Self {
        let both = Offloads { tcp: true, udp: true };
        let offloads = [both, Offloads { tcp: true, udp: false }]
            .into_iter()
            .find(|wanted| sys::set_tun_offload(fd.as_fd(), wanted.tcp, wanted.udp).is_ok())
            .unwrap_or_default();
        Self { fd, name, offloads }
    }

    /// The name of its interface.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the kernel does for it.
    #[must_use]
    pub fn offloads(&self) -> Offloads {
        self.offloads
    }

    /// Receives one packet into `packet`, which should have room for 64 KiB.
    ///
    /// # Errors
    /// `WouldBlock` if there is none.
    pub fn recv(&self, packet: &mut [u8]) -> io::Result<Incoming> {
        let mut head = [0; VNET_HEAD];
        let len = sys::read_two(self.fd.as_fd(), &mut head, packet)?;
        let len = len.checked_sub(VNET_HEAD).ok_or(io::ErrorKind::UnexpectedEof)?;
        let half = |at: usize| u16::from_ne_bytes([head[at], head[at + 1]]);
        Ok(Incoming {
            len,
            checked: head[0] & (NEEDS_CHECKSUM | DATA_VALID) != 0,
            segment: if head[1] & 0x7f == TRAIN_UDP { half(4) } else { 0 },
            train: if head[1] == 0 { 0 } else { half(4) },
            checksum: (head[0] & NEEDS_CHECKSUM != 0).then(|| (half(6), half(8))),
        })
    }

    /// Sends one packet, which lies in `parts`, of which the first is left for this function to fill.
    ///
    /// # Errors
    /// `WouldBlock` if the queue is full; others for packets that the kernel does not take.
    pub fn send<'a>(&self, what: Outgoing, head: &'a [u8], payload: &[IoSlice<'a>]) -> io::Result<()> {
        let mut vnet = [0; VNET_HEAD];
        if let Some((start, offset)) = what.checksum {
            vnet[0] = NEEDS_CHECKSUM;
            vnet[6..8].copy_from_slice(&start.to_ne_bytes());
            vnet[8..10].copy_from_slice(&offset.to_ne_bytes());
        }
        if what.segment > 0 {
            vnet[1] = match (what.udp, what.v6) {
                (true, _) => TRAIN_UDP,
                (false, false) => TRAIN_TCP4,
                (false, true) => TRAIN_TCP6,
            };
            vnet[2..4].copy_from_slice(&what.head.to_ne_bytes());
            vnet[4..6].copy_from_slice(&what.segment.to_ne_bytes());
        }
        sys::write_parts(self.fd.as_fd(), &vnet, head, payload)
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Tun {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}
