//! Descriptors: adopting inherited ones safely, sockets and pipes that are close-on-exec from creation, and passing
//! descriptors over a socket.

#![allow(unsafe_code)]

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg, sendmsg, socketpair,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Most descriptors one message carries; the kernel's own bound is 253.
pub const MAX_PASSED: usize = 64;

/// Takes ownership of an inherited descriptor number given in an environment variable: it must be open and above 2.
/// It is made close-on-exec at once.
pub fn adopt(number: RawFd) -> io::Result<OwnedFd> {
    if number <= 2 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: fcntl on any number is defined; a closed one answers EBADF.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above; the number is open.
    if unsafe { libc::fcntl(number, libc::F_SETFD, flags | libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the number is open, and each variable is read once by the process it was set for, so nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// A connected pair of close-on-exec stream sockets.
pub fn stream_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)?)
}

/// A close-on-exec pipe: read end, write end.
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?)
}

/// A connected pair of close-on-exec sockets that keep messages apart.
pub fn message_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?)
}

/// Waits until a descriptor or one of some others, by number, is readable or at its end: whether one of the others is.
pub fn wait_readable(own: BorrowedFd<'_>, others: &[RawFd]) -> io::Result<bool> {
    let readable = |fd: RawFd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut waits: Vec<libc::pollfd> =
        std::iter::once(own.as_raw_fd()).chain(others.iter().copied()).map(readable).collect();
    loop {
        // SAFETY: as many valid structures as are counted.
        let ready = unsafe { libc::poll(waits.as_mut_ptr(), waits.len() as libc::nfds_t, -1) };
        if ready >= 0 {
            return Ok(waits[1..].iter().any(|wait| wait.revents != 0));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Waits until a descriptor is readable or at its end. Several may wait for the same one.
pub async fn readable(fd: BorrowedFd<'_>) -> io::Result<()> {
    let copy = fd.try_clone_to_owned()?;
    // SAFETY: the copy is owned by this future, and dropped after `watched`.
    let watched = unsafe { AsyncFd::register_with_interest(copy.as_fd(), Interest::READABLE) }?;
    let _ready = watched.readable().await?;
    Ok(())
}

/// Sends one message of bytes without waiting.
pub fn send_now(socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<()> {
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    nix::sys::socket::send(socket.as_raw_fd(), bytes, flags)?;
    Ok(())
}

/// Receives one message of bytes without waiting; zero bytes mean end of file.
pub fn receive_now(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    Ok(nix::sys::socket::recv(socket.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT)?)
}

/// A descriptor whose readiness is waited for on the runtime of the caller.
pub fn on_runtime<T: Steady>(fd: T, interest: Interest) -> io::Result<AsyncFd<Held<T>>> {
    // SAFETY: the trait's promise.
    Ok(unsafe { AsyncFd::register_with_interest(Held(fd), interest) }?)
}

/// What has one descriptor for as long as it lives.
///
/// # Safety
/// `as_fd` names the same open descriptor every time.
pub unsafe trait Steady: AsFd {}

// SAFETY: it owns its descriptor and gives it up when it is dropped.
unsafe impl Steady for OwnedFd {}
// SAFETY: as above, by the last of its owners.
unsafe impl Steady for Arc<UnixStream> {}

/// What [`on_runtime`] holds.
#[derive(Debug)]
pub struct Held<T>(pub T);

impl<T: Steady> AsRawFd for Held<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// Sends bytes (at least one) and descriptors in one message. The kernel lets a user have no more descriptors under way than
/// one process may open; where others of the same user have that many, it waits for up to two seconds.
pub fn send_with_fds(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control: &[ControlMessage<'_>] = if raw.is_empty() { &[] } else { &rights };
    let mut tries = 400;
    loop {
        match sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(bytes)], control, MsgFlags::MSG_NOSIGNAL, None) {
            Err(nix::errno::Errno::ETOOMANYREFS) if tries > 0 => {
                tries -= 1;
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            sent => return Ok(sent?),
        }
    }
}

/// Receives bytes and at most [`MAX_PASSED`] descriptors, each close-on-exec. Zero bytes mean end of file.
pub fn receive_with_fds(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    receive(socket, buffer, MsgFlags::empty())
}

/// As [`receive_with_fds`], from a socket of any mode, without waiting: [`io::ErrorKind::WouldBlock`] when nothing is there.
pub fn receive_ready_with_fds(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    receive(socket, buffer, MsgFlags::MSG_DONTWAIT)
}

fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8], how: MsgFlags) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = nix::cmsg_space!([RawFd; MAX_PASSED]);
    let mut slices = [IoSliceMut::new(buffer)];
    let how = how | MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut slices, Some(&mut space), how)?;
    let mut fds = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(received) = control {
            // SAFETY: the kernel has just made these descriptors in this process; nothing else owns them.
            fds.extend(received.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    Ok((message.bytes, fds))
}
