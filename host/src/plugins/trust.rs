//! Whether a file may be used: who can change it, and what its bytes are.
//!
//! A library is opened once, beneath its directory, without following a link; everything else (digest, header, loading)
//! uses that descriptor, so the file that was checked is the file that runs.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use mur_plugin_api::HeaderInfo;
use mur_plugin_api::elf;
use mur_plugin_api::signature::to_hex;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat};
use sha2::{Digest, Sha256};

use crate::diagnostics::{Code, Diagnostic, Result, codes};

/// Bytes hashed at a time.
const CHUNK: usize = 64 << 10;

/// A file that nobody but root and the operator can change, opened.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) path: PathBuf,
    pub(super) file: File,
    pub(super) size: u64,
    what: &'static str,
    unreadable: Code,
}

/// Opens a plugin library (`E-PLG-002`, `E-PLG-003`).
pub(super) fn open_library(path: &Path) -> Result<Opened> {
    open(path, "plugin library", codes::E_PLG_003)?.ok_or_else(|| {
        Diagnostic::new(codes::E_PLG_003, format!("plugin library {} is not there", path.display()))
            .hint("install it again, or remove its pin")
    })
}

/// Opens a lock file; `None` when there is none (`E-PLG-002`, `E-PLG-007`).
pub(super) fn open_lock(path: &Path) -> Result<Option<Opened>> {
    open(path, "plugin lock", codes::E_PLG_007)
}

/// Opens a signature; `None` when there is none (`E-PLG-002`, `E-PLG-008`).
pub(super) fn open_signature(path: &Path) -> Result<Option<Opened>> {
    open(path, "plugin signature", codes::E_PLG_008)
}

/// Opens the operator's list of publishers; `None` when there is none (`E-PLG-002`, `E-PLG-007`).
pub(super) fn open_publishers(path: &Path) -> Result<Option<Opened>> {
    open(path, "list of publishers", codes::E_PLG_007)
}

fn open(path: &Path, what: &'static str, unreadable: Code) -> Result<Option<Opened>> {
    let fault = |error: io::Error| {
        Diagnostic::new(unreadable, format!("{what} {} cannot be read: {error}", path.display()))
            .hint("it must be a plain file that you can read")
    };
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(fault(io::ErrorKind::IsADirectory.into()));
    };
    let Some(file) = open_beneath(path, dir, name).map_err(|error| match error {
        Refused::Io(error) => fault(error),
        Refused::Exposed(thing, why) => exposed(what, path, thing, &why),
    })?
    else {
        return Ok(None);
    };
    let stat = fstat(&file).map_err(|error| fault(error.into()))?;
    if SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT != SFlag::S_IFREG {
        return Err(fault(io::Error::other("it is not a plain file")));
    }
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    Ok(Some(Opened { path: path.to_owned(), file, size, what, unreadable }))
}

enum Refused {
    Io(io::Error),
    Exposed(&'static str, String),
}

impl From<nix::Error> for Refused {
    fn from(error: nix::Error) -> Self {
        Self::Io(error.into())
    }
}

fn open_beneath(path: &Path, dir: &Path, name: &OsStr) -> std::result::Result<Option<File>, Refused> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let dir = match nix::fcntl::open(dir, flags, Mode::empty()) {
        Ok(dir) => dir,
        Err(nix::Error::ENOENT | nix::Error::ENOTDIR) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    check_owner("its directory", &fstat(&dir)?)?;
    // O_NONBLOCK: a fifo in the file's place must not hold the open.
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let file = match openat(dir.as_fd(), name, flags, Mode::empty()) {
        Ok(file) => file,
        Err(nix::Error::ENOENT) => return Ok(None),
        Err(nix::Error::ELOOP) => {
            let what = format!("{} is a symbolic link; name the file itself", path.display());
            return Err(Refused::Io(io::Error::other(what)));
        }
        Err(error) => return Err(error.into()),
    };
    check_owner("it", &fstat(&file)?)?;
    Ok(Some(File::from(file)))
}

fn check_owner(thing: &'static str, stat: &FileStat) -> std::result::Result<(), Refused> {
    let me = nix::unistd::geteuid().as_raw();
    if stat.st_uid != 0 && stat.st_uid != me {
        return Err(Refused::Exposed(thing, format!("belongs to user {}", stat.st_uid)));
    }
    let mode = Mode::from_bits_truncate(stat.st_mode);
    if mode.intersects(Mode::S_IWGRP | Mode::S_IWOTH) {
        return Err(Refused::Exposed(thing, format!("has mode {:04o}", mode.bits())));
    }
    Ok(())
}

fn exposed(what: &str, path: &Path, thing: &str, why: &str) -> Diagnostic {
    Diagnostic::new(
        codes::E_PLG_002,
        format!("{what} {} is not used, because {thing} {why} and so can be changed by others", path.display()),
    )
    .hint("file and directory must belong to root or to you and be writable by nobody else (chmod go-w)")
}

impl Opened {
    /// SHA-256 of the whole file, as 64 lowercase hex digits.
    pub(super) fn digest(&self) -> Result<String> {
        let mut hasher = Sha256::new();
        let mut buffer = vec![0; CHUNK];
        let mut at = 0;
        loop {
            match self.file.read_at(&mut buffer, at) {
                Ok(0) => break,
                Ok(size) => {
                    hasher.update(&buffer[..size]);
                    at += size as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.unusable(&format!("cannot be read: {error}"))),
            }
            if at > elf::MAX_LIBRARY {
                return Err(self.unusable("is larger than any plugin"));
            }
        }
        Ok(to_hex(&hasher.finalize()))
    }

