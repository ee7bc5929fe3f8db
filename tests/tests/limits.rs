//! What a launch may be given and what a session may use: folders, bounds, programs, and what is left when they are met.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

use mur_tests::commands::{HELD, caller, launch, line, run};
use mur_tests::{Agent, Roster, World};
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, mkdirat};
use serde_json::json;

/// An agent that says something and ends.
fn talker() -> Agent {
    Agent::scripted("agent", json!({"rules": [{"turns": [[{"say": "done"}]]}]}))
}

#[test]
fn a_component_starts_no_more_in_a_folder_that_outgrew_its_bound() {
    for class in ["unconfined", "scoped"] {
        let world = World::new();
        let write = |path: &str, size: usize| json!({"call": "write-file", "input": {"path": path, "content": "x".repeat(size)}});
        let script = json!({"rules": [{"turns": [[write("big", 60_000), write("more", 1)], [{"say": "never"}]]}]});
        let agent = Agent::scripted("agent", script)
            .tool("write-file")
            .with(&["capabilities", "resources", "workdir_max_bytes"], 50_000);
        let done = launch(&world, &agent, class).args(["--task", "go"]).run();
        done.refused("E-RUN-013");
        assert!(done.stderr.contains("grew to 6") && done.stderr.contains("past the 50000 byte"), "{}", done.stderr);
        assert!(world.project().join("work/big").exists() && !world.project().join("work/more").exists(), "{class}");
        let trace = world.traces().remove(0);
        assert_eq!(trace.all("tool_call")[1]["status"], "error", "{class}");
    }
}

#[test]
fn folders_of_the_host_the_kernel_and_mur_are_no_work_folders() {
    let world = World::new();
    world.write("murmur.yaml", talker().manifest());
    let own = world.murmur();
    fs::create_dir_all(own.join("records")).unwrap();
    let own = |below: &str| own.join(below).to_str().unwrap().to_owned();
    let refused = ["/", "/usr", "/usr/bin", "/etc", "/proc", "/proc/self", "/sys", "/sys/fs/cgroup", "/dev"];
    for folder in refused.map(str::to_owned).into_iter().chain([own(""), own("records")]) {
        let done = world.mur(["run", "--workdir", &folder, "--task", "go"]).run();
        done.refused("E-IO-003");
        let said = format!("--workdir: '{folder}' cannot be a work folder: ");
        assert!(
            done.stderr.contains(&said) && done.stderr.contains("hint: use a folder of your own"),
            "{}",
            done.stderr
        );
    }
    assert!(world.traces().is_empty(), "nothing was recorded");
    world.mur(["run", "--workdir", ".", "--task", "go"]).ok();
}

#[test]
fn a_manifest_among_murs_own_files_has_no_place_to_work() {
    let world = World::new();
    let place = world.murmur().join("artifacts");
    fs::create_dir_all(&place).unwrap();
    fs::write(place.join("murmur.yaml"), talker().manifest()).unwrap();
    let done = world.mur(["run", "--task", "go"]).cwd(&place).run();
    done.refused("E-IO-003");
    assert!(done.stderr.contains("where this launch would make its work folder, cannot be"), "{}", done.stderr);

    let roster = Roster::new().member("lead", talker());
    fs::write(place.join("roster.yaml"), roster.text()).unwrap();
    world.install(&talker());
    let done = world.mur(["run", "--roster", place.to_str().unwrap(), "--task", "go"]).run();
    done.refused("E-IO-003");
    assert!(!world.murmur().join("formations").exists(), "no formation was begun");
}

#[test]
fn a_work_folder_whose_name_is_no_text_serves_as_any_other() {
    use std::os::unix::ffi::OsStrExt as _;
    for class in HELD {
        let world = World::new();
        let name = std::ffi::OsStr::from_bytes(b"w\xff\xfe");
        let folder = world.project().join(name);
        fs::create_dir(&folder).unwrap();
        let calls = json!([
            {"call": "sh", "input": {"command": "echo here > by-command"}},
            {"call": "write-file", "input": {"path": "by-tool", "content": "x"}},
        ]);
        let agent = Agent::scripted("agent", json!({"rules": [{"turns": [calls, [{"say": "done"}]]}]}))
            .tool("write-file")
            .with(&["capabilities", "shell", "allow"], json!(["sh"]));
        world.write("murmur.yaml", agent.manifest());
        let done = world.mur(["run", "--containment", class, "--task", "go", "--workdir"]).args([name]).run();
        assert_eq!(done.code(), Some(0), "{class}: {}", done.stderr);
        for made in ["by-command", "by-tool"] {
            assert!(folder.join(made).exists(), "{class}: {made}");
        }
    }
}

#[test]
fn a_work_folder_that_a_composed_root_cannot_name_is_refused_there_and_only_there() {
    let world = World::new();
    world.write("murmur.yaml", talker().manifest());
    fs::create_dir(world.project().join("a:b")).unwrap();
    let run = |class: &str| world.mur(["run", "--containment", class, "--workdir", "a:b", "--task", "go"]).run();
    assert_eq!(run("scoped").code(), Some(0));
    let done = run("sealed");
    done.refused("E-IO-003");
    assert!(done.stderr.contains("a:b' cannot be a work folder under class 'sealed'"), "{}", done.stderr);
}

