//! Attempts on the credentials of a formation's member: the tokens it calls others with, and its operator's.
//!
//! The plan holds each token written backwards, so that the probe finds none that it brought itself.

use std::fs::{self, File};
use std::io::{self, Read};
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::outcome::{Outcome, Verdict, all, words};
use crate::plan::Plan;

/// The highest descriptor looked at.
const MOST_DESCRIPTORS: i32 = 4096;

/// Most bytes of a file that are read: records and settings are far smaller.
const MOST_OF_FILE: u64 = 4 << 20;

/// Most files of a walk, and how long it may take.
const MOST_FILES: usize = 20_000;
const WALKED: Duration = Duration::from_secs(20);

/// A mapping larger than this is address space that an engine reserved, not memory.
const MOST_MAPPED: u64 = 256 << 20;

/// How much of a mapping is read at once.
const PIECE: usize = 1 << 20;

pub(crate) fn attempt(case: &str, plan: &Plan) -> Option<Outcome> {
    let search = match case {
        "token-in-own-process" => own_process,
        "token-in-files" => files,
        "token-in-other-processes" => other_processes,
        _ => return None,
    };
    let secrets = Secrets::of(plan);
    if secrets.0.is_empty() {
        return Some(Outcome::inconclusive("the plan names no token"));
    }
    Some(search(plan, &secrets).controlled("a planted text is found", planted(plan)))
}

/// Names of secrets, each with its bytes from the last to the first.
struct Secrets(Vec<(String, Vec<u8>)>);

impl Secrets {
    fn of(plan: &Plan) -> Self {
        let pair = |text: &str| text.split_once(' ').map(|(name, bytes)| (name.to_owned(), bytes.as_bytes().to_vec()));
        Self(plan.all("token").filter_map(pair).collect())
    }

    /// The name of one that these bytes hold.
    fn within(&self, bytes: &[u8]) -> Option<&str> {
        self.0.iter().find(|(_, reversed)| holds(bytes, reversed)).map(|(name, _)| name.as_str())
    }

    fn longest(&self) -> usize {
        self.0.iter().map(|(_, bytes)| bytes.len()).max().unwrap_or(0)
    }
}

/// Whether bytes hold a text that is given backwards.
fn holds(bytes: &[u8], reversed: &[u8]) -> bool {
    let Some((first, rest)) = reversed.split_last() else { return false };
    let mut from = bytes;
    loop {
        // SAFETY: the bytes of a slice.
        let found = unsafe { libc::memchr(from.as_ptr().cast(), i32::from(*first), from.len()) };
        if found.is_null() {
            return false;
        }
        let at = found as usize - from.as_ptr() as usize;
        from = &from[at + 1..];
        if from.len() >= rest.len() && from.iter().zip(rest.iter().rev()).all(|(one, other)| one == other) {
            return true;
        }
    }
}

/// The search finds what is there: a text in a file of the probe's own folder.
fn planted(plan: &Plan) -> io::Result<()> {
    let path = plan.scratch("planted");
    let text = format!("ec-planted-{}", path.display());
    fs::write(&path, format!("before {text} after"))?;
    let reversed = text.bytes().rev().collect();
    let found = look(&path, &Secrets(vec![("planted".to_owned(), reversed)]));
    fs::remove_file(&path)?;
    match found? {
        Some(_) => Ok(()),
        None => Err(io::Error::other("not found")),
    }
}

/// What of the secrets a file holds.
fn look(path: &Path, secrets: &Secrets) -> io::Result<Option<String>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MOST_OF_FILE).read_to_end(&mut bytes)?;
    Ok(secrets.within(&bytes).map(str::to_owned))
}

/// What the process was given: environment, command line and open files. A worker's memory is searched from outside.
fn own_process(plan: &Plan, secrets: &Secrets) -> Outcome {
    let mut given = Vec::new();
    for (name, value) in std::env::vars_os() {
        given.extend_from_slice(name.as_encoded_bytes());
        given.push(b'=');
        given.extend_from_slice(value.as_encoded_bytes());
        given.push(0);
    }
    for word in std::env::args_os() {
        given.extend_from_slice(word.as_encoded_bytes());
        given.push(0);
    }
    let mut found: Vec<String> =
        secrets.within(&given).map(|name| format!("{name} in environment or command line")).into_iter().collect();
    let pipes: Vec<(u64, u64)> = plan.all("formation-pipe").filter_map(crate::files::identity).collect();
    let mut open = 0;
    for number in 0..MOST_DESCRIPTORS {
        let Some((kind, identity)) = crate::files::descriptor(number) else { continue };
        open += 1;
        if pipes.contains(&identity) {
            found.push(format!("descriptor {number} is a pipe of the formation's"));
        }
        if kind == libc::S_IFREG
            && let Some(name) = held_by(number, secrets)
        {
            found.push(format!("{name} by descriptor {number}"));
        }
    }
    if found.is_empty() {
        return Outcome::refused(format!("neither environment, command line nor {open} descriptors hold a token"));
    }
    Outcome::allowed(found.join("; "))
}

/// Reads an open file without moving what others read from.
fn held_by(number: i32, secrets: &Secrets) -> Option<String> {
    // SAFETY: an open descriptor, which is borrowed and not closed here.
    let file = ManuallyDrop::new(unsafe { File::from_raw_fd(number) });
    let mut bytes = vec![0; usize::try_from(MOST_OF_FILE).unwrap_or(0)];
    let size = file.read_at(&mut bytes, 0).ok()?;
    secrets.within(&bytes[..size]).map(str::to_owned)
}

