//! The worker's end of the connection: frames in with their descriptors, frames out in whole.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use super::super::protocol::{Decoder, Down, Frame, Up};
use crate::process::{Pidfd, fds};

/// What one read takes at most.
const READ: usize = 64 << 10;

/// Most descriptors that were received and not yet asked for.
const MAX_HELD: usize = 2 * fds::MAX_PASSED;

/// Reads frames.
pub(super) struct Incoming {
    socket: Arc<UnixStream>,
    decoder: Decoder,
    held: VecDeque<OwnedFd>,
    buffer: Vec<u8>,
}

impl Incoming {
    pub(super) fn new(socket: OwnedFd) -> Self {
        let socket = Arc::new(UnixStream::from(socket));
        Self { socket, decoder: Decoder::default(), held: VecDeque::new(), buffer: vec![0; READ] }
    }

    /// The next frame; `None` at end of file.
    pub(super) fn next(&mut self) -> Result<Option<Down>, String> {
        loop {
            if let Some(frame) = self.buffered()? {
                return Ok(Some(frame));
            }
            if !self.fill()? {
                return Ok(None);
            }
        }
    }

    /// A frame that is here already.
    pub(super) fn buffered(&mut self) -> Result<Option<Down>, String> {
        self.decoder.next_frame().map_err(|error| format!("a frame from mur is malformed: {error}"))
    }

    /// Reads once; `false` at end of file.
    pub(super) fn fill(&mut self) -> Result<bool, String> {
        loop {
            match fds::receive_with_fds(self.socket.as_fd(), &mut self.buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return self.take(other),
            }
        }
    }

    /// Reads once what is there; `None` when nothing is.
    pub(super) fn fill_ready(&mut self) -> Result<Option<bool>, String> {
        loop {
            match fds::receive_ready_with_fds(self.socket.as_fd(), &mut self.buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                other => return self.take(other).map(Some),
            }
        }
    }

    fn take(&mut self, read: io::Result<(usize, Vec<OwnedFd>)>) -> Result<bool, String> {
        let (count, received) = read.map_err(|error| format!("the connection failed: {error}"))?;
        self.held.extend(received);
        if self.held.len() > MAX_HELD {
            return Err("more descriptors than frames speak of".to_owned());
        }
        self.decoder.push(&self.buffer[..count]);
        Ok(count > 0)
    }

    /// The descriptors a frame speaks of.
    pub(super) fn take_fds(&mut self, count: usize) -> Result<Vec<OwnedFd>, String> {
        if count > self.held.len() {
            return Err(format!("a frame speaks of {count} descriptors and {} came", self.held.len()));
        }
        Ok(self.held.drain(..count).collect())
    }

    /// The socket, for waiting.
    pub(super) fn socket(&self) -> &Arc<UnixStream> {
        &self.socket
    }

    /// The sending half. Both use the one descriptor.
    pub(super) fn outgoing(&self) -> Outgoing {
        Outgoing { socket: self.socket.clone(), turn: Arc::new(Mutex::new(())) }
    }
}

/// Sends frames; blocking, whole frames only, from any thread. A slow `mur` slows the artifact that talks.
#[derive(Clone)]
pub(super) struct Outgoing {
    socket: Arc<UnixStream>,
    turn: Arc<Mutex<()>>,
}

impl Outgoing {
    /// Sends a frame. When `mur` is gone the process ends.
    pub(super) fn send(&self, frame: &Up) {
        match frame.encode() {
            Ok(bytes) => self.send_bytes(&bytes),
            // Callers keep within the bounds; a frame that does not is a fault of ours, and half a protocol is worse
            // than none.
            Err(error) => end(&format!("a frame cannot be sent: {error}")),
        }
    }

    /// Sends the greeting, with this process's own pidfd: behind a relay `mur` has no other name for it.
    pub(super) fn greet(&self, frame: &Up) {
        let (Ok(bytes), own) = (frame.encode(), Pidfd::of_self().ok()) else { end("the greeting cannot be sent") };
        let handed: Vec<BorrowedFd<'_>> = own.iter().map(AsFd::as_fd).collect();
        match fds::send_with_fds(self.socket.as_fd(), &bytes, &handed) {
            Ok(sent) => self.send_bytes(&bytes[sent..]),
            Err(_) => end("mur is gone"),
        }
    }

    /// Sends an encoded frame.
    pub(super) fn send_bytes(&self, bytes: &[u8]) {
        if self.try_send_bytes(bytes).is_err() {
            end("mur is gone");
        }
    }

    fn try_send_bytes(&self, bytes: &[u8]) -> io::Result<()> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        (&*self.socket).write_all(bytes)
    }
}

/// Ends the worker at once, whatever its other threads do.
pub(super) fn end(why: &str) -> ! {
    crate::diagnostics::output::stderr_line(&format!("[mur __guest-worker] {why}"));
    leave()
}

/// Ends the worker at once, as asked.
pub(super) fn leave() -> ! {
    // SAFETY: `_exit` takes a status and runs no handlers, which other threads could be in the middle of.
    unsafe { libc::_exit(i32::from(super::FAILED)) }
}
