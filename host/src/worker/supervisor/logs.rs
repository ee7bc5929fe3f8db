//! What a worker writes to its standard streams: kept in the session's logs, bounded, never on the operator's terminal.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use super::super::types::Kind;

/// Most bytes kept of one worker's output.
const MAX_KEPT: usize = 1 << 20;

/// How much of the last output is remembered for the message of a failed start.
const MAX_TAIL: usize = 512;

/// The output of one worker.
#[derive(Clone)]
pub(super) struct Logs(Arc<Mutex<Kept>>);

struct Kept {
    file: Option<File>,
    left: usize,
    tail: Vec<u8>,
}

impl Logs {
    /// Into `worker-<kind>.log` of a logs directory, or nowhere. A log that cannot be opened costs the log only.
    pub(super) fn open(dir: Option<&Path>, kind: Kind) -> Self {
        let file = dir.and_then(|dir| {
            let path = dir.join(format!("worker-{kind}.log"));
            let mut options = OpenOptions::new();
            options.create(true).append(true).mode(0o600).custom_flags(libc::O_NOFOLLOW).open(path).ok()
        });
        Self(Arc::new(Mutex::new(Kept { file, left: MAX_KEPT, tail: Vec::new() })))
    }

    /// Reads a stream to its end, keeping what fits and dropping the rest.
    pub(super) async fn follow(self, stream: OwnedFd) {
        let Ok(mut stream) = pipe::Receiver::from_owned_fd(stream) else { return };
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = stream.read(&mut buffer).await {
            self.keep(&buffer[..count]);
        }
    }

    fn keep(&self, bytes: &[u8]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let part = &bytes[..bytes.len().min(kept.left)];
        kept.left -= part.len();
        let full = kept.left == 0 && !part.is_empty();
        if let Some(file) = &mut kept.file {
            let _ = file.write_all(part);
            if full {
                let _ = file.write_all(b"\n[mur] the rest of this worker's output is dropped\n");
            }
        }
        if kept.tail.len() < MAX_TAIL {
            let room = MAX_TAIL - kept.tail.len();
            kept.tail.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
    }

    /// The first words of the output, on one line.
    pub(super) fn said(&self) -> Option<String> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&kept.tail);
        let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
        (!line.is_empty()).then_some(line)
    }
}
