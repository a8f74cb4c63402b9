//! recvmmsg(2) and sendmmsg(2), and the bytes that go with them: addresses and control messages.
//!
//! ```text
//! control message (cmsg(3)), repeated, each at a multiple of 8 bytes (4 on 32-bit systems)
//! | length usize, with this header | level i32 | type i32 | data ... | padding |
//!
//! sockaddr_in    | family u16 | port u16 be | address 4 |
//! sockaddr_in6   | family u16 | port u16 be | flow info u32 | address 16 | scope u32 |
//! ```
//!
//! Both are written and read as bytes, in safe code; the kernel's layout is the same under every C library.

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::num::NonZeroU16;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use libc::c_int;

use super::{Ecn, MAX_BATCH, RecvMeta, RecvSlot, SendSlot};
use crate::{socket::plain_v4, sys};

/// At most [`MAX_BATCH`] slots.
pub(super) fn recv(socket: BorrowedFd<'_>, slots: &mut [RecvSlot<'_>]) -> io::Result<usize> {
    let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; MAX_BATCH];
    let mut names = [const { MaybeUninit::<Name>::uninit() }; MAX_BATCH];
    let mut controls = [const { MaybeUninit::<Control>::uninit() }; MAX_BATCH];
    for (slot, ((header, name), control)) in
        slots.iter_mut().zip(headers.iter_mut().zip(&mut names).zip(&mut controls))
    {
        let name = name.write(Name::EMPTY);
        let control = control.write(Control::EMPTY);
        let header = header.write(empty_header());
        header.msg_hdr.msg_name = name.0.as_mut_ptr().cast();
        header.msg_hdr.msg_namelen = name.0.len() as libc::socklen_t;
        header.msg_hdr.msg_iov = ptr::from_mut(&mut slot.buffer).cast();
        header.msg_hdr.msg_iovlen = 1;
        header.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
        header.msg_hdr.msg_controllen = control.0.len() as _;
    }
    let received = sys::retry(|| {
        // SAFETY: the first `slots.len()` headers (at most MAX_BATCH) were written above, and their pointers lead to a
        // name, an IoSliceMut (which has the layout of iovec on Unix) and a control buffer that all live until this
        // function returns and that nothing else uses meanwhile. The kernel stays within the lengths given with them.
        unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                headers.as_mut_ptr().cast(),
                slots.len() as _,
                libc::MSG_DONTWAIT as _,
                ptr::null_mut(),
            ) as isize
        }
    })?;
    for (index, slot) in slots[..received].iter_mut().enumerate() {
        // SAFETY: `received` is at most `slots.len()`, and so many of each array were written above; what the kernel wrote
        // over them are plain bytes and integers.
        let (header, name, control) = unsafe {
            (
                headers[index].assume_init_ref(),
                names[index].assume_init_ref(),
                controls[index].assume_init_ref(),
            )
        };
        slot.meta = meta(header, name, control);
    }
    Ok(received)
}

/// At most [`MAX_BATCH`] slots.
pub(super) fn send(socket: BorrowedFd<'_>, slots: &[SendSlot<'_>]) -> io::Result<usize> {
    let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; MAX_BATCH];
    let mut names = [const { MaybeUninit::<Name>::uninit() }; MAX_BATCH];
    let mut controls = [const { MaybeUninit::<Control>::uninit() }; MAX_BATCH];
    for (slot, ((header, name), control)) in
        slots.iter().zip(headers.iter_mut().zip(&mut names).zip(&mut controls))
    {
        let header = header.write(empty_header());
        header.msg_hdr.msg_iov = slot.pieces.as_ptr().cast_mut().cast();
        header.msg_hdr.msg_iovlen = slot.pieces.len() as _;
        if let Some(destination) = slot.destination {
            let name = name.write(Name::EMPTY);
            header.msg_hdr.msg_namelen = name.encode(destination) as libc::socklen_t;
            header.msg_hdr.msg_name = name.0.as_mut_ptr().cast();
        }
        if slot.segment_size.is_some() || slot.source.is_some() || slot.ecn.is_some() {
            let control = control.write(Control::EMPTY);
            header.msg_hdr.msg_controllen = control.describe(slot) as _;
            header.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
        }
    }
    sys::retry(|| {
        // SAFETY: the first `slots.len()` headers (at most MAX_BATCH) were written above. Their pointers are null with
        // length zero, or lead to names and control buffers of this function and to the slots' IoSlices (which have the
        // layout of iovec on Unix); the kernel only reads what these describe, and writes the `msg_len` of each header.
        unsafe {
            libc::sendmmsg(
                socket.as_raw_fd(),
                headers.as_mut_ptr().cast(),
                slots.len() as _,
                libc::MSG_DONTWAIT as _,
            ) as isize
        }
    })
}

