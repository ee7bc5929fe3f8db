//! Lifelines: a pipe on which nothing is ever written. The reader sees end of file when the holder of the write end
//! closes it or dies by any means.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::stat::{SFlag, fstat};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::fds;

/// The write end, held by the one process whose end is to be noticed. Dropping it closes the lifeline.
#[derive(Debug)]
pub struct LifelineHolder(#[expect(dead_code, reason = "held for its closing")] OwnedFd);

/// The read end.
#[derive(Debug)]
pub struct Lifeline(OwnedFd);

/// A new lifeline: what the child is handed, and what the parent holds.
pub fn pair() -> io::Result<(OwnedFd, LifelineHolder)> {
    let (read, write) = fds::pipe()?;
    Ok((read, LifelineHolder(write)))
}

impl Lifeline {
    /// Adopts the descriptor an environment variable names. Anything but the open read end of a pipe is refused with
    /// the reason in words.
    pub fn adopt(number: &str) -> Result<Self, String> {
        let number: RawFd = number.parse().map_err(|_| "its value is not a descriptor number".to_owned())?;
        let fd = fds::adopt(number).map_err(|_| format!("descriptor {number} is not open"))?;
        Self::new(fd)
    }

    /// Takes the read end of a pipe.
    pub fn new(fd: OwnedFd) -> Result<Self, String> {
        let mode = fstat(&fd).map_err(|error| error.desc().to_owned())?.st_mode;
        if SFlag::from_bits_truncate(mode) & SFlag::S_IFMT != SFlag::S_IFIFO {
            return Err("it is not a pipe".to_owned());
        }
        let flags = fcntl(&fd, FcntlArg::F_GETFL).map_err(|error| error.desc().to_owned())?;
        if OFlag::from_bits_truncate(flags) & OFlag::O_ACCMODE != OFlag::O_RDONLY {
            return Err("it is not the read end of a pipe".to_owned());
        }
        // Non-blocking belongs to the open description, which only this process reads.
        fcntl(&fd, FcntlArg::F_SETFL(OFlag::from_bits_truncate(flags) | OFlag::O_NONBLOCK))
            .map_err(|error| error.desc().to_owned())?;
        Ok(Self(fd))
    }

    /// Waits for end of file. Bytes on the pipe and interrupted reads are no end.
    pub async fn closed(&self) -> io::Result<()> {
        // SAFETY: the descriptor is owned by `self`, which this future borrows, so it stays open until `watched` is gone.
        let watched = unsafe { AsyncFd::register_with_interest(self.0.as_fd(), Interest::READABLE) }?;
        loop {
            let mut ready = watched.readable().await?;
            match self.read_once() {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether end of file has been reached, without waiting.
    pub fn is_closed(&self) -> bool {
        loop {
            match self.read_once() {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
    }

    fn read_once(&self) -> io::Result<usize> {
        let mut sink = [0_u8; 256];
        Ok(nix::unistd::read(self.0.as_fd(), &mut sink)?)
    }
}
