//! The Linux calls. Names and meanings are those of the manual pages named at each function.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::ptr;
use std::time::Duration;

use libc::c_int;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::socket::Fragmentation;

/// socket(2), non-blocking and close-on-exec from the start.
pub(crate) fn socket(domain: Domain, kind: Type, protocol: Protocol) -> io::Result<Socket> {
    Socket::new(domain, kind.nonblocking(), Some(protocol))
}

/// The protocol number that makes `socket(2)` create a multipath TCP socket.
pub(crate) fn multipath_tcp() -> Option<Protocol> {
    Some(Protocol::MPTCP)
}

/// SO_BINDTODEVICE, socket(7). An unknown name is `ENODEV`.
pub(crate) fn bind_interface(fd: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    SockRef::from(&fd).bind_device(Some(name.as_bytes()))
}

/// SO_MARK, socket(7).
pub(crate) fn set_mark(fd: BorrowedFd<'_>, mark: u32) -> io::Result<()> {
    SockRef::from(&fd).set_mark(mark)
}

/// SO_ORIGINAL_DST or IP6T_SO_ORIGINAL_DST, of netfilter.
pub(crate) fn original_destination(fd: BorrowedFd<'_>, v6: bool) -> io::Result<SocketAddr> {
    let socket = SockRef::from(&fd);
    let address = if v6 { socket.original_dst_v6()? } else { socket.original_dst_v4()? };
    address.as_socket().ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// IP_TRANSPARENT or IPV6_TRANSPARENT, ip(7).
pub(crate) fn set_transparent(fd: BorrowedFd<'_>, v6: bool) -> io::Result<()> {
    let socket = SockRef::from(&fd);
    socket.set_ip_transparent_v4(true)?;
    if v6 { socket.set_ip_transparent_v6(true) } else { Ok(()) }
}

/// IP_BIND_ADDRESS_NO_PORT, ip(7); it covers IPv6 sockets too.
pub(crate) fn set_bind_address_no_port(fd: BorrowedFd<'_>) -> io::Result<()> {
    set_int(fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)
}

/// TCP_FASTOPEN_CONNECT, tcp(7).
pub(crate) fn set_fast_open_connect(fd: BorrowedFd<'_>) -> io::Result<()> {
    set_int(fd, libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT, 1)
}

/// TCP_FASTOPEN on a listener, tcp(7): how many handshakes with data may be unfinished.
pub(crate) fn set_fast_open_queue(fd: BorrowedFd<'_>, length: c_int) -> io::Result<()> {
    set_int(fd, libc::IPPROTO_TCP, libc::TCP_FASTOPEN, length)
}

/// IP_MTU_DISCOVER and IPV6_MTU_DISCOVER, ip(7) and ipv6(7).
pub(crate) fn set_fragmentation(fd: BorrowedFd<'_>, v6: bool, mode: Fragmentation) -> io::Result<()> {
    let value = match mode {
        Fragmentation::System => return Ok(()),
        Fragmentation::Forbidden => libc::IP_PMTUDISC_DO,
        Fragmentation::Probe => libc::IP_PMTUDISC_PROBE,
    };
    // A dual-stack socket also sends IPv4; the values of both families are the same numbers.
    set_int(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, value)?;
    if v6 { set_int(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, value) } else { Ok(()) }
}

/// IP_MTU and IPV6_MTU, of a connected socket: what the way to its peer is known to take.
pub(crate) fn path_mtu(fd: BorrowedFd<'_>, v6: bool) -> io::Result<c_int> {
    if v6 {
        get_int(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU)
    } else {
        get_int(fd, libc::IPPROTO_IP, libc::IP_MTU)
    }
}

/// SO_RCVBUFFORCE and SO_SNDBUFFORCE, socket(7): beyond what the system grants to everybody; needs CAP_NET_ADMIN.
pub(crate) fn force_buffers(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
    set_int(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes)?;
    set_int(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, bytes)
}

/// UDP_GRO, udp(7).
pub(crate) fn enable_udp_gro(fd: BorrowedFd<'_>) -> io::Result<()> {
    set_int(fd, libc::SOL_UDP, libc::UDP_GRO, 1)
}

/// UDP_SEGMENT, udp(7): reads the socket-wide value, which only a kernel that knows the option answers.
pub(crate) fn probe_udp_segment(fd: BorrowedFd<'_>) -> io::Result<()> {
    get_int(fd, libc::SOL_UDP, libc::UDP_SEGMENT).map(drop)
}

/// IP_RECVTOS and IPV6_RECVTCLASS.
pub(crate) fn enable_receive_ecn(fd: BorrowedFd<'_>, v6: bool) -> io::Result<()> {
    let socket = SockRef::from(&fd);
    socket.set_recv_tos_v4(true)?;
    if v6 { socket.set_recv_tclass_v6(true) } else { Ok(()) }
}

/// IP_RECVORIGDSTADDR and IPV6_RECVORIGDSTADDR, ip(7).
pub(crate) fn enable_receive_original_destination(fd: BorrowedFd<'_>, v6: bool) -> io::Result<()> {
    set_int(fd, libc::IPPROTO_IP, libc::IP_RECVORIGDSTADDR, 1)?;
    if v6 { set_int(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVORIGDSTADDR, 1) } else { Ok(()) }
}

/// IP_PKTINFO and IPV6_RECVPKTINFO, ip(7) and ipv6(7).
pub(crate) fn enable_receive_local_address(fd: BorrowedFd<'_>, v6: bool) -> io::Result<()> {
    set_int(fd, libc::IPPROTO_IP, libc::IP_PKTINFO, 1)?;
    if v6 { set_int(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1) } else { Ok(()) }
}

/// TCP_CONGESTION, tcp(7), with `brutal`, and that module's TCP_BRUTAL_PARAMS: the rate, and the window in tenths of what the
/// round trip takes. (apernet/tcp-brutal, README)
pub(crate) fn set_brutal(fd: BorrowedFd<'_>, rate: u64) -> io::Result<()> {
    const TCP_BRUTAL_PARAMS: c_int = 23301;
    /// As the module's C declares it, which leaves four bytes unused at the end.
    #[repr(C)]
    struct Params {
        rate: u64,
        window_gain: u32,
        unused: u32,
    }
    SockRef::from(&fd).set_tcp_congestion(b"brutal")?;
    let params = Params { rate, window_gain: 20, unused: 0 };
    let length = size_of::<Params>() as libc::socklen_t;
    // SAFETY: `params` is that many initialised bytes, which the call only reads.
    check(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            TCP_BRUTAL_PARAMS,
            (&raw const params).cast(),
            length,
        )
    })
    .map(drop)
}

