//! "How a formation ends" of the roster seed, cause by cause, on real processes.

use std::fs;
use std::path::PathBuf;

use mur_tests::live::capsule::{Capsule, roster};
use mur_tests::live::formation::{Launched, lead, slow_worker, standard, worker};
use mur_tests::live::{Home, proc, run, trace};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use serde_json::{Value, json};

/// Longer than any test: a task that is still running when the formation ends.
const FOR_EVER: u64 = 600_000;

fn sessions(home: &Home) -> Vec<PathBuf> {
    trace::sessions(home.murmur().join("records"))
}

fn ending(session: &PathBuf) -> Value {
    trace::read(session).last().cloned().unwrap_or_default()
}

/// A session that wound down: `formation_ended` before everything its wind-down wrote, `session_end` last.
fn assert_wound_down(session: &PathBuf, status: &str) {
    let records = trace::read(session);
    let types = trace::types(&records);
    assert_eq!(types.iter().filter(|kind| **kind == "formation_ended").count(), 1, "{types:?}");
    let at = |wanted: &str| types.iter().position(|kind| *kind == wanted);
    for later in ["task_canceled", "task_rejected", "session_end"] {
        assert!(at(later).is_none_or(|later| at("formation_ended").unwrap() < later), "{types:?}");
    }
    let end = records.last().unwrap();
    assert_eq!((&end["event_type"], &end["exit_status"]), (&json!("session_end"), &json!(status)), "{types:?}");
}

/// The formation with a task running in the lead and both workers.
fn busy(home: &Home) -> Launched {
    standard(home, &slow_worker(FOR_EVER));
    let formation = Launched::open(home);
    formation.door(home).send("work");
    for name in ["coder", "reviewer"] {
        let door = formation.peer_door(home, name);
        run::until("the member works", || {
            let list = door.call("ListTasks", json!({}));
            list.pointer("/result/tasks/0/status/state") == Some(&json!("TASK_STATE_WORKING"))
        });
    }
    formation
}

fn all_gone(pids: &[i32]) {
    proc::wait_gone(pids);
}

#[test]
fn the_entry_members_end_ends_every_peer() {
    let home = Home::new();
    standard(&home, &worker());
    home.mur(["run", "--roster", "--task", "x"]).expect(0);
    assert_eq!(sessions(&home).len(), 3);
    for session in sessions(&home) {
        let records = trace::read(&session);
        if records[0]["formation_member"] == "lead" {
            assert_eq!(ending(&session)["exit_status"], "ok");
            assert!(trace::of(&records, "formation_ended").is_empty());
        } else {
            assert_wound_down(&session, "ok");
        }
    }
}

#[test]
fn each_signal_to_the_launcher_winds_everybody_down() {
    for (signal, number) in [(Signal::SIGINT, 2), (Signal::SIGTERM, 15), (Signal::SIGHUP, 1)] {
        let home = Home::new();
        let formation = busy(&home);
        let pids = proc::descendants(formation.launcher.pid());
        formation.launcher.signal(signal);
        let output = formation.launcher.finish().expect(128 + number);
        assert!(
            output
                .stderr
                .contains(&format!("[mur run] {}: the formation was stopped; stopped: lead (pid", signal.as_str()))
        );
        all_gone(&pids);
        for session in sessions(&home) {
            assert_wound_down(&session, "formation_ended");
            let records = trace::read(&session);
            assert_eq!(trace::of(&records, "task_end")[0]["exit_status"], "canceled");
            let result = fs::read_to_string(session.join("out/result.txt")).unwrap();
            assert!(result.starts_with("canceled:"), "{result}");
        }
        assert!(!output.stderr.contains("E-RUN-040"), "{}", output.stderr);
        assert!(home.running().is_empty());
    }
}

#[test]
fn a_killed_launcher_takes_no_member_with_it_but_all_wind_down() {
    let home = Home::new();
    let formation = busy(&home);
    let pids = proc::descendants(formation.launcher.pid());
    kill(Pid::from_raw(formation.launcher.pid()), Signal::SIGKILL).unwrap();
    all_gone(&pids);
    for session in sessions(&home) {
        assert_wound_down(&session, "formation_ended");
    }
}

