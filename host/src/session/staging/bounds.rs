//! Bounds of `capabilities.resources` under which a session's own processes could not run: refused by name, before they fail
//! for reasons that name something else.

use crate::diagnostics::{Diagnostic, Result, codes};
use crate::manifest::{Capsule, Resources};

/// Open files of a worker with its folders, its connection and its event loop, and of a command with its libraries.
const OPEN_FILES: u64 = 32;

/// Memory of a session's scope with its workers, before they hold anything.
const SCOPE_MEMORY: u64 = 16 << 20;

/// Addresses a program takes with its libraries, before it does anything.
const ADDRESSES: u64 = 4 << 20;

/// Processes and threads of a session with its workers and one command.
const SCOPE_PIDS: u64 = 16;

/// Every bound that is too small for a capsule that starts processes.
pub fn faults(capsule: &Capsule) -> Vec<Diagnostic> {
    if !capsule.starts_processes() {
        return Vec::new();
    }
    let Resources { max_open_files, cgroup_memory_bytes, memory_bytes, .. } = capsule.capabilities.resources;
    let small = [
        ("max_open_files", max_open_files, OPEN_FILES),
        ("cgroup_memory_bytes", cgroup_memory_bytes, SCOPE_MEMORY),
        ("memory_bytes", memory_bytes, ADDRESSES),
    ];
    let small = small.into_iter().filter(|(_, value, least)| value < least);
    small
        .map(|(key, value, least)| {
            let message = format!(
                "murmur.yaml: invalid capability config for 'capabilities.resources.{key}': {value} is too small for any \
                 session: it must be at least {least}"
            );
            Diagnostic::new(codes::E_MAN_003, message)
                .hint("raise it, or remove it for the default; how much a capsule needs beyond that is its own matter")
        })
        .collect()
}

/// Refuses the first.
///
/// # Errors
/// `E-MAN-003`.
pub fn check(capsule: &Capsule) -> Result<()> {
    faults(capsule).into_iter().next().map_or(Ok(()), Err)
}

/// Names the bound where a process could not be started for want of a place in the scope.
pub fn named(fault: Diagnostic, resources: &Resources) -> Diagnostic {
    let pids = resources.cgroup_pids_max;
    if fault.code() != codes::E_RUN_066 || !fault.message().contains("EAGAIN") || pids >= SCOPE_PIDS {
        return fault;
    }
    fault.hint(format!(
        "nothing was run; capabilities.resources.cgroup_pids_max is {pids}, and a session with its workers and one command \
         takes about {SCOPE_PIDS}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::read_capsule;

    fn capsule(resources: &str) -> Capsule {
        let text =
            format!("name: c\nversion: 0.1.0\ncapabilities:\n  shell: {{allow: [sh]}}\n  resources: {{{resources}}}\n");
        read_capsule(text.as_bytes(), "murmur.yaml").unwrap_or_else(|fault| panic!("{fault}")).0
    }

    #[test]
    fn what_is_too_small_for_any_session_is_named_with_the_least_that_works() {
        for (resources, least) in [
            (
                "max_open_files: 31",
                "'capabilities.resources.max_open_files': 31 is too small for any session: it must be at least 32",
            ),
            ("cgroup_memory_bytes: 1000000", "at least 16777216"),
            ("memory_bytes: 4096", "at least 4194304"),
        ] {
            let fault = check(&capsule(resources)).unwrap_err();
            assert_eq!(fault.code(), codes::E_MAN_003);
            assert!(fault.message().contains(least), "{fault}");
        }
        assert!(check(&capsule("max_open_files: 32, cgroup_memory_bytes: 16777216, memory_bytes: 4194304")).is_ok());
    }

    #[test]
    fn the_bound_on_processes_is_named_where_one_could_not_be_started() {
        let resources = capsule("cgroup_pids_max: 3").capabilities.resources;
        let fault =
            |code| named(Diagnostic::new(code, "relay failed with EAGAIN (Try again)").hint("other"), &resources);
        assert!(fault(codes::E_RUN_066).hint_text().unwrap().contains("cgroup_pids_max is 3"));
        assert_eq!(fault(codes::E_RUN_007).hint_text(), Some("other"));
        let enough = capsule("cgroup_pids_max: 100").capabilities.resources;
        let fault = named(Diagnostic::new(codes::E_RUN_066, "EAGAIN").hint("other"), &enough);
        assert_eq!(fault.hint_text(), Some("other"));
    }
}
