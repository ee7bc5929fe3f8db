//! Frames between an enclosure and its server of commands: a length, the bytes, descriptors beside them.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg, sendmsg, socketpair,
};

/// Most bytes of a frame: the kernel takes about 2 MiB of arguments and environment, which JSON may make longer.
const MAX_FRAME: usize = 16 << 20;
/// Descriptors beside one frame.
const MAX_PASSED: usize = 8;

/// Two ends.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)?)
}

/// Sends one frame.
pub(crate) fn send(socket: &OwnedFd, body: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let size = u32::try_from(body.len()).ok().filter(|size| *size as usize <= MAX_FRAME).ok_or(Errno::E2BIG)?;
    let bytes = [&size.to_le_bytes()[..], body].concat();
    let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let mut control: &[ControlMessage<'_>] = if raw.is_empty() { &[] } else { &rights };
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        match sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(rest)], control, MsgFlags::MSG_NOSIGNAL, None) {
            Err(Errno::EINTR) => {}
            sent => {
                rest = &rest[sent?..];
                control = &[];
            }
        }
    }
    Ok(())
}

/// Receives one frame; `None` at end of file.
pub(crate) fn receive(socket: &OwnedFd) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let mut fds = Vec::new();
    let mut head = [0; 4];
    if !fill(socket, &mut head, &mut fds)? {
        return Ok(None);
    }
    let size = u32::from_le_bytes(head) as usize;
    if size > MAX_FRAME {
        return Err(Errno::EMSGSIZE.into());
    }
    let mut body = vec![0; size];
    if size > 0 && !fill(socket, &mut body, &mut fds)? {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some((body, fds)))
}

/// Reads exactly as many bytes; `false` when there was none.
fn fill(socket: &OwnedFd, buffer: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<bool> {
    let mut read = 0;
    while read < buffer.len() {
        let mut space = nix::cmsg_space!([RawFd; MAX_PASSED]);
        let mut slices = [IoSliceMut::new(&mut buffer[read..])];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let message = match recvmsg::<()>(socket.as_raw_fd(), &mut slices, Some(&mut space), flags) {
            Err(Errno::EINTR) => continue,
            received => received?,
        };
        for control in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(received) = control {
                // SAFETY: the kernel has just made these descriptors in this process.
                fds.extend(received.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
            }
        }
        match message.bytes {
            0 if read == 0 => return Ok(false),
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => read += count,
        }
    }
    Ok(true)
}
