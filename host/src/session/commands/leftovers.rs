//! What commands of a session left behind where nothing holds it: found by the session's id in its environment, and told.

use std::fs;

/// Most processes that are named.
const NAMED: usize = 20;

/// A process of a session's that still runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// Its number.
    pub pid: i32,
    /// The program's name.
    pub name: String,
}

/// Every process whose environment says that it belongs to the session. One that changed its environment, or belongs to
/// another user, is not seen.
pub fn find(session: &str) -> Vec<Leftover> {
    let mark = format!("MURMUR_SESSION_ID={session}");
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let mut found: Vec<Leftover> = pids
        .filter(|pid| *pid != own)
        .filter(|pid| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
        })
        .map(|pid| Leftover { pid, name: name(pid) })
        .collect();
    found.sort_by_key(|leftover| leftover.pid);
    found
}

fn name(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

/// The line the operator reads.
pub fn told(found: &[Leftover]) -> String {
    let mut named: Vec<String> =
        found.iter().take(NAMED).map(|leftover| format!("pid {} ({})", leftover.pid, leftover.name)).collect();
    if found.len() > NAMED {
        named.push(format!("{} more", found.len() - NAMED));
    }
    format!(
        "class 'unconfined' holds nothing of what commands leave behind, and this still runs: {}; a stronger class ends it \
         with the session",
        named.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Spawn;

    #[test]
    fn a_process_is_found_by_its_sessions_id_and_no_other_is() {
        let session = crate::ids::SessionId::mint();
        let child = Spawn::program("/bin/sleep").arg("60").env("MURMUR_SESSION_ID", session.as_str()).spawn().unwrap();
        let other = Spawn::program("/bin/sleep").arg("60").env("MURMUR_SESSION_ID", "ses_other").spawn().unwrap();
        let found = find(session.as_str());
        assert_eq!(found, [Leftover { pid: child.pidfd.pid(), name: "sleep".into() }]);
        assert!(told(&found).contains(&format!("pid {} (sleep)", child.pidfd.pid())));
        for child in [child, other] {
            child.pidfd.signal(nix::sys::signal::Signal::SIGKILL).unwrap();
            child.pidfd.reap().unwrap();
        }
    }
}