/// SIOCOUTQ, tcp(7): bytes in the send queue that the peer has not acknowledged, sent or not.
pub(crate) fn unacknowledged_bytes(fd: BorrowedFd<'_>) -> io::Result<usize> {
    ioctl_bytes(fd, libc::TIOCOUTQ) // SIOCOUTQ is the same number
}

/// SIOCOUTQNSD (linux/sockios.h): bytes in the send queue that were never sent.
pub(crate) fn unsent_bytes(fd: BorrowedFd<'_>) -> io::Result<usize> {
    ioctl_bytes(fd, libc::SIOCOUTQNSD as libc::Ioctl)
}

/// pipe2(2) with O_NONBLOCK and O_CLOEXEC: the read end and the write end.
pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends: [c_int; 2] = [-1; 2];
    // SAFETY: `ends` is room for exactly the two descriptors that the call writes.
    check(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_NONBLOCK | libc::O_CLOEXEC) })?;
    // SAFETY: the call succeeded, so both are open descriptors that nothing else owns.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

/// F_SETPIPE_SZ, fcntl(2). Returns the size granted in bytes, which may be above the one asked for.
pub(crate) fn set_pipe_size(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<usize> {
    let bytes = c_int::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: F_SETPIPE_SZ takes an integer and touches no memory of ours.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETPIPE_SZ, bytes) }).map(|size| size as usize)
}

