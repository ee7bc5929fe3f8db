//! Which limit of `capabilities.resources` a command met: told by its signal, or by the counters of the session's scope
//! where no other command could have moved them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use mur_plugin_api::ScopeEvents;
use nix::sys::signal::Signal;

use crate::containment::Ended;
use crate::manifest::Resources;
use crate::worker::WorkerSet;

/// The commands of a session together.
pub struct Scope {
    /// Holds the enclosure, where there is one.
    workers: WorkerSet,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    running: u32,
    /// Commands started so far.
    starts: u64,
    /// The counters when a command last ended.
    seen: ScopeEvents,
}

/// What is known of a command's start.
pub struct Ticket {
    alone: bool,
    number: u64,
}

impl Scope {
    /// Of a session whose processes are in the enclosure of its workers.
    pub fn new(workers: WorkerSet) -> Self {
        Self { workers, state: Mutex::default() }
    }

    /// A command is about to start.
    pub fn enter(&self) -> Ticket {
        let mut state = self.lock();
        state.running += 1;
        state.starts += 1;
        Ticket { alone: state.running == 1, number: state.starts }
    }

    /// It did not start. Whether it was alone all the time.
    pub fn left(&self, ticket: &Ticket) -> bool {
        let mut state = self.lock();
        state.running = state.running.saturating_sub(1);
        ticket.alone && state.starts == ticket.number
    }

    /// It ended. The limit it met.
    pub async fn leave(&self, ticket: Ticket, ended: &Ended, is_shell: bool) -> Option<&'static str> {
        let alone = self.left(&ticket);
        let counted = self.counted().await;
        let moved = counted.map(|now| {
            let mut state = self.lock();
            let before = std::mem::replace(&mut state.seen, now);
            (now.oom_kills > before.oom_kills, now.pids_refused > before.pids_refused)
        });
        by_signal(ended, is_shell).or(match moved {
            Some((true, _)) if alone => Some("cgroup_memory_bytes"),
            Some((_, true)) if alone => Some("cgroup_pids_max"),
            _ => None,
        })
    }

    async fn counted(&self) -> Option<ScopeEvents> {
        self.workers.enclosure()?;
        let workers = self.workers.clone();
        let asked = tokio::task::spawn_blocking(move || workers.enclosure().and_then(|helper| helper.events().ok()));
        asked.await.ok().flatten()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A shell ends with 128 + N where signal N ended what it ran.
fn by_signal(ended: &Ended, is_shell: bool) -> Option<&'static str> {
    let signal = match ended {
        Ended::Signalled(signal) => *signal,
        Ended::Exited(status) if is_shell => status - 128,
        _ => return None,
    };
    match Signal::try_from(signal).ok()? {
        Signal::SIGXCPU => Some("cpu_seconds"),
        Signal::SIGXFSZ => Some("max_file_size_bytes"),
        _ => None,
    }
}

/// The line the model reads about a limit.
pub fn note(limit: &str, binary: &str, resources: &Resources) -> String {
    let (value, what) = match limit {
        "cpu_seconds" => (resources.cpu_seconds, "used its processor time up"),
        "max_file_size_bytes" => (resources.max_file_size_bytes, "wrote a file past its largest size"),
        "cgroup_memory_bytes" => (resources.cgroup_memory_bytes, "used the session's memory up"),
        _ => (resources.cgroup_pids_max, "wanted more processes than the session may have"),
    };
    format!("resource_limit: {limit} — '{binary}' {what} (capabilities.resources.{limit} is {value})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_told_by_the_signal_or_by_a_shells_status() {
        let (cpu, file) = (Signal::SIGXCPU as i32, Signal::SIGXFSZ as i32);
        for (ended, is_shell, expected) in [
            (Ended::Signalled(cpu), false, Some("cpu_seconds")),
            (Ended::Signalled(file), true, Some("max_file_size_bytes")),
            (Ended::Exited(128 + file), true, Some("max_file_size_bytes")),
            (Ended::Exited(128 + file), false, None),
            (Ended::Signalled(9), true, None),
            (Ended::Exited(1), true, None),
            (Ended::Lost("x".into()), true, None),
        ] {
            assert_eq!(by_signal(&ended, is_shell), expected, "{ended:?}");
        }
    }

    #[test]
    fn a_command_is_alone_only_when_no_other_ran_beside_it() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _inside = runtime.enter();
        let scope = Scope::new(WorkerSet::new());
        let first = scope.enter();
        assert!(scope.left(&first));
        let (first, second) = (scope.enter(), scope.enter());
        assert!(!scope.left(&second) && !scope.left(&first));
        assert!(note("cpu_seconds", "sh", &Resources::default()).starts_with("resource_limit: cpu_seconds — 'sh' "));
    }
}