#[test]
fn a_killed_entry_member_ends_the_formation() {
    let home = Home::new();
    let formation = busy(&home);
    let pids = proc::descendants(formation.launcher.pid());
    kill(Pid::from_raw(formation.entry_pid()), Signal::SIGKILL).unwrap();
    formation.launcher.finish().expect(128 + 9);
    all_gone(&pids);
    let ended = sessions(&home).iter().filter(|session| ending(session)["event_type"] == "session_end").count();
    assert_eq!(ended, 2, "both peers wound down; the entry member was killed");
}

#[test]
fn a_killed_process_group_leaves_no_member() {
    let home = Home::new();
    standard(&home, &slow_worker(FOR_EVER));
    // A group of its own, as a shell gives a job.
    let mut command = home.command(["run", "--roster", "--json"]);
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let launcher = mur_tests::live::Running::start(command);
    let entry = launcher.json_line("session_id");
    let pids = proc::descendants(launcher.pid());
    assert!(pids.contains(&(entry["pid"].as_i64().unwrap() as i32)));
    killpg(Pid::from_raw(launcher.pid()), Signal::SIGKILL).unwrap();
    all_gone(&pids);
}

#[test]
fn a_peer_that_dies_is_named_and_the_formation_goes_on() {
    let home = Home::new();
    standard(&home, &worker());
    let formation = Launched::open(&home);
    let coder = formation.peer("coder");
    kill(Pid::from_raw(coder), Signal::SIGKILL).unwrap();
    formation.launcher.stderr_line(|line| line.contains("coder (pid") && line.contains("signal 9"));
    let door = formation.door(&home);
    let task = door.ended(&door.send("x"));
    assert_eq!(task["status"]["state"], "TASK_STATE_COMPLETED", "{task}");
    let text = mur_tests::live::door::answer_text(&task);
    assert!(text.contains("reviewer said: done:"), "{text}");
    formation.launcher.signal(Signal::SIGTERM);
    formation.launcher.finish().expect(143);
}

#[test]
fn a_member_that_ignores_everything_is_killed_after_its_time() {
    let home = Home::new();
    standard(&home, &worker());
    let formation = Launched::open(&home);
    let coder = formation.peer("coder");
    kill(Pid::from_raw(coder), Signal::SIGSTOP).unwrap();
    formation.launcher.signal(Signal::SIGTERM);
    let output = formation.launcher.finish().expect(143);
    assert!(output.stderr.contains("did not wind down in time and was killed"), "{}", output.stderr);
    all_gone(&[coder]);
}

#[test]
fn the_deadline_ends_every_member_at_one_moment() {
    let home = Home::new();
    standard(&home, &slow_worker(FOR_EVER));
    let output = home.mur(["run", "--roster", "--deadline", "20", "--task", "x"]).expect(1);
    assert!(output.stderr.contains("error[E-RUN-053]"), "{}", output.stderr);
    assert!(output.stdout.ends_with("status:  deadline_reached\n"), "{}", output.stdout);
    assert!(output.stderr.contains("  deadline "), "{}", output.stderr);
    let mut moments = Vec::new();
    for session in sessions(&home) {
        let records = trace::read(&session);
        assert_eq!(ending(&session)["exit_status"], "deadline_reached");
        assert!(trace::of(&records, "formation_ended").is_empty());
        moments.push(trace::of(&records, "deadline_reached")[0]["deadline_at"].clone());
    }
    assert_eq!(moments.len(), 3);
    assert!(moments.iter().all(|moment| *moment == moments[0]), "{moments:?}");
}

#[test]
fn a_second_sigterm_to_a_member_ends_it_at_once() {
    let home = Home::new();
    let formation = busy(&home);
    let coder = formation.peer("coder");
    kill(Pid::from_raw(coder), Signal::SIGTERM).unwrap();
    formation.launcher.stderr_line(|line| line.contains("[coder] [capsule-runtime] SIGTERM received"));
    let _ = kill(Pid::from_raw(coder), Signal::SIGTERM);
    all_gone(&[coder]);
    formation.launcher.signal(Signal::SIGTERM);
    formation.launcher.finish().expect(143);
}

