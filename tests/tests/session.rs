//! One session from outside: what it prints, how it ends, what it leaves behind.

#![allow(missing_docs)]

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use mur_tests::live::proc;
use mur_tests::{Agent, Invocation, Running, World, dist, wait_until};
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::signal::Signal::{SIGHUP, SIGINT, SIGKILL, SIGSTOP, SIGTERM};
use nix::sys::signal::kill;
use nix::unistd::Pid;
use serde_json::{Value, json};

const FORMATION: &str = "frm_0199c4e2f1b7712a9d3e4f5061728394";

/// A capsule that answers at once.
fn quick() -> Agent {
    Agent::scripted("quick", json!({"rules": [{"turns": [[{"say": "done"}]]}]}))
}

/// A capsule whose every turn takes longer than any test.
fn slow() -> Agent {
    Agent::scripted("slow", json!({"rules": [{"turns": [[{"wait_ms": 600_000}, {"say": "late"}]]}]}))
}

fn project(agent: &Agent) -> World {
    let world = World::new();
    world.write("murmur.yaml", agent.manifest());
    world
}

fn kinds(trace: &Path) -> Vec<String> {
    let text = fs::read_to_string(trace.join("trace.jsonl")).unwrap_or_default();
    text.lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .map(|record| record["event_type"].as_str().unwrap_or_default().to_owned())
        .collect()
}

/// A session that has announced itself; with a task, once that runs.
fn started(invocation: &Invocation, task: bool) -> (Running, PathBuf) {
    let running = invocation.start();
    let records = PathBuf::from(running.json_line(0)["records_dir"].as_str().expect("a path"));
    if task {
        wait_until("the task runs", || kinds(&records).contains(&"task_start".to_owned()));
    }
    (running, records)
}

/// Nothing of the session is left but its records.
fn assert_tidy(world: &World) {
    for dir in ["sessions", "running"] {
        let left: Vec<_> = fs::read_dir(world.murmur().join(dir)).into_iter().flatten().flatten().collect();
        assert!(left.is_empty(), "{dir}: {left:?}");
    }
}

/// A lifeline as a launcher hands it: the read end survives exec, the write end is ours alone.
fn lifeline() -> (OwnedFd, OwnedFd) {
    let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC).expect("a pipe");
    fcntl(&read, FcntlArg::F_SETFD(FdFlag::empty())).expect("a flag");
    (read, write)
}

fn member(world: &World, args: &[&str]) -> (Invocation, OwnedFd, OwnedFd) {
    let (read, write) = lifeline();
    let invocation = world
        .mur(["run", "--json"])
        .args(args)
        .env("MURMUR_FORMATION_ID", FORMATION)
        .env("MURMUR_FORMATION_LIFELINE", read.as_raw_fd().to_string());
    (invocation, read, write)
}

/// The worker of a session, behind its relay.
fn worker_of(pid: u32) -> Pid {
    let parents = proc::parents();
    let below = |above: i32| {
        let mut children = parents.iter().filter(|(_, parent)| *parent == above).map(|(child, _)| *child);
        children.find(|child| proc::command_line(*child).contains("__guest-worker"))
    };
    // A worker proper is the child of its relay.
    let relay = below(i32::try_from(pid).expect("a pid")).expect("a session with a driver has a worker");
    Pid::from_raw(below(relay).expect("a relay has its worker"))
}

#[test]
fn a_task_prints_its_lines_and_its_answer_lies_in_the_records() {
    let world = project(&quick());
    let done = world.mur(["run", "--task", "work"]).run();
    assert_eq!(done.code(), Some(0), "{}", done.stderr);
    let lines: Vec<&str> = done.stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{}", done.stdout);
    assert!(lines[0].starts_with("murmur: url localhost:"), "{}", lines[0]);
    assert!(lines[1].starts_with("session: ses_"), "{}", lines[1]);
    assert_eq!(lines[2], "status:  ok");
    let trace = world.trace("quick");
    assert_eq!(trace.kinds(), ["session_start", "task_start", "inference", "task_end", "session_end"]);
    assert_eq!(trace.result().as_deref(), Some("done"));
    assert_eq!(trace.one("session_end")["exit_status"], "ok");
    assert_tidy(&world);
}

