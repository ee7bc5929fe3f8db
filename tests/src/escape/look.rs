//! Looking at a running session from outside, by `/proc`, before anything is attempted in it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::cases::{Class, Route};
use crate::live::proc;

/// A mapping larger than this is address space that an engine reserved, not memory.
const MOST_MAPPED: u64 = 256 << 20;

/// What was found.
#[derive(Debug)]
pub struct Looked {
    /// `mur`'s own pid.
    pub mur: i32,
    /// The process the probe runs in, where it is a worker.
    pub probe: Option<i32>,
    /// Other processes of the session: the other workers and the helpers.
    pub others: Vec<i32>,
    /// The session's records directory.
    pub records: PathBuf,
    /// Its runtime folder.
    pub runtime: PathBuf,
    /// What is not as the class says.
    pub posture: Vec<String>,
    /// Secrets found in the worker's memory; an error where it cannot be read.
    pub memory: Result<Memory, String>,
}

/// What a search of a worker's memory found.
#[derive(Debug, Default)]
pub struct Memory {
    /// Whether the canary was found, which is there: the search works.
    pub canary: bool,
    /// Names of the secrets that were found.
    pub secrets: Vec<String>,
    /// Bytes searched.
    pub searched: u64,
}

/// Looks at the session of a `mur` whose probe waits.
///
/// # Errors
/// When its processes or folders cannot be found.
pub fn look(mur: i32, route: Route, class: Class, home: &Path, known: &[PathBuf]) -> Result<Looked, String> {
    let records = traces(home).into_iter().find(|trace| !known.contains(trace));
    let records = records.and_then(|trace| trace.parent().map(Path::to_owned)).ok_or("the session has no trace yet")?;
    let session = records.file_name().unwrap_or_default().to_owned();
    let runtime = home.join(".murmur/sessions").join(&session).join("runtime");
    let family = proc::descendants(mur);
    let probe = match route.worker() {
        Some(kind) => Some(worker(&family, kind).ok_or("the worker was not found")?),
        None => None,
    };
    let others = family.iter().copied().filter(|pid| *pid != mur && Some(*pid) != probe).collect();
    let posture = match probe {
        Some(pid) if class > Class::Unconfined => posture(pid, mur, class, &session.to_string_lossy()),
        _ => Vec::new(),
    };
    Ok(Looked { mur, probe, others, records, runtime, posture, memory: Err("not searched".to_owned()) })
}

/// Every `trace.jsonl` below a home.
pub fn traces(home: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![home.join(".murmur/records")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(path);
            } else if entry.file_name() == "trace.jsonl" {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The worker of a kind: the relay's child, or without a process namespace `mur`'s own.
fn worker(family: &[i32], kind: &str) -> Option<i32> {
    let named: Vec<i32> = family
        .iter()
        .copied()
        .filter(|pid| proc::command_line(*pid).ends_with(&format!("__guest-worker {kind}")))
        .collect();
    let parents = proc::parents();
    let inside = |pid: &&i32| parents.iter().any(|(one, parent)| one == *pid && named.contains(parent));
    named.iter().find(inside).or(named.first()).copied()
}

fn status(pid: i32) -> BTreeMap<String, String> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.map(|(key, value)| (key.to_owned(), value.trim().to_owned())).collect()
}

/// What of a worker is not as its class says.
fn posture(worker: i32, mur: i32, class: Class, session: &str) -> Vec<String> {
    let held = status(worker);
    let is = |key: &str| held.get(key).map_or("absent", String::as_str);
    let mut wrong = Vec::new();
    let mut expect = |key: &str, found: &str, wanted: &str| {
        if found != wanted {
            wrong.push(format!("{key} is {found}, not {wanted}"));
        }
    };
    expect("Seccomp", is("Seccomp"), "2");
    expect("NoNewPrivs", is("NoNewPrivs"), "1");
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        expect(set, is(set), "0000000000000000");
    }
    let depth =
        |status: &BTreeMap<String, String>| status.get("NSpid").map_or(0, |pids| pids.split_whitespace().count());
    expect("the depth of NSpid", &depth(&held).to_string(), &(depth(&status(mur)) + 1).to_string());
    let namespace = |pid: i32, name: &str| fs::read_link(format!("/proc/{pid}/ns/{name}")).ok();
    let mut apart = vec!["net", "pid", "user", "ipc"];
    if class == Class::Sealed {
        apart.push("mnt");
    }
    for name in apart {
        let (inside, outside) = (namespace(worker, name), namespace(mur, name));
        // An ordinary user cannot read the link of a process that cannot be dumped: then nothing is said of it.
        if inside.is_some() && inside == outside {
            wrong.push(format!("its {name} namespace is mur's"));
        }
    }
    let cgroup = fs::read_to_string(format!("/proc/{worker}/cgroup")).unwrap_or_default();
    if !cgroup.contains(&format!("/murmur-{session}-")) {
        wrong.push(format!("it is outside the session's scope: {}", cgroup.replace('\n', " ")));
    }
    if !proc::environment(worker).is_empty() {
        wrong.push("its environment is not empty".to_owned());
    }
    wrong
}

/// Searches a process's memory for texts: the canary first, then named secrets.
///
/// # Errors
/// When it cannot be read, as by an ordinary user.
pub fn search(pid: i32, canary: &str, secrets: &[(String, String)]) -> Result<Memory, String> {
    let say = |fault: std::io::Error| format!("/proc/{pid}/mem: {fault}");
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).map_err(say)?;
    let memory = fs::File::open(format!("/proc/{pid}/mem")).map_err(say)?;
    let mut found = Memory::default();
    for line in maps.lines() {
        let Some((start, end)) = range(line) else { continue };
        let mut bytes = vec![0; usize::try_from(end - start).unwrap_or(0)];
        // A page that was never touched, or the kernel's own, cannot be read.
        let Ok(size) = memory.read_at(&mut bytes, start) else { continue };
        found.searched += size as u64;
        let has = |text: &str| contains(&bytes[..size], text.as_bytes());
        found.canary |= has(canary);
        for (name, secret) in secrets {
            if !found.secrets.contains(name) && has(secret) {
                found.secrets.push(name.clone());
            }
        }
    }
    Ok(found)
}

fn range(line: &str) -> Option<(u64, u64)> {
    let mut fields = line.split_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
    (fields.next()?.starts_with('r') && end - start <= MOST_MAPPED).then_some((start, end))
}

/// Whether bytes hold a text.
pub(super) fn contains(bytes: &[u8], text: &[u8]) -> bool {
    let Some((first, rest)) = text.split_first() else { return false };
    let mut at = 0;
    while let Some(next) = bytes[at..].iter().position(|byte| byte == first) {
        at += next + 1;
        if bytes[at..].starts_with(rest) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_in_this_process_is_found_and_one_that_is_not_there_is_not() {
        // Put together at run time, so that only one whole copy is there.
        let canary = ["canary-", &std::process::id().to_string(), "-here"].concat();
        let absent = ["absent-", &std::process::id().to_string()].concat().replace("absent", "elsewhere");
        let reversed: String = absent.chars().rev().collect();
        drop(absent);
        let own = i32::try_from(std::process::id()).unwrap();
        let found = search(own, &canary, &[("present".to_owned(), canary.clone())]).unwrap();
        assert!(found.canary && found.secrets == ["present"] && found.searched > 0, "{found:?}");
        assert!(!contains(reversed.as_bytes(), b"elsewhere") && contains(b"xxabc", b"abc") && !contains(b"ab", b"abc"));
    }
}
