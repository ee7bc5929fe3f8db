//! One member on a lifeline the test holds, as a launcher would.

#![allow(clippy::disallowed_methods, reason = "suites start the binary under test with the standard library")]
#![allow(unsafe_code, reason = "the lifeline is handed over between fork and exec")]

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::live::capsule::Capsule;
use crate::live::door::Door;
use crate::live::home::Home;
use crate::live::run::{Running, until};
use crate::live::{proc, trace};

/// The formation it is told that it belongs to.
pub const FORMATION: &str = "frm_0123456789abcdef0123456789abcdef";
/// Where its lifeline is.
const LIFELINE: i32 = 60;
/// The variable that names the lifeline, and who spawned it.
const OF_FORMATION: (&str, &str) = ("MURMUR_FORMATION_LIFELINE", "");
const OF_SPAWNER: (&str, &str) = ("MURMUR_SPAWNER_LIFELINE", SPAWNER);
/// The session that delegated to a delegated child.
pub const SPAWNER: &str = "ses_0123456789abcdef0123456789abcdef";

/// A started member.
pub struct Member {
    /// Its process.
    pub process: Running,
    lifeline: Option<OwnedFd>,
}

impl Member {
    /// Starts an installed capsule.
    pub fn start(home: &Home, capsule: &Capsule, flags: &[&str]) -> Self {
        Self::of(home, capsule, flags, OF_FORMATION, Running::start)
    }

    /// Starts a member's delegated child: it carries the formation's id and holds its spawner's lifeline instead.
    pub fn start_delegated(home: &Home, capsule: &Capsule, flags: &[&str]) -> Self {
        Self::of(home, capsule, flags, OF_SPAWNER, Running::start)
    }

    fn of(
        home: &Home,
        capsule: &Capsule,
        flags: &[&str],
        (lifeline, spawner): (&str, &str),
        start: impl FnOnce(Command) -> Running,
    ) -> Self {
        let args = capsule.run_flags().into_iter().chain(["--json".to_owned()]);
        let mut command = home.command(args.chain(flags.iter().map(|flag| (*flag).to_owned())));
        command.env("MURMUR_FORMATION_ID", FORMATION).env(lifeline, LIFELINE.to_string());
        if !spawner.is_empty() {
            command.env("MURMUR_SPAWNER", spawner);
        }
        let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC).expect("a pipe");
        let from = read.as_raw_fd();
        // SAFETY: dup2 between fork and exec, of a descriptor this process holds open.
        unsafe {
            command.pre_exec(move || {
                if libc::dup2(from, LIFELINE) < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
            });
        }
        Self { process: start(command), lifeline: Some(write) }
    }

    /// Its readiness line.
    #[track_caller]
    pub fn ready(&self) -> Value {
        self.process.json_line("session_id")
    }

    /// Its door with the operator token.
    #[track_caller]
    pub fn door(&self, home: &Home) -> Door {
        let ready = self.ready();
        let record = home.running().into_iter().find(|record| record["session_id"] == ready["session_id"]);
        let token = record.and_then(|record| record["door_token"].as_str().map(str::to_owned)).unwrap_or_default();
        Door::new(ready["url"].as_str().expect("a url"), &token)
    }

    /// Gives it a task and waits until it runs.
    #[track_caller]
    pub fn busy(&self, home: &Home) -> Door {
        let door = self.door(home);
        let task = door.send("work");
        until("the task runs", || {
            let answer = door.call("GetTask", serde_json::json!({"id": task}));
            answer.pointer("/result/status/state") == Some(&Value::from("TASK_STATE_WORKING"))
        });
        door
    }

    /// The only session of this home.
    #[track_caller]
    pub fn session(home: &Home) -> PathBuf {
        let mut sessions = trace::sessions(home.murmur().join("records"));
        assert_eq!(sessions.len(), 1, "{sessions:?}");
        sessions.remove(0)
    }

    /// Waits until its trace holds a record of this type.
    #[track_caller]
    pub fn recorded(home: &Home, event: &str) {
        let session = Self::session(home);
        let needle = format!("{{\"event_type\":\"{event}\"");
        until(event, || std::fs::read_to_string(session.join("trace.jsonl")).is_ok_and(|text| text.contains(&needle)));
    }

    /// Closes its lifeline.
    pub fn close_lifeline(&mut self) {
        self.lifeline = None;
    }

    /// Writes on its lifeline, which no launcher does.
    pub fn write_on_lifeline(&self, bytes: &[u8]) {
        nix::unistd::write(self.lifeline.as_ref().expect("it is open"), bytes).expect("it is written");
    }

    /// Sends it a SIGTERM and waits until whoever watches for its end has seen it: two that are seen together are one.
    #[track_caller]
    pub fn terminate(&self) {
        let pid = self.process.pid();
        let before = proc::waits(pid, "end");
        kill(Pid::from_raw(pid), Signal::SIGTERM).expect("a signal is sent");
        until("the signal is seen", || proc::waits(pid, "end") > before || !proc::runs(pid));
    }
}

/// A stream into which everything is written and from which nothing is read.
pub struct Unread {
    read: OwnedFd,
    write: OwnedFd,
}

impl Unread {
    /// The stream, and the end a process is to write to.
    pub fn pipe() -> (Self, OwnedFd) {
        let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC).expect("a pipe");
        let given = write.try_clone().expect("a copy");
        (Self { read, write }, given)
    }

    /// Fills it: whoever writes next waits.
    pub fn fill(&self) {
        let flags = |flags: OFlag| fcntl(&self.write, FcntlArg::F_SETFL(flags)).expect("flags are set");
        flags(OFlag::O_WRONLY | OFlag::O_NONBLOCK);
        // Whole pages first, then the last bytes.
        for size in [4096, 1] {
            while nix::unistd::write(&self.write, &vec![b'\n'; size]).is_ok() {}
        }
        flags(OFlag::O_WRONLY);
    }

    /// Reads all that comes until its writers are gone.
    pub fn drain(self) -> String {
        drop(self.write);
        let mut text = Vec::new();
        File::from(self.read).read_to_end(&mut text).expect("it is read");
        String::from_utf8_lossy(&text).trim_start_matches('\n').to_owned()
    }
}
