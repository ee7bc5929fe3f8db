//! Situations that users of such software met, and that no other suite is about.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use mur_tests::commands::{CLASSES, TWO, caller, launch, line, run};
use mur_tests::live::proc;
use mur_tests::{Agent, Answer, Provider, World, wait_until};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// States of every process whose parent this is, by pid.
fn children(parent: u32) -> Vec<(u32, char)> {
    let stats = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse::<u32>().ok()?;
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let mut fields = stat[stat.rfind(')')? + 2..].split(' ');
        let (state, above) = (fields.next()?.chars().next()?, fields.next()?.parse::<u32>().ok()?);
        (above == parent).then_some((pid, state))
    });
    stats.collect()
}

#[test]
fn hundreds_of_short_tool_calls_leave_no_zombie_and_one_worker_serves_them() {
    let world = World::new();
    let calls = json!({"for_each": 300, "do": [{"call": "text-stats", "input": {"text": "a b c"}}]});
    let agent = Agent::scripted("agent", json!({"rules": [{"repeat": true, "turns": [[calls], [{"say": "done"}]]}]}))
        .tool("text-stats")
        .with(&["lifecycle", "after_task"], "sleep")
        .with(&["lifecycle", "task_acceptance"], "single");
    world.write("murmur.yaml", agent.manifest());
    let running = world.mur(["run", "--json", "--task", "go"]).start();
    running.json_line(0);
    let mut most = 0;
    wait_until("the task ends", || {
        let children = children(running.pid());
        most = most.max(children.len());
        // A zombie is there for the moment until it is reaped; that moment has to end.
        world.traces().pop().is_some_and(|trace| trace.first("task_end").is_some())
    });
    wait_until("no child is a zombie", || children(running.pid()).iter().all(|(_, state)| *state != 'Z'));
    let trace = world.traces().pop().unwrap();
    assert_eq!(trace.all("tool_call").len(), 300);
    assert!(most <= 4, "{most} children at once");
    running.signal(nix::sys::signal::Signal::SIGTERM);
    running.wait();
}

#[test]
fn hundreds_of_short_commands_leave_no_zombie() {
    for class in TWO {
        let world = World::new();
        let many = json!({"for_each": 100, "do": [{"call": "true", "input": {"command": "x"}}]});
        let held = json!([{"call": "sh", "input": {"command": "touch there; while [ ! -e go ]; do sleep 0.02; done"}}]);
        let script = json!({"rules": [{"turns": [[many], [many.clone()], held, [{"say": "done"}]]}]});
        let agent = Agent::scripted("agent", script)
            .with(&["capabilities", "shell", "allow"], json!(["true", "sh", "sleep", "touch"]));
        let session = launch(&world, &agent, class).args(["--task", "go"]).start();
        let work = world.project().join("work");
        wait_until("all short commands have run", || work.join("there").exists());
        // Whoever reaps them has its own moment for it.
        let zombies = || {
            let (mut open, mut count) = (vec![session.pid()], 0);
            while let Some(parent) = open.pop() {
                for (pid, state) in children(parent) {
                    count += usize::from(state == 'Z');
                    open.push(pid);
                }
            }
            count
        };
        wait_until("every short command is reaped", || zombies() == 0);
        fs::write(work.join("go"), "").unwrap();
        let done = session.wait();
        assert_eq!(done.code(), Some(0), "{}", done.stderr);
        let trace = world.traces().remove(0);
        assert_eq!(trace.all("shell").len(), 201, "{class}");
        assert!(trace.all("shell").iter().all(|record| record["exit_code"] == 0), "{class}");
    }
}