#[test]
fn a_readiness_line_is_all_of_stdout_under_json() {
    let world = project(&quick().authenticated());
    let done = world.mur(["run", "--json", "--verbose", "--readiness-tokens", "--task", "work"]).ok();
    assert_eq!(done.stdout.lines().count(), 1, "{}", done.stdout);
    let line = done.json();
    assert_eq!(line["name"], "quick");
    assert_eq!(line["auth"], "bearer");
    assert!(line["tokens"]["operator"].as_str().expect("a token").starts_with("mdt1."));
    assert!(line["url"].as_str().expect("a url").starts_with("localhost:"));
    assert!(Path::new(line["records_dir"].as_str().expect("a path")).join("trace.jsonl").is_file());
    assert!(line.get("formation_id").is_none());
    let silent = world.mur(["run", "--json", "--task", "work"]).ok();
    assert!(!silent.stdout.contains("mdt1."), "{}", silent.stdout);
}

#[test]
fn verbose_lines_follow_the_session_in_their_order() {
    let world = project(&quick());
    let done = world.mur(["run", "-v", "--task", "work"]).ok();
    let words: Vec<&str> = done.stdout.lines().map(|line| line.split(':').next().unwrap_or_default()).collect();
    assert_eq!(words, ["murmur", "session", "workdir", "records", "manifest", "driver", "status"]);
}

#[test]
fn none_runs_what_it_was_launched_with_and_ends() {
    let world = project(&quick().with(&["lifecycle", "task_acceptance"], "none"));
    world.mur(["run"]).ok();
    world.mur(["run", "--task", "work"]).ok();
    let traces = world.traces();
    assert_eq!(traces[0].kinds(), ["session_start", "session_end"]);
    assert_eq!(traces[1].all("task_end").len(), 1);
}

#[test]
fn an_idle_session_ends_by_itself_and_never_calls_the_model() {
    let world = project(&quick());
    let done = world.mur(["run"]).env("MURMUR_A2A_TIMEOUT_SECS", "1").ok();
    assert!(done.stdout.ends_with("status:  ok\n"), "{}", done.stdout);
    assert!(done.stderr.contains("[capsule-runtime] no task came"), "{}", done.stderr);
    assert_eq!(world.trace("quick").kinds(), ["session_start", "session_end"]);
}

#[test]
fn queue_and_sleep_go_on_until_they_are_stopped() {
    let sleeping = quick().with(&["lifecycle", "task_acceptance"], "queue").with(&["lifecycle", "after_task"], "sleep");
    let world = project(&sleeping);
    let run = world.mur(["run", "--json", "--task", "work"]).env("MURMUR_A2A_TIMEOUT_SECS", "1");
    let (mut running, records) = started(&run, true);
    wait_until("the task ends", || kinds(&records).contains(&"task_end".to_owned()));
    // Another session that no task comes to waits as long as this one would, and ends.
    project(&quick()).mur(["run"]).env("MURMUR_A2A_TIMEOUT_SECS", "1").ok();
    assert!(running.ended().is_none(), "it sleeps");
    running.signal(SIGTERM);
    assert_eq!(running.wait().code(), Some(0));
    assert_eq!(kinds(&records).last().map(String::as_str), Some("session_end"));
}

#[test]
fn a_first_sigterm_ends_an_idle_session_well_and_a_busy_one_canceled() {
    let world = project(&slow());
    let (idle, records) = started(&world.mur(["run", "--json"]), false);
    idle.signal(SIGTERM);
    let done = idle.wait();
    assert_eq!(done.code(), Some(0), "{}", done.stderr);
    assert!(done.stderr.contains("[capsule-runtime] SIGTERM received"), "{}", done.stderr);
    assert_eq!(kinds(&records), ["session_start", "session_end"]);

    let (busy, records) = started(&world.mur(["run", "--json", "--task", "work"]), true);
    busy.signal(SIGTERM);
    busy.wait().refused("E-RUN-040");
    assert_eq!(kinds(&records), ["session_start", "task_start", "task_canceled", "task_end", "session_end"]);
    assert!(fs::read_to_string(records.join("out/result.txt")).expect("a result").starts_with("canceled:"));
    assert_tidy(&world);
}

#[test]
fn a_second_sigterm_leaves_at_once_with_143() {
    let world = project(&slow());
    let (busy, records) = started(&world.mur(["run", "--json", "--task", "work"]), true);
    // A worker that cannot answer keeps the wind-down from being over before the second signal.
    kill(worker_of(busy.pid()), SIGSTOP).expect("a signal");
    busy.signal(SIGTERM);
    busy.stderr_line(|line| line.contains("SIGTERM received"));
    busy.signal(SIGTERM);
    let done = busy.wait();
    assert_eq!(done.code(), Some(143), "{}", done.stderr);
    assert!(!done.stderr.contains("error["), "{}", done.stderr);
    assert!(!kinds(&records).contains(&"session_end".to_owned()));
    assert_tidy(&world);
}

