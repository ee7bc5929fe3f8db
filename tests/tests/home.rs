//! A home that cannot hold `~/.murmur`: refused by name before anything starts, nothing half made.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use mur_tests::live::formation::{standard, worker};
use mur_tests::live::{Home, Output, Running};

/// Runs a capsule and a roster under this `HOME`; each must refuse it.
#[track_caller]
fn refused(home: &Home, value: Option<&str>) -> Vec<Output> {
    let capsule = ["run", "--capsule", "local/worker", "--capsule-version", "1.0.0", "--task", "x"];
    [&capsule[..], &["run", "--roster", "--task", "x"]]
        .into_iter()
        .map(|args| {
            let mut command = home.command(args);
            match value {
                Some(value) => command.env("HOME", value),
                None => command.env_remove("HOME"),
            };
            Running::start(command).finish().refused("E-IO-004")
        })
        .collect()
}

#[test]
fn a_home_that_is_unset_relative_missing_or_no_directory_is_refused() {
    let home = Home::new();
    standard(&home, &worker());
    let file = home.write("a-file", "x");
    refused(&home, None);
    for value in ["", "relative/home", "/proc/none/home", file.to_str().unwrap()] {
        let outputs = refused(&home, Some(value));
        assert!(value.is_empty() || outputs.iter().all(|output| output.stderr.contains(value)), "{value}");
    }
    assert!(!home.project().join("relative").exists());
    assert_eq!(fs::read(file).unwrap(), b"x");
}

#[test]
fn a_home_whose_murmur_is_a_file_is_refused_and_left_as_it_was() {
    let home = Home::new();
    standard(&home, &worker());
    let other = home.scratch("other");
    fs::write(other.join(".murmur"), "mine").unwrap();
    refused(&home, other.to_str());
    assert_eq!(fs::read_to_string(other.join(".murmur")).unwrap(), "mine");
}

#[test]
fn what_is_made_in_a_home_is_for_its_owner_alone() {
    let home = Home::new();
    standard(&home, &worker());
    home.mur(["run", "--roster", "--task", "x"]).expect(0);
    for dir in ["", "records", "sessions", "running", "formations"] {
        let mode = fs::metadata(home.murmur().join(dir)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o700, "~/.murmur/{dir}");
    }
    assert_eq!(fs::read_dir(home.murmur().join("sessions")).unwrap().count(), 0, "a session's runtime files are gone");
}
