//! The cache directory: write-once files of machine code, each with a sidecar that says what it hashes to, what the
//! file looked like when that was found out, and which interfaces the component names.
//!
//! Machine code is trusted input for the engine, so a form counts only as an owner-only regular file of this user, in an
//! owner-only directory reached without a link. Every operation is relative to the directory's descriptor.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::dir::Dir;
use nix::fcntl::{Flock, FlockArg, OFlag, openat, renameat};
use nix::sys::stat::{Mode, fchmod, mkdirat};
use nix::sys::statvfs::{FsFlags, fstatvfs};
use nix::unistd::{UnlinkatFlags, unlinkat};
use sha2::{Digest as _, Sha256};

use super::super::level::Interfaces;
use super::super::name::Digest;
use super::compiler::Written;
use super::{CompiledForm, compiler};
use crate::diagnostics::Result;
use crate::paths::{MurmurHome, make_private};

/// A form that nobody used for this long is removed.
const UNUSED: Duration = Duration::from_secs(30 * 24 * 3600);

/// A temporary or lock file older than this was left by a process that was killed.
const ABANDONED: Duration = Duration::from_secs(3600);

/// Most files of the directory that one pruning looks at.
const MAX_PRUNED: usize = 10_000;

/// Most bytes of a sidecar.
const MAX_SIDECAR: u64 = 1 << 20;

/// How often a waiting process asks for its turn: `flock` has no deadline of its own.
const RETRY: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(super) struct Cache {
    dir: OwnedFd,
    /// Machine code cannot be mapped from a filesystem mounted `noexec`.
    noexec: bool,
}

/// The right to compile one key; ends when dropped.
pub(super) struct Turn<'a> {
    cache: &'a Cache,
    name: String,
    _lock: Flock<File>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // Whoever waits on the removed file gets its turn too and then finds the form.
        self.cache.remove(&self.name);
    }
}

/// What a file looked like: any change to its content or place changes it.
fn stamp(file: &File) -> io::Result<String> {
    let m = file.metadata()?;
    Ok(format!(
        "{} {} {} {} {:o} {}.{:09} {}.{:09}",
        m.dev(),
        m.ino(),
        m.size(),
        m.uid(),
        m.mode(),
        m.mtime(),
        m.mtime_nsec(),
        m.ctime(),
        m.ctime_nsec()
    ))
}

struct Sidecar {
    digest: Digest,
    stamp: String,
    interfaces: Interfaces,
}

impl Sidecar {
    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let digest = Digest::parse(lines.next()?)?;
        let stamp = lines.next()?.to_owned();
        let mut interfaces = Interfaces::default();
        for line in lines {
            match line.split_once(' ')? {
                ("import", name) => interfaces.imports.push(name.to_owned()),
                ("export", name) => interfaces.exports.push(name.to_owned()),
                _ => return None,
            }
        }
        Some(Self { digest, stamp, interfaces })
    }

    fn text(&self) -> String {
        let mut text = format!("{}\n{}\n", self.digest, self.stamp);
        for name in &self.interfaces.imports {
            let _ = writeln!(text, "import {name}");
        }
        for name in &self.interfaces.exports {
            let _ = writeln!(text, "export {name}");
        }
        text
    }
}

impl Cache {
    /// The cache of a home, `None` when it cannot be trusted or made.
    pub(super) fn open(home: &MurmurHome) -> Option<Self> {
        make_private(home.root()).ok()?;
        let root = File::open(home.root()).ok()?;
        let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_RDONLY;
        let name = home.compiled().file_name()?.to_owned();
        let dir = match openat(&root, name.as_os_str(), flags, Mode::empty()) {
            Err(nix::errno::Errno::ENOENT) => {
                // Another process may make it first.
                let _ = mkdirat(&root, name.as_os_str(), Mode::S_IRWXU);
                openat(&root, name.as_os_str(), flags, Mode::empty())
            }
            other => other,
        };
        let dir = File::from(dir.ok()?);
        let meta = dir.metadata().ok()?;
        if meta.uid() != nix::unistd::geteuid().as_raw() {
            return None;
        }
        let noexec = fstatvfs(&dir).is_ok_and(|stat| stat.flags().contains(FsFlags::ST_NOEXEC));
        let cache = Self { dir: dir.into(), noexec };
        if meta.mode() & 0o077 != 0 {
            // Others could have put files there; nothing in it counts any more.
            fchmod(&cache.dir, Mode::S_IRWXU).ok()?;
            for name in cache.names()? {
                cache.remove(&name);
            }
        }
        Some(cache)
    }