/// Files that hold one, by their exact paths, and whatever can be listed from the user's folders down.
fn files(plan: &Plan, secrets: &Secrets) -> Outcome {
    let mut outcomes: Vec<Outcome> = plan.all("token-file").map(|path| by_path(path, plan, secrets)).collect();
    for root in plan.all("token-root") {
        let walked = walk(Path::new(root), secrets);
        outcomes.push(match walked {
            (_, Some(found)) => Outcome::allowed(found),
            (count, None) => Outcome::refused(format!("none in {count} files that can be read below {root}")),
        });
    }
    if plan.one("token-file").is_none() {
        return Outcome::inconclusive("the plan names no file with a token");
    }
    all(outcomes)
}

fn by_path(path: &str, plan: &Plan, secrets: &Secrets) -> Outcome {
    match look(Path::new(path), secrets) {
        Ok(Some(name)) => Outcome::allowed(format!("{name} in {path}")),
        Ok(None) => Outcome::inconclusive(format!("{path} can be read and holds none")),
        Err(error) => crate::outcome::judge::<()>(&format!("open({path})"), Err(error), plan.sealed()),
    }
}

fn walk(root: &Path, secrets: &Secrets) -> (usize, Option<String>) {
    let begun = Instant::now();
    let (mut count, mut folders): (usize, Vec<PathBuf>) = (0, vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            if count >= MOST_FILES || begun.elapsed() > WALKED {
                return (count, None);
            }
            let path = entry.path();
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file()
                && let Ok(found) = look(&path, secrets)
            {
                count += 1;
                if let Some(name) = found {
                    return (count, Some(format!("{name} in {}", path.display())));
                }
            }
        }
    }
    (count, None)
}

/// Environment, open files and memory of `mur`, of the launcher, of what else the session runs, and of every process that
/// shows.
fn other_processes(plan: &Plan, secrets: &Secrets) -> Outcome {
    let named: Vec<i32> = plan.all("peek").chain(plan.all("launcher")).filter_map(|text| text.parse().ok()).collect();
    if named.is_empty() {
        return Outcome::inconclusive("the plan names no process");
    }
    let mut outcomes: Vec<Outcome> = named.iter().map(|pid| of_process(*pid, secrets)).collect();
    // SAFETY: no arguments.
    let own = unsafe { libc::getpid() };
    let mut shown = 0;
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        if pid == own || named.contains(&pid) {
            continue;
        }
        shown += 1;
        if let Some(found) = environment(pid, secrets) {
            outcomes.push(Outcome::allowed(found));
        }
    }
    let mut outcome = all(outcomes);
    outcome.detail =
        format!("{}; {shown} other processes show, and no environment of theirs holds one", outcome.detail);
    outcome
}

fn environment(pid: i32, secrets: &Secrets) -> Option<String> {
    let found = look(Path::new(&format!("/proc/{pid}/environ")), secrets).ok()??;
    Some(format!("{found} in the environment of {pid}"))
}

fn of_process(pid: i32, secrets: &Secrets) -> Outcome {
    if let Some(found) = environment(pid, secrets) {
        return Outcome::allowed(found);
    }
    match memory(pid, secrets) {
        Ok(Some(name)) => Outcome::allowed(format!("{name} in the memory of {pid}")),
        Ok(None) => Outcome::inconclusive(format!("the memory of {pid} can be read and holds none")),
        Err(error) => {
            let detail = format!("/proc/{pid}/mem: {}", words(&error));
            let refused = matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM | libc::ENOENT | libc::ESRCH));
            Outcome::new(if refused { Verdict::Refused } else { Verdict::Inconclusive }, detail)
        }
    }
}

fn memory(pid: i32, secrets: &Secrets) -> io::Result<Option<String>> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let memory = File::open(format!("/proc/{pid}/mem"))?;
    let longest = secrets.longest();
    let mut bytes = vec![0; PIECE + longest];
    for line in maps.lines() {
        let Some((start, end)) = writable(line) else { continue };
        let mut at = start;
        while at < end {
            let size = usize::try_from(end - at).unwrap_or(0).min(bytes.len());
            // A page that was never touched, or the kernel's own, cannot be read.
            let Ok(read) = memory.read_at(&mut bytes[..size], at) else { break };
            if let Some(name) = secrets.within(&bytes[..read]) {
                return Ok(Some(name.to_owned()));
            }
            at += PIECE as u64;
        }
    }
    Ok(None)
}

/// A mapping that something can have been written to.
fn writable(line: &str) -> Option<(u64, u64)> {
    let mut fields = line.split_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
    (fields.next()?.starts_with("rw") && end - start <= MOST_MAPPED).then_some((start, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_given_backwards_is_found_where_it_stands_forwards() {
        for (bytes, found) in [("xxmft1.abc", true), ("mmft1.abcx", true), ("cba.1tfm", false), ("mft1.ab", false)] {
            assert_eq!(holds(bytes.as_bytes(), b"cba.1tfm"), found, "{bytes}");
        }
        assert!(!holds(b"x", b""));
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "the probe knows nothing of mur")]
    fn a_process_finds_what_another_holds() {
        let text = format!("planted-{}-here", std::process::id());
        let mut child = std::process::Command::new("sleep").arg("600").env("EC_TOKEN", &text).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let secrets = Secrets(vec![("it".to_owned(), text.bytes().rev().collect())]);
        let other = Secrets(vec![("it".to_owned(), b"nowhere-at-all".to_vec())]);
        // Its environment is the one it was given only once it runs its program.
        while environment(pid, &secrets).is_none() {
            std::thread::yield_now();
        }
        assert_eq!(memory(pid, &secrets).unwrap(), Some("it".to_owned()));
        assert_eq!((environment(pid, &other), memory(pid, &other).unwrap()), (None, None));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