#[test]
fn a_peer_that_does_not_come_up_refuses_the_launch_and_stops_the_others() {
    let home = Home::new();
    let (lead, good) = (lead(), worker());
    // Its driver's key is in neither configuration nor environment: it is refused at launch, not at admission.
    let mut bad = Capsule::saying("bad", "x").member();
    bad.manifest["artifacts"][0]["gateway"] = json!({"endpoint": "http://127.0.0.1:1", "api_key": "${NOT_THERE}"});
    for capsule in [&lead, &good, &bad] {
        capsule.install(&home);
    }
    home.write(
        "roster.yaml",
        roster(&[("lead", &lead), ("good", &good), ("bad", &bad)], json!([{"from": "lead", "to": ["good"]}])),
    );
    let output = home.mur(["run", "--roster", "--task", "x"]).refused("E-RUN-045");
    for part in
        ["'bad' (local/bad@1.0.0): ", "exited with status 1 before it reported", "NOT_THERE", "stopped: good (pid "]
    {
        assert!(output.stderr.contains(part), "{part:?} not in\n{}", output.stderr);
    }
    assert!(!output.stderr.contains("formation: frm_"), "nothing was announced");
    assert!(home.running().is_empty());
}

#[test]
fn a_member_whose_artifact_changed_after_admission_is_refused() {
    let home = Home::new();
    let one = worker();
    one.install(&home);
    let output = home
        .mur(["run", "--capsule", "local/worker", "--capsule-version", "1.0.0", "--capsule-sha256", &"0".repeat(64)])
        .refused("E-RUN-047");
    assert!(output.stderr.contains(&"0".repeat(64)), "{}", output.stderr);
    assert!(trace::sessions(home.murmur().join("records")).is_empty());
}

#[test]
fn a_member_started_by_hand_is_warned_once_and_stopped_by_mur_stop() {
    let mut home = Home::new();
    worker().install(&home);
    let formation = format!("frm_{}", "0123456789abcdef".repeat(2));
    home.set("MURMUR_FORMATION_ID", &formation);
    let by_hand = home.start(["run", "--capsule", "local/worker", "--capsule-version", "1.0.0", "--json"]);
    let line = by_hand.json_line("session_id");
    assert_eq!(line["formation_id"], formation.as_str());
    let warning = by_hand.stderr_line(|line| line.contains("W-RUN-007"));
    assert!(warning.contains(&formation), "{warning}");
    home.mur(["run", "--roster"]).refused("E-RUN-046");
    let stopped = home.mur(["stop", &formation]).expect(0);
    assert!(stopped.stdout.contains("started by hand — stopped as one session below"), "{}", stopped.stdout);
    by_hand.finish();
}

#[test]
fn a_stopped_entry_member_is_given_one_bound_after_the_deadline_and_not_two() {
    let home = Home::new();
    standard(&home, &slow_worker(FOR_EVER));
    let formation = Launched::with(&home, &["--deadline", "20"]);
    let (entry, begun) = (formation.entry_pid(), trace::now());
    kill(Pid::from_raw(entry), Signal::SIGSTOP).unwrap();
    let output = formation.launcher.finish().expect(128 + 9);
    assert!(output.stderr.contains("lead (pid "), "{}", output.stderr);
    assert!(output.stderr.contains("did not wind down in time and was killed"), "{}", output.stderr);
    // The deadline, a second, 25 seconds: a second wait of 25 would be far past this.
    assert!(trace::now() - begun < 20 + 1 + 25 + 15, "two bounds in a row");
    all_gone(&[entry]);
    let ended: Vec<Value> =
        sessions(&home).iter().map(ending).filter(|end| end["event_type"] == "session_end").collect();
    assert_eq!(ended.len(), 2, "both peers reached the deadline by themselves");
    assert!(ended.iter().all(|end| end["exit_status"] == "deadline_reached"), "{ended:?}");
}

