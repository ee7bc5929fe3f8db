//! What a capsule's grants for commands are refused or warned of, and what `--explain-scope` says of them.

use mur_tests::{Agent, World};
use serde_json::{Value, json};

fn project(capabilities: Value) -> World {
    let world = World::new();
    let agent = Agent::scripted("handy", Value::Null).with(&["capabilities"], capabilities);
    world.write("murmur.yaml", agent.manifest());
    world
}

#[test]
fn grants_that_weaken_are_named_before_anything_runs() {
    let world = project(json!({
        "shell": {
            "allow": ["bash", "python3"],
            "interpreter_runtime": [{"binary": "python3", "dirs": [{"path": "/opt/py", "list_dir": true}]}],
        },
        "filesystem": {"workdir_exec": true, "read_only": ["tests"]},
    }));
    let done = world.mur(["run", "--explain-scope", "--containment", "unconfined"]).ok();
    for (code, part) in [
        ("W-SEC-009", "'python3' may read, list and execute what lies in /opt/py"),
        ("W-SEC-011", "workdir_exec"),
        ("W-SEC-017", "does not see through 'python3'"),
    ] {
        let line = done.stderr.lines().find(|line| line.contains(&format!("warning[{code}]")));
        assert!(line.is_some_and(|line| line.contains(part)), "{code}: {}", done.stderr);
    }
    assert!(!done.stderr.contains("W-SEC-003"), "no network rule is there to be evaded: {}", done.stderr);
    assert!(world.traces().is_empty());
}

#[test]
fn a_shell_beside_network_rules_is_warned_of_where_nothing_holds_it() {
    let world = project(json!({"shell": {"allow": ["bash"]}, "network": {"allow": ["a.test"]}}));
    let done = world.mur(["run", "--explain-scope", "--containment", "unconfined"]).ok();
    assert!(done.stderr.contains("warning[W-SEC-003]"), "{}", done.stderr);
}

#[test]
fn a_staged_runtime_below_sealed_is_refused_by_name() {
    let world = project(json!({"shell": {
        "allow": ["tool"],
        "staged_runtime": [{"binary": "tool", "source_path": "/opt/tool", "pin": "1"}],
    }}));
    for arguments in [&["run", "--explain-scope"][..], &["run", "--task", "x"]] {
        let done = world.mur(arguments).run();
        done.refused("E-CAP-004");
        assert!(done.stderr.contains("'tool'") && done.stderr.contains("sealed"), "{}", done.stderr);
    }
    assert!(world.traces().is_empty());
}

#[test]
fn a_variable_with_a_credential_is_refused_whatever_else_is_granted() {
    for name in ["AWS_SECRET_ACCESS_KEY", "MY_API_KEY", "OWN_ONE"] {
        let world = project(json!({"env": {"allow": [name]}, "shell": {"allow": ["ls"], "strip_env": ["OWN_*"]}}));
        let done = world.mur(["run", "--explain-scope"]).run();
        done.refused("E-CAP-016");
        assert!(done.stderr.contains(name), "{}", done.stderr);
    }
}

/// The strings of a list.
fn texts(value: &Value) -> Vec<&str> {
    value.as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect()
}

#[test]
fn what_commands_would_use_of_this_host_is_listed() {
    let world = project(json!({
        "shell": {
            "allow": ["bash", "perl"],
            "interpreter_runtime": [{"binary": "perl", "dirs": [{"path": "/opt/perl", "list_dir": false}]}],
        },
        "network": {"allow": ["https://a.test"]},
        "filesystem": {"read_only": ["tests"]},
    }));
    let explained = world.mur(["run", "--explain-scope", "--json"]).ok().json();
    assert_eq!(explained["interpreter_runtime_grants"], json!(["perl: /opt/perl"]));
    assert_eq!(explained["read_only_advisory_for"], json!(["perl"]));
    assert_eq!(explained["staged_runtime_grants"], json!([]));
    let derived = texts(&explained["derived_interpreter_runtime"]);
    let folder_of =
        |line: &str| line.strip_prefix("perl: ").and_then(|rest| rest.strip_suffix(" (list_dir)")).map(str::to_owned);
    let folders: Vec<String> = derived.iter().filter_map(|line| folder_of(line)).collect();
    assert!(folders.iter().any(|folder| std::path::Path::new(folder).join("strict.pm").is_file()), "{derived:?}");
    for path in texts(&explained["trust_store"]) {
        assert!(std::path::Path::new(path.trim_end_matches(" (list_dir)")).exists(), "{path}");
    }
    let said = world.mur(["run", "--explain-scope"]).ok().stdout;
    let mut from = 0;
    for line in [
        "Containment",
        "Routes",
        "  shell: ",
        "  wasm-tools: ",
        "  drivers: ",
        "  hooks: ",
        "Runtime directory",
        "Records directory",
        "Temporary folder",
        "Effective grants",
        "  filesystem scope: n/a",
        "  read_only:\n    - tests",
        "  read_only enforcement: advisory against perl",
        "  network allow:\n    - https://a.test",
        "  shell allow:\n    - bash\n    - perl",
        "  interpreter runtime:\n    - perl: /opt/perl\n",
        "  derived interpreter runtime:\n    - perl: ",
        "  staged runtime: <none>",
        "Resource plane\n  exports.files: <none>",
        "Peer handoff\n  exports.peer_files: <none>\n  exports.peer_tasks: refuse",
        "Runtime writes",
    ] {
        let at = said[from..].find(line);
        from += at.unwrap_or_else(|| panic!("'{line}' does not follow in:\n{said}"));
    }
}

#[test]
fn the_report_is_the_record_of_the_launch_word_for_word() {
    let world = World::new();
    let script = json!({"rules": [{"turns": [[{"say": "done"}]]}]});
    let agent = Agent::scripted("handy", script).with(
        &["capabilities"],
        json!({
            "shell": {"allow": ["bash", "perl"], "interpreter_runtime": [
                {"binary": "perl", "dirs": [{"path": "/opt/perl", "list_dir": true}]},
            ]},
            "network": {"allow": ["localhost"], "unix_sockets": true},
            "filesystem": {"read_only": ["tests"], "scope": "part"},
            "resources": {"cgroup_io_bytes_per_sec": 1_000_000},
        }),
    );
    world.write("murmur.yaml", agent.manifest());
    let class = ["--containment", "unconfined"];
    let said = world.mur(["run", "--explain-scope", "--json"]).args(class).ok().stdout;
    assert!(!world.project().join("workdir").exists(), "a report makes no folder");
    world.mur(["run", "--task", "x"]).args(class).ok();
    let trace = world.traces().remove(0);
    let recorded = trace.one("session_start")["effective_grants"].to_string();
    assert_eq!(recorded, said.trim_end());
    let object: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(object["io_max"], json!({"declared_bytes_per_sec": 1_000_000, "status": "not-required"}));
    assert_eq!(object["temp_dir"]["tmp_mapped"], false);
    assert_eq!(object["runtime_dir"]["enforced_by"], Value::Null);
    assert!(object["filesystem_boundary"]["not_protected"].as_array().unwrap().len() > 2, "{object}");
    let held: Value = world.mur(["run", "--explain-scope", "--json", "--containment", "sealed"]).ok().json();
    assert_eq!(held["temp_dir"]["mapped_by"], "composed-root");
    assert_eq!(
        (&held["temp_dir"]["tmpdir"], &held["records_dir"]["enforced_by"]),
        (&json!("/tmp"), &json!("mountns+landlock"))
    );
    assert_eq!(held["filesystem_boundary"], json!({"restriction": "absent", "not_protected": []}));
}
