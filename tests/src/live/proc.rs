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
