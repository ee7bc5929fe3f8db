//! The write end of a member's formation channel: the first line before the member starts, the door URLs later.
//!
//! A line may be longer than a pipe holds. The pipe is enlarged where the kernel allows; what does not fit is written
//! by a task of the launcher's loop, so that no member can block the launcher.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use zeroize::Zeroizing;

use crate::process::fds;

/// A line of the channel; it carries tokens, so it wipes itself.
pub type Line = Zeroizing<Vec<u8>>;

/// What the launcher keeps of a member's channel until the last line is written.
pub struct Writer {
    pipe: OwnedFd,
    /// What did not fit into the pipe at once.
    rest: Line,
}

/// Makes a channel that already holds `line`, as far as the pipe takes it.
pub fn open(line: Line) -> io::Result<(OwnedFd, Writer)> {
    let (read, write) = fds::pipe()?;
    if let Ok(length) = i32::try_from(line.len()) {
        // Refused past the user's limit: then the rest waits in the launcher.
        let _ = fcntl(&write, FcntlArg::F_SETPIPE_SZ(length));
    }
    fcntl(&write, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    let mut writer = Writer { pipe: write, rest: Zeroizing::new(Vec::new()) };
    writer.push(&line)?;
    Ok((read, writer))
}

impl Writer {
    /// Adds a line, writing at once what fits. A member that has gone reads nothing more; that is no error here.
    pub fn push(&mut self, line: &[u8]) -> io::Result<()> {
        let mut left = line;
        while self.rest.is_empty() && !left.is_empty() {
            match nix::unistd::write(self.pipe.as_fd(), left) {
                Ok(count) => left = &left[count..],
                Err(nix::Error::EAGAIN) => break,
                Err(nix::Error::EINTR) => {}
                Err(nix::Error::EPIPE) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        self.rest.extend_from_slice(left);
        Ok(())
    }

    /// Writes what is left, then closes the channel. At once when nothing is left.
    pub fn finish(self) {
        if self.rest.is_empty() {
            return;
        }
        tokio::task::spawn_local(async move {
            if let Ok(mut pipe) = pipe::Sender::from_owned_fd(self.pipe) {
                let _ = pipe.write_all(&self.rest).await;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_line_longer_than_a_pipe_arrives_whole() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let long = vec![b'x'; 3 << 20];
        let (read, mut writer) = open(Zeroizing::new(long.clone())).unwrap();
        writer.push(b"\nsecond\n").unwrap();
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            std::fs::File::from(read).read_to_end(&mut all).unwrap();
            all
        });
        tokio::task::LocalSet::new().block_on(&runtime, async {
            writer.finish();
            while !reader.is_finished() {
                tokio::task::yield_now().await;
            }
        });
        let all = reader.join().unwrap();
        assert_eq!(all.len(), long.len() + 8);
        assert!(all.ends_with(b"\nsecond\n"));
    }
}
