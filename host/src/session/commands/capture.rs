//! What a command writes: the first bytes of each stream in memory, and all of it in a file once there is more, or once
//! the command goes to the background.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::trace::unix_ms;

/// Bytes of each stream that a result shows, and the last bytes of a background command's output.
pub const SHOWN: usize = 16384;

/// Most bytes kept of one command's output in a file, a quarter of what a session's files may hold together: no command
/// leaves the others nothing. What comes after is dropped, and the file and the result say so.
const LOG_MAX: u64 = 256 << 20;

/// Most bytes in the files of a session's commands together.
const LOGS_MAX: u64 = 1 << 30;

/// Where the files of a session's commands lie, and what is left of the bytes they may hold.
#[derive(Debug)]
pub struct Logs {
    dir: PathBuf,
    left: AtomicU64,
    /// Of one command.
    most: u64,
}

impl Logs {
    /// In that folder.
    pub fn new(dir: PathBuf) -> Self {
        Self { dir, left: LOGS_MAX.into(), most: LOG_MAX }
    }

    /// Takes at most so many bytes of what is left.
    fn take(&self, wanted: u64) -> u64 {
        let taking = |left: u64| Some(left.saturating_sub(wanted));
        let left = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taking).unwrap_or_default();
        left.min(wanted)
    }
}

/// Which stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// The output of one command, while it grows.
pub struct Capture {
    /// Bytes of each stream that are kept in memory.
    most: usize,
    /// Where files are made; `None` keeps nothing beyond `most`.
    logs: Option<Arc<Logs>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    out: Part,
    err: Part,
    /// Everything in the order it came, until there is a file for it.
    arrived: Vec<u8>,
    log: Option<Log>,
    /// A file that was needed and could not be had.
    refused: bool,
}

#[derive(Default)]
struct Part {
    head: Vec<u8>,
    total: u64,
}

struct Log {
    path: PathBuf,
    file: File,
    bytes: u64,
    /// There was more than it may hold.
    cut: bool,
}

/// The output as a result shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// The beginning of standard output.
    pub stdout: Vec<u8>,
    /// The beginning of standard error.
    pub stderr: Vec<u8>,
    /// Bytes of standard output.
    pub stdout_bytes: u64,
    /// Bytes of standard error.
    pub stderr_bytes: u64,
    /// The file with all of it, where there is one.
    pub log: Option<PathBuf>,
    /// Whether that file lacks the end.
    pub log_cut: bool,
}

impl Shown {
    /// Whether a stream is longer than what is shown of it.
    pub fn truncated(&self) -> bool {
        self.stdout_bytes > self.stdout.len() as u64 || self.stderr_bytes > self.stderr.len() as u64
    }
}

impl Capture {
    /// Keeps `most` bytes of each stream in memory, and everything in a file of `logs` when a stream is longer.
    pub fn new(most: usize, logs: Option<Arc<Logs>>) -> Self {
        Self { most, logs, state: Mutex::default() }
    }

    /// Takes what came.
    pub fn push(&self, stream: Stream, bytes: &[u8]) {
        let mut state = self.lock();
        let most = self.most;
        let part = if stream == Stream::Out { &mut state.out } else { &mut state.err };
        let room = most.saturating_sub(part.head.len());
        part.head.extend_from_slice(&bytes[..bytes.len().min(room)]);
        part.total = part.total.saturating_add(bytes.len() as u64);
        let spills = part.total > most as u64;
        if let (Some(log), Some(logs)) = (&mut state.log, &self.logs) {
            log.write(bytes, logs);
        } else if !state.refused && self.logs.is_some() {
            state.arrived.extend_from_slice(bytes);
            if spills {
                self.open(&mut state, None);
            }
        }
    }

    /// From here on everything goes to the file of that name, what came so far included. `None` where it cannot be made.
    pub fn keep_as(&self, name: &str) -> Option<PathBuf> {
        let mut state = self.lock();
        let path = self.logs.as_ref()?.dir.join(name);
        match &mut state.log {
            Some(log) => {
                if fs::rename(&log.path, &path).is_ok() {
                    log.path.clone_from(&path);
                }
            }
            None => self.open(&mut state, Some(&path)),
        }
        state.log.as_ref().map(|log| log.path.clone())
    }

    /// What there is now.
    pub fn shown(&self) -> Shown {
        let state = self.lock();
        Shown {
            stdout: state.out.head.clone(),
            stderr: state.err.head.clone(),
            stdout_bytes: state.out.total,
            stderr_bytes: state.err.total,
            log: state.log.as_ref().map(|log| log.path.clone()),
            log_cut: state.log.as_ref().is_some_and(|log| log.cut),
        }
    }

    /// Bytes of both streams together.
    pub fn total(&self) -> u64 {
        let state = self.lock();
        state.out.total.saturating_add(state.err.total)
    }

