//! Plugins, by the built binary: what is listed, what is refused and how, what a faulty one does to its host.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use mur_tests::{Done, World};

/// A library as cargo built it.
fn built(name: &str) -> Vec<u8> {
    let test = std::env::current_exe().unwrap();
    let path = test.ancestors().nth(2).unwrap().join(name);
    fs::read(&path).unwrap_or_else(|fault| panic!("{}: {fault}: run `cargo xtask dist`", path.display()))
}

fn faulty() -> Vec<u8> {
    built("libmur_test_plugin_faulty.so")
}

/// Writes a library where only its owner can change it.
fn place(world: &World, name: &str, bytes: &[u8]) -> PathBuf {
    let dir = world.project().join("plugins");
    fs::create_dir_all(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    let path = dir.join(name);
    fs::write(&path, bytes).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    path
}

fn worked(done: Done) -> Done {
    assert!(done.status.success(), "{}{}", done.stdout, done.stderr);
    done
}

fn failed(done: Done) -> Done {
    assert_eq!(done.code(), Some(1), "{}{}", done.stdout, done.stderr);
    done
}

fn plugin(world: &World, command: &str, path: &Path) -> Done {
    world.mur([Path::new("plugin"), Path::new(command), path]).run()
}

fn position(bytes: &[u8], wanted: &[u8]) -> usize {
    bytes.windows(wanted.len()).position(|window| window == wanted).expect("the bytes are there")
}

const MAGIC: &[u8] = b"\x7fmur-plugin\r\n\x1a\n\0";

/// The same library, built for another interface version.
fn of_interface(version: u32) -> Vec<u8> {
    let mut bytes = faulty();
    let at = position(&bytes, MAGIC) + 24;
    bytes[at..at + 4].copy_from_slice(&version.to_ne_bytes());
    bytes
}

fn renamed(mut bytes: Vec<u8>, symbol: &[u8]) -> Vec<u8> {
    let at = position(&bytes, symbol);
    bytes[at] = b'X';
    bytes
}

/// Exactly one error line, which names the file, and one hint.
#[track_caller]
fn one_line(output: &Done, path: &Path, words: &[&str]) {
    let lines: Vec<&str> = output.stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{}", output.stderr);
    assert!(lines[0].contains(&path.display().to_string()), "{}", output.stderr);
    assert!(lines[1].starts_with("  hint: "), "{}", output.stderr);
    for word in words {
        assert!(lines[0].contains(word), "no '{word}' in {}", lines[0]);
    }
}

#[test]
fn the_first_party_plugins_are_listed_as_trusted_and_conform() {
    let world = World::new();
    let listed = world.mur(["plugin", "list", "--json"]).ok();
    let mut names = Vec::new();
    for line in listed.stdout.lines() {
        let one: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(one["trusted"], true, "{line}");
        assert_eq!(one["first_party"], true, "{line}");
        names.push(format!("{} {}", one["kind"].as_str().unwrap(), one["name"].as_str().unwrap()));
    }
    for name in [
        "store directory",
        "sink jsonl",
        "containment unconfined",
        "containment advisory",
        "containment scoped",
        "containment sealed",
        "containment bubblewrap",
    ] {
        assert!(names.iter().any(|known| known == name), "{names:?}");
    }
    let checked = world.mur(["plugin", "check"]).ok();
    assert_eq!(checked.stdout.matches(": ok (").count(), names.len(), "{}", checked.stdout);
}

#[test]
fn what_is_no_plugin_is_refused_in_one_line() {
    let world = World::new();
    let mut other_machine = faulty();
    other_machine[18] = 8;
    let whole = faulty();
    let cases: [(&str, Vec<u8>, &str, &[&str]); 8] = [
        ("text.so", b"#!/bin/sh\necho plugin\n".to_vec(), "E-PLG-003", &["is not a shared library"]),
        ("empty.so", Vec::new(), "E-PLG-003", &["is not a shared library"]),
        ("machine.so", other_machine, "E-PLG-003", &["another machine"]),
        ("cut.so", whole[..whole.len() / 2].to_vec(), "E-PLG-003", &["damaged", "cut short"]),
        ("header.so", renamed(faulty(), b"MUR_PLUGIN_HEADER\0"), "E-PLG-003", &["no mur plugin"]),
        ("older.so", of_interface(0), "E-PLG-004", &["faulty 0.1.0", "store interface 0", "this mur speaks 1"]),
        ("newer.so", of_interface(2), "E-PLG-004", &["faulty 0.1.0", "store interface 2", "this mur speaks 1"]),
        ("newest.so", of_interface(u32::MAX), "E-PLG-004", &["store interface 4294967295"]),
    ];
    for (name, bytes, code, words) in cases {
        let path = place(&world, name, &bytes);
        for command in ["trust", "check"] {
            one_line(plugin(&world, command, &path).refused(code), &path, words);
        }
    }
    assert!(!world.murmur().join("plugins.lock").exists());
}

#[test]
fn a_library_without_a_root_module_or_with_another_is_refused_once_it_is_trusted() {
    let world = World::new();
    let rootless = renamed(faulty(), b"_1as_0lib_1header_0root_bmodule_bloader\0");
    let cases: [(&str, Vec<u8>, &str, &[&str]); 3] = [
        ("rootless.so", rootless, "E-PLG-003", &["faulty 0.1.0", "exports no root module"]),
        ("mislabelled.so", built("libmur_test_plugin_mislabelled.so"), "E-PLG-004", &["laid out otherwise", "1 to 1"]),
        (
            "load-panic.so",
            built("libmur_test_plugin_load_panic.so"),
            "E-PLG-005",
            &["load-panic 0.1.0", "while loading"],
        ),
    ];
    for (name, bytes, code, words) in cases {
        let path = place(&world, name, &bytes);
        worked(plugin(&world, "trust", &path));
        one_line(plugin(&world, "check", &path).refused(code), &path, words);
    }
}

#[test]
fn nothing_is_loaded_before_it_is_pinned_nor_after_it_changed() {
    let world = World::new();
    let path = place(&world, "faulty.so", &faulty());
    one_line(plugin(&world, "check", &path).refused("E-PLG-001"), &path, &["is not pinned"]);
    let pinned = worked(plugin(&world, "trust", &path));
    assert!(pinned.stdout.starts_with("Pinned store 'faulty' 0.1.0 (sha256 "), "{}", pinned.stdout);
    worked(plugin(&world, "check", &path));
    let mut changed = faulty();
    changed.push(0);
    fs::write(&path, changed).unwrap();
    one_line(plugin(&world, "check", &path).refused("E-PLG-001"), &path, &["is not the one pinned in"]);
    let listed = world.mur(["plugin", "list"]).ok();
    assert!(listed.stdout.contains("E-PLG-001"), "{}", listed.stdout);
}

#[test]
fn a_file_directory_or_lock_that_others_can_write_is_refused() {
    let world = World::new();
    let path = place(&world, "faulty.so", &faulty());
    worked(plugin(&world, "trust", &path));
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    mode(&path, 0o666);
    one_line(plugin(&world, "check", &path).refused("E-PLG-002"), &path, &["it has mode 0666"]);
    mode(&path, 0o644);
    mode(path.parent().unwrap(), 0o777);
    one_line(plugin(&world, "check", &path).refused("E-PLG-002"), &path, &["its directory has mode 0777"]);
    mode(path.parent().unwrap(), 0o755);
    let lock = world.murmur().join("plugins.lock");
    mode(&lock, 0o620);
    one_line(plugin(&world, "check", &path).refused("E-PLG-002"), &lock, &["it has mode 0620"]);
}

#[test]
fn a_faulty_plugin_is_named_and_takes_nobody_with_it() {
    let world = World::new();
    let path = place(&world, "faulty.so", &faulty());
    worked(plugin(&world, "trust", &path));
    let check = |fault: &str| {
        let config = serde_json::json!({ "fault": fault }).to_string();
        let args = ["plugin", "check", "--config", &config].map(PathBuf::from);
        world.mur(args.iter().chain([&path])).run()
    };
    let panicking = failed(check("panic-find"));
    assert!(panicking.stdout.contains("store 'faulty' 0.1.0: FAILED"), "{}", panicking.stdout);
    assert!(panicking.stdout.contains("Panicked: cannot find on purpose"), "{}", panicking.stdout);
    let aborting = failed(check("abort-find"));
    assert!(aborting.stderr.contains("error[E-PLG-005]"), "{}", aborting.stderr);
    assert!(aborting.stderr.contains("ended its process by signal 6"), "{}", aborting.stderr);
    let thread = worked(check("panic-thread"));
    assert!(thread.stderr.contains("plugin 'faulty' panicked in a thread of its own"), "{}", thread.stderr);
}

#[test]
fn a_plugin_cannot_take_the_name_of_mur_s_own() {
    let world = World::new();
    let path = place(&world, "mine.so", &built("libmur_store_directory.so"));
    one_line(plugin(&world, "trust", &path).refused("E-PLG-001"), &path, &["is the name of this mur's own plugin"]);
    let link = path.with_file_name("link.so");
    std::os::unix::fs::symlink(place(&world, "faulty.so", &faulty()), &link).unwrap();
    let pinned = worked(plugin(&world, "trust", &link));
    assert!(pinned.stdout.contains("/faulty.so in "), "{}", pinned.stdout);
}
