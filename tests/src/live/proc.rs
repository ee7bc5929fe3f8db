//! Looking at processes from outside, by `/proc`.

use std::fs;

/// Every process whose ancestor is `root`, and `root` itself when it runs.
pub fn descendants(root: i32) -> Vec<i32> {
    let mut found = vec![root];
    let mut at = 0;
    let all = parents();
    while at < found.len() {
        let parent = found[at];
        found.extend(all.iter().filter(|(_, above)| *above == parent).map(|(pid, _)| *pid));
        at += 1;
    }
    found
}

/// Every process with its parent.
pub fn parents() -> Vec<(i32, i32)> {
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter_map(|pid| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let fields: Vec<&str> = stat[stat.rfind(')')? + 2..].split(' ').collect();
            (fields[0] != "Z").then_some((pid, fields[1].parse().ok()?))
        })
        .collect()
}

/// Whether a process runs (a zombie does not).
pub fn runs(pid: i32) -> bool {
    parents().iter().any(|(one, _)| *one == pid)
}

/// Waits until these processes have ended. One whose pid has gone to another process meanwhile has.
#[track_caller]
pub fn wait_gone(pids: &[i32]) {
    let named: Vec<(i32, String)> = pids.iter().filter_map(|pid| Some((*pid, start(*pid)?))).collect();
    let running = || named.iter().filter(|(pid, known)| start(*pid).as_ref() == Some(known));
    crate::live::run::until("these processes have ended", || running().next().is_none());
}

/// When a process started; none for one that has ended.
fn start(pid: i32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.get(stat.rfind(')')? + 2..)?.split(' ');
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18).map(str::to_owned)
}

/// How often a thread of this name has waited for something.
pub fn waits(pid: i32, thread: &str) -> u64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let statuses = threads.filter_map(|entry| fs::read_to_string(entry.path().join("status")).ok());
    let own = statuses.filter(|status| status.starts_with(&format!("Name:\t{thread}\n")));
    let counts = own.filter_map(|status| {
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse::<u64>().ok()
    });
    counts.sum()
}

/// A process's command line, words joined by spaces.
pub fn command_line(pid: i32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ").trim().to_owned()
}

/// A process's environment, raw.
pub fn environment(pid: i32) -> Vec<u8> {
    fs::read(format!("/proc/{pid}/environ")).unwrap_or_default()
}

/// A process's descriptors: number and what each is.
pub fn descriptors(pid: i32) -> Vec<(i32, String)> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut all: Vec<(i32, String)> = entries
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.parse().ok()?;
            Some((number, fs::read_link(entry.path()).ok()?.to_string_lossy().into_owned()))
        })
        .collect();
    all.sort();
    all
}

/// Whether a descriptor was opened for writing.
pub fn writable(pid: i32, number: i32) -> bool {
    let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).unwrap_or_default();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap_or("0").trim().to_owned();
    i32::from_str_radix(&flags, 8).unwrap_or(0) & libc::O_ACCMODE != libc::O_RDONLY
}

/// A process's memory map, as text.
pub fn maps(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default()
}

/// Whether a signal was sent to a process and has not been taken yet.
pub fn is_pending(pid: i32, signal: i32) -> bool {
    mask(pid, "ShdPnd:") & (1 << (signal - 1)) != 0
}

/// Whether a process has a handler for a signal.
pub fn catches(pid: i32, signal: i32) -> bool {
    mask(pid, "SigCgt:") & (1 << (signal - 1)) != 0
}

fn mask(pid: i32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("0").trim().to_owned();
    u64::from_str_radix(&mask, 16).unwrap_or(0)
}

/// Whether a process is stopped.
pub fn is_stopped(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rfind(')').is_some_and(|at| stat[at..].chars().nth(2) == Some('T'))
}

/// Every process whose environment names this home: the launcher and the members, not their workers.
pub fn of_home(home: &std::path::Path) -> Vec<i32> {
    let marker = format!("HOME={}\0", home.display());
    let names = |pid: &i32| {
        let environment = environment(*pid);
        environment.windows(marker.len()).any(|window| window == marker.as_bytes())
    };
    parents().into_iter().map(|(pid, _)| pid).filter(names).collect()
}

/// How often these bytes are in a process's memory. Asking takes root, as `mur` is not dumpable.
#[track_caller]
pub fn memory_holds(pid: i32, bytes: &[u8]) -> usize {
    let mut found = 0;
    read_memory(pid, bytes.len(), |piece| {
        found += piece.windows(bytes.len()).filter(|window| *window == bytes).count()
    });
    found
}

/// The words in a process's memory that begin so and go on with letters, digits, dots, dashes and underscores.
#[track_caller]
pub fn memory_words(pid: i32, start: &[u8]) -> Vec<String> {
    /// Longer than any word looked for.
    const LONGEST: usize = 4096;
    let mut found = Vec::new();
    let of_word = |byte: &&u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    read_memory(pid, LONGEST, |piece| {
        for (at, _) in piece.windows(start.len()).enumerate().filter(|(_, window)| *window == start) {
            let word: Vec<u8> = piece[at..].iter().take(LONGEST).take_while(of_word).copied().collect();
            found.push(String::from_utf8_lossy(&word).into_owned());
        }
    });
    found.sort();
    found.dedup();
    found
}

/// Reads what a process may write of its memory, in pieces that overlap, so that nothing hides on a seam.
#[track_caller]
fn read_memory(pid: i32, overlap: usize, mut look: impl FnMut(&[u8])) {
    use std::os::unix::fs::FileExt as _;
    let memory = fs::File::open(format!("/proc/{pid}/mem")).expect("its memory can be read");
    let mut read = 0;
    for line in maps(pid).lines().filter(|line| line.contains(" rw")) {
        let range = line.split(' ').next().and_then(|range| range.split_once('-')).expect("a range");
        let at = |text: &str| u64::from_str_radix(text, 16).expect("an address");
        let (mut start, end) = (at(range.0), at(range.1));
        // What cannot be read (a guard, a device) is passed over.
        while start < end {
            let mut piece = vec![0; usize::try_from((end - start).min(1 << 20)).expect("a length")];
            let count = memory.read_at(&mut piece, start).unwrap_or(0);
            read += count;
            look(&piece[..count]);
            start += (1 << 20) - overlap as u64;
        }
    }
    assert!(read > 1 << 20, "only {read} bytes of its memory were read");
}
