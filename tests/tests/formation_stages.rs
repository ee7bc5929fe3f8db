//! A launcher killed at every stage of a launch: nothing of the formation is left, and the next launch is not blocked.
//!
//! The stages are met exactly: the launcher is stopped at a system call, at the birth or at the exec of a member.

use std::fs;

use mur_tests::live::formation::{Launched, lead, standard, worker};
use mur_tests::live::stops::Traced;
use mur_tests::live::{Gate, Home, proc, run, trace};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

fn traced(home: &Home) -> Traced {
    Traced::start(home.command(["run", "--roster", "--task", "x"]))
}

/// The last part of a path, when it lies in the formations' directory.
fn in_formations(path: &str) -> Option<&str> {
    path.split_once("/.murmur/formations/").map(|(_, rest)| rest)
}

/// Every member that was started has ended by itself, and a formation can be launched again.
#[track_caller]
fn assert_nothing_is_left(home: &Home) {
    run::until("nothing of the formation runs", || proc::of_home(&home.home()).is_empty());
    for session in trace::sessions(home.murmur().join("records")) {
        let records = trace::read(&session);
        let last = records.last().map(|record| record["event_type"].clone());
        assert!(last.is_none_or(|last| last == "session_end"), "{}", session.display());
    }
    assert!(home.running().is_empty(), "{:?}", home.running());
    home.mur(["run", "--roster", "--task", "x"]).expect(0);
}

#[test]
fn a_launcher_killed_between_its_directory_and_its_marker_blocks_nothing_and_doctor_names_what_is_left() {
    let home = Home::new();
    standard(&home, &worker());
    let launcher = traced(&home);
    assert!(launcher.until_call_on(|path| in_formations(path).is_some_and(|rest| !rest.contains('/'))));
    launcher.kill();
    let [left] = &home.formations()[..] else { panic!("one directory") };
    assert_eq!(fs::read_dir(left).unwrap().count(), 0, "no marker yet");
    assert_nothing_is_left(&home);
    let doctor = home.mur(["doctor"]);
    let name = left.file_name().unwrap().to_str().unwrap();
    assert!(doctor.stdout.contains(name) || doctor.stderr.contains(name), "{}{}", doctor.stdout, doctor.stderr);
}

#[test]
fn a_launcher_killed_between_its_marker_and_its_first_member_blocks_nothing_and_doctor_names_what_is_left() {
    let home = Home::new();
    standard(&home, &worker());
    let launcher = traced(&home);
    // The first peer's directory is made after the marker is written.
    let of_peer = |rest: &str| rest.split_once('/').is_some_and(|(_, peer)| peer == "coder");
    assert!(launcher.until_call_on(|path| in_formations(path).is_some_and(of_peer)));
    launcher.kill();
    let [left] = &home.formations()[..] else { panic!("one directory") };
    assert!(left.join("formation.json").is_file());
    assert_nothing_is_left(&home);
    let doctor = home.mur(["doctor"]);
    let name = left.file_name().unwrap().to_str().unwrap();
    assert!(doctor.stdout.contains(name) || doctor.stderr.contains(name), "{}{}", doctor.stdout, doctor.stderr);
}

/// The launcher, stopped when its `nth` member (from 0) is born and has not run.
fn at_birth(home: &Home, nth: usize) -> (Traced, mur_tests::live::stops::Newborn) {
    let mut launcher = traced(home);
    // Whatever it starts before its formation has a directory is no member.
    assert!(launcher.until_call_on(|path| in_formations(path).is_some_and(|rest| rest.ends_with("/reviewer"))));
    for _ in 0..nth {
        launcher.until_birth().let_go();
    }
    let newborn = launcher.until_birth();
    (launcher, newborn)
}

#[test]
fn a_launcher_killed_between_the_fork_and_the_exec_of_a_member_leaves_nobody() {
    // Two peers, then the entry member.
    for nth in 0..3 {
        let home = Home::new();
        standard(&home, &worker());
        let (launcher, newborn) = at_birth(&home, nth);
        launcher.kill();
        newborn.let_go();
        assert_nothing_is_left(&home);
    }
}

#[test]
fn a_launcher_killed_between_the_exec_of_a_member_and_its_first_read_leaves_nobody() {
    for nth in 0..3 {
        let home = Home::new();
        standard(&home, &worker());
        let (launcher, newborn) = at_birth(&home, nth);
        newborn.until_exec();
        let pid = newborn.pid();
        assert!(proc::command_line(pid).contains("--capsule"), "{}", proc::command_line(pid));
        launcher.kill();
        newborn.let_go();
        assert_nothing_is_left(&home);
    }
}