/// F_GETPIPE_SZ, fcntl(2), in bytes.
pub(crate) fn pipe_size(fd: BorrowedFd<'_>) -> io::Result<usize> {
    // SAFETY: F_GETPIPE_SZ takes no argument and touches no memory of ours.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETPIPE_SZ) }).map(|size| size as usize)
}

/// splice(2) between a pipe and a socket, without offsets. `more` sets SPLICE_F_MORE.
pub(crate) fn splice(from: BorrowedFd<'_>, to: BorrowedFd<'_>, len: usize, more: bool) -> io::Result<usize> {
    let more = if more { libc::SPLICE_F_MORE } else { 0 };
    let flags = libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | more;
    let (from, to) = (from.as_raw_fd(), to.as_raw_fd());
    retry(|| {
        // SAFETY: both offsets are null, so the kernel reads and writes no memory of ours; the descriptors are borrowed
        // and thus open.
        unsafe { libc::splice(from, ptr::null_mut(), to, ptr::null_mut(), len, flags) }
    })
}

/// poll(2) for POLLOUT without waiting. On the write end of a pipe it says whether a slot is free.
pub(crate) fn writable(fd: BorrowedFd<'_>) -> io::Result<bool> {
    wait_writable(fd, 0)
}

/// The same, waiting for so many milliseconds at most.
pub(crate) fn wait_writable(fd: BorrowedFd<'_>, millis: c_int) -> io::Result<bool> {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    // SAFETY: `poll` is one valid pollfd, and one is what the count says.
    check(unsafe { libc::poll(&mut poll, 1, millis) })?;
    Ok(poll.revents & libc::POLLOUT != 0)
}

/// ppoll(2) on sockets, each with whether it is to be read and written. Whether one of them is ready or broken before the
/// time is over.
pub(crate) fn wait_any<const N: usize>(
    sockets: [(BorrowedFd<'_>, bool, bool); N],
    limit: Duration,
) -> io::Result<bool> {
    let limit = libc::timespec {
        tv_sec: limit.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    };
    let mut polls = sockets.map(|(fd, read, write)| {
        let events = if read { libc::POLLIN } else { 0 } | if write { libc::POLLOUT } else { 0 };
        libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 }
    });
    // SAFETY: `polls` is an array of `N` valid pollfds, `limit` a valid time, and no signal mask is given.
    match check(unsafe { libc::ppoll(polls.as_mut_ptr(), N as libc::nfds_t, &limit, ptr::null()) }) {
        Ok(ready) => Ok(ready > 0),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
        Err(error) => Err(error),
    }
}

/// setns(2) with CLONE_NEWNET: moves the calling thread, and no other, into the namespace.
pub(crate) fn enter_network_namespace(namespace: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: takes integers; the descriptor is borrowed and thus open. Only the kernel's view of this thread changes.
    check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) }).map(drop)
}

/// unshare(2) with CLONE_NEWNET: gives the calling thread, and no other, a new namespace.
pub(crate) fn new_network_namespace() -> io::Result<()> {
    // SAFETY: takes an integer. Only the kernel's view of this thread changes.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) }).map(drop)
}

/// SIOCSIFFLAGS, netdevice(7): sets an interface up, with no other flag. `socket` is any of the namespace.
pub(crate) fn set_up(socket: BorrowedFd<'_>, interface: &CStr) -> io::Result<()> {
    // SAFETY: a C struct of integers, arrays and a union of such, for which all zeroes is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let name = interface.to_bytes_with_nul();
    if name.len() > request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name) {
        *to = from.cast_signed() as _;
    }
    request.ifr_ifru.ifru_flags = libc::IFF_UP as _;
    // SAFETY: SIOCSIFFLAGS reads one ifreq.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as libc::Ioctl, &request) }).map(drop)
}

