//! Launches from odd places and ended at odd moments.

#![allow(clippy::disallowed_methods, reason = "a shell sets up what is inherited")]

use std::process::Command;
use std::time::Duration;

use mur_tests::live::formation::{Launched, standard, worker};
use mur_tests::live::run::{Running, until};
use mur_tests::live::{Home, Output, proc};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Runs `mur run --roster --task x` from a shell that does this first.
fn after(home: &Home, first: &str) -> Output {
    let mut command = Command::new("bash");
    let script = format!("{first}; exec '{}' run --roster --task x", mur_tests::mur_binary().display());
    command.args(["-c", &script]).env_clear().env("HOME", home.home()).env("PATH", "/usr/bin:/bin");
    command.current_dir(home.project());
    Running::start(command).finish()
}

#[test]
fn small_limits_do_not_stop_a_launch() {
    let home = Home::new();
    standard(&home, &worker());
    after(&home, "ulimit -n 64").expect(0);
    after(&home, "ulimit -v 2000000").expect(0);
}

#[test]
fn too_few_descriptors_have_one_code_that_names_the_limit_and_what_is_needed() {
    let home = Home::new();
    standard(&home, &worker());
    let limited = |limit: u32, command: &str| {
        let mut shell = Command::new("bash");
        shell.args(["-c", &format!("ulimit -n {limit}; exec '{}' {command}", mur_tests::mur_binary().display())]);
        shell.env_clear().env("HOME", home.home()).env("PATH", "/usr/bin:/bin").current_dir(home.project());
        Running::start(shell).finish()
    };
    let session = "run --capsule local/worker --capsule-version 1.0.0 --task x";
    // Below four the system's loader cannot start any program.
    for limit in (4..64).step_by(5) {
        for command in ["run --roster --task x", session] {
            let refused = limited(limit, command).refused("E-IO-002");
            let wanted = format!("at most {limit} files may be open at once here");
            assert!(refused.stderr.contains(&wanted), "{}", refused.stderr);
            assert!(refused.stderr.lines().count() == 2, "{}", refused.stderr);
        }
    }
    for limit in [4, 8, 12, 19] {
        limited(limit, "list -g").refused("E-IO-002");
    }
    limited(20, "list -g").expect(0);
    assert!(!home.home().join(".murmur/formations").exists() && !home.home().join(".murmur/sessions").exists());
}

#[test]
fn of_two_hundred_inherited_descriptors_no_member_and_no_worker_keeps_one() {
    let home = Home::new();
    standard(&home, &worker());
    let file = home.write("inherited-by-nobody", "");
    let mut command = Command::new("bash");
    let script = format!(
        "for i in $(seq 20 220); do eval \"exec $i<'{}'\"; done; exec '{}' run --roster --json",
        file.display(),
        mur_tests::mur_binary().display()
    );
    command.args(["-c", &script]).env_clear().env("HOME", home.home()).env("PATH", "/usr/bin:/bin");
    command.current_dir(home.project());
    let launcher = Running::start(command);
    let formation = launcher.json_line("formation_id");
    let entry = launcher.json_line("session_id");
    let launched = Launched { launcher, formation, entry };
    let processes = proc::descendants(launched.launcher.pid());
    assert!(processes.len() >= 4, "{processes:?}");
    for pid in processes.into_iter().filter(|pid| *pid != launched.launcher.pid()) {
        let kept: Vec<_> =
            proc::descriptors(pid).into_iter().filter(|(_, what)| what.ends_with("inherited-by-nobody")).collect();
        assert!(kept.is_empty(), "{}: {kept:?}", proc::command_line(pid));
    }
}

#[test]
fn a_launcher_killed_at_any_moment_leaves_nobody_and_blocks_nothing() {
    let home = Home::new();
    standard(&home, &worker());
    // Not a synchronisation: the moments are meant to fall anywhere between the first instruction and the end.
    for millis in (0..240).step_by(20) {
        let mut launcher = home.start(["run", "--roster", "--task", "x"]);
        std::thread::sleep(Duration::from_millis(millis));
        let started = proc::descendants(launcher.pid());
        launcher.signal(Signal::SIGKILL);
        launcher.wait();
        until("everybody is gone", || !started.iter().any(|pid| proc::runs(*pid)));
        let marker = home.home().display().to_string();
        until("no member of it runs", || {
            !proc::parents().iter().any(|(pid, _)| proc::command_line(*pid).contains(&marker))
        });
    }
    home.mur(["run", "--roster", "--task", "x"]).expect(0);
}