/// The members of a held-up launch: both peers, each past its exec.
#[track_caller]
fn peers_of(launcher: i32) -> Vec<i32> {
    let members = || -> Vec<i32> {
        let all = proc::descendants(launcher).into_iter();
        all.filter(|pid| *pid != launcher && proc::command_line(*pid).contains("--readiness-tokens")).collect()
    };
    run::until("both peers are staged", || {
        members().len() == 2 && members().iter().all(|pid| proc::catches(*pid, Signal::SIGTERM as i32))
    });
    members()
}

#[test]
fn a_launcher_killed_while_it_waits_for_doors_leaves_nobody() {
    let home = Home::new();
    standard(&home, &worker());
    let gate = Gate::close(&home);
    let mut launcher = home.start(["run", "--roster", "--task", "x"]);
    let peers = peers_of(launcher.pid());
    launcher.signal(Signal::SIGKILL);
    launcher.wait();
    proc::wait_gone(&peers);
    drop(gate);
    assert_nothing_is_left(&home);
}

#[test]
fn a_launcher_killed_while_its_members_wind_down_leaves_nobody() {
    let home = Home::new();
    standard(&home, &worker());
    let mut formation = Launched::open(&home);
    let coder = formation.peer("coder");
    kill(Pid::from_raw(coder), Signal::SIGSTOP).unwrap();
    run::until("it is stopped", || proc::is_stopped(coder));
    formation.launcher.signal(Signal::SIGTERM);
    let others: Vec<i32> = formation.members().into_iter().filter(|pid| *pid != coder).collect();
    proc::wait_gone(&others);
    formation.launcher.signal(Signal::SIGKILL);
    formation.launcher.wait();
    kill(Pid::from_raw(coder), Signal::SIGCONT).unwrap();
    assert_nothing_is_left(&home);
}

#[test]
fn a_signal_before_every_member_is_ready_ends_what_was_started() {
    for (signal, number) in [(Signal::SIGINT, 2), (Signal::SIGTERM, 15), (Signal::SIGHUP, 1)] {
        let home = Home::new();
        standard(&home, &worker());
        let gate = Gate::close(&home);
        let launcher = home.start(["run", "--roster", "--json"]);
        peers_of(launcher.pid());
        launcher.signal(signal);
        let output = launcher.finish().expect(128 + number);
        let line = format!(
            "[mur run] {}: the launch was interrupted before every member was ready; stopped: coder (pid ",
            signal.as_str()
        );
        assert!(output.stderr.contains(&line), "{}", output.stderr);
        assert!(output.stdout.is_empty(), "nothing was announced: {}", output.stdout);
        drop(gate);
        assert_nothing_is_left(&home);
    }
}

#[test]
fn a_deadline_that_falls_before_the_entry_member_starts_is_e_run_053() {
    let home = Home::new();
    standard(&home, &worker());
    let gate = Gate::close(&home);
    let launcher = home.start(["run", "--roster", "--deadline", "20", "--task", "x"]);
    let peers = peers_of(launcher.pid());
    let output = launcher.finish().refused("E-RUN-053");
    for part in ["--deadline of 20 seconds", "'coder'", "'reviewer'", "stopped: coder (pid ", "reviewer (pid "] {
        assert!(output.stderr.contains(part), "{part:?} not in\n{}", output.stderr);
    }
    assert!(!output.stderr.contains("formation: frm_"), "nothing was announced");
    assert!(!peers.iter().any(|pid| proc::runs(*pid)), "every member it started is stopped");
    drop(gate);
    assert_nothing_is_left(&home);
}

#[test]
fn a_member_whose_artifact_changes_after_admission_refuses_and_ends_the_formation() {
    let home = Home::new();
    standard(&home, &worker());
    let gate = Gate::close(&home);
    let launcher = home.start(["run", "--roster", "--task", "x"]);
    peers_of(launcher.pid());
    // Admission is over, and the entry member has not read its artifact.
    fs::remove_dir_all(home.murmur().join("artifacts/local/lead")).unwrap();
    lead().with(json!({"inference": {"model": "another"}})).install(&home);
    drop(gate);
    let output = launcher.finish().refused("E-RUN-047");
    assert!(output.stderr.contains("local/lead"), "{}", output.stderr);
    run::until("nothing of it runs", || proc::of_home(&home.home()).is_empty());
}
