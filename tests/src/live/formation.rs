//! The formation most suites launch: a lead that hands its task to two workers and joins their answers.

use serde_json::{Value, json};

use crate::live::capsule::{Capsule, roster};
use crate::live::home::Home;
use crate::live::run::Running;

/// The lead: hands the task to every member it may call, then joins the answers.
pub fn lead() -> Capsule {
    Capsule::scripted(
        "lead",
        json!({"rules": [
            {"when": {"contains": "[call-member] call "}, "turns": [[
                {"say": "{{answers | each \"{{it.member}} said: {{it.text}}\n\"}}"}
            ]]},
            {"turns": [
                [{"for_each": "{{peers}}", "as": "peer", "do": [
                    {"call": "call-member", "input": {"member": "{{peer}}", "task": "{{text}} for {{peer}}"}}
                ]}],
                [{"say": "handed over"}]
            ]}
        ]}),
    )
    .member()
}

/// A worker that answers at once.
pub fn worker() -> Capsule {
    Capsule::saying("worker", "done: {{text}}").member()
}

/// A worker that takes `millis` for each answer.
pub fn slow_worker(millis: u64) -> Capsule {
    let script = json!({"rules": [{"repeat": true, "turns": [[{"wait_ms": millis}, {"say": "late: {{text}}"}]]}]});
    Capsule::scripted("worker", script).member()
}

/// Installs lead and worker and writes the roster: `lead` may call `coder` and `reviewer`, `reviewer` may call `coder`.
pub fn standard(home: &Home, worker: &Capsule) {
    let lead = lead();
    lead.install(home);
    worker.install(home);
    let rules = json!([
        {"from": "lead", "to": ["coder", "reviewer"]},
        {"from": "reviewer", "to": ["coder"]}
    ]);
    home.write("roster.yaml", roster(&[("lead", &lead), ("coder", worker), ("reviewer", worker)], rules));
}

/// A launched formation that takes tasks at its entry member's door.
pub struct Launched {
    /// The launcher.
    pub launcher: Running,
    /// Its announcement.
    pub formation: Value,
    /// The entry member's readiness line.
    pub entry: Value,
}

impl Launched {
    /// Launches the project's roster without a task and waits until the entry member is ready.
    #[track_caller]
    pub fn open(home: &Home) -> Self {
        Self::with(home, &[])
    }

    /// The same with more flags.
    #[track_caller]
    pub fn with(home: &Home, flags: &[&str]) -> Self {
        let mut args = vec!["run", "--roster", "--json"];
        args.extend_from_slice(flags);
        let launcher = home.start(&args);
        let formation = launcher.json_line("formation_id");
        let entry = launcher.json_line("session_id");
        Self { launcher, formation, entry }
    }

    /// The formation id.
    pub fn id(&self) -> String {
        self.formation["formation_id"].as_str().expect("an id").to_owned()
    }

    /// A peer's pid.
    pub fn peer(&self, name: &str) -> i32 {
        self.peer_line(name)["pid"].as_i64().expect("a pid").try_into().expect("a pid")
    }

    /// A peer's entry in the announcement.
    pub fn peer_line(&self, name: &str) -> &Value {
        let peers = self.formation["peers"].as_array().expect("peers");
        peers.iter().find(|peer| peer["name"] == name).expect("a peer of that name")
    }

    /// The entry member's pid.
    pub fn entry_pid(&self) -> i32 {
        self.entry["pid"].as_i64().expect("a pid").try_into().expect("a pid")
    }

    /// Every member's pid, the entry member's first.
    pub fn members(&self) -> Vec<i32> {
        let peers = self.formation["peers"].as_array().expect("peers");
        let pids = peers.iter().map(|peer| peer["pid"].as_i64().expect("a pid") as i32);
        [self.entry_pid()].into_iter().chain(pids).collect()
    }

    /// The operator token of a member's session, from its running record.
    pub fn token(&self, home: &Home, session: &str) -> String {
        let record = home.running().into_iter().find(|record| record["session_id"] == session).expect("a record");
        record["door_token"].as_str().expect("a token").to_owned()
    }

    /// The entry member's door with the operator token.
    pub fn door(&self, home: &Home) -> crate::live::Door {
        let session = self.entry["session_id"].as_str().expect("a session");
        crate::live::Door::new(self.entry["url"].as_str().expect("a url"), &self.token(home, session))
    }

    /// A peer's door with the operator token.
    pub fn peer_door(&self, home: &Home, name: &str) -> crate::live::Door {
        let peer = self.peer_line(name);
        let session = peer["session_id"].as_str().expect("a session");
        crate::live::Door::new(peer["url"].as_str().expect("a url"), &self.token(home, session))
    }
}
