//! Attempts to reach the network, names and sockets of other processes.
//!
//! An address on the Internet proves nothing on a host without a route to it. So each attempt is also made on an address of
//! the host itself, where the harness listens and answers: what arrives there has left the enclosure.

use std::ffi::CString;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::Duration;

use crate::outcome::{Outcome, all, errno, words};
use crate::plan::Plan;

const TCP_TARGET: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::new(1, 1, 1, 1), 443));
const UDP_TARGET: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::new(1, 1, 1, 1), 46053));
const DOCKER: [&str; 2] = ["/var/run/docker.sock", "/run/docker.sock"];

/// How long a host on the Internet has to answer; one that is refused answers at once.
const CONNECTED: Duration = Duration::from_secs(3);

/// How long a datagram has to arrive on the same machine.
const ARRIVED: Duration = Duration::from_millis(700);

pub(crate) fn attempt(case: &str, plan: &Plan) -> Option<Outcome> {
    Some(match case {
        "connect-unlisted-tcp-host" => tcp(plan),
        "udp-exfiltration" => udp(plan),
        "dns-exfiltration" => dns(plan),
        "abstract-unix-socket-connect" => abstract_socket(plan),
        "pathname-unix-socket-connect" => path_socket(plan),
        _ => return None,
    })
}

fn targets<'a>(plan: &'a Plan, key: &'a str) -> impl Iterator<Item = SocketAddr> + 'a {
    plan.all(key).filter_map(|text| text.parse().ok())
}

fn tcp(plan: &Plan) -> Outcome {
    // The host's own first: one that connects says all there is to say.
    let mut outcomes = Vec::new();
    for target in targets(plan, "tcp").chain([TCP_TARGET]) {
        let outcome = match TcpStream::connect_timeout(&target, CONNECTED) {
            Ok(_) => Outcome::allowed(format!("connect({target}) went through")),
            Err(error) => {
                let detail = format!("connect({target}): {}", words(&error));
                match error.raw_os_error() {
                    Some(libc::ECONNREFUSED | libc::EACCES | libc::EPERM) => Outcome::refused(detail),
                    _ => Outcome::inconclusive(detail),
                }
            }
        };
        let reached = outcome.verdict == crate::Verdict::Allowed;
        outcomes.push(outcome);
        if reached {
            break;
        }
    }
    all(outcomes).controlled("connect to its own listener", own_listener())
}

fn own_listener() -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    TcpStream::connect_timeout(&listener.local_addr()?, CONNECTED)?;
    Ok(())
}

fn udp(plan: &Plan) -> Outcome {
    let mut outcomes: Vec<Outcome> = targets(plan, "udp").map(|target| datagram(target, b"ec-exfil")).collect();
    if !outcomes.iter().any(|one| one.verdict == crate::Verdict::Allowed) {
        outcomes.push(datagram(UDP_TARGET, b"ec-exfil"));
    }
    all(outcomes).controlled("datagram to itself", own_datagram())
}

fn own_datagram() -> io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.set_read_timeout(Some(ARRIVED))?;
    socket.send_to(b"x", socket.local_addr()?)?;
    socket.recv(&mut [0; 8]).map(|_| ())
}

/// Sends a datagram and judges by where it arrives: at a receiver in this namespace, or at the harness, which answers.
/// That sending succeeded proves nothing.
fn datagram(target: SocketAddr, payload: &[u8]) -> Outcome {
    let here = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, target.port()));
    let socket = match UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)) {
        Ok(socket) => socket,
        Err(error) => return Outcome::inconclusive(format!("a UDP socket: {}", words(&error))),
    };
    if let Err(error) = socket.send_to(payload, target) {
        let detail = format!("sendto({target}): {}", words(&error));
        return match error.raw_os_error() {
            Some(libc::EACCES | libc::EPERM | libc::ECONNREFUSED) => Outcome::refused(detail),
            _ => Outcome::inconclusive(detail),
        };
    }
    if let Ok(here) = &here
        && here.set_read_timeout(Some(ARRIVED)).is_ok()
        && here.recv(&mut [0; 64]).is_ok_and(|size| size == payload.len())
    {
        return Outcome::refused(format!("sendto({target}): delivered to a receiver in the same namespace"));
    }
    let answered = socket.set_read_timeout(Some(ARRIVED)).and_then(|()| socket.recv(&mut [0; 512]));
    match answered {
        Ok(_) => Outcome::allowed(format!("sendto({target}): answered from outside")),
        Err(_) if here.is_ok() => Outcome::allowed(format!("sendto({target}): sent, and not delivered here")),
        Err(error) => Outcome::inconclusive(format!("sendto({target}): no answer: {}", words(&error))),
    }
}

