//! "Resuming a member's session" of the roster seed, row by row: the conversation comes back, the formation does not.

use std::path::PathBuf;

use mur_tests::{Agent, Done, Door, Invocation, Roster, Trace, World};
use nix::sys::signal::Signal::SIGTERM;
use serde_json::{Value, json};

/// Calls the coder, and on a task that says "again" tells what it was sent and handed.
fn lead() -> Agent {
    let script = json!({"rules": [
        {"when": {"contains": "[call-member] call "}, "turns": [[{"say": "{{answers | each \"{{it.text}}\"}}"}]]},
        {"when": {"contains": "again"}, "turns": [[
            {"http": "http://coder.formation.invalid/.well-known/agent-card.json", "as": "card"},
            {"say": "tools={{tools | join \",\"}};task={{task}};messages={{messages}};status={{card.status}};\
                     error={{card.error}};env={{env | quote}};system={{system}}"},
        ]]},
        {"turns": [
            [{"call": "call-member", "input": {"member": "coder", "task": "part of {{text}}"}}],
            [{"say": "handed over"}],
        ]},
    ]});
    Agent::scripted("lead", script).peer().network(&["localhost"])
}

fn coder() -> Agent {
    let say = json!([[{"say": "{{task}};messages={{messages}};tools={{tools | join \",\"}};env={{env | quote}}"}]]);
    Agent::scripted("coder", json!({"rules": [{"turns": say, "repeat": true}]})).peer().network(&["localhost"])
}

fn roster() -> Roster {
    Roster::new().member("boss", lead()).member("coder", coder()).rule("boss", &["coder"])
}

/// A member takes tasks until its formation ends; by hand it is to run one.
const ONE_TASK: [&str; 3] = ["--lifecycle-task-acceptance", "queue", "--lifecycle-after-task"];

/// A formation that ran one task and ended.
struct Ended {
    world: World,
    formation: String,
    boss: Trace,
    coder: Trace,
}

impl Ended {
    #[track_caller]
    fn new() -> Self {
        let world = World::new();
        world.roster(&roster());
        let done = world.mur(["run", "--roster", "--json", "--task", "the work"]).run();
        assert_eq!(done.code(), Some(0), "{}", done.stderr);
        let (boss, coder) = (world.trace("boss"), world.trace("coder"));
        let formation = boss.one("session_start")["formation_id"].as_str().expect("an id").to_owned();
        assert_eq!(coder.one("session_start")["formation_id"], formation.as_str());
        Self { world, formation, boss, coder }
    }

    /// Resumes the entry member's session, which is recorded under the roster's project, for one task.
    fn resume_boss(&self) -> Invocation {
        self.resume_boss_with("exit")
    }

    fn resume_boss_with(&self, after: &str) -> Invocation {
        self.world
            .mur(["run", "--capsule", "local/lead", "--capsule-version", "0.1.0", "--workdir", ".", "--json"])
            .args(ONE_TASK)
            .args([after, "--resume", "--task", "again"])
    }

    fn newest(&self) -> Trace {
        self.world.traces().pop().expect("a session")
    }

    /// Resumes the entry member's session and runs it to its end.
    #[track_caller]
    fn resumed(&self) -> (Done, Trace, String) {
        let done = self.resume_boss().run();
        assert_eq!(done.code(), Some(0), "{}", done.stderr);
        let trace = self.newest();
        assert_eq!(trace.one("session_start")["resumed_from"], self.boss.session());
        let told = trace.result().expect("a result");
        (done, trace, told)
    }
}

#[test]
fn a_members_session_resumed_by_hand_continues_its_conversation() {
    let ended = Ended::new();
    let (_, trace, told) = ended.resumed();
    // The task, the call, its result, "handed over", the answers, what was said to them, the new task.
    assert!(told.contains(";task=the work;messages=7;"), "{told}");
    assert_eq!(trace.one("task_start")["context_id"], ended.boss.one("task_start")["context_id"]);
}

