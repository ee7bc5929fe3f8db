//! A peer's stderr, and what it prints after its readiness line, on the launcher's stderr behind `[<member>] `.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use zeroize::Zeroize as _;

use crate::diagnostics::output;

/// Longest line relayed as one; a longer one is cut into several.
const MAX_LINE: usize = 64 << 10;
/// What one read takes.
const CHUNK: usize = 8 << 10;
/// Lines kept for the report of a peer that did not come up.
const KEPT_LINES: usize = 20;

/// The last lines of a peer's stderr.
#[derive(Clone, Default, Debug)]
pub struct LastLines(Rc<RefCell<VecDeque<String>>>);

impl LastLines {
    fn push(&self, line: &str) {
        let mut lines = self.0.borrow_mut();
        if lines.len() == KEPT_LINES {
            lines.pop_front();
        }
        lines.push_back(line.to_owned());
    }

    /// The lines, oldest first.
    pub fn take(&self) -> Vec<String> {
        self.0.borrow_mut().drain(..).collect()
    }
}

/// Lines of a pipe, bounded in length. What was read is wiped once it is handed on: a readiness line carries a token.
pub struct Lines {
    pipe: pipe::Receiver,
    /// What the last read brought, and how much of it is taken.
    chunk: Vec<u8>,
    taken: usize,
    line: Vec<u8>,
}

impl Lines {
    /// Reads from the read end of a pipe.
    pub fn new(fd: OwnedFd) -> std::io::Result<Self> {
        let pipe = pipe::Receiver::from_owned_fd(fd)?;
        Ok(Self { pipe, chunk: Vec::with_capacity(CHUNK), taken: 0, line: Vec::new() })
    }

    /// The next line without its end, at most [`MAX_LINE`] bytes of it; `None` at end of file. Bytes that are no UTF-8
    /// are replaced. Safe to drop half-way: what was read is kept for the next call.
    pub async fn next(&mut self) -> Option<String> {
        loop {
            if self.taken == self.chunk.len() && !self.fill().await {
                return if self.line.is_empty() { None } else { Some(self.cut()) };
            }
            let available = &self.chunk[self.taken..];
            let room = MAX_LINE - self.line.len();
            let end = available.iter().take(room).position(|byte| *byte == b'\n');
            let taken = end.unwrap_or_else(|| available.len().min(room));
            self.line.extend_from_slice(&available[..taken]);
            self.taken += taken + usize::from(end.is_some());
            if self.taken == self.chunk.len() {
                self.chunk.zeroize();
                self.taken = 0;
            }
            if end.is_some() || self.line.len() == MAX_LINE {
                return Some(self.cut());
            }
        }
    }

    /// Reads more; false at end of file, or when the pipe cannot be read.
    async fn fill(&mut self) -> bool {
        loop {
            match self.pipe.read_buf(&mut self.chunk).await {
                Ok(count) => return count > 0,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
    }

    fn cut(&mut self) -> String {
        let line = String::from_utf8_lossy(&self.line).trim_end_matches('\r').to_owned();
        self.line.zeroize();
        line
    }
}

/// Relays every line until end of file.
pub async fn relay(member: String, mut lines: Lines, last: LastLines) {
    while let Some(line) = lines.next().await {
        last.push(&line);
        output::relayed_line(&format!("[{member}] {line}")).await;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::process::fds;

    #[test]
    fn lines_are_bounded_and_a_last_one_needs_no_end() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let (read, write) = fds::pipe().unwrap();
        let writer = std::thread::spawn(move || {
            let mut file = std::fs::File::from(write);
            file.write_all(b"one\r\n").unwrap();
            file.write_all(&vec![b'x'; MAX_LINE + 3]).unwrap();
            file.write_all(b"\n\xff").unwrap();
        });
        let lines = runtime.block_on(async {
            let mut lines = Lines::new(read).unwrap();
            let mut all = Vec::new();
            while let Some(line) = lines.next().await {
                all.push(line);
            }
            all
        });
        writer.join().unwrap();
        let lengths: Vec<usize> = lines.iter().map(String::len).collect();
        assert_eq!(lengths, [3, MAX_LINE, 3, '\u{fffd}'.len_utf8()]);
    }
}
