//! Opening a file that something else may have put there: a pipe or device in its place is refused, never waited for.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a regular file to read. Links are followed; anything but a regular file at their end is an error.
pub fn open(path: &Path) -> io::Result<File> {
    open_with(path, OpenOptions::new().read(true), 0)
}

/// Opens a regular file with options and flags of one's own.
pub fn open_with(path: &Path, options: &mut OpenOptions, flags: i32) -> io::Result<File> {
    // Opening a pipe would otherwise wait for its other end.
    let file = options.custom_flags(flags | libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a regular file")) }
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::Mode;

    use super::*;

    #[test]
    fn only_a_regular_file_is_opened_and_none_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("file"), "x").unwrap();
        std::os::unix::fs::symlink(at("file"), at("link")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", at("zero")).unwrap();
        nix::unistd::mkfifo(&at("pipe"), Mode::S_IRUSR).unwrap();
        assert!(open(&at("file")).is_ok() && open(&at("link")).is_ok());
        for name in ["zero", "pipe", "."] {
            let fault = open(&at(name)).unwrap_err();
            assert_eq!(fault.to_string(), "it is not a regular file", "{name}");
        }
        assert_eq!(open(&at("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