#[test]
fn a_deadline_ends_a_session_with_and_without_a_task() {
    let world = project(&slow().with(&["lifecycle", "task_acceptance"], "queue"));
    // The first launch compiles; what is timed here is not that.
    world.mur(["run", "--lifecycle-task-acceptance", "none"]).ok();
    let rows: [(&[&str], &[&str]); 3] = [
        (
            &["--deadline", "5", "--task", "work"],
            &["session_start", "task_start", "deadline_reached", "task_canceled", "task_end", "session_end"],
        ),
        (
            &["--deadline", "1", "--lifecycle-after-task", "sleep"],
            &["session_start", "deadline_reached", "session_end"],
        ),
        (&["--inherited-deadline", "1000", "--task", "work"], &["session_start", "deadline_reached", "session_end"]),
    ];
    for (args, expected) in rows {
        let (running, records) = started(&world.mur(["run", "--json"]).args(args), false);
        let done = running.wait();
        done.refused("E-RUN-053");
        let seen = kinds(&records);
        let without_rejected: Vec<&str> =
            seen.iter().map(String::as_str).filter(|kind| *kind != "task_rejected").collect();
        assert_eq!(without_rejected, expected, "{args:?}");
        let text = fs::read_to_string(records.join("trace.jsonl")).expect("a trace");
        assert!(text.lines().last().expect("a line").contains(r#""exit_status":"deadline_reached""#));
    }
    let text = world.mur(["run", "--task", "work", "--deadline", "1"]).run();
    assert!(text.stdout.ends_with("status:  deadline_reached\n"), "{}", text.stdout);
}

#[test]
fn a_formation_that_ends_takes_its_member_along_without_an_error() {
    let world = project(&slow());
    let (invocation, read, write) = member(&world, &["--task", "work"]);
    let (busy, records) = started(&invocation, true);
    drop(read);
    drop(write);
    let done = busy.wait();
    assert_eq!(done.code(), Some(0), "{}", done.stderr);
    assert!(!done.stderr.contains("error["), "{}", done.stderr);
    assert!(done.stderr.contains("[capsule-runtime] formation lifeline closed — the formation has ended; cancelling"));
    assert_eq!(
        kinds(&records),
        ["session_start", "task_start", "formation_ended", "task_canceled", "task_end", "session_end"]
    );

    let (invocation, read, write) = member(&world, &[]);
    let (idle, records) = started(&invocation, false);
    drop(read);
    // The launcher handles these for its members.
    idle.signal(SIGINT);
    idle.signal(SIGHUP);
    drop(write);
    assert_eq!(idle.wait().code(), Some(0));
    assert_eq!(kinds(&records), ["session_start", "formation_ended", "session_end"]);
    assert_tidy(&world);
}

#[test]
fn a_sigterm_before_the_lifeline_decides_and_one_after_changes_nothing() {
    let world = project(&slow());
    let (invocation, read, write) = member(&world, &["--task", "work"]);
    let (busy, records) = started(&invocation, true);
    drop(read);
    kill(worker_of(busy.pid()), SIGSTOP).expect("a signal");
    busy.signal(SIGTERM);
    busy.stderr_line(|line| line.contains("SIGTERM received"));
    drop(write);
    busy.wait().refused("E-RUN-040");
    assert!(!kinds(&records).contains(&"formation_ended".to_owned()));

    let (invocation, read, write) = member(&world, &["--task", "work"]);
    let (busy, records) = started(&invocation, true);
    drop(read);
    kill(worker_of(busy.pid()), SIGSTOP).expect("a signal");
    drop(write);
    busy.stderr_line(|line| line.contains("formation lifeline closed"));
    busy.signal(SIGTERM);
    assert_eq!(busy.wait().code(), Some(0));
    assert!(kinds(&records).contains(&"formation_ended".to_owned()));
}

#[test]
fn a_lifeline_that_was_closed_before_the_session_started_leaves_no_session() {
    let world = project(&quick());
    let (invocation, read, write) = member(&world, &["--task", "work"]);
    drop(write);
    let done = invocation.run();
    drop(read);
    assert_eq!(done.code(), Some(0), "{}", done.stderr);
    assert!(world.traces().iter().all(|trace| trace.records().is_empty()));
    assert_tidy(&world);
}

#[test]
fn a_member_started_by_hand_says_so_once() {
    let world = project(&quick());
    let done = world.mur(["run", "--task", "work"]).env("MURMUR_FORMATION_ID", FORMATION).ok();
    let warned: Vec<&str> = done.stderr.lines().filter(|line| line.starts_with("warning[W-RUN-007]")).collect();
    assert_eq!(warned.len(), 1, "{}", done.stderr);
    assert!(warned[0].contains(FORMATION));
    let blank = world.mur(["run", "--task", "work"]).env("MURMUR_FORMATION_ID", " ").ok();
    assert!(!blank.stderr.contains("W-RUN-007"), "{}", blank.stderr);
}

#[test]
fn a_lost_worker_ends_a_busy_and_an_idle_session() {
    let world = project(&slow());
    for task in [true, false] {
        let args: &[&str] = if task { &["--task", "work"] } else { &[] };
        let (running, records) = started(&world.mur(["run", "--json"]).args(args), task);
        let worker = worker_of(running.pid());
        kill(worker, SIGKILL).expect("a signal");
        let done = running.wait();
        done.refused("E-RUN-065");
        assert!(done.stderr.contains(&format!("(pid {worker})")), "{}", done.stderr);
        let seen = kinds(&records);
        if task {
            assert_eq!(seen, ["session_start", "task_start", "task_failed", "task_end", "session_end"]);
        } else {
            assert_eq!(seen, ["session_start", "session_end"]);
        }
    }
    assert_tidy(&world);
}

#[test]
fn a_task_that_does_not_complete_names_how_it_ended() {
    let failing = Agent::scripted("failing", json!({"rules": [{"turns": [[{"error": "no such luck"}]]}]}));
    let world = project(&failing);
    let done = world.mur(["run", "--task", "work"]).run();
    done.refused("E-RUN-040");
    assert!(done.stderr.contains("the task ended failed: "), "{}", done.stderr);
    assert!(done.stdout.ends_with("status:  failed\n"), "{}", done.stdout);
    assert!(world.trace("failing").result().expect("a result").starts_with("error: "));

    let looping = Agent::scripted(
        "looping",
        json!({"rules": [{"turns": [[{"call": "session-status", "input": {}}]], "repeat": true}]}),
    );
    let world = project(&looping.with(&["inference", "max_turns"], 2));
    let done = world.mur(["run", "--task", "work"]).run();
    done.refused("E-RUN-040");
    assert!(done.stdout.ends_with("status:  max_turns_reached\n"), "{}\n{}", done.stdout, done.stderr);
}

#[test]
fn a_refused_launch_leaves_nothing_behind() {
    let world = project(&quick());
    let channel = [("MURMUR_FORMATION_ID", FORMATION), ("MURMUR_FORMATION_CHANNEL", "77")];
    type Row<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)], &'a str);
    let rows: &[Row<'_>] = &[
        (&[], &[("MURMUR_FORMATION_PEERS", "x=http://x.formation.invalid")], "E-RUN-046"),
        (&[], &[("MURMUR_FORMATION_ID", "frm_X")], "E-RUN-044"),
        (&[], &[("MURMUR_FORMATION_LIFELINE", "7")], "E-RUN-046"),
        (&[], &[("MURMUR_FORMATION_ID", FORMATION), ("MURMUR_FORMATION_LIFELINE", "77")], "E-RUN-046"),
        (&[], &channel, "E-RUN-046"),
        (&[], &[("MURMUR_SPAWNER", "x")], "E-RUN-020"),
        (&["--spawn-grant-stdin"], &[], "E-RUN-019"),
        (&["--resume"], &[], "E-TRC-002"),
        (&["--resume", "--context", "c"], &[], "E-RUN-015"),
        (&["--context", "a/b"], &[], "E-CAP-011"),
        (&["--forget-session", "--context", "c"], &[], "E-RUN-039"),
        (&["--containment", "weak"], &[], "E-IO-003"),
        (&["--lifecycle-task-acceptance", "some"], &[], "E-IO-003"),
        (&["--workdir", "missing"], &[], "E-IO-003"),
        (&["--workdir", ".", "--workdir-identity", "1:1"], &[], "E-RUN-051"),
        (&["--capsule", "bare", "--capsule-version", "1"], &[], "E-REG-007"),
        (&["--capsule", "local/none", "--capsule-version", "1"], &[], "E-RUN-008"),
        (&["--manifest", "missing/murmur.yaml"], &[], "E-IO-001"),
    ];
    for store in ["../out", "a/b", ".hidden", ""] {
        let world = project(&quick().with(&["context", "record_store"], store));
        world.mur(["run", "--task", "work"]).run().refused("E-CAP-011");
    }
    let before = world.files();
    for (args, variables, code) in rows {
        let run = world.mur(["run", "--task", "work"]).args(*args);
        let done = variables.iter().fold(run, |run, (name, value)| run.env(name, value)).run();
        done.refused(code);
        assert_eq!(done.stdout, "status:  failed\n", "{args:?} {variables:?}");
    }
    let usage = world.mur(["run", "--deadline", "0"]).run();
    assert_eq!((usage.code(), usage.stdout.as_str()), (Some(2), ""));
    let json = world.mur(["run", "--json", "--context", "a/b"]).run();
    assert_eq!(json.stdout, "");
    assert_eq!(world.files(), before);
}

