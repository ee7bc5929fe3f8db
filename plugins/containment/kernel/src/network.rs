//! The network inside a session's namespace: loopback up, every IPv4 address delivered to it, and listeners.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::step::check;

/// Connections that may wait on a listener.
const BACKLOG: i32 = 128;

/// Brings the loopback interface up.
pub(crate) fn loopback_up() -> io::Result<()> {
    let socket = socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    // SAFETY: all zeroes is a value of this plain structure.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: a structure of the kernel's layout that outlives the call.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) })?;
    Ok(())
}

#[repr(C)]
struct RouteRequest {
    header: libc::nlmsghdr,
    route: RouteMessage,
    attribute: RouteAttribute,
    interface: u32,
}

#[repr(C)]
struct RouteMessage {
    family: u8,
    destination_length: u8,
    source_length: u8,
    tos: u8,
    table: u8,
    protocol: u8,
    scope: u8,
    kind: u8,
    flags: u32,
}

#[repr(C)]
struct RouteAttribute {
    length: u16,
    kind: u16,
}

#[repr(C)]
struct RouteAnswer {
    header: libc::nlmsghdr,
    error: i32,
    request: libc::nlmsghdr,
}

/// The `lo` of a fresh namespace.
const LOOPBACK_INDEX: u32 = 1;

/// `ip route add local default dev lo`: every IPv4 address is one of this host's own, so a connection to any of them
/// arrives at a listener made here or is refused at once.
pub(crate) fn local_default_route() -> io::Result<()> {
    let socket = socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE)?;
    let size = u32::try_from(size_of::<RouteRequest>()).unwrap_or_default();
    let request = RouteRequest {
        header: libc::nlmsghdr {
            nlmsg_len: size,
            nlmsg_type: libc::RTM_NEWROUTE,
            nlmsg_flags: (libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_REPLACE) as u16,
            nlmsg_seq: 1,
            nlmsg_pid: 0,
        },
        route: RouteMessage {
            family: libc::AF_INET as u8,
            destination_length: 0,
            source_length: 0,
            tos: 0,
            table: libc::RT_TABLE_LOCAL,
            protocol: libc::RTPROT_BOOT,
            scope: libc::RT_SCOPE_HOST,
            kind: libc::RTN_LOCAL,
            flags: 0,
        },
        attribute: RouteAttribute { length: 8, kind: libc::RTA_OIF },
        interface: LOOPBACK_INDEX,
    };
    // SAFETY: a structure without padding that outlives the call.
    check(unsafe { libc::send(socket.as_raw_fd(), (&raw const request).cast(), size as usize, 0) } as i64)?;
    // SAFETY: all zeroes is a value of this plain structure.
    let mut answer: RouteAnswer = unsafe { std::mem::zeroed() };
    // SAFETY: as many bytes as the structure holds.
    let got =
        check(unsafe { libc::recv(socket.as_raw_fd(), (&raw mut answer).cast(), size_of::<RouteAnswer>(), 0) } as i64)?;
    if got < size_of::<RouteAnswer>() as i64 || i32::from(answer.header.nlmsg_type) != libc::NLMSG_ERROR {
        return Err(io::Error::from_raw_os_error(libc::EPROTO));
    }
    if answer.error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-answer.error)) }
}

/// A TCP listener on every address; port 0 lets the kernel choose.
pub(crate) fn tcp_listener(port: u16) -> io::Result<OwnedFd> {
    let socket = socket(libc::AF_INET, libc::SOCK_STREAM, 0)?;
    bind(&socket, port)?;
    // SAFETY: a descriptor and a number.
    check(unsafe { libc::listen(socket.as_raw_fd(), BACKLOG) })?;
    Ok(socket)
}

/// The UDP socket for name queries. Told of each packet which address it was sent to, so that the answer comes from there.
pub(crate) fn name_socket() -> io::Result<OwnedFd> {
    let socket = socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    let on: libc::c_int = 1;
    // SAFETY: an integer that outlives the call, and its size.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_PKTINFO,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    })?;
    bind(&socket, 53)?;
    Ok(socket)
}

fn bind(socket: &OwnedFd, port: u16) -> io::Result<()> {
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: libc::INADDR_ANY },
        sin_zero: [0; 8],
    };
    let size = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    // SAFETY: an address of this family, and its size.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size) })?;
    Ok(())
}

fn socket(family: i32, kind: i32, protocol: i32) -> io::Result<OwnedFd> {
    // SAFETY: plain integers.
    let fd = check(unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) })?;
    // SAFETY: the kernel has just made this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).unwrap_or(-1)) })
}