fn dns(plan: &Plan) -> Outcome {
    let label = format!("ec-exfil-{}.mur-escape.invalid", std::process::id());
    // By hand, to the harness as if it were a name server: a label that arrives there has left.
    let mut outcomes: Vec<Outcome> = targets(plan, "udp").map(|target| datagram(target, &query(&label))).collect();
    if !outcomes.iter().any(|one| one.verdict == crate::Verdict::Allowed) {
        outcomes.push(resolve(&label));
    }
    all(outcomes).controlled("datagram to itself", own_datagram())
}

/// A question for an address record.
fn query(name: &str) -> Vec<u8> {
    let mut bytes = vec![0xec, 0x01, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        bytes.push(u8::try_from(label.len()).unwrap_or(63));
        bytes.extend(label.as_bytes());
    }
    bytes.extend([0, 0, 1, 0, 1]);
    bytes
}

fn resolve(name: &str) -> Outcome {
    let text = CString::new(name).unwrap_or_default();
    let mut found = std::ptr::null_mut();
    // SAFETY: a terminated name, no hints, and room for the pointer to the answer.
    let answer = unsafe { libc::getaddrinfo(text.as_ptr(), std::ptr::null(), std::ptr::null(), &raw mut found) };
    if !found.is_null() {
        // SAFETY: the list just made, which nothing refers to any more.
        unsafe { libc::freeaddrinfo(found) };
    }
    match answer {
        libc::EAI_AGAIN => Outcome::refused(format!("getaddrinfo({name}): EAI_AGAIN")),
        libc::EAI_SYSTEM => {
            Outcome::inconclusive(format!("getaddrinfo({name}): {}", words(&io::Error::last_os_error())))
        }
        0 => Outcome::allowed(format!("getaddrinfo({name}) found an address")),
        libc::EAI_NONAME | libc::EAI_NODATA => {
            Outcome::allowed(format!("getaddrinfo({name}): a name server was asked"))
        }
        other => Outcome::inconclusive(format!("getaddrinfo({name}): code {other}")),
    }
}

fn unix_socket() -> Result<OwnedFd, Outcome> {
    // SAFETY: plain numbers.
    let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if fd >= 0 {
        // SAFETY: a new descriptor that nothing else owns.
        return Ok(unsafe { OwnedFd::from_raw_fd(fd) });
    }
    let error = io::Error::last_os_error();
    let detail = format!("socket(AF_UNIX): {}", words(&error));
    Err(match error.raw_os_error() {
        Some(libc::EACCES) => Outcome::refused(detail),
        _ => Outcome::inconclusive(detail),
    })
}

fn connect(address: &[u8]) -> Outcome {
    use std::os::fd::AsRawFd;
    let socket = match unix_socket() {
        Ok(socket) => socket,
        Err(refused) => return refused,
    };
    // SAFETY: all zeroes is a value of this plain structure.
    let mut name: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    name.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, from) in name.sun_path.iter_mut().zip(address) {
        *to = from.cast_signed() as libc::c_char;
    }
    let size = std::mem::size_of::<libc::sa_family_t>() + address.len();
    // SAFETY: an open socket and an address of `size` bytes that outlives the call.
    let result =
        unsafe { libc::connect(socket.as_raw_fd(), (&raw const name).cast(), u32::try_from(size).unwrap_or(0)) };
    // The refusal has to be that of `socket`: one that exists is judged as the escape it is.
    let how = if result == 0 {
        "connected".to_owned()
    } else {
        errno(io::Error::last_os_error().raw_os_error().unwrap_or(0))
    };
    Outcome::allowed(format!("socket(AF_UNIX) was made; connect: {how}"))
}

fn abstract_socket(plan: &Plan) -> Outcome {
    let name = plan.one("abstract").unwrap_or("ec-nobody");
    let address = [b"\0", name.as_bytes()].concat();
    connect(&address).controlled("socket(AF_INET)", UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map(|_| ()))
}

fn path_socket(plan: &Plan) -> Outcome {
    let paths = plan.all("unix").chain(DOCKER).take(3);
    all(paths.map(|path| connect(&[path.as_bytes(), b"\0"].concat())))
        .controlled("socket(AF_INET)", UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map(|_| ()))
}
