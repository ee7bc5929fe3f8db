//! The machine's initial file system: a userland of packages, the built `mur` and the test programs, as a cpio archive of
//! the `newc` form, which the kernel unpacks.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::Built;
use crate::Outcome;

/// What goes into it.
pub struct Content<'a> {
    /// A tree of unpacked packages.
    pub userland: &'a Path,
    /// An installed form of `mur`; `/mur/dist` in the machine.
    pub dist: &'a Path,
    /// The same with the probe of the escape-conformance harness; `/mur/probe` in the machine.
    pub probe: Option<&'a Path>,
    /// Programs of the suites; `/mur/tests` in the machine.
    pub tests: &'a [Built],
    /// What the harness grades there.
    pub classes: &'a [&'static str],
    /// Its cases, where it is not to run all of them.
    pub cases: &'a [String],
}

/// Of no use to a machine that runs tests for a few minutes.
const LEFT_OUT: [&str; 8] = [
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
    "usr/share/i18n",
    "usr/share/zoneinfo",
    "usr/share/perl5",
    ".whole",
];

/// The machine's own files: path, mode, text.
const OWN: [(&str, u32, &str); 13] = [
    ("init", 0o755, include_str!("guest/init.sh")),
    ("mur/root.sh", 0o755, include_str!("guest/root.sh")),
    ("mur/user.sh", 0o755, include_str!("guest/user.sh")),
    ("mur/murmur.yaml", 0o644, include_str!("guest/murmur.yaml")),
    // A machine with an id is no machine that boots for the first time, which would ask questions.
    ("etc/machine-id", 0o644, "0123456789abcdef0123456789abcdef\n"),
    // What the harness leaks into `mur`.
    ("etc/hostname", 0o644, "machine\n"),
    ("etc/pam.d/other", 0o644, include_str!("guest/pam/other")),
    ("etc/pam.d/systemd-user", 0o644, include_str!("guest/pam/systemd-user")),
    ("etc/passwd", 0o644, include_str!("guest/passwd")),
    ("etc/group", 0o644, include_str!("guest/group")),
    ("etc/systemd/system/suites.target", 0o644, include_str!("guest/suites.target")),
    ("etc/systemd/system/suites.service", 0o644, include_str!("guest/suites.service")),
    ("var/lib/systemd/linger/operator", 0o644, ""),
];

/// Writes the archive.
pub fn write(path: &Path, content: &Content<'_>) -> Outcome {
    let say = |fault: std::io::Error| format!("{}: {fault}", path.display());
    let file = fs::File::create(path).map_err(say)?;
    let mut archive = Archive { to: BufWriter::new(file), count: 0, made: BTreeSet::new() };
    let whole = archive.fill(content).and_then(|()| archive.end());
    whole.map_err(say)
}

struct Archive<W> {
    to: W,
    count: u32,
    made: BTreeSet<String>,
}

impl<W: Write> Archive<W> {
    fn fill(&mut self, content: &Content<'_>) -> std::io::Result<()> {
        // What is there first wins, so ours comes before the packages'.
        for (name, mode, text) in OWN {
            self.folders(name)?;
            self.entry(name, libc::S_IFREG | mode, text.as_bytes())?;
        }
        self.entry("mur/classes", libc::S_IFREG | 0o644, (content.classes.join("\n") + "\n").as_bytes())?;
        let only: String = content.cases.iter().map(|case| format!("--only {case}\n")).collect();
        self.entry("mur/cases", libc::S_IFREG | 0o644, only.as_bytes())?;
        for test in content.tests {
            let name = format!("mur/tests/{}", test.name);
            self.folders(&name)?;
            self.entry(&name, libc::S_IFREG | 0o755, &fs::read(&test.path)?)?;
        }
        self.folders("mur/dist/x")?;
        self.tree(content.dist, "mur/dist/")?;
        if let Some(probe) = content.probe {
            self.folders("mur/probe/x")?;
            self.tree(probe, "mur/probe/")?;
        }
        self.tree(content.userland, "")
    }