#[test]
fn an_end_that_meets_the_deadline_is_reported_once_and_the_same_everywhere() {
    let world = World::new();
    // Not a synchronisation: the ends are meant to fall on both sides of the deadline, and on it.
    for millis in (0..=16).map(|step| 600 + step * 25) {
        let script = json!({"rules": [{"turns": [[{"wait_ms": millis}, {"say": "done"}]]}]});
        world.write("murmur.yaml", Agent::scripted("agent", script).manifest());
        let done = world.mur(["run", "--deadline", "1", "--task", "go"]).run();
        let trace = world.traces().pop().unwrap();
        let ends = trace.all("session_end");
        assert_eq!(ends.len(), 1, "{millis}: {:?}", trace.kinds());
        // On a busy machine the deadline may come before the task does.
        assert_eq!(trace.all("task_end").len(), trace.all("task_start").len(), "{millis}: {:?}", trace.kinds());
        let late = ends[0]["exit_status"] == "deadline_reached";
        assert!(late || ends[0]["exit_status"] == "ok", "{millis}: {}", ends[0]["exit_status"]);
        assert_eq!(done.code(), Some(i32::from(late)), "{millis}: {}", done.stderr);
        assert_eq!(done.stderr.matches("E-RUN-053").count(), usize::from(late), "{millis}: {}", done.stderr);
        assert_eq!(trace.all("deadline_reached").len(), usize::from(late), "{millis}: {:?}", trace.kinds());
    }
}

#[test]
fn a_tool_blocked_in_a_request_that_nobody_answers_is_ended_by_its_deadline() {
    let silent = Provider::play([Answer::text(200, "text/plain", "never").held()]);
    let world = World::new();
    let call = json!({"call": "fetch", "input": {"url": format!("{}/x", silent.url())}});
    let script =
        json!({"rules": [{"turns": [[call], [{"say": "{{results | each \"{{it.is_error}} {{it.raw}}\"}}"}]]}]});
    let agent = Agent::scripted("agent", script)
        .tool("fetch")
        .network(&["127.0.0.1"])
        .with(&["capabilities", "limits", "deadline_seconds"], 1);
    world.write("murmur.yaml", agent.manifest());
    world.mur(["run", "--task", "go"]).ok();
    let result = world.traces().pop().unwrap().result().unwrap();
    assert!(result.starts_with("true ") && result.contains("deadline"), "{result}");
    assert_eq!(silent.seen().len(), 1);
}

/// A store plugin that announces one digest of `local/agent` and hands out these bytes.
struct LyingStore {
    world: World,
    honest: PathBuf,
    other: PathBuf,
}

fn says(text: &str) -> Agent {
    Agent::scripted("agent", json!({"rules": [{"turns": [[{"say": text}]]}]}))
}

