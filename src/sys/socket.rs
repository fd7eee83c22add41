//! Listening sockets and their options, with read-back of what was granted.

#![allow(unsafe_code)]

use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// What a listener should be; accepted sockets inherit every option from it.
#[derive(Clone, Debug)]
pub struct Listen<'a> {
    /// Where; port 0 picks a free one.
    pub address: SocketAddr,
    /// Length of the accept queue (the kernel caps it at net.core.somaxconn).
    pub backlog: u32,
    /// TCP_CONGESTION, if any.
    pub congestion: Option<&'a str>,
    /// TCP_NOTSENT_LOWAT in bytes; 0 leaves the system's.
    pub notsent_lowat: u32,
    /// Several sockets share the address, one per core.
    pub reuse_port: bool,
}

/// Which step failed, for the message.
#[derive(Debug)]
pub struct ListenError {
    /// What was tried.
    pub step: &'static str,
    /// What the kernel said.
    pub error: io::Error,
}

/// Creates, binds and listens; TCP_NODELAY, TCP_NOTSENT_LOWAT and TCP_CONGESTION are inherited by accepted sockets.
pub fn listen(want: &Listen<'_>) -> Result<(OwnedFd, SocketAddr), ListenError> {
    let at = |step| move |error| ListenError { step, error };
    let socket = Socket::new(Domain::for_address(want.address), Type::STREAM, Some(Protocol::TCP))
        .map_err(at("create a socket"))?;
    socket.set_nonblocking(true).map_err(at("make the socket non-blocking"))?;
    socket.set_reuse_address(true).map_err(at("set SO_REUSEADDR"))?;
    if want.reuse_port {
        socket.set_reuse_port(true).map_err(at("set SO_REUSEPORT"))?;
    }
    if want.address.is_ipv6() {
        socket.set_only_v6(true).map_err(at("set IPV6_V6ONLY"))?;
    }
    socket.set_tcp_nodelay(true).map_err(at("set TCP_NODELAY"))?;
    if want.notsent_lowat > 0 {
        set_notsent_lowat(socket.as_raw_fd(), want.notsent_lowat).map_err(at("set TCP_NOTSENT_LOWAT"))?;
    }
    if let Some(name) = want.congestion {
        socket.set_tcp_congestion(name.as_bytes()).map_err(at("set TCP_CONGESTION"))?;
    }
    socket.bind(&SockAddr::from(want.address)).map_err(at("bind"))?;
    socket.listen(i32::try_from(want.backlog).unwrap_or(i32::MAX)).map_err(at("listen"))?;
    let bound = socket.local_addr().map_err(at("read the bound address"))?;
    let bound = bound.as_socket().unwrap_or(want.address);
    Ok((OwnedFd::from(socket), bound))
}

/// A TCP socket to connect with: non-blocking, close-on-exec, TCP_NODELAY, and TCP_CONGESTION where one is named.
pub fn stream(to: SocketAddr, congestion: Option<&str>) -> io::Result<OwnedFd> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    if let Some(name) = congestion {
        socket.set_tcp_congestion(name.as_bytes())?;
    }
    Ok(OwnedFd::from(socket))
}

/// Whether a kept connection is still good for a request: open, and silent since its last response (recv(2), MSG_PEEK).
pub fn is_quiet(socket: BorrowedFd<'_>) -> bool {
    let mut byte = 0u8;
    // SAFETY: one live byte is written at most.
    let got = unsafe { libc::recv(socket.as_raw_fd(), (&raw mut byte).cast(), 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) };
    got < 0 && io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock
}

fn set_int(fd: RawFd, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    // SAFETY: one int is read by the kernel during the call.
    let result = unsafe {
        libc::setsockopt(fd, level, option, (&raw const value).cast(), size_of::<libc::c_int>() as libc::socklen_t)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn set_notsent_lowat(fd: RawFd, bytes: u32) -> io::Result<()> {
    set_int(fd, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, bytes.min(i32::MAX as u32) as libc::c_int)
}

/// TCP_CORK: on, only full segments leave; off, what is held leaves at once.
///
/// It overrides TCP_NODELAY while it is on (tcp(7)). Errors are of no interest: without it the same bytes leave in more
/// segments.
pub fn cork(socket: BorrowedFd<'_>, on: bool) {
    let _ = set_int(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_CORK, libc::c_int::from(on));
}

/// shutdown(2) of both directions: every pending operation on the socket ends, the descriptor stays ours.
pub fn shutdown(socket: BorrowedFd<'_>) {
    // SAFETY: no memory of ours is touched; ENOTCONN is fine.
    unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RDWR) };
}

/// shutdown(2) of our sending direction: the client sees the end after the last byte.
pub fn shutdown_send(socket: BorrowedFd<'_>) {
    // SAFETY: as above.
    unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_WR) };
}

/// Makes the coming close a reset, so that unsent bytes of a stalled client are freed at once.
pub fn reset_on_close(socket: BorrowedFd<'_>) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: the struct is live for the call.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            size_of::<libc::linger>() as libc::socklen_t,
        )
    };
}

/// Whether a send would take anything now (poll(2) without waiting).
pub fn has_room(socket: BorrowedFd<'_>) -> bool {
    let mut poll = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    // SAFETY: one live pollfd, no wait.
    unsafe { libc::poll(&mut poll, 1, 0) > 0 }
}

