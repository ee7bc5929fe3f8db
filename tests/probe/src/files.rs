//! Attempts on files: outside the work folder, by links, by `/proc`, by descriptors, and devices.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::outcome::{Outcome, Verdict, judge, words};
use crate::plan::Plan;

const PASSWD: &str = "/etc/passwd";
const SHADOW: &str = "/etc/shadow";
/// World-writable, so that only a kernel filter refuses; `/tmp` may be the session's own.
const OUTSIDE: &str = "/var/tmp";

/// The highest descriptor looked at: above every limit a class gives by default.
const MOST_DESCRIPTORS: i32 = 4096;

pub(crate) fn attempt(case: &str, plan: &Plan) -> Option<Outcome> {
    Some(match case {
        "preflight" => preflight(plan),
        "read-etc-shadow" => read_shadow(plan),
        "write-outside-workdir" => write_outside(plan),
        "stat-outside-workdir" => stat_outside(plan),
        "symlink-escape" => symlink_escape(plan),
        "hardlink-escape" => hardlink_escape(plan),
        "rename-across-boundary" => rename_across(plan),
        "proc-self-cwd-reopen" => walk_out(plan),
        "proc-pid-root-reopen" => by_root(plan),
        "proc-self-fd-reopen" => reopen(plan),
        "inherited-fd-after-exec" => inherited(plan),
        "mknod-block-device-in-workdir" => block_device(plan),
        _ => return None,
    })
}

/// Writing and reading back a file of the work folder: permitted under every class.
pub(crate) fn work_control(plan: &Plan) -> io::Result<()> {
    let path = plan.scratch("control");
    fs::write(&path, "x")?;
    let read = fs::read(&path);
    fs::remove_file(&path)?;
    read.map(|_| ())
}

fn preflight(plan: &Plan) -> Outcome {
    match work_control(plan) {
        Ok(()) => Outcome::new(Verdict::Success, "a file of the work folder was written and read"),
        Err(error) => Outcome::inconclusive(format!("the work folder: {}", words(&error))),
    }
}

fn first_bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(64 << 10).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn read_shadow(plan: &Plan) -> Outcome {
    let beside = match first_bytes(Path::new(PASSWD)) {
        Ok(bytes) => format!("{PASSWD} has {} bytes", bytes.len()),
        Err(error) => format!("{PASSWD}: {}", words(&error)),
    };
    let mut outcome = judge("open(/etc/shadow)", first_bytes(Path::new(SHADOW)), plan.sealed());
    outcome.detail = format!("{}; {beside}", outcome.detail);
    outcome.controlled("work folder", work_control(plan))
}

fn outside(name: &str) -> PathBuf {
    Path::new(OUTSIDE).join(format!("ec-{name}-{}", std::process::id()))
}

fn write_outside(plan: &Plan) -> Outcome {
    let path = outside("write");
    let made = File::options().write(true).create_new(true).open(&path);
    let _ = fs::remove_file(&path);
    judge("creat(/var/tmp/…)", made, plan.sealed()).controlled("work folder", work_control(plan))
}

fn stat_outside(plan: &Plan) -> Outcome {
    let outcome = match fs::metadata(SHADOW) {
        Ok(found) => Outcome::new(Verdict::Success, format!("stat({SHADOW}): {} bytes", found.len())),
        Err(error) => judge::<()>("stat(/etc/shadow)", Err(error), plan.sealed()),
    };
    outcome.controlled("work folder", fs::metadata(plan.work()).map(|_| ()))
}

/// Reaching `/etc/passwd` in some way: inside a composed root that is a file of the root, with no account of the host in it.
fn passwd(call: &str, read: io::Result<Vec<u8>>, plan: &Plan) -> Outcome {
    if let Ok(bytes) = &read
        && plan.sealed()
    {
        let text = String::from_utf8_lossy(bytes);
        let named = plan.all("account").find(|name| text.lines().any(|line| line.starts_with(&format!("{name}:"))));
        return match named {
            Some(name) => Outcome::inconclusive(format!("{call}: the host's account '{name}' is in what was read")),
            None => Outcome::allowed(format!("{call}: the root's own file, {} lines", text.lines().count())),
        };
    }
    judge(call, read, plan.sealed())
}