#[test]
fn a_home_that_cannot_hold_anything_is_refused_before_anything_else() {
    let world = project(&quick());
    world.mur(["run"]).without_env("HOME").run().refused("E-IO-004");
    world.mur(["run"]).env("HOME", "relative").run().refused("E-IO-004");
    let file = world.write("file", "");
    world.mur(["run"]).env("HOME", &file).run().refused("E-IO-004");
}

#[test]
fn an_env_file_feeds_keys_and_allowed_names_only() {
    let world = project(&quick());
    world.write(".env", "A=1\nthis is no line with hunter2\n");
    let done = world.mur(["run", "--task", "work"]).run();
    done.refused("E-IO-003");
    assert!(!done.stderr.contains("hunter2"), "{}", done.stderr);
    world.mur(["run", "--no-env-file", "--task", "work"]).ok();
    world.write(".env", format!("MURMUR_FORMATION_ID={FORMATION}\nHOME=/nowhere\n"));
    let done = world.mur(["run", "--task", "work"]).ok();
    assert!(!done.stderr.contains("W-RUN-007"), "{}", done.stderr);
}

/// Installs a copy of a bundled tool as `local/<name>` into the project.
fn install_tool(world: &World, name: &str) -> String {
    let version = mur_tests::bundled_version(name);
    let archive = dist().join(format!("lib/mur/artifacts/murmur/{name}/{version}/{name}-{version}.mur.zip"));
    world.mur(["install"]).arg(archive).ok();
    version
}