/// getrlimit(2) and setrlimit(2) for RLIMIT_NOFILE: soft up to hard. Returns the soft limit that holds afterwards.
pub(crate) fn raise_open_files_limit() -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid rlimit for the kernel to fill.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) })?;
    if limit.rlim_cur < limit.rlim_max {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: `limit` is a valid rlimit for the kernel to read.
        check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) })?;
    }
    // The type is narrower on some 32-bit systems.
    #[allow(clippy::useless_conversion)]
    Ok(limit.rlim_cur.into())
}

/// mallopt(3). False where the C library refuses or has no such thing.
pub(crate) fn tune_allocator(arenas: c_int, mmap_threshold: c_int, trim_threshold: c_int) -> bool {
    #[cfg(target_env = "gnu")]
    {
        let settings = [
            (libc::M_ARENA_MAX, arenas),
            (libc::M_MMAP_THRESHOLD, mmap_threshold),
            (libc::M_TRIM_THRESHOLD, trim_threshold),
        ];
        // SAFETY: mallopt takes two integers, locks the allocator itself, and is allowed at any time.
        settings.into_iter().all(|(option, value)| unsafe { libc::mallopt(option, value) } == 1)
    }
    #[cfg(not(target_env = "gnu"))]
    {
        let _ = (arenas, mmap_threshold, trim_threshold);
        false
    }
}

/// malloc_trim(3) leaving no padding. True when memory went back to the system.
pub(crate) fn trim_allocator() -> bool {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes an integer and locks the allocator itself.
    return unsafe { libc::malloc_trim(0) } == 1;
    #[cfg(not(target_env = "gnu"))]
    return false;
}

/// Unmaps the resident pages of the program and its libraries that are the same in their files (madvise(2),
/// MADV_DONTNEED): the kernel maps them again, from its cache, when they are next touched.
pub(crate) fn forget_program_pages() {
    #[cfg(target_pointer_width = "32")]
    use libc::Elf32_Phdr as ProgramHeader;
    #[cfg(target_pointer_width = "64")]
    use libc::Elf64_Phdr as ProgramHeader;

    unsafe extern "C" fn forget(
        object: *mut libc::dl_phdr_info,
        _size: libc::size_t,
        _data: *mut libc::c_void,
    ) -> c_int {
        // SAFETY: the caller, dl_iterate_phdr, passes a valid description whose headers outlive the call.
        let (base, headers) = unsafe {
            let object = &*object;
            (object.dlpi_addr, std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()))
        };
        // What may be written differs from the file, also where it is protected again after relocation.
        let unwritten =
            |header: &&ProgramHeader| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0;
        // SAFETY: sysconf takes an integer.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        for header in headers.iter().filter(unwritten) {
            let (Ok(start), Ok(len)) =
                (usize::try_from(base + header.p_vaddr), usize::try_from(header.p_memsz))
            else {
                continue;
            };
            // Whole pages only: the last one may hold the beginning of a segment that is written.
            let (first, end) = (start.next_multiple_of(page), (start + len) / page * page);
            if first < end {
                // SAFETY: the pages are mapped from a file, never written, and so read the same when they come back. A
                // failure leaves them where they are.
                let _ =
                    unsafe { libc::madvise(first as *mut libc::c_void, end - first, libc::MADV_DONTNEED) };
            }
        }
        0
    }
    // SAFETY: the callback matches the type and uses no data of ours.
    unsafe { libc::dl_iterate_phdr(Some(forget), ptr::null_mut()) };
}

