//! What people write: manifests, configuration and command lines with mistakes in them, and what is said of each.

use std::fs;

use mur_tests::{Agent, Done, World};
use serde_json::{Value, json};

const CLOCKWORK: [&[&str]; 2] = [&["build"], &["run", "--task", "x"]];

fn quick(name: &str) -> Agent {
    Agent::scripted(name, json!({"rules": [{"turns": [[{"say": "done"}]]}]}))
}

/// `error[…]` with everything below it, without colour or order of its own.
fn refusal(done: &Done) -> String {
    assert_eq!(done.code(), Some(1), "{}{}", done.stdout, done.stderr);
    let at = done.stderr.find("error[").expect("an error");
    done.stderr[at..].to_owned()
}

#[test]
fn build_refuses_what_run_refuses_in_the_same_words() {
    let world = World::new();
    let wrong: [(&[&str], Value); 9] = [
        (&["lifecycle", "queue_depth"], json!("many")),
        (&["lifecycle", "task_acceptance"], json!("some")),
        (&["capabilities", "network", "allow"], json!("localhost")),
        (&["capabilities", "filesystem", "workdir_exec"], json!("yes")),
        (&["inference", "max_turns"], json!([1])),
        (&["context", "max_tokens"], json!("x")),
        (&["exports", "peer_tasks", "accept"], json!("on")),
        (&["artifacts"], json!({"name": "murmur/x"})),
        (&["network", "authentication"], json!("bearer")),
    ];
    for (path, value) in wrong {
        world.write("murmur.yaml", quick("agent").with(path, value).manifest());
        let [built, run] = CLOCKWORK.map(|args| refusal(&world.mur(args).run()));
        assert_eq!(built, run);
        assert!(built.starts_with("error[E-MAN-00"), "{path:?}: {built}");
    }
    assert!(!world.project().join("agent-0.1.0.mur.zip").exists());
}

#[test]
fn a_name_or_version_with_characters_nobody_sees_is_refused_everywhere() {
    let world = World::new();
    let hidden = ["\u{1b}[31m", "\u{7}", "\u{202e}", "\u{200b}", "\u{feff}", "\u{2066}", "\u{ad}", "\u{85}"];
    for hidden in hidden {
        for key in ["name", "version"] {
            let manifest = quick("agent").with(&[key], format!("1{hidden}x")).manifest();
            world.write("murmur.yaml", manifest);
            for args in [&["run", "--task", "x"][..], &["build"], &["doctor"]] {
                let said = world.mur(args).run();
                said.refused("E-MAN-003");
                assert!(said.stderr.contains("holds a character that cannot be seen: 1\\u{"), "{}", said.stderr);
                // The line itself is shown as it stands, but commands nobody.
                let raw = |c: char| (c.is_control() && c != '\n') || matches!(c, '\u{202e}' | '\u{2066}');
                assert!(!said.stderr.contains(raw) && !said.stdout.contains(raw), "{:?}", said.stderr);
            }
        }
    }
    assert!(fs::read_dir(world.murmur().join("sessions")).unwrap().next().is_none());
    // What can be seen may stay.
    world.write("murmur.yaml", quick("agent").with(&["version"], "1.0-größe").manifest());
    world.mur(["run", "--task", "x"]).ok();
}

#[test]
fn a_usage_error_repeats_no_command_to_the_terminal() {
    let world = World::new();
    let hostile = "\u{1b}[31m\u{7}\u{9b}2J\u{202e}";
    let flag = format!("--{hostile}");
    for args in [vec![hostile], vec!["run", &flag], vec!["run", "--bind", hostile], vec!["trace", hostile]] {
        let said = world.mur(&args).run();
        assert_eq!(said.code(), Some(2), "{args:?}");
        assert!(said.stderr.starts_with("error: ") && said.stderr.contains("\\u{9b}2J\\u{202e}"), "{:?}", said.stderr);
        let raw = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!said.stderr.contains(raw), "{:?}", said.stderr);
    }
}

#[test]
fn a_task_that_looks_like_a_file_that_is_not_there_is_taken_as_text_and_that_is_said() {
    let world = World::new();
    let agent = quick("solo");
    world.install(&agent);
    let run = |task: &str| {
        let flags = ["run", "--capsule", "local/solo", "--capsule-version", agent.version(), "--task", task];
        world.mur(flags).args(["--lifecycle-after-task", "exit"]).ok()
    };
    let note = "[capsule-runtime] note: --task: no file 'nofile.md' is here; taken as the task's text";
    assert_eq!(run("nofile.md").stderr.lines().filter(|line| *line == note).count(), 1);
    world.write("nofile.md", "a task");
    for quiet in ["nofile.md", "read other.md", "hello"] {
        let said = run(quiet).stderr;
        assert!(!said.contains("note: --task"), "{quiet}: {said}");
    }
}