fn sha256(path: &Path) -> String {
    Sha256::digest(fs::read(path).unwrap()).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl LyingStore {
    fn new() -> Self {
        let world = World::new();
        let kept = |name: &str, agent: &Agent| {
            let built = world.build(agent);
            let path = world.project().join(name);
            fs::rename(built, &path).unwrap();
            path
        };
        let honest = kept("honest.mur.zip", &says("I am honest."));
        let other = kept("other.mur.zip", &says("I am another."));
        let folder = world.project().join("plugins");
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        let library = folder.join("store.so");
        let test = std::env::current_exe().unwrap();
        fs::copy(test.ancestors().nth(2).unwrap().join("libmur_test_plugin_faulty.so"), &library).unwrap();
        fs::set_permissions(&library, fs::Permissions::from_mode(0o644)).unwrap();
        world.mur(["plugin", "trust"]).arg(&library).ok();
        let member = json!({"name": "lead", "capsule": "local/agent", "version": "0.1.0", "entry": true});
        world.write("roster.yaml", json!({"roster_version": 1, "members": [member]}).to_string());
        Self { world, honest, other }
    }

    /// What the store announces and what it hands out from now on.
    fn holds(&self, announced: &Path, handed: &Path) {
        let config: Value = json!({
            "fault": "swapped", "name": "local/agent", "version": "0.1.0", "sha256": sha256(announced), "payload": handed,
        });
        self.world.config(&json!({"stores": [{"plugin": "faulty", "config": config}]}).to_string());
    }

    fn run(&self) -> mur_tests::Done {
        let args = ["run", "--capsule", "local/agent", "--capsule-version", "0.1.0", "--task", "x"];
        self.world.mur(args).run()
    }
}

#[test]
fn a_store_that_hands_out_other_bytes_than_it_announced_is_not_believed() {
    let store = LyingStore::new();
    store.holds(&store.honest, &store.honest);
    let done = store.run();
    assert!(done.status.success(), "{}{}", done.stdout, done.stderr);
    assert_eq!(store.world.traces().pop().unwrap().result().as_deref(), Some("I am honest."));
    store.holds(&store.honest, &store.other);
    let refused = store.run();
    refused.refused("E-REG-002");
    let admitted = store.world.mur(["run", "--roster", "--task", "x"]).run();
    admitted.refused("E-ROS-007");
    assert!(admitted.stderr.contains("E-REG-002"), "{}", admitted.stderr);
    for done in [refused, admitted] {
        assert!(done.stderr.contains(&sha256(&store.honest)) || done.stderr.contains("integrity"), "{}", done.stderr);
    }
    assert_eq!(store.world.traces().len(), 1, "nothing else ran");
}

#[test]
fn a_store_that_swaps_an_artifact_whole_is_caught_by_the_lock() {
    let store = LyingStore::new();
    // The project pins the honest bytes, and keeps them nowhere but in that store.
    store.world.mur(["install"]).arg(&store.honest).ok();
    fs::remove_dir_all(store.world.project().join(".murmur/artifacts/local")).unwrap();
    store.holds(&store.honest, &store.honest);
    store.world.mur(["run", "--roster", "--task", "x"]).ok();
    store.holds(&store.other, &store.other);
    let refused = store.world.mur(["run", "--roster", "--task", "x"]).run();
    assert_eq!(refused.code(), Some(1));
    assert!(refused.stderr.contains(&sha256(&store.other)), "{}", refused.stderr);
    assert!(refused.stderr.contains("E-REG-005"), "{}", refused.stderr);
    assert_eq!(store.world.traces().len(), 1, "nothing else ran");
}

/// Leaves its session, its group and its parent, twice, and lets its last descendant run for ever.
const DAEMON: &str = "setsid sh -c '(trap \"\" HUP TERM; exec 0<&- 1>&- 2>&-; : > there; while :; do sleep 0.05; done) & :'; \
    while [ ! -e there ]; do sleep 0.02; done; echo away";

#[test]
fn a_command_that_daemonises_is_gone_with_the_session_or_the_end_of_the_run_names_it() {
    for class in CLASSES {
        let world = World::new();
        let agent = caller("agent", &["sh", "setsid", "sleep"], &[("sh", line(DAEMON))]);
        let ran = run(&world, &agent, class);
        assert!(ran.text(0).contains("Stdout:\naway\n"), "{class}: {}", ran.text(0));
        let daemons = || {
            let here = |pid: &i32| fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == ran.work);
            let all = proc::parents().into_iter().map(|(pid, _)| pid);
            all.filter(here).filter(|pid| proc::runs(*pid)).collect::<Vec<i32>>()
        };
        if class == "unconfined" {
            let line = ran.done.stderr.lines().find(|line| line.contains("this still runs: pid "));
            let line = line.unwrap_or_else(|| panic!("{}", ran.done.stderr));
            let left: Vec<i32> =
                daemons().into_iter().filter(|pid| proc::command_line(*pid).contains("trap")).collect();
            assert_eq!(left.len(), 1, "nothing held it, so it is there: {line}");
            assert!(line.contains(&format!("pid {} (sh)", left[0])), "{line}");
            for pid in daemons() {
                // Its short sleeps end by themselves.
                let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
            }
        } else {
            wait_until("the daemon is gone", || daemons().is_empty());
            assert!(!ran.done.stderr.contains("still runs"), "{}", ran.done.stderr);
        }
    }
}

#[test]
fn a_session_under_a_file_size_limit_ends_with_the_code_of_a_full_disk() {
    let world = World::new();
    let many = json!({"for_each": 200, "do": [{"call": "session-status"}]});
    let script = json!({"rules": [{"turns": [[many], [{"say": "done"}]]}]});
    let agent = Agent::scripted("agent", script);
    let name = world.install(&agent);
    let args = format!("run --capsule {name} --capsule-version {} --task go --containment unconfined", agent.version());
    let plain = world.mur(Vec::<String>::new()).command();
    let mur = plain.get_program().to_owned();
    let shell = format!("ulimit -f 100; exec {} {args}", mur.to_string_lossy());
    let environment: Vec<_> =
        plain.get_envs().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned()))).collect();
    #[allow(clippy::disallowed_methods, reason = "mur is started by a shell that sets a limit")]
    let mut command = std::process::Command::new("/bin/sh");
    command.args(["-c", &shell]).env_clear().envs(environment).current_dir(world.project());
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("error[E-RUN-007]") && stderr.contains("File too large"), "{stderr}");
}
