//! What people write: manifests, configuration and command lines with mistakes in them, and what is said of each.

use std::fs;

use mur_tests::{Agent, Done, Roster, World};
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

/// Agents a launch refuses on what they declare or what is missing around them, each with its code.
fn refused_agents() -> Vec<(Agent, &'static str)> {
    let keyed = Agent::anthropic("agent", "http://127.0.0.1:9", "x")
        .driver_entry(|entry| entry["gateway"]["api_key"] = json!("${NO_KEY_OF_THIS_NAME}"));
    vec![
        (keyed, "E-MAN-003"),
        (quick("agent").network(&["*.example.org"]), "E-CAP-001"),
        (quick("agent").network(&["example.org/path"]), "E-CAP-001"),
        (quick("agent").with(&["capabilities", "spawn"], json!({"allow": ["local/other"]})), "E-MAN-003"),
        (quick("agent").with(&["context", "record_store"], "a/b"), "E-CAP-011"),
        (quick("agent").driver_entry(|entry| entry["config"] = json!([1])), "E-CAP-010"),
    ]
}

#[test]
fn doctor_ends_with_an_error_where_a_launch_would_be_refused() {
    for (agent, code) in refused_agents() {
        let world = World::new();
        world.write("murmur.yaml", agent.manifest());
        let run = world.mur(["run", "--task", "x"]).run();
        run.refused(code);
        let doctor = world.mur(["doctor"]).run();
        assert_eq!(doctor.code(), Some(1), "{}{}", doctor.stdout, doctor.stderr);
        assert!(doctor.stderr.contains(&format!("[mur doctor] error[{code}]")), "{code}: {}", doctor.stderr);
        assert!(doctor.stdout.contains("1 error found"), "{}", doctor.stdout);
    }
}

#[test]
fn doctor_of_a_formation_foresees_what_each_members_launch_is_refused_for() {
    for (agent, code) in refused_agents() {
        let world = World::new();
        world.roster(&Roster::new().member("alone", agent));
        world.mur(["run", "--roster", "--task", "x"]).run().refused(code);
        let doctor = world.mur(["doctor"]).run();
        assert_eq!(doctor.code(), Some(1), "{}{}", doctor.stdout, doctor.stderr);
        let line = format!("[mur doctor] error[{code}]: member 'alone' (local/agent@");
        assert!(doctor.stderr.contains(&line), "{line}: {}", doctor.stderr);
    }
    // The same key at hand, in the `.env` beside the roster: nothing is refused, and the place is said.
    let world = World::new();
    let keyed = Agent::anthropic("agent", "http://127.0.0.1:9", "x")
        .driver_entry(|entry| entry["gateway"]["api_key"] = json!("${KEY_OF_THE_FILE}"));
    world.roster(&Roster::new().member("alone", keyed));
    world.write(".env", "KEY_OF_THE_FILE=sk-secret\n");
    let doctor = world.mur(["doctor"]).ok();
    let said = format!("comes from KEY_OF_THE_FILE in {}", world.project().join(".env").display());
    assert!(doctor.stderr.contains(&said) && !doctor.stderr.contains("sk-secret"), "{}", doctor.stderr);
}

#[test]
fn doctor_of_a_formation_names_what_show_names_and_keys_nothing_reads() {
    let world = World::new();
    let lead = quick("lead").authenticated();
    world.roster(&Roster::new().member("lead", lead).member("coder", quick("coder").peer()).rule("lead", &["coder"]));
    world.config("containmnet: sealed\n");
    let doctor = world.mur(["doctor"]).ok();
    let warned = "[mur doctor] warning[W-RUN-008]: member 'lead' may call coder, but capabilities.network.allow";
    assert!(doctor.stderr.contains(warned), "{}", doctor.stderr);
    assert!(doctor.stderr.contains("unrecognized key 'containmnet'"), "{}", doctor.stderr);
    assert!(doctor.stdout.contains("2 warnings"), "{}", doctor.stdout);
    // From elsewhere, by the directory or by the file.
    let elsewhere = world.write("below/x", "");
    for path in [world.project().to_owned(), world.project().join("roster.yaml")] {
        let named = world.mur(["doctor"]).arg(&path).ok();
        assert!(named.stdout.contains("lead → coder"), "{}", named.stdout);
    }
    world.mur(["doctor"]).arg(&elsewhere).run().refused("E-IO-001");
}

#[test]
fn what_mur_build_refuses_is_foretold_where_a_manifest_says_what_it_is_packed_as() {
    let world = World::new();
    let scoped = quick("agent").with(&["name"], "local/agent");
    world.write("murmur.yaml", scoped.manifest());
    world.mur(["run", "--task", "x"]).ok();
    world.mur(["build"]).run().refused("E-BLD-001");
    let doctor = world.mur(["doctor"]).ok();
    let foretold = "warning: mur build refuses this manifest: 'local/agent' cannot name an artifact";
    assert!(doctor.stderr.contains(foretold), "{}", doctor.stderr);
    world.write("murmur.yaml", quick("agent").with(&["runtime"], "capsul").manifest());
    for args in [["doctor"], ["build"]] {
        let said = world.mur(args).ok();
        let warned = said.stderr.contains("warning[W-BLD-004]: murmur.yaml: runtime 'capsul' is no kind of artifact");
        assert!(warned, "{args:?}: {}", said.stderr);
    }
}