    /// A stored form that can be trusted: unchanged since it was hashed, or hashed again now.
    pub(super) fn load(&self, file: &str) -> Option<CompiledForm> {
        let mut form = self.open_own(file)?;
        let sidecar_name = format!("{file}.sha256");
        let mut text = String::new();
        self.open_own(&sidecar_name)?.take(MAX_SIDECAR).read_to_string(&mut text).ok()?;
        let mut sidecar = Sidecar::parse(&text)?;
        let now = stamp(&form).ok()?;
        if sidecar.stamp != now {
            if hash(&mut form).ok()? != sidecar.digest {
                self.remove(file);
                self.remove(&sidecar_name);
                return None;
            }
            sidecar.stamp = now;
            let _ = self.write_new(&sidecar_name, sidecar.text().as_bytes());
        }
        self.form(form, sidecar.digest, sidecar.interfaces)
    }

    /// Lets `compile` write a new form, and keeps it. `None` when the cache failed, an error when the compiler did.
    pub(super) fn store(
        &self,
        file: &str,
        interfaces: &Interfaces,
        compile: impl FnOnce(OwnedFd) -> Result<Written>,
    ) -> Result<Option<CompiledForm>> {
        let Some((temporary, output)) = self.temporary(file) else { return Ok(None) };
        let Ok(handed) = output.try_clone() else {
            self.remove(&temporary);
            return Ok(None);
        };
        match compile(handed.into()) {
            Ok(Written::Whole) => {}
            // A full disk is the cache's trouble, not the component's.
            Ok(Written::Refused(_)) => {
                self.remove(&temporary);
                return Ok(None);
            }
            Err(refusal) => {
                self.remove(&temporary);
                return Err(refusal);
            }
        }
        let form = self.keep(file, &temporary, output, interfaces);
        if form.is_none() {
            self.remove(&temporary);
        }
        self.prune();
        Ok(form)
    }

    fn keep(&self, file: &str, temporary: &str, mut output: File, interfaces: &Interfaces) -> Option<CompiledForm> {
        let digest = hash(&mut output).ok()?;
        // The stamp vouches for the content, so the content must survive what the name survives.
        output.sync_all().ok()?;
        drop(output);
        renameat(&self.dir, temporary, &self.dir, file).ok()?;
        let form = self.open_own(file)?;
        let sidecar = Sidecar { digest, stamp: stamp(&form).ok()?, interfaces: interfaces.clone() };
        self.write_new(&format!("{file}.sha256"), sidecar.text().as_bytes()).ok()?;
        self.form(form, digest, sidecar.interfaces)
    }

    fn form(&self, form: File, digest: Digest, interfaces: Interfaces) -> Option<CompiledForm> {
        let fd = if self.noexec { compiler::copy_to_memory(form).ok()? } else { form.into() };
        Some(CompiledForm { fd, digest, interfaces })
    }