fn empty_header() -> libc::mmsghdr {
    // SAFETY: a C struct of integers and raw pointers, for which all zeroes is a value.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

fn meta(header: &libc::mmsghdr, name: &Name, control: &Control) -> RecvMeta {
    let mut meta = RecvMeta {
        len: header.msg_len as usize,
        truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
        ..RecvMeta::EMPTY
    };
    if let Some(source) = decode_name(&name.0) {
        meta.source = plain_v4(source);
    }
    // The type of the length differs between C libraries.
    #[allow(clippy::unnecessary_cast)]
    let len = (header.msg_hdr.msg_controllen as usize).min(CONTROL);
    for message in messages(&control.0[..len]) {
        apply(&mut meta, &message);
    }
    meta
}

fn apply(meta: &mut RecvMeta, message: &Message<'_>) {
    let Message { level, kind, data } = message;
    match (*level, *kind) {
        (libc::SOL_UDP, libc::UDP_GRO) => {
            let size = data.first_chunk().map_or(0, |bytes| c_int::from_ne_bytes(*bytes));
            // One lone datagram is also reported, with its own size.
            let joined = usize::try_from(size).is_ok_and(|size| size < meta.len);
            meta.segment_size = u16::try_from(size).ok().filter(|_| joined).and_then(NonZeroU16::new);
        }
        (libc::IPPROTO_IP, libc::IP_TOS) => {
            meta.ecn = Ecn::from_traffic_class(data.first().copied().unwrap_or(0));
        }
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
            let class = data.first_chunk().map_or(0, |bytes| c_int::from_ne_bytes(*bytes));
            meta.ecn = Ecn::from_traffic_class(class as u8);
        }
        // struct in_pktinfo: interface i32, local address, destination address.
        (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
            meta.local =
                data.get(8..).and_then(<[u8]>::first_chunk).map(|bytes: &[u8; 4]| IpAddr::from(*bytes));
        }
        // struct in6_pktinfo: address, interface u32. An IPv4 packet has sent the message above as well.
        (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
            meta.local = data.first_chunk().map(|bytes: &[u8; 16]| Ipv6Addr::from(*bytes).to_canonical());
        }
        (libc::IPPROTO_IP, libc::IP_ORIGDSTADDR) | (libc::IPPROTO_IPV6, libc::IPV6_ORIGDSTADDR) => {
            meta.original_destination = decode_name(data).map(plain_v4);
        }
        _ => {}
    }
}

/// A socket address as the kernel writes it.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Name([u8; NAME]);

/// Size of sockaddr_in6, the larger of the two.
const NAME: usize = 28;

/// Size of sockaddr_in, with its eight bytes of padding.
const NAME_V4: usize = 16;

impl Name {
    const EMPTY: Self = Self([0; NAME]);