#[test]
fn an_unknown_key_of_the_configuration_is_silent_at_launch_and_named_by_doctor() {
    let world = World::new();
    world.write("murmur.yaml", quick("agent").manifest());
    world.config("# mine\ncontainmnet: sealed\nplugins: {containments: {}}\nbeta: {enabled: []}\n");
    world.write(".murmur/config.yaml", "zebra: 1\n");
    let run = world.mur(["run", "--task", "x"]).ok();
    assert!(!run.stderr.contains("containmnet") && !run.stderr.contains("zebra"), "{}", run.stderr);
    let doctor = world.mur(["doctor"]).run();
    for line in [
        "config.yaml:2: unrecognized key 'containmnet' at the top level — did you mean 'containment'?",
        "config.yaml:3: unrecognized key 'containments' in plugins — did you mean 'containment'?",
        "config.yaml:1: unrecognized key 'zebra' at the top level",
    ] {
        assert!(doctor.stderr.contains(line), "no '{line}' in {}", doctor.stderr);
    }
    assert!(!doctor.stderr.contains("'beta'"), "{}", doctor.stderr);
}

#[test]
fn a_rule_for_a_gateways_host_is_warned_of_where_there_is_a_key_to_miss() {
    let world = World::new();
    let keyless = quick("agent").network(&["127.0.0.1:9"]);
    let keyed = Agent::anthropic("agent", "http://127.0.0.1:9", "secret").network(&["127.0.0.1:1"]);
    for (agent, warned) in [(keyless, 0), (keyed, 1)] {
        world.write("murmur.yaml", agent.manifest());
        for args in [&["run", "--explain-scope"][..], &["doctor"]] {
            let said = world.mur(args).run();
            assert_eq!(said.stderr.matches("W-SEC-025").count(), warned, "{args:?}: {}", said.stderr);
        }
    }
}

#[test]
fn list_all_shows_every_store_with_its_word() {
    let world = World::new();
    world.install(&quick("mine"));
    world.write("murmur.yaml", quick("agent").manifest());
    let all = world.mur(["list", "--all"]).ok().stdout;
    let row = |store: &str, name: &str| {
        all.lines().any(|line| line.starts_with(store) && line.split_whitespace().nth(1) == Some(name))
    };
    assert!(row("global", "local/mine") && row("bundled", "murmur/driver-scripted"), "{all}");
    let one = world.mur(["list", "-g"]).ok().stdout;
    assert!(!one.contains("murmur/driver-scripted"), "{one}");
}

#[test]
fn the_command_a_failed_run_prints_works_from_anywhere() {
    let world = World::named("it's a project");
    let failing = Agent::scripted("agent", json!({"rules": [{"turns": [[{"error": "no", "status": "failed"}]]}]}));
    world.write("murmur.yaml", failing.manifest());
    let ran = world.mur(["run", "--task", "x"]).run();
    ran.refused("E-RUN-040");
    let (_, command) = ran.stderr.rsplit_once("what led to it: mur ").expect("a command");
    let command = command.lines().next().unwrap();
    let mut shell = world.mur(Vec::<&str>::new()).cwd("/").command();
    let binary = shell.get_program().to_owned();
    #[allow(clippy::disallowed_methods, reason = "a person's shell reads the printed line")]
    let shown = std::process::Command::new("sh")
        .args(["-c", &format!("exec '{}' {command}", binary.to_string_lossy())])
        .env("HOME", world.home())
        .current_dir("/")
        .output()
        .unwrap();
    shell.env_clear();
    let text = String::from_utf8_lossy(&shown.stdout);
    assert!(shown.status.success() && text.contains("session:"), "{text}{}", String::from_utf8_lossy(&shown.stderr));
}

#[test]
fn a_native_payload_without_its_platform_is_warned_of_where_it_is_resolved() {
    let world = World::new();
    let source = "name: tool\nversion: '1'\nruntime: tool\nimplementation: native\nrequires_files: [bin/tool]\n";
    world.write("tool/murmur.yaml", source);
    world.write("tool/bin/tool", "#!/bin/sh\n");
    world.mur(["build", "tool"]).ok();
    world.mur(["install", "-g", "./tool/tool-1.mur.zip"]).ok();
    let stored = world.murmur().join("artifacts/local/tool/1");
    for file in fs::read_dir(&stored).unwrap().flatten() {
        let name = file.file_name().into_string().unwrap();
        let untagged = ["-linux-x86_64", "-linux-aarch64"].iter().fold(name.clone(), |name, tag| name.replace(tag, ""));
        assert_ne!(untagged, name);
        fs::rename(file.path(), stored.join(untagged)).unwrap();
    }
    let entry = json!({"name": "local/tool", "version": "1", "runtime": "tool"});
    let mut manifest: Value = serde_json::from_str(&quick("agent").manifest()).unwrap();
    manifest["artifacts"].as_array_mut().unwrap().push(entry);
    world.write("murmur.yaml", manifest.to_string());
    for args in [&["install", "local/tool@1"][..], &["install"], &["run", "--task", "x"]] {
        let said = world.mur(args).run();
        let lines: Vec<&str> = said.stderr.lines().collect();
        let at = lines.iter().position(|line| line.starts_with("warning[W-REG-001]: ")).unwrap_or_else(|| {
            panic!("{args:?} does not warn: {}{}", said.stdout, said.stderr);
        });
        assert_eq!(lines[at + 1], "  Fix: mur install local/tool@1", "{args:?}");
        assert!(lines[at + 2].ends_with("#w-reg-001"), "{args:?}: {}", said.stderr);
        // The project's own copy is untagged too.
        fs::remove_dir_all(world.project().join(".murmur")).ok();
        fs::remove_file(world.project().join("murmur.lock")).ok();
    }
}
