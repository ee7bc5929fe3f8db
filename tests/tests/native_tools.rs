//! Tools that are programs: called like any tool, held like a command.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use mur_tests::commands::{CLASSES, TWO, caller, launch, run};
use mur_tests::launcher::Member;
use mur_tests::{Agent, World};
use serde_json::{Value, json};

/// Packs and installs a native tool; gives its entry for a manifest.
fn install(world: &World, name: &str, program: &[u8]) -> Value {
    let source = world.project().join(format!("source-{name}"));
    fs::create_dir_all(source.join("bin")).unwrap();
    let manifest = json!({
        "name": name, "version": "1.0.0", "runtime": "tool", "implementation": "native", "description": "A tool.",
        "requires_files": [format!("bin/{name}")],
        "input_schema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    });
    fs::write(source.join("murmur.yaml"), manifest.to_string()).unwrap();
    let binary = source.join("bin").join(name);
    fs::write(&binary, program).unwrap();
    fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
    world.mur(["build"]).arg(&source).ok();
    world.mur(["install", "-g"]).arg(source.join(format!("{name}-1.0.0.mur.zip"))).ok();
    json!({"name": format!("local/{name}"), "version": "1.0.0", "runtime": "tool"})
}

fn script(lines: &str) -> Vec<u8> {
    format!("#!/bin/sh\n{lines}\n").into_bytes()
}

#[test]
fn a_native_tool_reads_its_input_and_its_output_is_the_result() {
    for class in CLASSES {
        let world = World::new();
        let entry = install(&world, "echoing", &script("read line; echo \"got $line\"; echo noise >&2"));
        let agent = caller("agent", &[], &[("echoing", json!({"text": "hi"}))]).artifact(entry);
        let ran = run(&world, &agent, class);
        assert_eq!(ran.text(0), "got {\"text\":\"hi\"}\n", "{class}");
        assert_eq!(ran.results[0]["is_error"], false);
        assert!(ran.results[0]["raw"].as_str().unwrap().starts_with("<untrusted-content source=tool:echoing>"));
        assert_eq!(ran.trace.one("tool_call")["tool_name"], "echoing");
        assert!(ran.trace.all("shell").is_empty(), "a tool is no shell command");
        assert!(ran.trace.one("session_start")["tools_declared"].as_array().unwrap().contains(&json!("echoing")));
    }
}

#[test]
fn a_program_of_this_machine_runs_as_a_tool() {
    for class in CLASSES {
        let world = World::new();
        let entry = install(&world, "copy", &fs::read("/bin/cat").unwrap());
        let agent = caller("agent", &[], &[("copy", json!({"text": "x"}))]).artifact(entry);
        assert_eq!(run(&world, &agent, class).text(0), "{\"text\":\"x\"}", "{class}");
    }
}

#[test]
fn a_native_tool_has_the_environment_and_folder_of_a_command_and_can_write_there() {
    for class in CLASSES {
        let world = World::new();
        let lines = "echo \"$MURMUR_SESSION_ID $PWD $MURMUR_ARTIFACT_CONFIG. $OPENAI_API_KEY.\"; echo x > made; read a < \"$MURMUR_RUNTIME_DIR/MURMUR.md\"; echo \"$a\"";
        let mut entry = install(&world, "looking", &script(lines));
        entry["config"] = json!({"a": 1});
        entry["capabilities"] = json!({"network": {"allow": []}});
        let agent = caller("agent", &[], &[("looking", json!({"text": "x"}))]).artifact(entry);
        let invocation = launch(&world, &agent, class).args(["--task", "go"]).env("OPENAI_API_KEY", "sk-hidden");
        let ran = mur_tests::commands::ran(&world, invocation);
        let first = format!("{} {} . .\n# MURMUR.md", ran.trace.session(), ran.work.display());
        assert!(ran.text(0).starts_with(&first), "{class}: {}", ran.text(0));
        assert!(ran.work.join("made").is_file(), "{class}");
        for code in ["W-SEC-008", "W-SEC-015"] {
            assert!(ran.done.stderr.contains(code), "{code}: {}", ran.done.stderr);
        }
    }
}

#[test]
fn a_native_tool_that_fails_or_never_ends_is_an_error_of_its_call() {
    for class in TWO {
        let world = World::new();
        let failing = install(&world, "failing", &script("echo partly; echo why >&2; exit 5"));
        let endless = install(&world, "endless", &script("while :; do :; done"));
        let calls = [("failing", json!({"text": "x"})), ("endless", json!({"text": "x"})), ("failing", json!({}))];
        let agent = caller("agent", &[], &calls)
            .artifact(failing)
            .artifact(endless)
            .with(&["capabilities", "limits", "deadline_seconds"], 3);
        let ran = run(&world, &agent, class);
        assert_eq!(ran.text(0), "partly\n\nExit code: 5\nStderr:\nwhy\n", "{class}");
        assert!(ran.text(1).contains("[E-RUN-001] tool 'endless' was stopped"), "{class}: {}", ran.text(1));
        assert!(ran.text(2).contains("its input lacks text"), "{}", ran.text(2));
        assert!(ran.results.iter().all(|result| result["is_error"] == true));
        assert_eq!(ran.trace.one("session_end")["exit_status"], "ok", "the session goes on");
    }
}

#[test]
fn commands_and_native_tools_of_a_member_are_handed_no_addresses_of_others() {
    for class in TWO {
        let world = World::new();
        world.config(&format!("containment: {class}\n"));
        let entry = install(&world, "telling", &script("echo \"peers: $MURMUR_FORMATION_PEERS.\""));
        let told = json!({"command": "echo \"peers: $MURMUR_FORMATION_PEERS.\""});
        let rules = json!({"rules": [{"turns": [
            [{"call": "telling", "input": {"text": "x"}}, {"call": "sh", "input": told}], [{"say": "{{results | quote}} {{env.MURMUR_FORMATION_PEERS}}"}],
        ]}]});
        let agent = Agent::scripted("boss", rules)
            .artifact(entry)
            .peer()
            .network(&["localhost"])
            .with(&["capabilities", "shell", "allow"], json!(["sh"]));
        let mut member = Member::start(&world, &agent, &["coder"]);
        member.tell(&[("coder", "http://localhost:9")]);
        let task = member.door().ask("go");
        let answer = task["artifacts"][0]["parts"][0]["text"].as_str().unwrap_or_else(|| panic!("{task}")).to_owned();
        assert!(answer.ends_with("coder=http://coder.formation.invalid"), "components have it: {answer}");
        assert_eq!(answer.matches("peers: .").count(), 4, "shown with and without the fence, of both: {answer}");
        member.running.signal(nix::sys::signal::Signal::SIGTERM);
    }
}

#[test]
fn a_native_tool_that_cannot_be_had_here_refuses_the_launch() {
    let quick = || Agent::scripted("agent", json!({"rules": [{"turns": [[{"say": "done"}]]}]}));
    let world = World::new();
    let mut entry = install(&world, "gated", &script("exit 0"));
    entry["gateway"] = json!({"endpoint": "http://127.0.0.1:9", "keyless": true});
    let done = launch(&world, &quick().artifact(entry), "unconfined").args(["--task", "go"]).run();
    done.refused("E-CAP-017");

    let world = World::new();
    let mut foreign = b"\x7fELF\x02\x01\x01".to_vec();
    foreign.resize(18, 0);
    foreign.extend(0xb7_u16.to_le_bytes());
    foreign.resize(64, 0);
    let entry = install(&world, "foreign", &foreign);
    let done = launch(&world, &quick().artifact(entry), "unconfined").args(["--task", "go"]).run();
    done.refused("E-RUN-021");
    assert!(done.stderr.contains("is built for linux-aarch64"), "{}", done.stderr);
    assert!(world.traces().is_empty(), "nothing is left behind");
}