    /// Waits until nobody else compiles this key, at most `within`; then goes on all the same.
    pub(super) fn turn(&self, file: &str, within: Duration) -> Option<Turn<'_>> {
        let name = format!("{file}.lock");
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mut lock = File::from(openat(&self.dir, name.as_str(), flags, Mode::S_IRUSR | Mode::S_IWUSR).ok()?);
        let end = Instant::now() + within;
        loop {
            match Flock::lock(lock, FlockArg::LockExclusiveNonblock) {
                Ok(held) => return Some(Turn { cache: self, name, _lock: held }),
                Err((file, nix::errno::Errno::EWOULDBLOCK | nix::errno::Errno::EINTR)) if Instant::now() < end => {
                    lock = file;
                    std::thread::sleep(RETRY);
                }
                Err(_) => return None,
            }
        }
    }

    /// Opens an owner-only regular file of this user.
    fn open_own(&self, name: &str) -> Option<File> {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
        let file = File::from(openat(&self.dir, name, flags, Mode::empty()).ok()?);
        let meta = file.metadata().ok()?;
        let own = meta.is_file() && meta.uid() == nix::unistd::geteuid().as_raw() && meta.mode() & 0o077 == 0;
        own.then_some(file)
    }

    fn temporary(&self, file: &str) -> Option<(String, File)> {
        let mut seed = [0; 8];
        getrandom::fill(&mut seed).ok()?;
        let name = format!(".{file}.{:016x}.tmp", u64::from_ne_bytes(seed));
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let fd = openat(&self.dir, name.as_str(), flags, Mode::S_IRUSR | Mode::S_IWUSR).ok()?;
        Some((name, fd.into()))
    }

    fn write_new(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let (temporary, mut file) = self.temporary(name).ok_or_else(|| io::Error::other("no temporary file"))?;
        let written = file
            .write_all(bytes)
            .and_then(|()| renameat(&self.dir, temporary.as_str(), &self.dir, name).map_err(io::Error::from));
        if written.is_err() {
            self.remove(&temporary);
        }
        written
    }

    fn remove(&self, name: &str) {
        let _ = unlinkat(&self.dir, name, UnlinkatFlags::NoRemoveDir);
    }

    fn names(&self) -> Option<Vec<String>> {
        let mut dir = Dir::openat(&self.dir, ".", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty()).ok()?;
        let names = dir.iter().flatten().filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned));
        Some(names.filter(|name| name != "." && name != "..").take(MAX_PRUNED).collect())
    }

    /// Removes forms that nobody used for long, and what killed processes left.
    fn prune(&self) {
        let Ok(now) = SystemTime::now().duration_since(UNIX_EPOCH) else { return };
        let older = |name: &str, than: Duration| self.last_use(name).is_some_and(|used| used + than < now);
        for name in self.names().unwrap_or_default() {
            if name.ends_with(".tmp") || name.ends_with(".lock") {
                if older(&name, ABANDONED) {
                    self.remove(&name);
                }
            } else if name.ends_with(".cwasm") {
                let sidecar = format!("{name}.sha256");
                if older(&name, UNUSED) && self.last_use(&sidecar).is_none_or(|used| used + UNUSED < now) {
                    self.remove(&name);
                    self.remove(&sidecar);
                }
            }
        }
    }

    /// The later of access and change, since 1970.
    fn last_use(&self, name: &str) -> Option<Duration> {
        let flags = nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW;
        let stat = nix::sys::stat::fstatat(self.dir.as_fd(), name, flags).ok()?;
        u64::try_from(stat.st_atime.max(stat.st_mtime)).ok().map(Duration::from_secs)
    }
}

