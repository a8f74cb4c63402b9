//! The calls of `linux.rs` for systems where Culvert has no code for them yet: all but plain sockets are "unsupported".

use std::ffi::CStr;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use libc::c_int;
use socket2::{Domain, Protocol, Socket, Type};

use crate::socket::Fragmentation;

fn unsupported<T>() -> io::Result<T> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(crate) fn socket(domain: Domain, kind: Type, protocol: Protocol) -> io::Result<Socket> {
    let socket = Socket::new(domain, kind, Some(protocol))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

pub(crate) fn multipath_tcp() -> Option<Protocol> {
    None
}

pub(crate) fn bind_interface(_: BorrowedFd<'_>, _: &str) -> io::Result<()> {
    unsupported()
}

pub(crate) fn set_mark(_: BorrowedFd<'_>, _: u32) -> io::Result<()> {
    unsupported()
}

pub(crate) fn original_destination(_: BorrowedFd<'_>, _: bool) -> io::Result<SocketAddr> {
    unsupported()
}

pub(crate) fn set_transparent(_: BorrowedFd<'_>, _: bool) -> io::Result<()> {
    unsupported()
}

pub(crate) fn set_bind_address_no_port(_: BorrowedFd<'_>) -> io::Result<()> {
    unsupported()
}

pub(crate) fn set_fast_open_connect(_: BorrowedFd<'_>) -> io::Result<()> {
    unsupported()
}

pub(crate) fn set_fast_open_queue(_: BorrowedFd<'_>, _: c_int) -> io::Result<()> {
    unsupported()
}

pub(crate) fn force_buffers(_: BorrowedFd<'_>, _: usize) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(crate) fn set_fragmentation(_: BorrowedFd<'_>, _: bool, mode: Fragmentation) -> io::Result<()> {
    if mode == Fragmentation::System { Ok(()) } else { unsupported() }
}

pub(crate) fn path_mtu(_: BorrowedFd<'_>, _: bool) -> io::Result<c_int> {
    unsupported()
}

pub(crate) fn enable_udp_gro(_: BorrowedFd<'_>) -> io::Result<()> {
    unsupported()
}

pub(crate) fn probe_udp_segment(_: BorrowedFd<'_>) -> io::Result<()> {
    unsupported()
}

pub(crate) fn enable_receive_ecn(_: BorrowedFd<'_>, _: bool) -> io::Result<()> {
    unsupported()
}

pub(crate) fn enable_receive_original_destination(_: BorrowedFd<'_>, _: bool) -> io::Result<()> {
    unsupported()
}

pub(crate) fn enable_receive_local_address(_: BorrowedFd<'_>, _: bool) -> io::Result<()> {
    unsupported()
}

pub(crate) fn set_brutal(_: BorrowedFd<'_>, _: u64) -> io::Result<()> {
    unsupported()
}

pub(crate) fn unacknowledged_bytes(_: BorrowedFd<'_>) -> io::Result<usize> {
    unsupported()
}

pub(crate) fn unsent_bytes(_: BorrowedFd<'_>) -> io::Result<usize> {
    unsupported()
}

pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    unsupported()
}

pub(crate) fn set_pipe_size(_: BorrowedFd<'_>, _: usize) -> io::Result<usize> {
    unsupported()
}

pub(crate) fn pipe_size(_: BorrowedFd<'_>) -> io::Result<usize> {
    unsupported()
}

pub(crate) fn splice(_: BorrowedFd<'_>, _: BorrowedFd<'_>, _: usize, _: bool) -> io::Result<usize> {
    unsupported()
}

pub(crate) fn writable(_: BorrowedFd<'_>) -> io::Result<bool> {
    unsupported()
}

pub(crate) fn wait_writable(_: BorrowedFd<'_>, _: c_int) -> io::Result<bool> {
    unsupported()
}

pub(crate) fn wait_any<const N: usize>(
    _: [(BorrowedFd<'_>, bool, bool); N],
    _: Duration,
) -> io::Result<bool> {
    unsupported()
}

pub(crate) fn enter_network_namespace(_: BorrowedFd<'_>) -> io::Result<()> {
    unsupported()
}

pub(crate) fn new_network_namespace() -> io::Result<()> {
    unsupported()
}

pub(crate) fn set_up(_: BorrowedFd<'_>, _: &CStr) -> io::Result<()> {
    unsupported()
}

pub(crate) fn raise_open_files_limit() -> io::Result<u64> {
    unsupported()
}

pub(crate) fn tune_allocator(_: c_int, _: c_int, _: c_int) -> bool {
    false
}

pub(crate) fn trim_allocator() -> bool {
    false
}

pub(crate) fn forget_program_pages() {}

pub(crate) fn interface_index(_: &str) -> io::Result<u32> {
    unsupported()
}

pub(crate) fn visit_interfaces(_: impl FnMut(&CStr, u32, Option<IpAddr>, Option<IpAddr>)) -> io::Result<()> {
    unsupported()
}

pub(crate) fn open_tun(_: &str, _: bool) -> io::Result<(OwnedFd, String)> {
    unsupported()
}

pub(crate) fn set_tun_offload(_: BorrowedFd<'_>, _: bool, _: bool) -> io::Result<()> {
    unsupported()
}

pub(crate) fn read_two(_: BorrowedFd<'_>, _: &mut [u8], _: &mut [u8]) -> io::Result<usize> {
    unsupported()
}

pub(crate) fn write_parts(_: BorrowedFd<'_>, _: &[u8], _: &[u8], _: &[IoSlice<'_>]) -> io::Result<()> {
    unsupported()
}