/// accept4(2), non-blocking and close-on-exec: empties the queue of a listener about to close.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: null address pointers are allowed; the result is checked.
    let fd = unsafe {
        libc::accept4(
            listener.as_raw_fd(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC,
        )
    };
    if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(super::own(fd)) }
}

/// The peer's address (getpeername(2)); `None` once it is gone or where it is not an IP socket.
pub fn peer(socket: BorrowedFd<'_>) -> Option<SocketAddr> {
    socket2::SockRef::from(&socket).peer_addr().ok()?.as_socket()
}

/// What TCP_INFO tells of one connection (tcp(7); fields after `tcpi_total_retrans` by kernel's uapi/linux/tcp.h).
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct TcpInfo {
    /// Segments sent again, ever.
    pub retransmits: u64,
    /// Smoothed round trip, microseconds.
    pub rtt_us: u32,
    /// Congestion window in bytes.
    pub cwnd_bytes: u64,
    /// Bytes in the socket not sent yet.
    pub notsent_bytes: u32,
    /// Microseconds with data in flight.
    pub busy_us: u64,
    /// Of them, limited by the peer's window.
    pub rwnd_limited_us: u64,
    /// Of them, limited by our send buffer.
    pub sndbuf_limited_us: u64,
}

/// Reads TCP_INFO; fields an older kernel does not have are zero.
pub fn tcp_info(socket: BorrowedFd<'_>) -> io::Result<TcpInfo> {
    // Offsets of struct tcp_info, which only ever grows: libc's own ends before the newer ones.
    const SIZE: usize = 256;
    let mut bytes = [0u8; SIZE];
    let mut len = SIZE as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, all of which are ours and live for the call.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, bytes.as_mut_ptr().cast(), &raw mut len)
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let word = |at: usize| bytes[at..at + 4].try_into().map_or(0, u32::from_ne_bytes);
    let long = |at: usize| bytes[at..at + 8].try_into().map_or(0, u64::from_ne_bytes);
    Ok(TcpInfo {
        retransmits: u64::from(word(100)),
        rtt_us: word(68),
        cwnd_bytes: u64::from(word(80)) * u64::from(word(16)),
        notsent_bytes: word(144),
        busy_us: long(168),
        rwnd_limited_us: long(176),
        sndbuf_limited_us: long(184),
    })
}

fn queue_of(socket: BorrowedFd<'_>, request: libc::Ioctl) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: both requests write one int, which lives for the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), request, &raw mut bytes) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(u64::try_from(bytes).unwrap_or(0)) }
}

/// Bytes the socket holds: sent and not acknowledged, and not sent (SIOCOUTQ).
pub fn held_bytes(socket: BorrowedFd<'_>) -> io::Result<u64> {
    queue_of(socket, libc::TIOCOUTQ)
}

/// Bytes the socket holds that were not sent (SIOCOUTQNSD).
pub fn unsent_bytes(socket: BorrowedFd<'_>) -> io::Result<u64> {
    const SIOCOUTQNSD: libc::Ioctl = 0x894B;
    queue_of(socket, SIOCOUTQNSD)
}

/// Sets TCP_NOTSENT_LOWAT of a socket, in bytes.
pub fn limit_unsent(socket: BorrowedFd<'_>, bytes: u32) -> io::Result<()> {
    set_notsent_lowat(socket.as_raw_fd(), bytes)
}

/// recv(2) with MSG_TRUNC: takes up to `most` bytes out of the socket and throws them away without copying them
/// (tcp(7)); never waits.
pub fn receive_truncated(socket: BorrowedFd<'_>, most: usize) -> io::Result<usize> {
    // SAFETY: with MSG_TRUNC TCP writes nothing to the buffer, so a null one is never touched.
    let got =
        unsafe { libc::recv(socket.as_raw_fd(), std::ptr::null_mut(), most, libc::MSG_DONTWAIT | libc::MSG_TRUNC) };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}

/// What an interface takes off the CPU's hands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offloads {
    /// The card cuts segments (TSO).
    pub tso: bool,
    /// Segments are cut late (GSO).
    pub gso: bool,
    /// Segments are joined early (GRO).
    pub gro: bool,
}

/// Asks the driver of an interface (SIOCETHTOOL); EOPNOTSUPP where it has nothing to say.
pub fn offloads(device: &str) -> io::Result<Offloads> {
    // Commands of uapi/linux/ethtool.h: ETHTOOL_GTSO, ETHTOOL_GGSO, ETHTOOL_GGRO.
    const COMMANDS: [u32; 3] = [0x1e, 0x23, 0x2b];
    const SIOCETHTOOL: libc::Ioctl = 0x8946;
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    let mut on = [false; 3];
    for (command, on) in COMMANDS.into_iter().zip(&mut on) {
        // struct ethtool_value: command, data.
        let mut value = [command, 0u32];
        // SAFETY: ifreq is plain bytes; all zero is valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        if device.len() >= request.ifr_name.len() {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = value.as_mut_ptr().cast();
        // SAFETY: the kernel reads and writes the request and the two words it points to, both live for the call.
        let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        *on = value[1] != 0;
    }
    Ok(Offloads { tso: on[0], gso: on[1], gro: on[2] })
}