    /// Everything below a folder.
    fn tree(&mut self, folder: &Path, prefix: &str) -> std::io::Result<()> {
        let mut entries: Vec<_> = fs::read_dir(folder)?.collect::<std::io::Result<_>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            if LEFT_OUT.contains(&name.as_str()) {
                continue;
            }
            let meta = entry.metadata()?;
            let kind = meta.file_type();
            let fresh = !self.made.contains(&name);
            if kind.is_dir() {
                if fresh {
                    self.entry(&name, meta.mode(), b"")?;
                }
                self.tree(&entry.path(), &format!("{name}/"))?;
            } else if fresh && kind.is_symlink() {
                let target = fs::read_link(entry.path())?;
                self.entry(&name, meta.mode(), target.as_os_str().as_encoded_bytes())?;
            } else if fresh && kind.is_file() {
                self.entry(&name, meta.mode(), &fs::read(entry.path())?)?;
            }
        }
        Ok(())
    }

    /// The folders above a path.
    fn folders(&mut self, path: &str) -> std::io::Result<()> {
        for (at, _) in path.match_indices('/') {
            let folder = &path[..at];
            if !self.made.contains(folder) {
                self.entry(folder, libc::S_IFDIR | 0o755, b"")?;
            }
        }
        Ok(())
    }

    /// One entry, root's.
    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) -> std::io::Result<()> {
        self.made.insert(name.to_owned());
        self.count += 1;
        self.record(name, mode, content)
    }

    fn record(&mut self, name: &str, mode: u32, content: &[u8]) -> std::io::Result<()> {
        let size = u32::try_from(content.len()).map_err(|_| std::io::Error::from_raw_os_error(libc::EFBIG))?;
        let links = if mode & libc::S_IFMT == libc::S_IFDIR { 2 } else { 1 };
        let length =
            u32::try_from(name.len() + 1).map_err(|_| std::io::Error::from_raw_os_error(libc::ENAMETOOLONG))?;
        // inode, mode, uid, gid, links, time, size, device twice, device of a node twice, length of the name, checksum
        let fields = [self.count, mode, 0, 0, links, 0, size, 0, 0, 0, 0, length, 0];
        let mut head = "070701".to_owned();
        for field in fields {
            use std::fmt::Write as _;
            let _ = write!(head, "{field:08x}");
        }
        self.to.write_all(head.as_bytes())?;
        self.to.write_all(name.as_bytes())?;
        self.pad(head.len() + name.len() + 1, 1)?;
        self.to.write_all(content)?;
        self.pad(content.len(), 0)
    }

    /// Zeros: as many as a name ends with, and on to a multiple of four.
    fn pad(&mut self, written: usize, ending: usize) -> std::io::Result<()> {
        let zeros = ending + (4 - written % 4) % 4;
        self.to.write_all(&[0; 4][..zeros])
    }

    fn end(&mut self) -> std::io::Result<()> {
        self.record("TRAILER!!!", 0, b"")?;
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sh;

    #[test]
    fn an_archive_is_what_cpio_reads() {
        let mut archive = Archive { to: Vec::new(), count: 0, made: BTreeSet::new() };
        archive.folders("a/bc/d").unwrap();
        archive.entry("a/bc/d", libc::S_IFREG | 0o644, b"hello").unwrap();
        archive.end().unwrap();
        let listing = |arguments: &[&str]| {
            sh::which("cpio")?;
            let file = std::env::temp_dir().join(format!("xtask-image-{}.cpio", std::process::id()));
            fs::write(&file, &archive.to).unwrap();
            #[allow(clippy::disallowed_methods)]
            let output = std::process::Command::new("cpio")
                .args(arguments)
                .arg("--quiet")
                .stdin(fs::File::open(&file).unwrap())
                .output()
                .unwrap();
            let _ = fs::remove_file(&file);
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            Some(String::from_utf8_lossy(&output.stdout).into_owned())
        };
        assert_eq!(archive.to.len() % 4, 0);
        if let Some(names) = listing(&["-t"]) {
            assert_eq!(names, "a\na/bc\na/bc/d\n");
            assert_eq!(listing(&["-i", "--to-stdout", "a/bc/d"]).unwrap(), "hello");
        }
    }
}