#[test]
fn a_resumed_members_session_has_no_formation_id() {
    let ended = Ended::new();
    let (done, trace, told) = ended.resumed();
    let Value::Object(start) = &trace.one("session_start").0 else { panic!("a record is an object") };
    let keys: Vec<&String> = start.keys().filter(|key| key.starts_with("formation")).collect();
    assert!(keys.is_empty(), "{keys:?}");
    assert!(done.json().get("formation_id").is_none(), "{}", done.stdout);
    for text in [&told, &done.stdout, &done.stderr] {
        assert!(!text.contains(&ended.formation), "{text}");
    }
    assert!(!told.contains("Formation member"), "its prompt calls it no member: {told}");
    // The formation is still those two sessions.
    let shown = ended.world.mur(["trace", "show", &ended.formation]).ok().stdout;
    assert!(shown.contains(ended.boss.session()) && !shown.contains(trace.session()), "{shown}");
}

#[test]
fn a_resumed_members_session_has_no_credentials_and_no_callees_addresses() {
    let ended = Ended::new();
    let (_, trace, told) = ended.resumed();
    assert!(!told.contains("MURMUR_FORMATION"), "{told}");
    // A virtual address leads nowhere: refused before anything connects.
    assert!(told.contains(";status=0;") || told.contains(";status=;"), "{told}");
    assert!(told.contains("refused") || told.contains("denied"), "{told}");
    assert!(trace.all("a2a_send").is_empty());

    // Its door belongs to no formation.
    let running = ended.resume_boss_with("sleep").start();
    let door = Door::ready(&running.json_line(0));
    let refused = door.token("mft1.e30.AAAA").call("GetTask", json!({"id": "tsk_1"}));
    assert_eq!((refused.status, &refused.json()["error"]), (401, &json!("invalid_token")));
    running.signal(SIGTERM);
    running.wait();
}

#[test]
fn call_member_is_not_offered_in_a_resumed_members_session() {
    let ended = Ended::new();
    let offered = |trace: &Trace| trace.one("session_start")["tools_declared"].clone();
    assert!(offered(&ended.boss).to_string().contains("\"call-member\""));
    let (_, trace, told) = ended.resumed();
    assert!(told.starts_with("tools=session-status;"), "{told}");
    let declared = offered(&trace).to_string();
    assert!(!declared.contains("call-member") && !declared.contains("end-without-answer"), "{declared}");
}

#[test]
fn w_run_007_is_not_printed_for_a_resumed_members_session() {
    let ended = Ended::new();
    let (done, ..) = ended.resumed();
    assert!(!done.stderr.contains("W-RUN-007"), "{}", done.stderr);
    assert!(!done.stderr.contains("W-RUN-008"), "{}", done.stderr);
}

#[test]
fn a_peers_session_is_resumed_by_its_work_folder_or_its_path() {
    let ended = Ended::new();
    let folder = ended.world.murmur().join("formations").join(&ended.formation).join("coder");
    let run = |more: &[&std::ffi::OsStr]| {
        let done = ended
            .world
            .mur(["run", "--capsule", "local/coder", "--capsule-version", "0.1.0", "--json", "--task", "again"])
            .args(ONE_TASK)
            .arg("exit")
            .args(more)
            .run();
        assert_eq!(done.code(), Some(0), "{}", done.stderr);
        let trace = ended.newest();
        let start = trace.one("session_start").clone();
        assert_eq!(start["resumed_from"], ended.coder.session());
        assert!(start["formation_id"].is_null() && start["formation_member"].is_null());
        assert!(start["formation_callees"].is_null());
        assert!(!done.stderr.contains("W-RUN-007"), "{}", done.stderr);
        (PathBuf::from(done.json()["workdir"].as_str().expect("a path")), trace.result().expect("a result"))
    };
    let (work, told) = run(&["--workdir".as_ref(), folder.as_os_str(), "--resume".as_ref()]);
    assert_eq!(work, folder);
    assert!(told.starts_with("part of the work;messages=3;tools=session-status;"), "{told}");
    assert!(!told.contains("MURMUR_FORMATION"), "{told}");
    // By its path it can be resumed from anywhere, in a work folder of its own.
    let (work, told) = run(&["--resume".as_ref(), ended.coder.directory().as_os_str()]);
    assert!(work.starts_with(ended.world.project()), "{}", work.display());
    assert!(told.starts_with("part of the work;messages=5;"), "{told}");
}