#[test]
fn a_bound_too_small_for_any_session_is_named_before_anything_starts() {
    let world = World::new();
    for (key, value) in [("max_open_files", 8), ("cgroup_memory_bytes", 1_000_000), ("memory_bytes", 4096)] {
        world.write("murmur.yaml", talker().with(&["capabilities", "resources", key], value).manifest());
        let named =
            format!("'capabilities.resources.{key}': {value} is too small for any session: it must be at least ");
        let done = world.mur(["run", "--task", "go"]).run();
        done.refused("E-MAN-003");
        assert!(done.stderr.contains(&named), "{}", done.stderr);
        let told = world.mur(["doctor"]).run();
        assert!(told.stderr.contains(&named) && told.code() == Some(1), "{}", told.stderr);
    }
    // The least of each together, under every class that holds to them.
    for class in HELD {
        let mut agent = caller("agent", &["sh"], &[("sh", line("echo fine"))]);
        for (key, value) in [
            ("max_open_files", 32),
            ("cgroup_memory_bytes", 16 << 20),
            ("memory_bytes", 4 << 20),
            ("cgroup_pids_max", 16),
        ] {
            agent = agent.with(&["capabilities", "resources", key], value);
        }
        assert!(run(&World::new(), &agent, class).text(0).contains("fine"), "{class}");
    }
}

#[test]
fn programs_that_can_only_fail_are_told_at_launch_and_by_doctor() {
    let world = World::new();
    let agent = talker().with(&["capabilities", "shell", "allow"], json!(["sh", "no-such-program", "*"]));
    world.write("murmur.yaml", agent.manifest());
    let done = world.mur(["run", "--task", "go"]).run();
    assert_eq!(done.code(), Some(0), "{}", done.stderr);
    for said in [done.stderr, world.mur(["doctor"]).run().stderr] {
        for name in ["no-such-program", "*"] {
            let warning =
                format!("warning[W-SEC-038]: '{name}' of capabilities.shell.allow is not on the PATH of mur run");
            assert!(said.contains(&warning), "{said}");
        }
        assert!(!said.contains("W-SEC-038]: 'sh'"), "{said}");
    }
}

/// Folders in one another, more than any path can name.
fn chain(top: &Path, depth: usize) {
    let folder = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
    let mut at: OwnedFd = fs::File::open(top).unwrap().into();
    for _ in 0..depth {
        mkdirat(&at, "d", Mode::S_IRWXU).unwrap();
        at = openat(&at, "d", folder, Mode::empty()).unwrap();
    }
}

#[test]
fn folders_deeper_than_any_path_are_removed_with_their_session() {
    let world = World::new();
    let agent = talker().with(&["capabilities", "shell", "allow"], json!(["sh"]));
    world.write("murmur.yaml", agent.manifest());
    world.mur(["run", "--task", "go"]).ok();
    let records = world.traces().remove(0).directory().to_owned();
    let work = world.project().join("workdir").join(records.file_name().unwrap());
    // Deeper than descriptors reach, and than any path.
    chain(&records.join("home"), 1_500);
    chain(&work, 3_000);
    let kept = world.write("kept", "x");
    std::os::unix::fs::symlink(world.project(), work.join("up")).unwrap();
    world.mur(["trace", "rm", "@1"]).ok();
    assert!(!records.exists() && !work.exists() && kept.exists());
}

#[test]
fn a_pipe_in_a_files_place_is_refused_to_a_component_and_not_waited_for() {
    for class in ["unconfined", "scoped", "sealed"] {
        let world = World::new();
        let work = world.project().join("work");
        fs::create_dir(&work).unwrap();
        nix::unistd::mkfifo(&work.join("pipe"), Mode::S_IRWXU).unwrap();
        std::os::unix::fs::symlink("pipe", work.join("link")).unwrap();
        fs::write(work.join("file"), "text").unwrap();
        let read = |path: &str| json!({"call": "read-file", "input": {"path": path}});
        let turns =
            json!([[read("pipe")], [{"say": "{{result}}"}, read("link")], [read("file")], [{"say": "{{result}}"}]]);
        let agent = Agent::scripted("agent", json!({"rules": [{"turns": turns}]})).tool("read-file");
        world.write("murmur.yaml", agent.manifest());
        let done = world.mur(["run", "--containment", class, "--workdir", "work", "--task", "go"]).run();
        assert_eq!(done.code(), Some(0), "{}", done.stderr);
        let trace = world.traces().remove(0);
        let said: Vec<_> = trace.all("tool_call").iter().map(|call| call["status"].clone()).collect();
        assert_eq!(said, ["error", "error", "ok"], "{class}");
        assert_eq!(trace.result().unwrap(), "text", "{class}");
    }
}
