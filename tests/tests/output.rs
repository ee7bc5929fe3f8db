//! What becomes of a command whose standard output cannot be written.

use std::fs::File;
use std::process::{Command, Stdio};

use mur_tests::{World, mur_binary};

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