    /// What the library says it is, read from the file without running any of it (`E-PLG-003`, `E-PLG-004`).
    pub(super) fn header(&self) -> Result<HeaderInfo> {
        let info = elf::read_header(&self.file, self.size).map_err(|error| self.unusable(&error.to_string()))?;
        if !info.is_accepted() {
            return Err(self.other_interface(&info));
        }
        Ok(info)
    }

    /// Reads the whole of a small text file.
    pub(super) fn read_small(&self, limit: u64) -> Result<Vec<u8>> {
        let fault = |why: String| {
            Diagnostic::new(self.unreadable, format!("{} {} {why}", self.what, self.path.display()))
                .hint("it must be a plain file that you can read")
        };
        if self.size > limit {
            return Err(fault(format!("is larger than {limit} bytes")));
        }
        let mut bytes = vec![0; usize::try_from(self.size).unwrap_or(0)];
        self.file.read_exact_at(&mut bytes, 0).map_err(|error| fault(format!("cannot be read: {error}")))?;
        Ok(bytes)
    }

    /// `E-PLG-003` about this file.
    pub(super) fn unusable(&self, why: &str) -> Diagnostic {
        Diagnostic::new(codes::E_PLG_003, format!("plugin library {} {why}", self.path.display()))
            .hint("build or fetch the plugin again for this machine")
    }

    fn other_interface(&self, info: &HeaderInfo) -> Diagnostic {
        let HeaderInfo { kind, name, version, interface, .. } = info;
        let (from, to) = (*kind.accepted().start(), *kind.accepted().end());
        let range = if from == to { format!("{from}") } else { format!("{from} to {to}") };
        let older = *interface < from;
        Diagnostic::new(
            codes::E_PLG_004,
            format!(
                "plugin library {} ({name} {version}) speaks {kind} interface {interface}, this mur speaks {range}",
                self.path.display()
            ),
        )
        .hint(if older {
            "build the plugin with this mur's mur-plugin-api"
        } else {
            "use a newer mur, or an older build of the plugin"
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn file(dir: &Path, name: &str, bytes: &[u8], mode: u32) -> PathBuf {
        let path = dir.join(name);
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn private() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
        dir
    }

    #[test]
    fn a_library_that_others_can_change_is_refused_naming_what_and_why() {
        let dir = private();
        let good = file(dir.path(), "good.so", b"x", 0o644);
        assert!(open_library(&good).is_ok());
        let open_file = file(dir.path(), "open.so", b"x", 0o664);
        let error = open_library(&open_file).unwrap_err();
        assert_eq!(error.code(), codes::E_PLG_002);
        assert!(error.message().contains("it has mode 0664"), "{error}");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        let error = open_library(&good).unwrap_err();
        assert_eq!(error.code(), codes::E_PLG_002);
        assert!(error.message().contains("its directory has mode"), "{error}");
    }

    #[test]
    fn what_is_no_plain_file_is_refused_without_waiting() {
        let dir = private();
        let target = file(dir.path(), "t.so", b"x", 0o644);
        let link = dir.path().join("link.so");
        symlink(&target, &link).unwrap();
        let fifo = dir.path().join("fifo.so");
        nix::unistd::mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        let inner = dir.path().join("inner");
        fs::create_dir(&inner).unwrap();
        for path in [link, fifo, inner, dir.path().join("absent.so")] {
            assert_eq!(open_library(&path).unwrap_err().code(), codes::E_PLG_003, "{}", path.display());
        }
        assert!(open_lock(&dir.path().join("absent")).unwrap().is_none());
    }

    #[test]
    fn a_text_file_and_another_machines_library_are_told_apart_in_one_line() {
        let dir = private();
        let text = file(dir.path(), "text.so", b"#!/bin/sh\necho hello\n", 0o644);
        let mut arm = fs::read("/proc/self/exe").unwrap();
        arm[18] = 8;
        let arm = file(dir.path(), "arm.so", &arm[..4096], 0o644);
        for (path, what) in [(text, "is not a shared library"), (arm, "another machine")] {
            let error = open_library(&path).unwrap().header().unwrap_err();
            assert_eq!(error.code(), codes::E_PLG_003);
            assert!(error.message().contains(what) && error.message().lines().count() == 1, "{error}");
            assert!(error.message().contains(&path.display().to_string()));
        }
    }

    #[test]
    fn the_digest_is_that_of_the_whole_file() {
        let dir = private();
        let path = file(dir.path(), "x", &vec![b'a'; CHUNK * 2 + 7], 0o600);
        let expected = Sha256::digest(vec![b'a'; CHUNK * 2 + 7]);
        let expected: String = expected.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(open_library(&path).unwrap().digest().unwrap(), expected);
    }
}