    /// Writes the address into the zeroed name and returns its length.
    fn encode(&mut self, address: SocketAddr) -> usize {
        let name = &mut self.0;
        name[2..4].copy_from_slice(&address.port().to_be_bytes());
        match address {
            SocketAddr::V4(v4) => {
                name[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
                name[4..8].copy_from_slice(&v4.ip().octets());
                NAME_V4
            }
            SocketAddr::V6(v6) => {
                name[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
                name[4..8].copy_from_slice(&v6.flowinfo().to_ne_bytes());
                name[8..24].copy_from_slice(&v6.ip().octets());
                name[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
                NAME
            }
        }
    }
}

/// Reads the bytes of a sockaddr; `None` where they are too short or of another family.
fn decode_name(name: &[u8]) -> Option<SocketAddr> {
    let family = u16::from_ne_bytes(*name.first_chunk()?);
    let port = u16::from_be_bytes(*name.get(2..)?.first_chunk()?);
    match c_int::from(family) {
        libc::AF_INET => {
            let address: [u8; 4] = *name.get(4..)?.first_chunk()?;
            Some(SocketAddr::new(Ipv4Addr::from(address).into(), port))
        }
        libc::AF_INET6 => {
            let flow_info = u32::from_ne_bytes(*name.get(4..)?.first_chunk()?);
            let address: [u8; 16] = *name.get(8..)?.first_chunk()?;
            let scope = u32::from_ne_bytes(*name.get(24..)?.first_chunk()?);
            Some(SocketAddrV6::new(address.into(), port, flow_info, scope).into())
        }
        _ => None,
    }
}

/// Control messages, aligned as their headers need it.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL]);

/// Room for all that a socket may report on one message: GRO 24, both TOS forms 48, both packet infos 72, one original
/// destination 48; and for what a slot may ask.
const CONTROL: usize = 192;

/// Bytes of a control message before its data: cmsg(3), where the length is a `size_t` for the kernel.
const CONTROL_HEADER: usize = size_of::<usize>() + 8;

impl Control {
    const EMPTY: Self = Self([0; CONTROL]);

    /// Writes what the slot asks into the zeroed buffer and returns its length.
    fn describe(&mut self, slot: &SendSlot<'_>) -> usize {
        let mut end = 0;
        if let Some(size) = slot.segment_size {
            end = self.push(end, libc::SOL_UDP, libc::UDP_SEGMENT, &size.get().to_ne_bytes());
        }
        match slot.source {
            // struct in_pktinfo: interface i32, local address, destination address.
            Some(IpAddr::V4(source)) => {
                let mut info = [0; 12];
                info[4..8].copy_from_slice(&source.octets());
                end = self.push(end, libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
            }
            // struct in6_pktinfo: address, interface u32.
            Some(IpAddr::V6(source)) => {
                let mut info = [0; 20];
                info[..16].copy_from_slice(&source.octets());
                end = self.push(end, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
            }
            None => {}
        }
        if let Some(ecn) = slot.ecn {
            // Each family passes over the other's message, so a connected socket, whose family is not known here, gets both.
            let class = c_int::from(ecn as u8).to_ne_bytes();
            if !slot.destination.is_some_and(|to| to.is_ipv6()) {
                end = self.push(end, libc::IPPROTO_IP, libc::IP_TOS, &class);
            }
            if !slot.destination.is_some_and(|to| to.is_ipv4()) {
                end = self.push(end, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &class);
            }
        }
        end
    }

    /// Writes one message at `start` and returns where the next one begins.
    fn push(&mut self, start: usize, level: c_int, kind: c_int, data: &[u8]) -> usize {
        let len = CONTROL_HEADER + data.len();
        let message = &mut self.0[start..start + len];
        let (head, body) = message.split_at_mut(CONTROL_HEADER);
        let (len_bytes, rest) = head.split_at_mut(size_of::<usize>());
        len_bytes.copy_from_slice(&len.to_ne_bytes());
        rest[..4].copy_from_slice(&level.to_ne_bytes());
        rest[4..].copy_from_slice(&kind.to_ne_bytes());
        body.copy_from_slice(data);
        start + len.next_multiple_of(size_of::<usize>())
    }
}

struct Message<'a> {
    level: c_int,
    kind: c_int,
    data: &'a [u8],
}

/// Walks the control messages; ends at the first one that does not fit, as the kernel leaves it when room was short.
fn messages(mut control: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let (len, rest) = control.split_first_chunk()?;
        let len = usize::from_ne_bytes(*len);
        let (level, rest) = rest.split_first_chunk()?;
        let (kind, rest) = rest.split_first_chunk()?;
        let data = rest.get(..len.checked_sub(CONTROL_HEADER)?)?;
        control = control.get(len.next_multiple_of(size_of::<usize>())..).unwrap_or_default();
        Some(Message { level: c_int::from_ne_bytes(*level), kind: c_int::from_ne_bytes(*kind), data })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_as_they_were() {
        for address in ["192.0.2.7:65535", "[2001:db8::7]:1", "[fe80::1%3]:443"] {
            let address: SocketAddr = address.parse().unwrap();
            let mut name = Name::EMPTY;
            let len = name.encode(address);
            assert_eq!(decode_name(&name.0[..len]), Some(address));
            assert_eq!(decode_name(&name.0), Some(address), "the room behind it does not matter");
        }
        assert_eq!(decode_name(&[0; NAME]), None, "an unnamed sender");
        assert_eq!(decode_name(&[]), None);
    }

    #[test]
    fn control_messages_come_back_and_no_cut_is_read_past() {
        let slot = SendSlot {
            segment_size: NonZeroU16::new(1200),
            source: Some(Ipv6Addr::LOCALHOST.into()),
            ecn: Some(Ecn::Congested),
            ..SendSlot::new(&[], None)
        };
        let mut control = Control::EMPTY;
        let len = control.describe(&slot);
        let kinds =
            |control| messages(control).map(|message| (message.level, message.kind)).collect::<Vec<_>>();
        let all = kinds(&control.0[..len]);
        let expected = [
            (libc::SOL_UDP, libc::UDP_SEGMENT),
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO),
            (libc::IPPROTO_IP, libc::IP_TOS),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
        ];
        assert_eq!(all, expected);
        for cut in 0..len {
            assert!(expected.starts_with(&kinds(&control.0[..cut])));
        }
    }

    #[test]
    fn impossible_lengths_end_the_walk() {
        for len in [0, CONTROL_HEADER - 1, CONTROL + 1, usize::MAX] {
            let mut control = Control::EMPTY;
            control.0[..size_of::<usize>()].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(messages(&control.0).count(), 0);
        }
    }
}
