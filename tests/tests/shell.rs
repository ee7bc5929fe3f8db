//! Shell commands of a session, from outside: what they are given, what they return, what is recorded, under every class.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use mur_tests::commands::{CLASSES, HELD, caller, launch, line, ran, run};
use mur_tests::{Agent, World};
use serde_json::json;

#[test]
fn a_command_returns_its_status_and_both_streams_and_is_recorded_after_its_call() {
    for class in CLASSES {
        let world = World::new();
        let agent = caller("agent", &["sh"], &[("sh", line("echo out; echo err >&2; exit 3"))]);
        let ran = run(&world, &agent, class);
        let expected = "$ echo out; echo err >&2; exit 3\nExit code: 3\nStdout:\nout\n\nStderr:\nerr\n";
        assert_eq!(ran.text(0), expected, "{class}");
        assert_eq!(ran.results[0]["is_error"], false, "a status is no error: {class}");
        assert!(ran.results[0]["raw"].as_str().unwrap().starts_with("<untrusted-content source=tool:sh>\n"));

        let trace = &ran.trace;
        assert_eq!(trace.position("shell"), trace.position("tool_call") + 1);
        assert_eq!(trace.one("tool_call")["status"], "ok");
        let record = trace.one("shell");
        let program = fs::canonicalize("/bin/sh").unwrap();
        assert_eq!(record["binary"], program.to_str().unwrap());
        assert_eq!(record["command"], "echo out; echo err >&2; exit 3");
        assert_eq!(
            (&record["exit_code"], &record["stdout_bytes"], &record["stderr_bytes"]),
            (&json!(3), &json!(4), &json!(4))
        );
        assert_eq!((&record["turn"], &record["task_id"]), (&json!(0), &trace.one("task_end")["task_id"]));
        assert_eq!(record["parent_id"], trace.one("tool_call")["parent_id"]);
        assert!(record["resource_limit"].is_null());
        assert_eq!(trace.one("task_end")["shell_calls"], 1);
        assert_eq!(trace.one("session_end")["total_shell_calls"], 1);
        let start = trace.one("session_start");
        assert!(start["capabilities"].as_array().unwrap().contains(&json!("shell")));
        for tool in ["sh", "background-command"] {
            assert!(start["tools_declared"].as_array().unwrap().contains(&json!(tool)), "{tool}");
        }
    }
}