#[test]
fn nothing_winds_a_resumed_members_session_down_when_its_formation_ends() {
    let world = World::new();
    world.roster(&roster());
    let launcher = world.mur(["run", "--roster", "--json"]).start();
    let formation = launcher.json_line(0)["formation_id"].as_str().expect("an id").to_owned();
    let entry = launcher.json_line(1);
    let token = world.mur(["token", entry["session_id"].as_str().expect("an id")]).ok().stdout;
    let boss = Door::at(entry["url"].as_str().expect("a url")).token(token.trim());
    let task = boss.ask("the work");
    assert_eq!(task["status"]["state"], "TASK_STATE_COMPLETED", "{task}");

    // The formation runs, and so does a session resumed from one of it.
    let resumed = world
        .mur(["run", "--capsule", "local/lead", "--capsule-version", "0.1.0", "--workdir", "."])
        .args(["--json", "--readiness-tokens", "--resume"])
        .arg(entry["session_id"].as_str().expect("an id"))
        .start();
    let line = resumed.json_line(0);
    assert!(line.get("formation_id").is_none(), "{line}");
    let door = Door::ready(&line);
    // It is no part of the formation for whoever looks, and is not stopped with it.
    let stopped = world.mur(["stop", &formation]).ok();
    assert!(!stopped.stdout.contains(line["session_id"].as_str().expect("an id")), "{}", stopped.stdout);
    launcher.wait();
    let told = door.ask("again");
    assert_eq!(told["status"]["state"], "TASK_STATE_COMPLETED", "{told}");
    resumed.signal(SIGTERM);
    let done = resumed.wait();
    assert_eq!(done.code(), Some(0), "{}", done.stderr);
    let trace = Trace::read(&PathBuf::from(line["records_dir"].as_str().expect("a path")).join("trace.jsonl"));
    assert!(trace.all("formation_ended").is_empty(), "{:?}", trace.kinds());
    assert_eq!(trace.one("session_end")["exit_status"], "ok");
    assert!(!done.stderr.contains("formation"), "{}", done.stderr);
}

#[test]
fn a_formation_id_in_the_environment_places_a_resumed_session_in_that_formation_only() {
    let ended = Ended::new();
    let other = "frm_0199c4e2f1b7712a9d3e4f5061728394";
    let done = ended.resume_boss().env("MURMUR_FORMATION_ID", other).run();
    assert_eq!(done.code(), Some(0), "{}", done.stderr);
    assert_eq!(done.json()["formation_id"], other);
    assert_eq!(done.stderr.matches("warning[W-RUN-007]").count(), 1, "{}", done.stderr);
    let trace = ended.newest();
    let start = trace.one("session_start");
    assert_eq!((&start["formation_id"], &start["resumed_from"]), (&json!(other), &json!(ended.boss.session())));
    assert!(start["formation_member"].is_null() && start["formation_callees"].is_null());
    let told = trace.result().expect("a result");
    assert!(told.starts_with("tools=session-status;"), "{told}");
    assert!(!told.contains("MURMUR_FORMATION_PEERS") && !told.contains(&ended.formation), "{told}");
    // What a launcher alone sets is refused as ever.
    for variable in ["MURMUR_FORMATION_CHANNEL", "MURMUR_FORMATION_LIFELINE"] {
        ended.resume_boss().env(variable, "77").run().refused("E-RUN-046");
    }
}

#[test]
fn a_roster_is_never_resumed() {
    let ended = Ended::new();
    let before = ended.world.files();
    for more in [&["--resume"][..], &["--resume", "@1"], &["--resume-mode", "full"], &["--resume", "--task", "x"]] {
        let done = ended.world.mur(["run", "--roster"]).args(more).run();
        assert_eq!(done.code(), Some(2), "{more:?}: {}", done.stderr);
    }
    assert_eq!(ended.world.files(), before);
    // A new launch is a new formation.
    let done = ended.world.mur(["run", "--roster", "--json", "--task", "the work"]).run();
    assert_eq!(done.code(), Some(0), "{}", done.stderr);
    let start = ended.newest().one("session_start").clone();
    assert_ne!(start["formation_id"], ended.formation.as_str());
    assert!(start["resumed_from"].is_null());
}