/// if_nametoindex(3).
pub(crate) fn interface_index(name: &str) -> io::Result<u32> {
    let name = CString::new(name).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: `name` is a C string that lives across the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

/// getifaddrs(3): calls `visit` with name, IFF flags, address and netmask of each entry; entries of other families come
/// without the two.
pub(crate) fn visit_interfaces(
    mut visit: impl FnMut(&CStr, u32, Option<IpAddr>, Option<IpAddr>),
) -> io::Result<()> {
    /// Gives the list back on every way out, also when `visit` panics.
    struct List(*mut libc::ifaddrs);
    impl Drop for List {
        fn drop(&mut self) {
            // SAFETY: the pointer came from getifaddrs and is freed once.
            unsafe { libc::freeifaddrs(self.0) }
        }
    }

    let mut first = ptr::null_mut();
    // SAFETY: the call writes one pointer, to a list that is ours to free.
    check(unsafe { libc::getifaddrs(&mut first) })?;
    let list = List(first);
    let mut next = list.0;
    // SAFETY: each entry of the list is valid, or null at its end, until `list` is dropped below.
    while let Some(entry) = unsafe { next.as_ref() } {
        // SAFETY: ifa_name is always a C string of the list.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) };
        // SAFETY: address and netmask are null or sockaddrs of the list.
        let (address, netmask) =
            unsafe { (internet_address(entry.ifa_addr), internet_address(entry.ifa_netmask)) };
        visit(name, entry.ifa_flags, address, netmask);
        next = entry.ifa_next;
    }
    Ok(())
}

/// Reads an IPv4 or IPv6 sockaddr; `None` for null and for other families.
///
/// # Safety
/// `address` is null or points at a sockaddr as large as its family demands.
unsafe fn internet_address(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller's promise; every sockaddr begins with its family.
    match c_int::from(unsafe { address.as_ref()?.sa_family }) {
        libc::AF_INET => {
            // SAFETY: the caller's promise for this family; read unaligned, as a sockaddr asks for less alignment.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(IpAddr::from(v4.sin_addr.s_addr.to_ne_bytes()))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(IpAddr::from(v6.sin6_addr.s6_addr))
        }
        _ => None,
    }
}

fn set_int(fd: BorrowedFd<'_>, level: c_int, option: c_int, value: c_int) -> io::Result<()> {
    let len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the pointer and the length describe `value`, which the kernel only reads.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, ptr::from_ref(&value).cast(), len) })
        .map(drop)
}

pub(crate) fn get_int(fd: BorrowedFd<'_>, level: c_int, option: c_int) -> io::Result<c_int> {
    let mut value: c_int = 0;
    let mut len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: pointer and length describe `value`; the kernel writes no more than `len` bytes.
    let result = unsafe {
        libc::getsockopt(fd.as_raw_fd(), level, option, ptr::from_mut(&mut value).cast(), &mut len)
    };
    check(result).map(|_| value)
}

fn ioctl_bytes(fd: BorrowedFd<'_>, request: libc::Ioctl) -> io::Result<usize> {
    let mut bytes: c_int = 0;
    // SAFETY: both requests that arrive here write one int.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), request, ptr::from_mut(&mut bytes)) })?;
    Ok(usize::try_from(bytes).unwrap_or(0))
}

fn check(result: c_int) -> io::Result<c_int> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Opens `/dev/net/tun` and makes it the device of this name, or of one that the system chooses (TUNSETIFF). Returns the
/// name, too.
///
/// With `many` it is a device of several queues (IFF_MULTI_QUEUE): each call with its name opens another one.
pub(crate) fn open_tun(name: &str, many: bool) -> io::Result<(OwnedFd, String)> {
    let mut options = File::options();
    options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
    let fd = OwnedFd::from(options.open("/dev/net/tun")?);
    // struct ifreq: the name, then a union of which the first two bytes are the flags.
    let mut request = [0u8; size_of::<libc::ifreq>()];
    let room = request.get_mut(..name.len()).filter(|_| name.len() < libc::IFNAMSIZ);
    room.ok_or(io::ErrorKind::InvalidInput)?.copy_from_slice(name.as_bytes());
    let many = if many { libc::IFF_MULTI_QUEUE } else { 0 };
    let flags = (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR | many) as u16;
    request[libc::IFNAMSIZ..libc::IFNAMSIZ + 2].copy_from_slice(&flags.to_ne_bytes());
    // SAFETY: `request` is as long as the struct that the call reads and writes, and holds plain bytes only.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, request.as_mut_ptr()) })?;
    let name = CStr::from_bytes_until_nul(&request).unwrap_or_default();
    Ok((fd, name.to_string_lossy().into_owned()))
}