fn symlink_escape(plan: &Plan) -> Outcome {
    let link = plan.scratch("symlink");
    if let Err(error) = symlink(PASSWD, &link) {
        return Outcome::inconclusive(format!("symlink: {}", words(&error)));
    }
    let outcome = passwd("open of a link to /etc/passwd", first_bytes(&link), plan);
    let _ = fs::remove_file(&link);
    outcome.controlled("work folder", work_control(plan))
}

/// Whether two paths are on one device: then `EXDEV` is an answer of Landlock, which gives it for a forbidden `Refer`.
fn one_device(a: &Path, b: &Path) -> bool {
    matches!((fs::metadata(a), fs::metadata(b)), (Ok(a), Ok(b)) if a.dev() == b.dev())
}

fn across(call: &str, result: io::Result<()>, same: bool, plan: &Plan) -> Outcome {
    match result {
        Err(error) if error.raw_os_error() == Some(libc::EXDEV) => {
            let detail = format!("{call}: EXDEV, {} device", if same { "on one" } else { "on more than one" });
            if same { Outcome::refused(detail) } else { Outcome::inconclusive(detail) }
        }
        other => judge(call, other, plan.sealed()),
    }
}

fn hardlink_escape(plan: &Plan) -> Outcome {
    let link = plan.scratch("hardlink");
    let same = one_device(Path::new(PASSWD), plan.work());
    let linked = fs::hard_link(PASSWD, &link);
    let _ = fs::remove_file(&link);
    let protected = plan.one("protected-hardlinks").unwrap_or("unknown");
    let mut outcome = across("link(/etc/passwd)", linked, same, plan);
    outcome.detail = format!("{}; fs.protected_hardlinks={protected}", outcome.detail);
    outcome.controlled("link within the work folder", link_control(plan))
}

fn link_control(plan: &Plan) -> io::Result<()> {
    let (file, link) = (plan.scratch("linked"), plan.scratch("link"));
    fs::write(&file, "x")?;
    let linked = fs::hard_link(&file, &link);
    let _ = fs::remove_file(&link);
    fs::remove_file(&file)?;
    linked
}

fn rename_across(plan: &Plan) -> Outcome {
    let (file, away) = (plan.scratch("rename"), outside("rename"));
    if let Err(error) = fs::write(&file, "x") {
        return Outcome::inconclusive(format!("the work folder: {}", words(&error)));
    }
    let same = one_device(Path::new(OUTSIDE), plan.work());
    let moved = fs::rename(&file, &away);
    let _ = (fs::remove_file(&file), fs::remove_file(&away));
    across("rename(…, /var/tmp/…)", moved, same, plan).controlled("rename within the work folder", rename_control(plan))
}

fn rename_control(plan: &Plan) -> io::Result<()> {
    let (from, to) = (plan.scratch("from"), plan.scratch("to"));
    fs::write(&from, "x")?;
    fs::rename(&from, &to)?;
    fs::remove_file(&to)
}

fn walk_out(plan: &Plan) -> Outcome {
    let depth = std::env::current_dir().map_or(8, |dir| dir.components().count());
    let path = format!("/proc/self/cwd{}/etc/passwd", "/..".repeat(depth + 1));
    passwd("open(/proc/self/cwd/../…/etc/passwd)", first_bytes(Path::new(&path)), plan)
        .controlled("work folder", work_control(plan))
}

fn by_root(plan: &Plan) -> Outcome {
    // In the numbers of the /proc that is mounted here, which may be another namespace's.
    let own = fs::read_link("/proc/self").map(|pid| pid.display().to_string()).unwrap_or_else(|_| "self".to_owned());
    let path = format!("/proc/{own}/root/etc/passwd");
    passwd("open(/proc/<pid>/root/etc/passwd)", first_bytes(Path::new(&path)), plan)
        .controlled("work folder", work_control(plan))
}

