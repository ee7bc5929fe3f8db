//! What becomes of a command whose standard output cannot be written.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use mur_tests::{Agent, Roster, World, mur_binary, wait_until};
use serde_json::json;

#[allow(clippy::disallowed_methods, reason = "what it writes to is a file of the test's own choice")]
fn with_stdout(world: &World, args: &[&str], stdout: Stdio) -> (Option<i32>, String) {
    let done = Command::new(mur_binary())
        .args(args)
        .env_clear()
        .env("HOME", world.home())
        .current_dir(world.project())
        .stdout(stdout)
        .output()
        .unwrap();
    (done.status.code(), String::from_utf8(done.stderr).unwrap())
}

fn source(world: &World) {
    let manifest = "name: solo\nversion: '1'\nruntime: capsule\nexecution: static\n";
    std::fs::write(world.project().join("murmur.yaml"), manifest).unwrap();
}

const COMMANDS: [&[&str]; 7] =
    [&["--help"], &["ps", "--help"], &["version"], &["ps"], &["list", "-g"], &["trace", "list"], &["build"]];

#[test]
fn a_refused_write_is_the_last_thing_said_and_the_work_is_done() {
    let world = World::new();
    source(&world);
    for args in COMMANDS {
        let (status, stderr) = with_stdout(&world, args, File::options().write(true).open("/dev/full").unwrap().into());
        assert_eq!(status, Some(1), "{args:?}: {stderr}");
        let wanted = "error[E-IO-003]: failed to write to standard output: ";
        assert!(stderr.starts_with(wanted) && stderr.lines().count() == 1, "{args:?}: {stderr}");
    }
    assert!(world.project().join("solo-1.mur.zip").is_file());
}

#[test]
fn a_reader_that_went_away_changes_nothing() {
    let world = World::new();
    source(&world);
    for args in COMMANDS {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        assert_eq!(with_stdout(&world, args, writer.into()), (Some(0), String::new()), "{args:?}");
    }
}

#[test]
fn a_run_whose_output_is_refused_is_done_all_the_same_and_ends_with_the_reason() {
    let agent = Agent::scripted("quiet", json!({"rules": [{"turns": [[{"say": "done"}]]}]}));
    let world = World::new();
    world.write("murmur.yaml", agent.manifest());
    for args in [&["run", "--task", "x"][..], &["run", "--json", "--task", "x"]] {
        let (status, stderr) = with_stdout(&world, args, File::options().write(true).open("/dev/full").unwrap().into());
        assert_eq!(status, Some(1), "{args:?}: {stderr}");
        let last = stderr.lines().last().unwrap_or_default();
        assert!(last.starts_with("error[E-IO-003]: failed to write to standard output: "), "{args:?}: {stderr}");
        let trace = world.traces().pop().unwrap();
        assert_eq!(trace.one("session_end")["exit_status"], "ok");
        let log = std::fs::read_to_string(trace.directory().join("logs/bootstrap.log")).unwrap();
        let refused = if args.contains(&"--json") { "\"url\"" } else { "status:  ok" };
        assert!(log.contains(refused), "{args:?}: {log}");
    }
}

/// A pipe that holds all it can: what writes to it waits until somebody reads.
fn full_pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let mode = |flags| nix::fcntl::fcntl(&writer, nix::fcntl::FcntlArg::F_SETFL(flags)).unwrap();
    mode(nix::fcntl::OFlag::O_NONBLOCK);
    for chunk in [4096, 1] {
        while writer.write_all(&vec![b'x'; chunk]).is_ok() {}
    }
    nix::fcntl::fcntl(&writer, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::empty())).unwrap();
    (reader, writer)
}