/// Hashes a whole file from its start, without moving anyone's position in it.
fn hash(file: &mut File) -> io::Result<Digest> {
    use std::os::unix::fs::FileExt;
    const CHUNK: usize = 256 * 1024;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; CHUNK];
    let mut at = 0;
    loop {
        match file.read_at(&mut buffer, at) {
            Ok(0) => return Ok(Digest::from_bytes(hasher.finalize().into())),
            Ok(read) => {
                hasher.update(&buffer[..read]);
                at += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::diagnostics::{Diagnostic, codes};

    const FORM: &str = "aa-bb.cwasm";

    fn home() -> (tempfile::TempDir, MurmurHome) {
        let dir = tempfile::tempdir().unwrap();
        let home = MurmurHome::at(dir.path().to_owned());
        (dir, home)
    }

    fn write(bytes: &'static [u8]) -> impl FnOnce(OwnedFd) -> Result<Written> {
        move |fd| {
            File::from(fd).write_all(bytes).unwrap();
            Ok(Written::Whole)
        }
    }

    fn content(form: CompiledForm) -> Vec<u8> {
        let mut bytes = Vec::new();
        File::from(form.fd).read_to_end(&mut bytes).unwrap();
        bytes
    }

    fn interfaces() -> Interfaces {
        Interfaces { imports: vec!["murmur:task/task@0.1.0".into()], exports: vec!["murmur:tool/run@0.1.0".into()] }
    }

    #[test]
    fn a_stored_form_loads_as_it_was_and_cannot_be_written_through() {
        let (_dir, home) = home();
        let cache = Cache::open(&home).unwrap();
        cache.store(FORM, &interfaces(), write(b"code")).unwrap().unwrap();
        let form = Cache::open(&home).unwrap().load(FORM).unwrap();
        assert_eq!((form.digest, &form.interfaces), (Digest::of(b"code"), &interfaces()));
        let mut file = File::from(form.fd.try_clone().unwrap());
        assert!(file.write_all(b"x").is_err());
        assert_eq!(content(form), b"code");
        assert_eq!(fs::metadata(home.compiled().join(FORM)).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(home.compiled()).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_changed_form_is_thrown_away_and_a_touched_one_is_hashed_again() {
        let (_dir, home) = home();
        let cache = Cache::open(&home).unwrap();
        cache.store(FORM, &interfaces(), write(b"code")).unwrap().unwrap();
        let path = home.compiled().join(FORM);
        fs::write(&path, b"code").unwrap();
        assert_eq!(content(cache.load(FORM).unwrap()), b"code");
        fs::write(&path, b"evil").unwrap();
        assert!(cache.load(FORM).is_none());
        assert!(!path.exists());
    }

    #[test]
    fn a_form_that_others_could_write_or_that_is_a_link_does_not_count() {
        let (_dir, home) = home();
        let cache = Cache::open(&home).unwrap();
        cache.store(FORM, &interfaces(), write(b"code")).unwrap().unwrap();
        let path = home.compiled().join(FORM);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o620)).unwrap();
        assert!(cache.load(FORM).is_none());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(cache.load(FORM).is_some());
        fs::rename(&path, home.root().join("elsewhere")).unwrap();
        symlink(home.root().join("elsewhere"), &path).unwrap();
        assert!(cache.load(FORM).is_none());
    }

    #[test]
    fn a_directory_found_wider_is_narrowed_and_emptied_and_a_linked_one_is_not_used() {
        let (_dir, home) = home();
        fs::create_dir_all(home.compiled()).unwrap();
        fs::set_permissions(home.compiled(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(home.compiled().join(FORM), b"planted").unwrap();
        Cache::open(&home).unwrap();
        assert_eq!(fs::metadata(home.compiled()).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(fs::read_dir(home.compiled()).unwrap().count(), 0);
        fs::remove_dir(home.compiled()).unwrap();
        symlink(home.home(), home.compiled()).unwrap();
        assert!(Cache::open(&home).is_none());
    }

    #[test]
    fn a_failed_compilation_leaves_nothing() {
        let (_dir, home) = home();
        let cache = Cache::open(&home).unwrap();
        let refusal = cache.store(FORM, &interfaces(), |_| Err(Diagnostic::new(codes::E_RUN_001, "no")));
        assert_eq!(refusal.unwrap_err().code(), codes::E_RUN_001);
        let full = cache.store(FORM, &interfaces(), |_| Ok(Written::Refused("no space".into())));
        assert!(full.unwrap().is_none(), "a full disk refuses nothing: the form is made in memory");
        assert_eq!(fs::read_dir(home.compiled()).unwrap().count(), 0);
    }

    #[test]
    fn of_many_that_want_one_key_one_compiles() {
        let (_dir, home) = home();
        let compiled = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let cache = Cache::open(&home).unwrap();
                    let _turn = cache.turn(FORM, Duration::from_secs(60)).unwrap();
                    if cache.load(FORM).is_none() {
                        compiled.fetch_add(1, Ordering::Relaxed);
                        cache.store(FORM, &interfaces(), write(b"code")).unwrap().unwrap();
                    }
                });
            }
        });
        assert_eq!(compiled.load(Ordering::Relaxed), 1);
        assert!(!home.compiled().join(format!("{FORM}.lock")).exists());
    }

    #[test]
    fn a_turn_that_never_comes_is_not_waited_for_beyond_the_bound() {
        let (_dir, home) = home();
        let cache = Cache::open(&home).unwrap();
        let _held = cache.turn(FORM, Duration::ZERO).unwrap();
        assert!(Cache::open(&home).unwrap().turn(FORM, Duration::from_millis(20)).is_none());
    }

    #[test]
    fn what_is_old_is_pruned_with_the_next_store() {
        let (_dir, home) = home();
        let cache = Cache::open(&home).unwrap();
        cache.store(FORM, &interfaces(), write(b"code")).unwrap().unwrap();
        let old = SystemTime::now() - UNUSED - Duration::from_secs(60);
        for name in [FORM.to_owned(), format!("{FORM}.sha256")] {
            let file = File::options().write(true).open(home.compiled().join(name)).unwrap();
            file.set_times(fs::FileTimes::new().set_accessed(old).set_modified(old)).unwrap();
        }
        let left = home.compiled().join(".x.0.tmp");
        fs::write(&left, b"").unwrap();
        File::options()
            .write(true)
            .open(&left)
            .unwrap()
            .set_times(fs::FileTimes::new().set_accessed(old).set_modified(old))
            .unwrap();
        cache.store("new-bb.cwasm", &interfaces(), write(b"code")).unwrap().unwrap();
        let mut names: Vec<_> =
            fs::read_dir(home.compiled()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        assert_eq!(names, ["new-bb.cwasm", "new-bb.cwasm.sha256"]);
    }
}