#[test]
fn a_kill_after_the_bound_reaches_the_members_whole_process_group() {
    let home = Home::new();
    let formation = busy(&home);
    let coder = formation.peer("coder");
    let group: Vec<i32> = proc::descendants(coder);
    assert!(group.len() > 1, "it has workers");
    for pid in &group {
        kill(Pid::from_raw(*pid), Signal::SIGSTOP).unwrap();
    }
    formation.launcher.signal(Signal::SIGTERM);
    let output = formation.launcher.finish().expect(143);
    assert!(output.stderr.contains(&format!("coder (pid {coder}) did not wind down in time and was killed")));
    // The others wound down long before.
    assert_eq!(output.stderr.matches("and was killed").count(), 1, "{}", output.stderr);
    // Its workers lead groups of their own; stopped ones go on to see that their session is gone.
    for pid in &group {
        let _ = kill(Pid::from_raw(*pid), Signal::SIGCONT);
    }
    all_gone(&group);
    let ended = sessions(&home).iter().filter(|session| ending(session)["event_type"] == "session_end").count();
    assert_eq!(ended, 2, "only the member that was killed lost its last line");
}

#[test]
fn a_second_signal_to_the_launcher_kills_what_is_still_there_at_once() {
    let home = Home::new();
    let formation = busy(&home);
    let coder = formation.peer("coder");
    kill(Pid::from_raw(coder), Signal::SIGSTOP).unwrap();
    run::until("it is stopped", || proc::is_stopped(coder));
    let others: Vec<i32> = formation.members().into_iter().filter(|pid| *pid != coder).collect();
    formation.launcher.signal(Signal::SIGINT);
    all_gone(&others);
    let begun = trace::now();
    formation.launcher.signal(Signal::SIGTERM);
    let output = formation.launcher.finish().expect(128 + 2);
    assert!(output.stderr.contains("[mur run] SIGTERM again"), "{}", output.stderr);
    assert!(trace::now() - begun < 20, "it waited for the bound");
    all_gone(&[coder]);
    let ended = sessions(&home).iter().filter(|session| ending(session)["event_type"] == "session_end").count();
    assert_eq!(ended, 2);
}

#[test]
fn members_of_a_killed_launcher_end_though_nobody_reads_what_they_say() {
    let home = Home::new();
    standard(&home, &slow_worker(FOR_EVER));
    let (unread, write) = mur_tests::live::member::Unread::pipe();
    let launcher = mur_tests::live::Running::start_with(home.command(["run", "--roster", "--json"]), write.into());
    launcher.json_line("formation_id");
    let entry = launcher.json_line("session_id");
    let members = proc::descendants(launcher.pid());
    // The entry member writes to the stderr it shares with the launcher, and waits for a reader.
    unread.fill();
    launcher.signal(Signal::SIGKILL);
    all_gone(&members);
    for session in sessions(&home) {
        let records = trace::read(&session);
        assert_eq!(trace::of(&records, "formation_ended").len(), 1, "{:?}", trace::types(&records));
        assert_eq!(trace::of(&records, "session_end").len(), 1, "{:?}", trace::types(&records));
    }
    assert!(entry["pid"].is_u64());
}

#[test]
fn a_peers_diagnostics_go_to_its_bootstrap_log_once_the_launcher_is_gone() {
    let home = Home::new();
    let formation = busy(&home);
    let pids = proc::descendants(formation.launcher.pid());
    let note = "formation lifeline closed — the formation has ended";
    formation.launcher.signal(Signal::SIGKILL);
    all_gone(&pids);
    for session in sessions(&home) {
        let member = trace::read(&session)[0]["formation_member"].as_str().unwrap().to_owned();
        let log = fs::read_to_string(session.join("logs/bootstrap.log")).unwrap_or_default();
        // The entry member writes to the stderr it shared with the launcher.
        assert_eq!(log.contains(note), member != "lead", "{member}: {log}");
    }
    // While the launcher runs it relays them behind the member's name.
    let home = Home::new();
    let formation = busy(&home);
    formation.launcher.signal(Signal::SIGTERM);
    let output = formation.launcher.finish().expect(143);
    for prefix in ["[coder] ", "[reviewer] "] {
        assert!(output.stderr.contains(&format!("{prefix}[capsule-runtime] {note}")), "{}", output.stderr);
    }
    assert!(output.stderr.lines().any(|line| line.starts_with(&format!("[capsule-runtime] {note}"))));
}

