//! Attempts on availability: processes, file sizes, memory, descriptors. Each is bounded, so that a ceiling that does not
//! hold is reported and takes nothing down.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use crate::outcome::{Outcome, Verdict, words};
use crate::plan::Plan;

/// A class holds a fork bomb below this.
const MOST_CHILDREN: usize = 200;
/// The harness asks for 10 MiB.
const MOST_FILE: usize = 32 << 20;
/// The harness asks for 256 MiB.
const MOST_MEMORY: usize = 768 << 20;
const PAGE: usize = 4096;
/// A little more than `mur` leaves between two looks at the work folder.
const PACE: Duration = Duration::from_millis(10_500);
/// How long a look takes at most; nothing announces its end.
const LOOKED: Duration = Duration::from_secs(2);
const MOST_DESCRIPTORS: u64 = 512;

pub(crate) fn attempt(case: &str, plan: &Plan) -> Option<Outcome> {
    Some(match case {
        "resource-fork-bomb" => fork_bomb(),
        "resource-disk-filler-per-file" => one_file(plan),
        "resource-disk-filler-aggregate" => many_files(plan),
        "resource-memory-hog" => memory(plan),
        "resource-fd-exhauster" => descriptors(),
        _ => return None,
    })
}

fn held(detail: String) -> Outcome {
    Outcome::new(Verdict::Contained, detail)
}

fn not_held(detail: String) -> Outcome {
    Outcome::new(Verdict::Uncontained, detail)
}

fn limit(resource: libc::__rlimit_resource_t) -> u64 {
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a structure that outlives the call.
    unsafe { libc::getrlimit(resource, &raw mut now) };
    now.rlim_cur
}

fn fork_bomb() -> Outcome {
    let processes = limit(libc::RLIMIT_NPROC);
    let mut children = Vec::new();
    let end = loop {
        if children.len() == MOST_CHILDREN {
            break None;
        }
        // SAFETY: the child only waits for its end.
        match unsafe { libc::fork() } {
            0 => loop {
                // SAFETY: no arguments.
                unsafe { libc::pause() };
            },
            child if child > 0 => children.push(child),
            _ => break Some(io::Error::last_os_error()),
        }
    };
    for child in &children {
        // SAFETY: children of this process that have not been waited for.
        unsafe {
            libc::kill(*child, libc::SIGKILL);
            libc::waitpid(*child, std::ptr::null_mut(), 0);
        }
    }
    let nproc = if processes == libc::RLIM_INFINITY { "unlimited".to_owned() } else { processes.to_string() };
    let detail = |end: &str| format!("fork: {end} after {} children; RLIMIT_NPROC {nproc}", children.len());
    match end {
        None => not_held(detail("no refusal")),
        Some(error) if error.raw_os_error() == Some(libc::EAGAIN) => held(detail("EAGAIN")),
        Some(error) => Outcome::inconclusive(detail(&words(&error))),
    }
}

fn one_file(plan: &Plan) -> Outcome {
    let path = plan.scratch("large");
    // SAFETY: ignoring a signal installs no handler; the write then answers EFBIG.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let outcome = match File::create(&path) {
        Ok(file) => fill(file),
        Err(error) => Outcome::inconclusive(format!("the work folder: {}", words(&error))),
    };
    let _ = fs::remove_file(&path);
    outcome
}

fn fill(mut file: File) -> Outcome {
    let block = vec![0xec_u8; 1 << 20];
    let mut written = 0;
    while written < MOST_FILE {
        match file.write(&block) {
            Ok(size) => written += size,
            Err(error) if error.raw_os_error() == Some(libc::EFBIG) => {
                return held(format!("write: EFBIG at byte {written}; RLIMIT_FSIZE {}", limit(libc::RLIMIT_FSIZE)));
            }
            Err(error) => return Outcome::inconclusive(format!("write: {} at byte {written}", words(&error))),
        }
    }
    not_held(format!("{written} bytes were written to one file"))
}

/// Fills the work folder past its ceiling, file by file. What refuses is `mur`, at a later call: it looks at the folder at
/// the beginning of a turn, once in ten seconds, and the next turn after a look that found too much is the last.
fn many_files(plan: &Plan) -> Outcome {
    let folder = plan.one("fill").map_or(plan.work(), Path::new);
    if folder.join("ec-fill-0").exists() {
        std::thread::sleep(LOOKED);
        return not_held("a later call was not refused".to_owned());
    }
    let block = vec![0xec_u8; 8 << 20];
    let mut written = 0;
    for number in 0..8 {
        match fs::write(folder.join(format!("ec-fill-{number}")), &block) {
            Ok(()) => written += block.len(),
            Err(error) => return Outcome::inconclusive(format!("write: {} at byte {written}", words(&error))),
        }
    }
    std::thread::sleep(PACE);
    not_held(format!("{written} bytes were written, and this call was not refused; the next is to be"))
}

fn memory(plan: &Plan) -> Outcome {
    let lived = not_held(format!("{MOST_MEMORY} bytes were written to memory"));
    plan.report(&held("the process did not live to report otherwise".to_owned()).line("resource-memory-hog"));
    let mut memory: Vec<u8> = Vec::new();
    if memory.try_reserve_exact(MOST_MEMORY).is_err() {
        return held("the address space is bounded: the allocation failed".to_owned());
    }
    let mut at = 0;
    while at < MOST_MEMORY {
        // SAFETY: within the reserved room; each page becomes real by being written.
        unsafe { memory.as_mut_ptr().add(at).write_volatile(1) };
        at += PAGE;
    }
    lived
}

fn descriptors() -> Outcome {
    let ceiling = limit(libc::RLIMIT_NOFILE);
    let mut held_open = Vec::new();
    let end = loop {
        if held_open.len() as u64 > MOST_DESCRIPTORS {
            break None;
        }
        // SAFETY: a plain number.
        match unsafe { libc::dup(0) } {
            fd if fd >= 0 => held_open.push(fd),
            _ => break Some(io::Error::last_os_error()),
        }
    };
    for fd in &held_open {
        // SAFETY: descriptors made above, which nothing else owns.
        unsafe { libc::close(*fd) };
    }
    let detail = |end: &str| format!("dup: {end} after {} descriptors; RLIMIT_NOFILE {ceiling}", held_open.len());
    match end {
        None => not_held(detail("no refusal")),
        Some(error) if error.raw_os_error() == Some(libc::EMFILE) && ceiling < MOST_DESCRIPTORS => {
            held(detail("EMFILE"))
        }
        Some(error) => Outcome::inconclusive(detail(&words(&error))),
    }
}