/// The formation directory a killed launch left, and what it holds.
fn left(home: &Home) -> (std::path::PathBuf, Vec<String>) {
    let dir = home.formations().pop().expect("a formation directory");
    let entries = std::fs::read_dir(&dir).expect("it is there").flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    (dir, names)
}

/// The next launch is not blocked, and before it `mur doctor` names what was left.
#[track_caller]
fn named_and_not_blocking(home: &Home, dir: &std::path::Path, why: &str) {
    let doctor = home.mur(["doctor"]).expect(0);
    let line = doctor.stdout.lines().find(|line| line.contains(&dir.display().to_string()));
    let line = line.unwrap_or_else(|| panic!("not named: {}", doctor.stdout));
    assert!(line.contains(why) && line.ends_with("safe to delete"), "{line}");
    home.mur(["run", "--roster", "--task", "x"]).expect(0);
    assert!(dir.exists(), "what another launch left is nobody's to remove");
}

#[test]
fn a_launcher_that_may_write_no_byte_refuses_and_the_next_one_launches() {
    let home = Home::new();
    standard(&home, &worker());
    // No file may hold anything: the marker is the first that a launch writes.
    let refused = after(&home, "ulimit -c 0 -f 0");
    assert!(!refused.status.success(), "{}", refused.stderr);
    let said = refused.stderr.lines().any(|line| line.starts_with("error[E-"));
    assert!(said, "{}", refused.stderr);
    assert!(!home.formations().iter().any(|dir| dir.join("formation.json").exists()), "no half a marker");
    home.mur(["run", "--roster", "--task", "x"]).expect(0);
}

#[test]
fn a_launcher_that_dies_between_its_marker_and_its_first_member_leaves_a_directory_that_doctor_names() {
    let home = Home::new();
    standard(&home, &worker());
    // Stopped as soon as the marker is seen; when a member was faster, once more.
    until("a launcher is caught between the two", || {
        for dir in home.formations() {
            std::fs::remove_dir_all(dir).expect("it is removed");
        }
        let mut launcher = home.start(["run", "--roster", "--task", "x"]);
        until("the marker is written", || home.formations().iter().any(|dir| dir.join("formation.json").exists()));
        launcher.signal(Signal::SIGSTOP);
        let members = proc::descendants(launcher.pid()).len() > 1;
        let started = proc::descendants(launcher.pid());
        launcher.signal(Signal::SIGKILL);
        launcher.wait();
        until("everybody is gone", || !started.iter().any(|pid| proc::runs(*pid)));
        !members
    });
    let (dir, _) = left(&home);
    named_and_not_blocking(&home, &dir, "is gone and no member of it ever ran");
}

#[test]
fn a_hostile_roster_cannot_command_the_terminal() {
    let home = Home::new();
    let hostile = r#"{"roster_version": 1, "members": [{"name": "\u001b[2J\u202e", "capsule": "local/\u0007", "version": "1", "entry": true}]}"#;
    home.write("roster.yaml", hostile);
    let refused = home.mur(["run", "--roster", "--task", "x"]).refused("E-ROS-001");
    let commands = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
    assert!(!refused.stderr.contains(commands), "{:?}", refused.stderr);
    assert!(refused.stderr.contains("\\u{1b}[2J"), "{}", refused.stderr);
}

#[test]
fn a_thousand_signals_that_mean_nothing_end_nothing() {
    let home = Home::new();
    standard(&home, &worker());
    let launched = Launched::open(&home);
    let everybody = proc::descendants(launched.launcher.pid());
    for _ in 0..500 {
        for pid in &everybody {
            for signal in [Signal::SIGWINCH, Signal::SIGCONT] {
                kill(Pid::from_raw(*pid), signal).expect("everybody still runs");
            }
        }
    }
    let door = launched.door(&home);
    let task = door.ended(&door.send("hello"));
    assert_eq!(task["status"]["state"], "TASK_STATE_COMPLETED", "{task}");
    assert_eq!(proc::descendants(launched.launcher.pid()), everybody);
}

#[test]
fn a_reader_that_goes_away_is_no_news() {
    let home = Home::new();
    standard(&home, &worker());
    home.mur(["run", "--roster", "--task", "x"]).expect(0);
    let formation = home.formations().pop().expect("a formation");
    let id = formation.file_name().expect("a name").to_string_lossy().into_owned();
    let mut command = Command::new("bash");
    let script = format!("for i in 1 2 3 4 5; do '{}' trace show {id} | true; done", mur_tests::mur_binary().display());
    command.args(["-c", &script]).env_clear().env("HOME", home.home()).env("PATH", "/usr/bin:/bin");
    command.current_dir(home.project());
    let shown = Running::start(command).finish().expect(0);
    assert_eq!(shown.stderr, "");
}
