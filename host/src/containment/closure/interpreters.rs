//! Interpreters, asked where they import from.

use std::ffi::OsString;
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use super::libraries::Object;
use crate::process::{Child, Exit, Spawn, Stream};

/// How long an interpreter may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Most bytes of an answer.
const MAX_ANSWER: usize = 256 << 10;

/// A kind of interpreter: the dynamic symbol it is known by, and what it is run with. `-I -S` and `-f` keep it from
/// reading anything of a user's or a site's.
struct Kind {
    symbol: &'static str,
    arguments: &'static [&'static str],
}

const KINDS: [Kind; 2] = [
    Kind {
        symbol: "Py_BytesMain",
        arguments: &[
            "-I",
            "-S",
            "-c",
            "import os, site, sys\nsys.stdout.buffer.write(b'\\0'.join(map(os.fsencode, sys.path + \
             site.getsitepackages())))",
        ],
    },
    Kind { symbol: "perl_parse", arguments: &["-f", "-e", "print join(\"\\0\", @INC)"] },
];

/// The places a program imports from, as it says; `None` when it is no interpreter that is known.
pub(super) fn import_path(program: &Path) -> Option<Result<Vec<PathBuf>, String>> {
    let object = Object::open(program)?;
    let kind = KINDS.iter().find(|kind| object.has_symbol(kind.symbol))?;
    Some(ask(program, kind.arguments, PATIENCE))
}

fn ask(program: &Path, arguments: &[&str], patience: Duration) -> Result<Vec<PathBuf>, String> {
    let child = Spawn::program(program)
        .args(arguments)
        .cwd("/")
        .stdio(Stream::Null, Stream::Pipe, Stream::Null)
        .own_group()
        .spawn()
        .map_err(|error| format!("it does not start: {error}"))?;
    let answer = read(&child, Instant::now() + patience);
    if answer.is_err() {
        let _ = child.pidfd.signal_group(Signal::SIGKILL);
    }
    let exit = child.pidfd.reap().map_err(|error| error.to_string())?;
    let answer = answer.map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => format!("no answer in {} s", patience.as_secs()),
        _ => error.to_string(),
    })?;
    if exit != Exit::Status(0) {
        return Err(format!("it ended with {exit}"));
    }
    let places = answer.split(|byte| *byte == 0).map(|place| PathBuf::from(OsString::from_vec(place.to_vec())));
    Ok(places.filter(|place| place.is_absolute()).collect())
}

/// What a child prints until it ends or closes its output.
fn read(child: &Child, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut stdout = std::fs::File::from(child.stdout.as_ref().ok_or(io::ErrorKind::BrokenPipe)?.try_clone()?);
    let (mut answer, mut buffer) = (Vec::new(), [0; 8192]);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let wait = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(stdout.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, wait) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => {}
            Err(nix::errno::Errno::EINTR) => continue,
            Err(error) => return Err(error.into()),
        }
        match stdout.read(&mut buffer)? {
            0 => break,
            length => answer.extend_from_slice(&buffer[..length]),
        }
        if answer.len() > MAX_ANSWER {
            return Err(io::Error::other("its answer has no end"));
        }
    }
    // Its output is closed; its end is waited for no longer than its answer was.
    let left = deadline.saturating_duration_since(Instant::now());
    let mut fds = [PollFd::new(child.pidfd.as_fd(), PollFlags::POLLIN)];
    match poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX))? {
        0 => Err(io::ErrorKind::TimedOut.into()),
        _ => Ok(answer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, patience: Duration) -> Result<Vec<PathBuf>, String> {
        ask(Path::new("/bin/sh"), &["-c", script], patience)
    }

    #[test]
    fn only_absolute_places_of_an_answer_count() {
        let answer = sh("printf '/a\\0\\0.\\0/b c'", PATIENCE).unwrap();
        assert_eq!(answer, ["/a", "/b c"].map(PathBuf::from));
    }

    #[test]
    fn an_interpreter_that_fails_hangs_or_babbles_grants_nothing() {
        assert_eq!(sh("printf /a; exit 3", PATIENCE).unwrap_err(), "it ended with status 3");
        let short = Duration::from_millis(50);
        assert!(sh("exec sleep 600", short).unwrap_err().contains("no answer"));
        assert!(sh("printf /a; exec >&-; exec sleep 600", short).unwrap_err().contains("no answer"));
        assert!(sh("exec cat /dev/zero", PATIENCE).unwrap_err().contains("no end"));
        let none = ask(Path::new("/no/such"), &[], PATIENCE).unwrap_err();
        assert!(none.contains("does not start"), "{none}");
    }

    #[test]
    fn its_environment_is_empty_and_it_stands_at_the_root() {
        let answer = sh("printf \"$(pwd)x\\0/$(env | grep -cv -e ^PWD= -e ^_= -e ^SHLVL= -e ^OLDPWD=)\"", PATIENCE);
        assert_eq!(answer.unwrap(), ["/x", "/0"].map(PathBuf::from));
    }

    #[test]
    fn what_is_no_interpreter_is_not_run() {
        assert!(import_path(Path::new("/bin/sh")).is_none());
        assert!(import_path(Path::new("/etc/passwd")).is_none());
    }
}