    fn open(&self, state: &mut State, path: Option<&Path>) {
        let Some(logs) = &self.logs else { return };
        let opened = match path {
            Some(path) => create(path).map(|file| (path.to_owned(), file)),
            None => create_unnamed(&logs.dir),
        };
        let arrived = std::mem::take(&mut state.arrived);
        match opened {
            Ok((path, file)) => {
                let mut log = Log { path, file, bytes: 0, cut: false };
                log.write(&arrived, logs);
                state.log = Some(log);
            }
            // The result says that it is cut, and names no file.
            Err(_) => state.refused = true,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Log {
    /// A write that fails (a full disk, say) loses output, never the command.
    fn write(&mut self, bytes: &[u8], logs: &Logs) {
        if self.cut {
            return;
        }
        let room = logs.most.saturating_sub(self.bytes).min(bytes.len() as u64);
        let kept = logs.take(room);
        self.bytes += kept;
        let _ = self.file.write_all(&bytes[..usize::try_from(kept).unwrap_or(bytes.len())]);
        if kept < bytes.len() as u64 {
            self.cut = true;
            let why = if room < bytes.len() as u64 {
                "a command's file is"
            } else {
                "the files of the session's commands are"
            };
            let _ =
                write!(self.file, "\n[capsule-runtime] {why} full; what this command wrote after this was not kept\n");
        }
    }
}

/// `shell-<ms>.log`; two commands of one millisecond get one each.
fn create_unnamed(logs: &Path) -> io::Result<(PathBuf, File)> {
    let now = unix_ms();
    let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
    for ms in now..now.saturating_add(1000) {
        let path = logs.join(format!("shell-{ms}.log"));
        match create(&path) {
            Ok(file) => return Ok((path, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// The end of a file: its last [`SHOWN`] bytes, and how long it is.
pub fn tail(path: &Path) -> io::Result<(Vec<u8>, u64)> {
    let mut file = crate::paths::regular::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(SHOWN as u64)))?;
    let mut bytes = Vec::new();
    // It may grow meanwhile.
    file.take(SHOWN as u64).read_to_end(&mut bytes)?;
    Ok((bytes, length))
}

/// Bytes as text. A character that was cut at the end is left out.
pub fn text(bytes: &[u8]) -> String {
    let whole = match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => &bytes[..error.valid_up_to()],
        _ => bytes,
    };
    String::from_utf8_lossy(whole).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logs() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_owned();
        (dir, path)
    }

    fn kept_in(dir: &Path) -> Option<Arc<Logs>> {
        Some(Arc::new(Logs::new(dir.to_owned())))
    }

    #[test]
    fn files_are_cut_at_what_one_may_hold_and_at_what_all_may_hold_and_say_so() {
        let (_dir, logs) = logs();
        let bound = Arc::new(Logs { dir: logs, left: 250.into(), most: 100 });
        let mut sizes = Vec::new();
        for _ in 0..4 {
            let capture = Capture::new(10, Some(Arc::clone(&bound)));
            for _ in 0..3 {
                capture.push(Stream::Out, &[b'x'; 60]);
            }
            let shown = capture.shown();
            assert!(shown.log_cut && shown.stdout_bytes == 180, "{shown:?}");
            let text = fs::read_to_string(shown.log.unwrap()).unwrap();
            let (kept, said) = text.split_once("\n[capsule-runtime] ").unwrap();
            sizes.push((kept.len(), said.split_once(" full;").unwrap().0.to_owned()));
        }
        let (one, all) = ("a command's file is", "the files of the session's commands are");
        assert_eq!(sizes, [(100, one.into()), (100, one.into()), (50, all.into()), (0, all.to_owned())]);
    }

    #[test]
    fn a_short_output_makes_no_file_and_one_byte_too_many_makes_one_with_everything() {
        let (_dir, logs) = logs();
        let capture = Capture::new(SHOWN, kept_in(&logs));
        capture.push(Stream::Err, b"warned ");
        capture.push(Stream::Out, &[b'x'; SHOWN]);
        let shown = capture.shown();
        assert!(!shown.truncated() && shown.log.is_none());
        assert_eq!(fs::read_dir(&logs).unwrap().count(), 0);
        capture.push(Stream::Out, b"yz");
        let shown = capture.shown();
        assert_eq!((shown.stdout.len(), shown.stdout_bytes, shown.truncated()), (SHOWN, SHOWN as u64 + 2, true));
        let whole = fs::read(shown.log.unwrap()).unwrap();
        assert_eq!(whole.len(), SHOWN + 9);
        assert!(whole.starts_with(b"warned xx") && whole.ends_with(b"yz"), "in the order it came");
    }

    #[test]
    fn a_command_that_goes_to_the_background_has_one_file_under_its_own_name() {
        let (_dir, logs) = logs();
        for before in [3, SHOWN + 1] {
            let capture = Capture::new(SHOWN, kept_in(&logs));
            capture.push(Stream::Out, &vec![b'a'; before]);
            let path = capture.keep_as(&format!("wrk_{before}.log")).unwrap();
            capture.push(Stream::Err, b"end");
            let (tail, length) = tail(&path).unwrap();
            assert_eq!(length as usize, before + 3);
            assert!(tail.len() <= SHOWN && tail.ends_with(b"aend"));
        }
        assert_eq!(fs::read_dir(&logs).unwrap().count(), 2);
    }

    #[test]
    fn a_file_that_cannot_be_made_costs_the_rest_and_nothing_else() {
        let capture = Capture::new(4, kept_in(Path::new("/proc/none")));
        capture.push(Stream::Out, b"123456");
        capture.push(Stream::Out, b"7");
        let shown = capture.shown();
        assert_eq!((shown.stdout.as_slice(), shown.stdout_bytes, shown.log), (&b"1234"[..], 7, None));
        assert!(capture.keep_as("x").is_none());
    }

    #[test]
    fn a_character_cut_in_two_is_left_out_and_other_bytes_are_replaced() {
        assert_eq!(text("aé".as_bytes()), "aé");
        assert_eq!(text(&"aé".as_bytes()[..2]), "a");
        assert_eq!(text(b"a\xffb"), "a\u{fffd}b");
    }
}