/// TUNSETOFFLOAD: which trains of packets, and with them packets without checksums, may be handed over.
pub(crate) fn set_tun_offload(fd: BorrowedFd<'_>, tcp: bool, udp: bool) -> io::Result<()> {
    let tcp = if tcp { libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 } else { 0 };
    let udp = if udp { libc::TUN_F_USO4 | libc::TUN_F_USO6 } else { 0 };
    // SAFETY: the request takes an integer and touches no memory of ours.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(tcp | udp)) })
        .map(drop)
}

/// readv(2) into two places.
pub(crate) fn read_two(fd: BorrowedFd<'_>, first: &mut [u8], second: &mut [u8]) -> io::Result<usize> {
    let mut parts = [IoSliceMut::new(first), IoSliceMut::new(second)];
    // SAFETY: IoSliceMut has the layout of struct iovec, and both places may be written for their whole length.
    retry(|| unsafe { libc::readv(fd.as_raw_fd(), parts.as_mut_ptr().cast(), parts.len() as c_int) })
}

/// writev(2) of two heads and as many parts as one call takes.
pub(crate) fn write_parts(
    fd: BorrowedFd<'_>,
    first: &[u8],
    second: &[u8],
    rest: &[IoSlice<'_>],
) -> io::Result<()> {
    const MOST: usize = 64;
    let mut parts = [IoSlice::new(&[]); MOST];
    (parts[0], parts[1]) = (IoSlice::new(first), IoSlice::new(second));
    let count = 2 + rest.len();
    let joined: Vec<u8>;
    let used = if count <= MOST {
        parts[2..count].copy_from_slice(rest);
        count
    } else {
        // Many small pieces: rare, and one copy is cheaper than a longer list.
        joined = rest.iter().flat_map(|part| part.iter().copied()).collect();
        parts[2] = IoSlice::new(&joined);
        3
    };
    // SAFETY: IoSlice has the layout of struct iovec, and all parts may be read for their whole length.
    retry(|| unsafe { libc::writev(fd.as_raw_fd(), parts.as_ptr().cast(), used as c_int) }).map(drop)
}

/// Sends one request to the routing part of netlink(7) and returns the first answer.
pub(crate) fn ask_netlink(request: &[u8]) -> io::Result<Vec<u8>> {
    let fd = netlink(libc::NETLINK_ROUTE, 0)?;
    send(fd.as_fd(), request)?;
    let mut answer = vec![0; 8192];
    let len = receive(fd.as_fd(), &mut answer)?;
    answer.truncate(len);
    Ok(answer)
}

/// Sends one request to a part of netlink(7) and calls `visit` with each datagram of answers, until that says that it was
/// the last.
pub(crate) fn dump_netlink(
    part: c_int,
    request: &[u8],
    mut visit: impl FnMut(&[u8]) -> io::Result<ControlFlow<()>>,
) -> io::Result<()> {
    let fd = netlink(part, 0)?;
    send(fd.as_fd(), request)?;
    let mut answer = vec![0; 32 << 10];
    loop {
        let len = receive(fd.as_fd(), &mut answer)?;
        if visit(&answer[..len])?.is_break() {
            return Ok(());
        }
    }
}

/// A socket that hears of changes to what these groups (RTMGRP_*, rtnetlink(7)) are about; non-blocking.
pub(crate) fn watch_netlink(groups: u32) -> io::Result<OwnedFd> {
    netlink(libc::NETLINK_ROUTE, groups)
}

/// A socket of netlink(7), non-blocking if it listens to groups.
fn netlink(part: c_int, groups: u32) -> io::Result<OwnedFd> {
    let blocking = if groups == 0 { 0 } else { libc::SOCK_NONBLOCK };
    // SAFETY: socket(2) takes no memory of ours.
    let fd = check(unsafe {
        libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC | blocking, part)
    })?;
    // SAFETY: the call succeeded, so it is an open descriptor that nothing else owns.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    if groups != 0 {
        // SAFETY: all zeros are a sockaddr_nl.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as u16;
        address.nl_groups = groups;
        let size = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
        // SAFETY: `address` may be read for `size` bytes.
        check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size) })?;
    }
    Ok(fd)
}