fn with_local_tool(agent: Agent, name: &str, version: &str) -> Agent {
    let mut manifest: Value = serde_json::from_str(&agent.manifest()).expect("JSON");
    let entry = json!({"name": format!("local/{name}"), "version": version, "runtime": "tool"});
    manifest["artifacts"].as_array_mut().expect("a list").push(entry);
    Agent::of(manifest)
}

#[test]
fn a_lock_is_written_once_and_binds_from_then_on() {
    let world = project(&quick());
    let version = install_tool(&world, "text-stats");
    world.write("murmur.yaml", with_local_tool(quick(), "text-stats", &version).manifest());
    let lock = world.project().join("murmur.lock");
    fs::remove_file(&lock).expect("install has pinned it");
    world.mur(["run", "--task", "work"]).ok();
    let written = fs::read_to_string(&lock).expect("the first run pins what it found");
    assert!(written.contains("local/text-stats"), "{written}");
    assert!(!written.contains("driver-scripted"), "what comes with mur needs no pin: {written}");
    world.mur(["run", "--task", "work"]).ok();
    assert_eq!(fs::read_to_string(&lock).expect("a lock"), written);

    let other = written
        .lines()
        .map(|line| match line.trim().strip_prefix("any:") {
            Some(_) => format!("    any: \"{}\"\n", "0".repeat(64)),
            None => format!("{line}\n"),
        })
        .collect::<String>();
    fs::write(&lock, other).expect("a file");
    world.mur(["run", "--task", "work"]).run().refused("E-REG-002");
    fs::write(&lock, "lock_version: 3\nartifacts: []\n").expect("a file");
    world.mur(["run", "--task", "work"]).run().refused("E-RUN-003");
    fs::write(&lock, "lock_version: 2\n").expect("a file");
    world.mur(["run", "--task", "work"]).run().refused("E-RUN-003");
}

#[test]
fn every_missing_artifact_is_named_at_once() {
    let agent = with_local_tool(with_local_tool(quick(), "one", "1.0.0"), "two", "2.10");
    let world = project(&agent);
    let done = world.mur(["run", "--task", "work"]).run();
    done.refused("E-RUN-008");
    assert!(done.stderr.contains("missing artifacts: local/one@1.0.0, local/two@2.10"), "{}", done.stderr);
}

