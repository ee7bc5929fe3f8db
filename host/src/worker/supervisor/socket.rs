//! `mur`'s end of a worker's connection: whole reads and writes with descriptors, on the runtime.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::super::protocol::Decoder;
use crate::process::fds::{self, Held};

/// What one read takes at most.
const READ: usize = 64 << 10;

/// A connected stream socket.
pub(super) struct Socket {
    /// Waited on for reading alone: otherwise the kernel would wake the session for every frame a worker takes, in the
    /// middle of the call it is waiting for.
    fd: AsyncFd<Held<OwnedFd>>,
}

impl Socket {
    /// Takes a socket over. Needs a runtime.
    pub(super) fn new(fd: OwnedFd) -> io::Result<Self> {
        let flags = OFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFL)?);
        fcntl(&fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        Ok(Self { fd: fds::on_runtime(fd, Interest::READABLE)? })
    }

    /// Room for one read, to be used for many.
    pub(super) fn buffer() -> Box<[u8]> {
        vec![0; READ].into()
    }

    /// Reads once; zero is end of file. What a worker hands over is given with it.
    pub(super) async fn receive(&self, buffer: &mut [u8], decoder: &mut Decoder) -> io::Result<(usize, Vec<OwnedFd>)> {
        let (count, handed) = loop {
            let mut ready = self.fd.readable().await?;
            let received = ready.try_io(|fd| match fds::receive_with_fds(fd.get_ref().0.as_fd(), buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(io::ErrorKind::WouldBlock.into()),
                // The worker died with frames of ours unread: the same end as any other.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok((0, Vec::new())),
                other => other,
            });
            if let Ok(received) = received {
                break received?;
            }
        };
        decoder.push(&buffer[..count]);
        Ok((count, handed))
    }

    /// Writes a whole frame, with its descriptors on the first byte.
    pub(super) async fn send(&self, bytes: &[u8], handed: &[OwnedFd]) -> io::Result<()> {
        let mut rest = bytes;
        let mut borrowed: Vec<BorrowedFd<'_>> = handed.iter().map(AsFd::as_fd).collect();
        while !rest.is_empty() {
            match fds::send_with_fds(self.fd.get_ref().0.as_fd(), rest, &borrowed) {
                Ok(sent) => {
                    rest = &rest[sent..];
                    borrowed.clear();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable().await?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits for room: rare, so another descriptor is made for it.
    async fn writable(&self) -> io::Result<()> {
        let copy = fds::on_runtime(self.fd.get_ref().0.try_clone()?, Interest::WRITABLE)?;
        copy.writable().await?.retain_ready();
        Ok(())
    }
}