#[test]
fn a_key_is_never_set_in_a_projects_file() {
    let world = World::new();
    for key in ["inference.api_key", "credentials.A_KEY"] {
        let said = world.mur(["config", "set", key, "sk-secret"]).run();
        said.refused("E-CFG-002");
        assert!(said.stderr.contains(&format!("mur config set -g {key}")), "{}", said.stderr);
        assert!(!said.stderr.contains("sk-secret"), "{}", said.stderr);
    }
    assert!(!world.project().join(".murmur").exists());
    let provider = world.mur(["config", "set", "inference.provider", "openai"]).ok();
    assert!(provider.stderr.contains("set it there with -g"), "{}", provider.stderr);
}

#[test]
fn a_name_without_a_version_is_answered_with_one_that_is_there() {
    let world = World::new();
    world.install(&quick("mine"));
    let said = world.mur(["install", "-g", "local/mine"]).run();
    said.refused("E-REG-001");
    assert!(said.stderr.contains("hint: name a version: local/mine@0.1.0"), "{}", said.stderr);
    world.mur(["install", "-g", "local/mine@0.1.0"]).ok();
}

#[test]
fn other_bytes_under_an_installed_name_and_version_are_said_to_replace_it() {
    let world = World::new();
    world.write("murmur.yaml", quick("agent").manifest());
    let install = |agent: &Agent| world.mur(["install"]).arg(world.build(agent)).ok();
    assert!(!install(&quick("mine")).stderr.contains("replaced"));
    assert!(!install(&quick("mine")).stderr.contains("replaced"), "the same bytes");
    let said = install(&quick("mine").with(&["context", "record"], "off"));
    assert!(said.stderr.contains("note: local/mine@0.1.0 was installed with other bytes"), "{}", said.stderr);
    assert!(said.stderr.contains("is replaced; murmur.lock now pins the new ones"), "{}", said.stderr);
}

#[test]
fn a_refusal_shows_the_misspelt_key_that_causes_it() {
    let world = World::new();
    let manifest = quick("agent").manifest().replacen("inference", "inferense", 1);
    world.write("murmur.yaml", &manifest);
    for args in [&["run", "--task", "x"][..], &["build"], &["doctor"]] {
        let said = world.mur(args).run();
        assert_eq!(said.code(), Some(1));
        assert!(
            said.stderr.contains("unrecognized key 'inferense' at the top level — did you mean 'inference'?"),
            "{}",
            said.stderr
        );
    }
    world.write("murmur.yaml", quick("agent").with(&["lifecycle", "task_acceptance"], "queu").manifest());
    let said = refusal(&world.mur(["run", "--task", "x"]).run());
    assert!(said.starts_with("error[E-MAN-002]") && said.contains("hint: did you mean 'queue'?"), "{said}");
    assert!(!said.contains("syntax"), "{said}");
}

#[test]
fn a_missing_bundled_version_is_answered_with_the_one_that_is_bundled() {
    let world = World::new();
    let mut bundled = String::new();
    let agent = quick("agent").driver_entry(|entry| {
        bundled = entry["version"].as_str().unwrap_or_default().to_owned();
        entry["version"] = json!("0.0.9");
    });
    world.write("murmur.yaml", agent.manifest());
    let said = world.mur(["doctor"]).run();
    assert_eq!(said.code(), Some(1));
    let fix = format!("Fix: name a version of murmur/driver-scripted that is there, such as {bundled}");
    assert!(said.stdout.contains(&fix), "{fix}: {}", said.stdout);
}

#[test]
fn a_task_that_begins_with_a_dash_is_a_task() {
    let world = World::new();
    let say = json!({"rules": [{"turns": [[{"say": "{{task}}"}]]}]});
    world.write("murmur.yaml", Agent::scripted("agent", say.clone()).manifest());
    for (args, task) in [
        (&["run", "--task", "- buy bread"][..], "- buy bread"),
        (&["run", "--system-prompt", "- be brief", "--task", "-5 degrees"], "-5 degrees"),
        (&["run", "--task=-v"], "-v"),
    ] {
        world.mur(args).ok();
        assert_eq!(world.traces().pop().and_then(|trace| trace.result()).as_deref(), Some(task), "{args:?}");
    }
    assert_eq!(world.mur(["run", "--task", "--json"]).run().code(), Some(2), "a flag is no task");
    // The launcher hands it on as it came.
    world.roster(&Roster::new().member("lead", Agent::scripted("lead", say)));
    world.mur(["run", "--roster", "--task", "-- from a list"]).ok();
    assert_eq!(world.trace("lead").result().as_deref(), Some("-- from a list"));
}

#[test]
fn a_number_with_a_unit_is_answered_with_the_plain_one_its_key_takes() {
    let world = World::new();
    for (path, value, plain) in [
        (&["capabilities", "limits", "memory_bytes"][..], "64Mi", "this key counts bytes, without a unit: 67108864"),
        (&["lifecycle", "shell_grace_secs"], "2m", "this key counts seconds, without a unit: 120"),
        (&["capabilities", "limits", "deadline_seconds"], "1h", "this key counts seconds, without a unit: 3600"),
    ] {
        world.write("murmur.yaml", quick("agent").with(path, value).manifest());
        let said = refusal(&world.mur(["run", "--task", "x"]).run());
        assert!(said.starts_with("error[E-MAN-002]") && said.contains(plain), "{said}");
    }
}

#[test]
fn a_misspelt_capsule_of_a_member_is_answered_with_the_one_that_is_installed() {
    let world = World::new();
    world.install(&quick("writer"));
    world.write("roster.yaml", Roster::new().member("lead", quick("wirter")).text());
    let said = world.mur(["run", "--roster", "--task", "x"]).run();
    said.refused("E-ROS-007");
    assert!(
        said.stderr.contains("hint: did you mean 'local/writer', which is installed? otherwise build it"),
        "{}",
        said.stderr
    );
}