/// Waits for a process that might never end.
fn end_of(child: &mut std::process::Child) -> Option<i32> {
    let mut status = None;
    wait_until("it ends", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    status.unwrap().code()
}

#[test]
fn whoever_stops_reading_standard_error_holds_up_no_session() {
    let agent = Agent::scripted("quiet", json!({"rules": [{"turns": [[{"say": "done"}]]}]}));
    let world = World::new();
    // One line at least is said about it.
    let mut manifest: serde_json::Value = serde_json::from_str(&agent.manifest()).unwrap();
    manifest["unheard-of"] = true.into();
    world.write("murmur.yaml", manifest.to_string());
    let (_reader, writer) = full_pipe();
    let mut child = world.mur(["run", "--task", "x"]).command().stdout(Stdio::null()).stderr(writer).spawn().unwrap();
    assert_eq!(end_of(&mut child), Some(0));
    assert_eq!(world.traces()[0].one("session_end")["exit_status"], "ok");
}

#[test]
fn a_launcher_whose_standard_error_nobody_reads_still_ends_its_formation() {
    let slow = || json!({"rules": [{"turns": [[{"wait_ms": 600_000}, {"say": "done"}]]}]});
    let world = World::new();
    let members = Roster::new()
        .member("lead", Agent::scripted("lead", slow()).peer().network(&["localhost"]))
        .member("helper", Agent::scripted("helper", slow()).peer())
        .rule("lead", &["helper"]);
    world.roster(&members);
    let (_reader, writer) = full_pipe();
    let mut command = world.mur(["run", "--roster", "--json", "--task", "x"]).command();
    let mut child = command.stdout(Stdio::piped()).stderr(writer).process_group(0).spawn().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    for line in 0..2 {
        let line = said.next().unwrap_or_else(|| panic!("no line {line}")).unwrap();
        assert!(line.starts_with('{'), "{line}");
    }
    let pid = nix::unistd::Pid::from_raw(child.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    assert_eq!(end_of(&mut child), Some(143));
    for trace in world.traces() {
        trace.one("session_end");
    }
}

#[test]
fn what_is_no_regular_file_is_named_where_a_manifest_or_roster_is_looked_for() {
    for name in ["murmur.yaml", "roster.yaml"] {
        let world = World::new();
        nix::unistd::mkfifo(&world.project().join(name), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let below = world.project().join("below");
        std::fs::create_dir(&below).unwrap();
        let mut places = vec![world.project().to_owned()];
        places.extend((name == "murmur.yaml").then_some(below));
        for place in places {
            let done = world.mur(["doctor"]).cwd(&place).run();
            let said = format!("{}{}", done.stdout, done.stderr);
            assert_eq!(done.code(), Some(1), "{name}: {said}");
            assert!(said.contains(name) && said.contains("not a regular file"), "{name}: {said}");
            assert!(!said.contains("no murmur.yaml in"), "{name}: {said}");
        }
    }
    let world = World::new();
    std::os::unix::fs::symlink("/dev/zero", world.project().join("murmur.yaml")).unwrap();
    world.mur(["doctor"]).run().refused("E-IO-003");
    world.mur(["run", "--task", "x"]).run().refused("E-IO-003");
}

#[test]
fn a_task_that_is_a_pipe_or_a_device_is_refused_and_never_waited_for() {
    let agent = Agent::scripted("quiet", json!({"rules": [{"turns": [[{"say": "done"}]]}]}));
    let world = World::new();
    world.write("murmur.yaml", agent.manifest());
    let pipe = world.project().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for (path, kind) in [(pipe.as_path(), "a pipe"), (std::path::Path::new("/dev/zero"), "a device")] {
        let done = world.mur(["run", "--task"]).arg(path).run();
        done.refused("E-IO-003");
        assert!(done.stderr.contains(&format!("it is {kind}, not a regular file")), "{}", done.stderr);
    }
    assert!(world.traces().is_empty());
}

#[test]
fn an_archive_named_without_a_folder_is_told_how_it_is_named() {
    let world = World::new();
    source(&world);
    world.mur(["build"]).ok();
    for (args, named) in [(&["install", "-g"][..], "solo-1.mur.zip"), (&["install"], "solo-1.mur.zip")] {
        let done = world.mur(args).arg(named).run();
        assert_eq!(done.code(), Some(1), "{}", done.stderr);
        assert!(done.stderr.contains(&format!("hint: a file is named by a path: ./{named}")), "{}", done.stderr);
    }
}