#[test]
fn names_the_runtime_answers_itself_and_names_twice_are_refused() {
    let reserved = project(&with_local_tool(quick(), "call-member", "1.0.0"));
    reserved.mur(["run"]).run().refused("E-CAP-013");
    let twice = with_local_tool(quick().tool("text-stats"), "text-stats", "1.0.0");
    project(&twice).mur(["run"]).run().refused("E-CAP-020");
}

#[test]
fn an_installed_capsule_runs_the_bytes_it_was_bound_to() {
    let world = World::new();
    let name = world.install(&quick());
    let run = || world.mur(["run", "--capsule", &name, "--capsule-version", "0.1.0", "--task", "work"]);
    run().ok();
    let done = run().args(["--capsule-sha256", &"0".repeat(64)]).run();
    done.refused("E-RUN-047");
    assert!(!world.project().join("murmur.lock").exists());
}

#[test]
fn a_given_work_folder_stays_as_it_was() {
    let world = project(&quick().tool("text-stats"));
    let folder = world.project().join("work");
    fs::create_dir(&folder).expect("a folder");
    fs::write(folder.join("task.md"), "from the folder").expect("a file");
    world.mur(["run", "--workdir", "work"]).ok();
    let left: Vec<_> = fs::read_dir(&folder).expect("a folder").flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left, ["task.md"]);
    let trace = world.trace("quick");
    assert_eq!(trace.one("task_start")["source"], "task_md");
    let mirror = fs::canonicalize(&folder).expect("a path");
    let expected = world.murmur().join("records").join(mirror.strip_prefix("/").expect("absolute"));
    assert_eq!(trace.directory().parent(), Some(expected.as_path()));

    fs::remove_file(folder.join("task.md")).expect("a file");
    std::os::unix::fs::symlink("/etc/hostname", folder.join("task.md")).expect("a link");
    world.mur(["run", "--workdir", "work"]).run().refused("E-RUN-050");
}

#[test]
fn a_session_start_tells_what_was_granted() {
    let agent = quick().tool("text-stats").network(&["localhost"]).with(&["inference", "max_turns"], 7);
    let world = project(&agent);
    world.mur(["run", "--task", "work", "--deadline", "600", "--system-prompt", " be brief "]).ok();
    let trace = world.trace("quick");
    let start = trace.one("session_start");
    assert_eq!(start["max_turns"], 7);
    assert_eq!(start["tools_declared"], json!(["session-status", "text-stats"]));
    assert_eq!(start["containment_achieved"], "scoped");
    assert_eq!(start["system_prompt_source"], "cli");
    assert_eq!(start["deadline"]["secs"], 600);
    assert_eq!(start["deadline"]["source"], "own");
    assert_eq!(start["effective_grants"]["network_allow"], json!(["localhost"]));
    assert_eq!(start["credential_source"], "keyless");
    assert!(start["parent_id"].is_null());
    let explained = world.mur(["run", "--explain-scope", "--json"]).ok().json();
    assert_eq!(explained, start["effective_grants"]);
}

#[test]
fn sessions_are_kept_by_the_capsules_own_rule() {
    let world = project(&quick().with(&["trace", "retain", "max_sessions"], 2));
    for _ in 0..3 {
        world.mur(["run", "--task", "work"]).ok();
    }
    let traces = world.traces();
    assert_eq!(traces.len(), 2);
    assert_eq!(traces[1].kinds()[1], "retention");
    assert_eq!(traces[1].one("retention")["reason"], "max_sessions");
    let folders = fs::read_dir(world.project().join("workdir")).expect("work folders").count();
    assert_eq!(folders, 2);
}

#[test]
fn closed_streams_change_nothing() {
    let world = project(&quick());
    let mut command = world.mur(["run", "--task", "work"]).command();
    let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC).expect("a pipe");
    drop(read);
    let status = command
        .stdin(std::process::Stdio::null())
        .stdout(write.try_clone().expect("a descriptor"))
        .stderr(write)
        .status()
        .expect("mur starts");
    assert_eq!(status.code(), Some(0));
    let trace = world.trace("quick");
    let log = fs::read_to_string(trace.directory().join("logs/bootstrap.log")).expect("a log");
    assert!(log.contains("murmur: url localhost:"), "{log}");
    assert!(log.contains("status:  ok"), "{log}");
}