fn reopen(plan: &Plan) -> Outcome {
    let base = match File::open("/dev/urandom") {
        Ok(base) => base,
        Err(error) => return Outcome::inconclusive(format!("open(/dev/urandom): {}", words(&error))),
    };
    let path = format!("/proc/self/fd/{}", base.as_raw_fd());
    let widened = File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(&path);
    judge("open(/proc/self/fd/N, O_RDWR)", widened, plan.sealed())
        .controlled("re-open with the same rights", File::open(&path).map(|_| ()))
}

/// Whether a descriptor is one of the file `mur` was started with, and which others there are. A worker's own, made after
/// it said it was ready, are its own; a command's process holds nothing above stderr.
/// `device:inode` as two numbers.
pub(crate) fn identity(text: &str) -> Option<(u64, u64)> {
    let (dev, ino) = text.split_once(':')?;
    Some((dev.parse().ok()?, ino.parse().ok()?))
}

/// What kind of file is open on a descriptor, and which; nothing when it is closed.
pub(crate) fn descriptor(number: i32) -> Option<(libc::mode_t, (u64, u64))> {
    // SAFETY: all zeroes is a value of this plain structure, which outlives the call.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: as above; a closed descriptor answers EBADF.
    let result = unsafe { libc::fstat(number, &raw mut stat) };
    (result == 0).then_some((stat.st_mode & libc::S_IFMT, (stat.st_dev, stat.st_ino)))
}

fn inherited(plan: &Plan) -> Outcome {
    let Some(leaked) = plan.one("leaked").and_then(identity) else {
        return Outcome::inconclusive("the plan names no leaked file");
    };
    let mut extra = Vec::new();
    let mut found = None;
    for number in 3..MOST_DESCRIPTORS {
        // SAFETY: a plain number; a closed one answers EBADF.
        if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
            continue;
        }
        extra.push(number);
        if descriptor(number).is_some_and(|(_, one)| one == leaked) {
            found = Some(number);
        }
    }
    let worker = plan.one("route").is_some_and(|route| route.starts_with("wasm-guest"));
    let own = if worker { "a worker's own included" } else { "none is expected" };
    let detail = format!("{} descriptors above stderr ({own}): {extra:?}", extra.len());
    let outcome = match found {
        Some(number) => Outcome::allowed(format!("descriptor {number} is the leaked file; {detail}")),
        None if !worker && !extra.is_empty() => Outcome::allowed(detail),
        None => Outcome::refused(format!("EBADF: the leaked file is not held; {detail}")),
    };
    outcome.controlled(
        "fcntl(0, F_GETFD)",
        call(|| {
            // SAFETY: a plain number.
            unsafe { libc::fcntl(0, libc::F_GETFD) }
        }),
    )
}

fn block_device(plan: &Plan) -> Outcome {
    let path = plan.scratch("block");
    let Ok(name) = CString::new(path.as_os_str().as_bytes()) else {
        return Outcome::inconclusive("the work folder's path holds a zero byte");
    };
    // SAFETY: a terminated string.
    let made = call(|| unsafe { libc::mknod(name.as_ptr(), libc::S_IFBLK | 0o600, libc::makedev(8, 0)) });
    let read = match &made {
        Ok(()) => format!("; reading it: {}", first_bytes(&path).map_or_else(|error| words(&error), |_| "ok".into())),
        Err(_) => String::new(),
    };
    let _ = fs::remove_file(&path);
    let mut outcome = judge("mknod(S_IFBLK, 8:0)", made, false);
    outcome.detail.push_str(&read);
    outcome.controlled("mkfifo", {
        // SAFETY: a terminated string.
        let fifo = call(|| unsafe { libc::mkfifo(name.as_ptr(), 0o600) });
        let _ = fs::remove_file(&path);
        fifo
    })
}

/// A call of the C library that answers a negative number on failure.
pub(crate) fn call(make: impl FnOnce() -> libc::c_int) -> io::Result<()> {
    if make() < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