#[test]
fn a_program_that_is_no_shell_gets_its_arguments_and_nothing_is_expanded() {
    for class in CLASSES {
        let world = World::new();
        let agent = caller("agent", &["printf"], &[("printf", line(r#"'%s|' a "b c" $HOME * \; '"q"'"#))]);
        let ran = run(&world, &agent, class);
        assert!(ran.text(0).starts_with("$ printf '%s|' a"), "{}", ran.text(0));
        assert!(ran.text(0).contains("Stdout:\na|b c|$HOME|*|;|\"q\"|\n"), "{class}: {}", ran.text(0));
    }
}

#[test]
fn a_command_ended_by_a_signal_has_128_and_its_number() {
    for class in CLASSES {
        let world = World::new();
        let agent = caller("agent", &["sh"], &[("sh", line("kill -TERM $$"))]);
        let ran = run(&world, &agent, class);
        assert!(ran.text(0).contains("Exit code: 143\n"), "{class}: {}", ran.text(0));
        assert_eq!(ran.trace.one("shell")["exit_code"], 143);
    }
}

#[test]
fn what_cannot_be_run_is_an_error_of_the_call_and_leaves_no_command_in_the_trace() {
    let world = World::new();
    let calls = [
        ("sh", line("  ")),
        ("sh", json!({"command": 7})),
        ("sh", json!({})),
        ("git", line("log 'open")),
        ("no-such-program-here", line("x")),
        ("bash", line("x")),
    ];
    let agent = caller("agent", &["sh", "git", "no-such-program-here"], &calls);
    let ran = run(&world, &agent, "unconfined");
    for (index, words) in [
        "shell command parsing failed: the command is blank",
        "shell command parsing failed: the command is not text",
        "its input lacks command",
        "a single quote does not end",
        "no program of that name is on the PATH",
        "tool 'bash' is not declared in manifest allowlist",
    ]
    .iter()
    .enumerate()
    {
        assert!(ran.text(index).contains(words), "{index}: {}", ran.text(index));
        assert_eq!(ran.results[index]["is_error"], true);
        assert_eq!(ran.results[index]["raw"], ran.results[index]["text"], "words of the runtime are not fenced");
    }
    assert!(ran.trace.all("shell").is_empty());
    assert_eq!(ran.trace.all("tool_call").len(), calls.len());
}

#[test]
fn output_past_sixteen_kibibytes_is_cut_and_kept_whole_in_a_file() {
    for class in CLASSES {
        let world = World::new();
        let command = "i=0; while [ $i -lt 4096 ]; do echo 0123456; i=$((i+1)); done; echo end >&2";
        let ran = run(&world, &caller("agent", &["sh"], &[("sh", line(command))]), class);
        let text = ran.text(0);
        let (_, log) = text.rsplit_once("\n\nOutput truncated. Full output written to ").expect("a file is named");
        let logs = ran.trace.directory().join("logs");
        assert!(log.starts_with(&format!("{}/shell-", logs.display())) && log.ends_with(".log"), "{log}");
        let whole = fs::read_to_string(log).unwrap();
        assert_eq!(whole.len(), 32768 + 4, "{class}");
        assert_eq!(whole.matches("0123456\n").count() + whole.matches("end\n").count(), 4097, "{class}");
        let stdout = text.split("Stdout:\n").nth(1).unwrap().split("\nStderr:\nend\n").next().unwrap();
        assert_eq!(stdout.len(), 16384);
        assert_eq!(ran.trace.one("shell")["stdout_bytes"], 32768);
    }
}

#[test]
fn a_descendant_that_keeps_the_pipes_open_holds_no_call_up_and_may_go_on_writing() {
    for class in CLASSES {
        let world = World::new();
        // Without the end of the call both would wait far longer than any test.
        let calls = [
            ("sh", line("(while [ ! -e go ]; do sleep 0.02; done; echo late && echo late > wrote) & echo started")),
            ("sh", line("touch go; while [ ! -s wrote ]; do sleep 0.02; done; cat wrote")),
        ];
        let agent =
            caller("agent", &["sh", "sleep", "touch", "cat"], &calls).with(&["lifecycle", "shell_grace_secs"], 600);
        let ran = run(&world, &agent, class);
        assert!(ran.text(0).contains("Exit code: 0\nStdout:\nstarted\n"), "{class}: {}", ran.text(0));
        assert!(ran.text(1).contains("Exit code: 0\nStdout:\nlate\n"), "{class}: {}", ran.text(1));
    }
}

/// `NAME=value` lines of a result.
fn variables(text: &str) -> Vec<(&str, &str)> {
    let body = text.split("Stdout:\n").nth(1).unwrap().split("\nStderr:").next().unwrap();
    body.lines().filter_map(|line| line.split_once('=')).collect()
}

#[test]
fn a_command_starts_in_the_work_folder_reads_nothing_and_has_an_environment_of_its_own() {
    for class in CLASSES {
        let world = World::new();
        let calls = [("sh", line("pwd; cat; echo end")), ("env", line("-u _"))];
        let agent = caller("agent", &["sh", "cat", "env"], &calls)
            .with(&["capabilities", "shell", "baseline_env"], json!(["EXTRA", "MURMUR_FORMATION_PEERS", "SECRET_X"]))
            .with(&["capabilities", "shell", "strip_env"], json!(["SECRET_*"]));
        let invocation = launch(&world, &agent, class)
            .args(["--task", "go"])
            .env("EXTRA", "given")
            .env("OTHER", "not given")
            .env("OPENAI_API_KEY", "sk-hidden")
            .env("SECRET_X", "hidden")
            .env("LANG", "C.UTF-8");
        let ran = ran(&world, invocation);
        let work = ran.work.display().to_string();
        assert!(ran.text(0).contains(&format!("Stdout:\n{work}\nend\n")), "{class}: {}", ran.text(0));
        let variables = variables(ran.text(1));
        let get = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        let records = ran.trace.directory().display().to_string();
        assert_eq!(get("EXTRA"), Some("given"), "{variables:?}");
        assert_eq!(get("LANG"), Some("C.UTF-8"));
        assert_eq!(get("HOME"), Some(&*format!("{records}/home")), "{class}");
        assert_eq!(get("USERPROFILE"), get("HOME"));
        assert_eq!(get("MURMUR_RECORDS_DIR"), Some(&*records));
        assert_eq!(get("MURMUR_SESSION_ID"), Some(ran.trace.session()));
        assert_eq!(get("MURMUR_CAPSULE_NAME"), Some("agent"));
        assert_eq!(get("TMP"), get("TMPDIR"));
        let tmp = get("TMPDIR").unwrap();
        assert!(tmp == "/tmp" || tmp == format!("{records}/tmp"), "{tmp}");
        for absent in ["OTHER", "OPENAI_API_KEY", "SECRET_X", "MURMUR_FORMATION_PEERS"] {
            assert_eq!(get(absent), None, "{class}");
        }
    }
}

#[test]
fn home_and_temporary_folder_take_files_and_are_kept_with_the_records() {
    for class in CLASSES {
        let world = World::new();
        let agent = caller("agent", &["sh"], &[("sh", line("echo h > ~/file && echo t > \"$TMPDIR/file\""))]);
        let ran = run(&world, &agent, class);
        assert!(ran.text(0).contains("Exit code: 0\n"), "{class}: {}", ran.text(0));
        for (folder, content) in [("home", "h\n"), ("tmp", "t\n")] {
            let file = ran.trace.directory().join(folder).join("file");
            assert_eq!(fs::read_to_string(file).unwrap(), content, "{class}");
        }
    }
}

#[test]
fn a_command_that_would_write_to_what_is_read_only_is_not_run() {
    let world = World::new();
    let calls = [
        ("sh", line("echo x > tests/new")),
        ("sh", line("cd . && rm -f ./tests/kept")),
        ("cp", line("a link/b")),
        ("sh", line("cat tests/kept")),
    ];
    let agent = caller("agent", &["sh", "cp", "cat", "rm"], &calls)
        .with(&["capabilities", "filesystem", "read_only"], json!(["tests"]));
    let invocation = launch(&world, &agent, "unconfined").args(["--task", "go"]);
    let work = world.project().join("work");
    fs::create_dir(work.join("tests")).unwrap();
    fs::write(work.join("tests/kept"), "kept").unwrap();
    std::os::unix::fs::symlink("tests", work.join("link")).unwrap();
    let ran = ran(&world, invocation);
    for (index, (path, signal)) in
        [("tests/new", "redirection"), ("./tests/kept", "argument"), ("link/b", "argument")].into_iter().enumerate()
    {
        assert_eq!(ran.results[index]["is_error"], true);
        assert!(ran.text(index).contains("'tests' is read-only here"), "{}", ran.text(index));
        let denied = ran.trace.all("protected_path_denied")[index];
        let expected = [("call", "shell"), ("path", path), ("rule", "tests"), ("signal", signal)];
        assert!(expected.iter().all(|(key, value)| denied[key] == *value), "{denied:?}");
    }
    assert!(ran.text(3).contains("Stdout:\nkept"), "{}", ran.text(3));
    assert_eq!(ran.trace.all("shell").len(), 1, "what was refused left no command");
    assert_eq!(fs::read_dir(work.join("tests")).unwrap().count(), 1);
}

#[test]
fn a_command_that_meets_a_limit_says_which() {
    for class in HELD {
        let world = World::new();
        let calls = [("sh", line("head -c 100000 /dev/zero > big")), ("sh", line("while :; do :; done"))];
        let agent = caller("agent", &["sh", "head"], &calls)
            .with(&["capabilities", "resources", "max_file_size_bytes"], 65536)
            .with(&["capabilities", "resources", "cpu_seconds"], 1)
            .with(&["lifecycle", "shell_grace_secs"], 600);
        let ran = run(&world, &agent, class);
        for (index, limit) in ["max_file_size_bytes", "cpu_seconds"].into_iter().enumerate() {
            let raw = ran.results[index]["raw"].as_str().unwrap();
            let (_, note) = raw.rsplit_once("</untrusted-content>\n").expect("a line after the fence");
            assert!(note.starts_with(&format!("resource_limit: {limit} — 'sh' ")), "{class}: {note}");
            assert_eq!(ran.trace.all("shell")[index]["resource_limit"], limit);
        }
        assert_eq!(fs::metadata(ran.work.join("big")).unwrap().len(), 65536, "{class}");
    }
}

#[test]
fn a_work_folder_that_outgrows_its_bound_starts_nothing_more_and_ends_the_session() {
    let world = World::new();
    let calls = json!([
        {"call": "sh", "input": {"command": "head -c 200000 /dev/zero > big"}},
        {"call": "sh", "input": {"command": "touch more"}},
    ]);
    let script = json!({"rules": [{"turns": [calls, [{"say": "never"}]]}]});
    let agent = Agent::scripted("agent", script)
        .with(&["capabilities", "shell", "allow"], json!(["sh", "head", "touch"]))
        .with(&["capabilities", "resources", "workdir_max_bytes"], 100_000)
        .with(&["lifecycle", "shell_grace_secs"], 600);
    let done = launch(&world, &agent, "unconfined").args(["--task", "go"]).run();
    done.refused("E-RUN-013");
    let grown = "work folder, $HOME and $TMPDIR together grew to 20";
    assert!(
        done.stderr.contains(grown) && done.stderr.contains(" bytes, past the 100000 byte ceiling"),
        "{}",
        done.stderr
    );
    assert!(!world.project().join("work/more").exists(), "no new writer was started");
    let trace = world.traces().remove(0);
    assert_eq!(trace.all("shell").len(), 1);
    assert_eq!(trace.all("tool_call")[1]["status"], "error");
}

#[test]
fn the_model_is_told_of_the_commands_it_has() {
    let world = World::new();
    let calls =
        [("sh", line("cat \"$MURMUR_RUNTIME_DIR/MURMUR.md\" && cat \"$MURMUR_RUNTIME_DIR/tools/git/murmur.yaml\""))];
    let agent = caller("agent", &["sh", "git", "cat"], &calls)
        .with(
            &["inference", "driver", "config"],
            json!({"rules": [{"turns": [
                [{"call": "sh", "input": calls[0].1}], [{"say": "{{result}}\n{{system}}\n{{tools | quote}}"}],
            ]}]}),
        )
        .with(&["lifecycle", "shell_grace_secs"], 7);
    let done = launch(&world, &agent, "unconfined").args(["--task", "go"]).run();
    assert_eq!(done.code(), Some(0), "{}", done.stderr);
    let told = world.traces().remove(0).result().unwrap();
    for words in [
        "## Running Shell Commands\n\n- Programs: cat, git, sh\n",
        "still running after 7 s goes on in the background",
        "name: \"git\"\nversion: \"0.0.0\"\nruntime: tool\nimplementation: native\n",
        "a shell command still running after 7 s moves to the background",
        "shell commands in $MURMUR_RUNTIME_DIR",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    assert!(!told.contains("memory and"), "nothing holds a command to limits under 'unconfined': {told}");
}

#[test]
fn a_launch_says_what_holds_its_commands() {
    for class in CLASSES {
        let code = match class {
            "unconfined" => "W-SEC-034",
            _ => "W-SEC-005",
        };
        let world = World::new();
        let agent = caller("agent", &["bash"], &[("bash", line("echo hi"))]).network(&["https://a.test"]);
        let ran = run(&world, &agent, class);
        assert!(ran.text(0).contains("Stdout:\nhi\n"), "{class}: {}", ran.text(0));
        assert!(ran.done.stderr.contains(code), "{class}: {}", ran.done.stderr);
        assert_eq!(ran.done.stderr.contains("W-SEC-003"), class == "unconfined", "{}", ran.done.stderr);
    }
}

#[test]
fn a_command_changes_no_mode_or_time_of_what_it_was_not_granted_and_leaves_no_set_id_file() {
    for class in HELD {
        let world = World::new();
        // Not below /tmp, which is the session's own.
        let outside = tempfile::TempDir::new_in("/var/tmp").unwrap();
        let file = outside.path().join("file");
        fs::write(&file, "x").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        let seen = |path: &std::path::Path| {
            let is = fs::metadata(path).unwrap();
            (is.mode(), is.mtime(), is.uid())
        };
        let before = (seen(&file), seen(std::path::Path::new("/dev/full")));
        let text = format!(
            "for what in 'chmod 666 {0}' 'touch -m -d 2001-01-01 {0}' 'chown 1 {0}' 'chmod 600 /dev/full' 'chmod 4755 own' \
             'chmod 2755 own' 'chmod 750 own' 'touch -m -d 2001-01-01 own'; do : >> own; $what 2> said; echo \"$?\"; done; \
             echo x > /dev/null; echo \"$?\"",
            file.display()
        );
        let agent = caller("agent", &["sh", "chmod", "chown", "touch"], &[("sh", line(&text))]);
        let ran = run(&world, &agent, class);
        assert!(ran.text(0).contains("1\n1\n1\n1\n1\n1\n0\n0\n0\n"), "{class}: {}", ran.text(0));
        assert_eq!(before, (seen(&file), seen(std::path::Path::new("/dev/full"))), "{class}");
        assert_eq!(seen(&ran.work.join("own")).0 & 0o7777, 0o750, "{class}");
    }
}