fn send(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: `bytes` may be read for their whole length.
    retry(|| unsafe { libc::send(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) })
}

/// Receives one datagram; what does not fit is lost.
pub(crate) fn receive(fd: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<usize> {
    // SAFETY: `into` may be written for its whole length.
    retry(|| unsafe { libc::recv(fd.as_raw_fd(), into.as_mut_ptr().cast(), into.len(), 0) })
}

/// Repeats a call while a signal interrupts it.
pub(crate) fn retry(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        match usize::try_from(call()) {
            Ok(done) => return Ok(done),
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
}

/// unshare(2) with CLONE_NEWNET and CLONE_NEWNS, and CLONE_NEWUSER if `user`: for the calling process, which has one thread.
pub(crate) fn new_namespaces(user: bool) -> io::Result<()> {
    let user = if user { libc::CLONE_NEWUSER } else { 0 };
    // SAFETY: takes an integer. Only the kernel's view of this process changes.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET | libc::CLONE_NEWNS | user) }).map(drop)
}

/// mount(2) with MS_PRIVATE on everything: what is mounted from now on is not seen by others.
pub(crate) fn make_mounts_private() -> io::Result<()> {
    mount(c"none", c"/", libc::MS_REC | libc::MS_PRIVATE)
}

/// mount(2) with MS_BIND.
pub(crate) fn bind_mount(from: &std::path::Path, to: &std::path::Path) -> io::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let text = |path: &std::path::Path| CString::new(path.as_os_str().as_bytes());
    mount(&text(from)?, &text(to)?, libc::MS_BIND)
}

fn mount(from: &CStr, to: &CStr, flags: libc::c_ulong) -> io::Result<()> {
    // SAFETY: both texts end with a zero; the other pointers may be null for these flags.
    check(unsafe { libc::mount(from.as_ptr(), to.as_ptr(), ptr::null(), flags, ptr::null()) }).map(drop)
}

/// F_SETFD without FD_CLOEXEC, fcntl(2). Returns the number of the descriptor.
pub(crate) fn keep_on_exec(fd: BorrowedFd<'_>) -> io::Result<c_int> {
    // SAFETY: F_SETFD takes an integer and touches no memory of ours.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, 0) })?;
    Ok(fd.as_raw_fd())
}

/// A copy of a descriptor that nobody here owns, F_DUPFD_CLOEXEC; the original is not passed on any more.
pub(crate) fn take_over(number: c_int) -> io::Result<OwnedFd> {
    // SAFETY: both take integers and touch no memory of ours; a number without a descriptor is an error.
    let fd = unsafe {
        check(libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC))?;
        check(libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3))?
    };
    // SAFETY: the call succeeded, so it is an open descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Room for one descriptor in a control message, aligned as the macros want it.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// sendmsg(2) with SCM_RIGHTS, cmsg(3).
pub(crate) fn send_descriptor(stream: BorrowedFd<'_>, bytes: &[u8], fd: BorrowedFd<'_>) -> io::Result<()> {
    let part = IoSlice::new(bytes);
    let mut control = Control([0; 64]);
    // SAFETY: all zeros are a msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = (&raw const part).cast_mut().cast();
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    let size = size_of::<c_int>() as libc::c_uint;
    // SAFETY: the macros compute; `control` has room for a head and one descriptor, which the checks of CMSG_FIRSTHDR see.
    unsafe {
        message.msg_controllen = libc::CMSG_SPACE(size) as _;
        let head = libc::CMSG_FIRSTHDR(&message);
        (*head).cmsg_level = libc::SOL_SOCKET;
        (*head).cmsg_type = libc::SCM_RIGHTS;
        (*head).cmsg_len = libc::CMSG_LEN(size) as _;
        ptr::write_unaligned(libc::CMSG_DATA(head).cast::<c_int>(), fd.as_raw_fd());
    }
    // SAFETY: `message` points to `part` and `control`, both of which live until the call is over.
    retry(|| unsafe { libc::sendmsg(stream.as_raw_fd(), &message, libc::MSG_NOSIGNAL) }).map(drop)
}