#[test]
fn the_launcher_sends_no_member_a_sigterm() {
    let home = Home::new();
    let formation = busy(&home);
    formation.launcher.signal(Signal::SIGTERM);
    let output = formation.launcher.finish().expect(143);
    assert!(!output.stderr.contains("SIGTERM received"), "{}", output.stderr);
}

#[test]
fn a_member_that_was_told_to_end_before_its_formation_ends_as_that_sigterm_ends_it() {
    let home = Home::new();
    let formation = busy(&home);
    let coder = formation.peer("coder");
    kill(Pid::from_raw(coder), Signal::SIGTERM).unwrap();
    all_gone(&[coder]);
    formation.launcher.stderr_line(|line| line.contains("coder (pid") && line.contains("ended with status 1"));
    formation.launcher.signal(Signal::SIGTERM);
    let output = formation.launcher.finish().expect(143);
    assert!(output.stderr.contains("[coder] error[E-RUN-040]"), "{}", output.stderr);
    for session in sessions(&home) {
        let records = trace::read(&session);
        let told = records[0]["formation_member"] == "coder";
        let status = if told { "canceled" } else { "formation_ended" };
        assert_eq!(records.last().unwrap()["exit_status"], status);
        assert_eq!(trace::of(&records, "formation_ended").is_empty(), told);
    }
}

#[test]
fn the_warning_about_the_host_is_printed_by_the_launcher_alone() {
    let home = Home::new();
    standard(&home, &worker());
    let alone = home.mur(["run", "--capsule", "local/worker", "--capsule-version", "1.0.0", "--deadline", "1"]);
    let together = home.mur(["run", "--roster", "--task", "x"]).expect(0);
    // Once where this host gives a reason for it, and not at all where it gives none.
    assert_eq!(together.stderr.matches("W-SEC-013").count(), alone.stderr.matches("W-SEC-013").count());
    assert!(
        !together
            .stderr
            .lines()
            .any(|line| line.starts_with('[') && line.contains("] [capsule-runtime] warning[W-SEC-013]"))
    );
    let formation = Launched::open(&home);
    for member in formation.members() {
        let environment = String::from_utf8_lossy(&proc::environment(member)).into_owned();
        assert!(environment.split('\0').any(|pair| pair == "MURMUR_HOST_WARNINGS_REPORTED=1"), "{environment}");
    }
    formation.launcher.signal(Signal::SIGTERM);
    formation.launcher.finish().expect(143);
}

#[test]
fn stopping_a_formation_stops_its_members_started_by_hand_beside_the_others() {
    let home = Home::new();
    standard(&home, &worker());
    let formation = Launched::open(&home);
    let mut command = home.command(["run", "--capsule", "local/worker", "--capsule-version", "1.0.0", "--json"]);
    command.env("MURMUR_FORMATION_ID", formation.id());
    let by_hand = mur_tests::live::Running::start(command);
    by_hand.json_line("session_id");
    by_hand.stderr_line(|line| line.contains("W-RUN-007"));
    let stopped = home.mur(["stop", &formation.id()]).expect(0);
    assert_eq!(stopped.stdout.matches("formation_ended").count(), 3, "{}", stopped.stdout);
    assert!(stopped.stdout.contains("started by hand — stopped as one session below"), "{}", stopped.stdout);
    formation.launcher.finish().expect(143);
    by_hand.finish();
    assert!(home.running().is_empty());
}

#[test]
fn several_peers_that_do_not_come_up_are_named_together_with_their_last_words() {
    let home = Home::new();
    let lead = lead();
    let mut bad = Capsule::saying("bad", "x").member();
    bad.manifest["artifacts"][0]["gateway"] = json!({"endpoint": "http://127.0.0.1:1", "api_key": "${NOT_THERE}"});
    lead.install(&home);
    bad.install(&home);
    home.write("roster.yaml", roster(&[("lead", &lead), ("one", &bad)], json!([])));
    let output = home.mur(["run", "--roster", "--task", "x"]).refused("E-RUN-045");
    for part in ["'one' (local/bad@1.0.0): it exited with status 1", "stopped: none", "mur run --capsule local/bad"] {
        assert!(output.stderr.contains(part), "{part:?} not in\n{}", output.stderr);
    }
    assert!(sessions(&home).iter().all(|session| trace::read(session).is_empty()), "the entry member never started");
}