/// recvmsg(2), and the first descriptor that came along.
pub(crate) fn receive_descriptor(
    stream: BorrowedFd<'_>,
    bytes: &mut [u8],
) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut part = IoSliceMut::new(bytes);
    let mut control = Control([0; 64]);
    // SAFETY: all zeros are a msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = (&raw mut part).cast();
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    // SAFETY: the macro computes. Room for one descriptor only, so that the kernel hands over no more.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<c_int>() as libc::c_uint) } as _;
    // SAFETY: `message` points to memory that may be written and lives until the call is over.
    let length =
        retry(|| unsafe { libc::recvmsg(stream.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC) })?;
    // SAFETY: the kernel has filled in `control` as far as `msg_controllen` says, which the macro heeds. A descriptor in
    // it was just made for this process, and nothing else owns it.
    let fd = unsafe {
        let head = libc::CMSG_FIRSTHDR(&message);
        let rights = !head.is_null()
            && (*head).cmsg_level == libc::SOL_SOCKET
            && (*head).cmsg_type == libc::SCM_RIGHTS;
        rights.then(|| OwnedFd::from_raw_fd(ptr::read_unaligned(libc::CMSG_DATA(head).cast::<c_int>())))
    };
    Ok((length, fd))
}

fn signal_set(signals: &[c_int]) -> libc::sigset_t {
    // SAFETY: sigemptyset makes it a valid set, to which sigaddset adds.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in signals {
            libc::sigaddset(&mut set, *signal);
        }
        set
    }
}

/// pthread_sigmask(3) with SIG_BLOCK.
pub(crate) fn block_signals(signals: &[c_int]) -> io::Result<()> {
    mask_signals(libc::SIG_BLOCK, signals)
}

/// pthread_sigmask(3) with SIG_UNBLOCK.
pub(crate) fn unblock_signals(signals: &[c_int]) -> io::Result<()> {
    mask_signals(libc::SIG_UNBLOCK, signals)
}

fn mask_signals(how: c_int, signals: &[c_int]) -> io::Result<()> {
    let set = signal_set(signals);
    // SAFETY: `set` is a valid set; the old one is not asked for.
    match unsafe { libc::pthread_sigmask(how, &set, ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// sigwaitinfo(2) on blocked signals: which came, and whether a program sent it.
pub(crate) fn wait_for_signal(signals: &[c_int]) -> io::Result<(c_int, bool)> {
    let set = signal_set(signals);
    // SAFETY: all zeros are a siginfo_t.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: `set` is a valid set, and `info` may be written.
        match check(unsafe { libc::sigwaitinfo(&set, &mut info) }) {
            // SI_USER, SI_QUEUE and SI_TKILL are zero and below; what the kernel sends is above.
            Ok(signal) => return Ok((signal, info.si_code <= 0)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// kill(2).
pub(crate) fn kill(process: u32, signal: c_int) -> io::Result<()> {
    let process = libc::pid_t::try_from(process).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: takes integers.
    check(unsafe { libc::kill(process, signal) }).map(drop)
}

/// Raises a signal with its default meaning, after the limit of memory dumps was set to none.
pub(crate) fn end_by(signal: c_int) {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let set = signal_set(&[signal]);
    // SAFETY: `none` and `set` are valid and only read; SIG_DFL is a disposition of every signal.
    unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &none);
        libc::signal(signal, libc::SIG_DFL);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, ptr::null_mut());
        libc::raise(signal);
    }
}

/// raise(3): to the calling thread.
#[cfg(test)]
pub(crate) fn signal_own_thread(signal: c_int) -> io::Result<()> {
    // SAFETY: takes an integer.
    check(unsafe { libc::raise(signal) }).map(drop)
}
