//! `mur run --resume`: by which names a session is found, and what is refused before anything is made.

use std::fs;
use std::path::{Path, PathBuf};

use mur_tests::conversation::{newest, ok, project, record, witness};
use mur_tests::{Agent, World};
use serde_json::json;

/// The sessions of the project, oldest first.
fn sessions(world: &World) -> Vec<String> {
    world.traces().iter().map(|trace| trace.session().to_owned()).collect()
}

/// Everything under the world and what it holds.
fn contents(world: &World) -> Vec<(PathBuf, Vec<u8>)> {
    world.files().into_iter().map(|path| (path.clone(), fs::read(&path).unwrap_or_default())).collect()
}

#[test]
fn a_session_to_resume_is_named_by_rank_id_suffix_or_path_and_a_bare_resume_is_the_newest() {
    let world = project(&witness());
    for text in ["first", "second"] {
        ok(&world.mur(["run", "--task", text]).run());
    }
    let ids = sessions(&world);
    let (first, second) = (&ids[0], &ids[1]);
    let dir = world.traces()[0].directory().to_path_buf();
    let rows: Vec<(Vec<String>, &str)> = vec![
        (vec!["--resume".into()], second),
        (vec!["--resume".into(), "@1".into()], second),
        (vec!["--resume".into(), "@2".into()], first),
        (vec!["--resume".into(), first.clone()], first),
        (vec!["--resume".into(), first[20..].to_uppercase()], first),
        (vec![format!("--resume={}", second)], second),
        (vec!["--resume".into(), dir.display().to_string()], first),
        (vec!["--resume".into(), format!("{}/", dir.display())], first),
        (vec!["--resume".into(), dir.join("trace.jsonl").display().to_string()], first),
    ];
    for (args, expected) in rows {
        ok(&world.mur(["run", "--task", "again"]).args(&args).run());
        let resumed = newest(&world);
        let start = resumed.one("session_start");
        assert_eq!(start["resumed_from"], *expected, "{args:?}");
        // The next row counts from the same two.
        ok(&world.mur(["trace", "rm", resumed.session()]).run());
    }
    // From elsewhere the records of the workdir root that is named are meant.
    let elsewhere = world.home().join("elsewhere");
    fs::create_dir(&elsewhere).expect("a folder");
    let manifest = world.project().join("murmur.yaml");
    ok(&world.mur(["run", "--task", "x", "--resume", "@2", "--manifest"]).arg(&manifest).cwd(&elsewhere).run());
    assert_eq!(newest(&world).one("session_start")["resumed_from"], *first);
}

#[test]
fn the_session_resumed_is_never_the_launch_itself() {
    let world = project(&witness());
    let before = world.files();
    let done = world.mur(["run", "--resume", "--task", "x"]).run();
    done.refused("E-TRC-002");
    assert!(done.stderr.contains("error[E-TRC-002]: --resume: '@1': no session is recorded under "), "{}", done.stderr);
    assert_eq!(world.files(), before, "the refused launch left something");
}

#[test]
fn a_session_is_resolved_before_the_project_is_read_and_after_the_formation_is() {
    let world = World::new();
    // Neither the manifest nor the project's file is there to be read.
    world.mur(["run", "--resume", "--task", "x"]).run().refused("E-TRC-002");
    world.write("murmur.yaml", "no manifest: [");
    world.write(".env", "no line\n");
    world.mur(["run", "--resume", "--task", "x"]).run().refused("E-TRC-002");
    world.mur(["run", "--resume"]).env("MURMUR_FORMATION_ID", "frm_X").run().refused("E-RUN-044");
    world.mur(["run", "--resume"]).env("MURMUR_FORMATION_PEERS", "").run().refused("E-RUN-046");
    let id = "frm_0199c4e2f1b7712a9d3e4f5061728394";
    let done = world.mur(["run", "--resume"]).env("MURMUR_FORMATION_ID", id).run();
    done.refused("E-TRC-002");
    assert!(done.stderr.starts_with("warning[W-RUN-007]"), "{}", done.stderr);
}

#[test]
fn an_address_that_names_no_session_or_several_is_refused_with_the_flags_name() {
    let world = project(&witness());
    ok(&world.mur(["run", "--task", "alpha"]).run());
    let own = sessions(&world).remove(0);
    // A second session whose id ends alike.
    let records = world.traces()[0].directory().to_path_buf();
    let twin = records.with_file_name(format!("ses_0000{}", &own[8..]));
    fs::create_dir(&twin).expect("a folder");
    fs::copy(records.join("trace.jsonl"), twin.join("trace.jsonl")).expect("a copy");
    let before = contents(&world);
    for address in ["@0", "@3", "@x", "abc", "zzzz", &own[20..], "ses_00000000000000000000000000000000"] {
        let done = world.mur(["run", "--task", "x", "--resume", address]).run();
        done.refused("E-TRC-002");
        assert!(done.stderr.contains("error[E-TRC-002]: --resume: "), "{address}: {}", done.stderr);
        assert!(done.stdout.ends_with("status:  failed\n"), "{}", done.stdout);
    }
    let several = world.mur(["run", "--task", "x", "--resume", &own[20..]]).run().stderr;
    assert!(several.contains(&own) && several.contains(&format!("ses_0000{}", &own[8..])), "{several}");
    let missing = world.mur(["run", "--json", "--task", "x", "--resume", "./none.jsonl"]).run();
    missing.refused("E-IO-001");
    assert_eq!(missing.stdout, "");
    assert_eq!(contents(&world), before, "a refused launch left something");
}

#[test]
fn resume_together_with_context_is_refused() {
    let world = project(&witness());
    ok(&world.mur(["run", "--task", "alpha"]).run());
    let before = contents(&world);
    world.mur(["run", "--resume", "--context", "c", "--task", "x"]).run().refused("E-RUN-015");
    assert_eq!(world.mur(["run", "--resume", "--forget-session", "--context", "c"]).run().code(), Some(2));
    assert_eq!(world.mur(["run", "--resume-mode", "full", "--task", "x"]).run().code(), Some(2));
    assert_eq!(world.mur(["run", "--resume", "--resume-mode", "half", "--task", "x"]).run().code(), Some(2));
    assert_eq!(contents(&world), before);
}

#[test]
fn a_session_that_ran_no_task_cannot_be_resumed() {
    let world = project(&witness());
    ok(&world.mur(["run"]).env("MURMUR_A2A_TIMEOUT_SECS", "1").run());
    let before = contents(&world);
    let done = world.mur(["run", "--resume", "--task", "x"]).run();
    done.refused("E-RUN-016");
    assert!(done.stderr.contains(&sessions(&world)[0]), "{}", done.stderr);
    assert!(done.stderr.contains("none of those beside it ran one either: mur trace list"), "{}", done.stderr);
    assert_eq!(contents(&world), before);
}

#[test]
fn the_refusal_of_a_session_without_a_task_names_one_that_ran_a_task_in_words_that_work_as_printed() {
    let world = project(&witness());
    ok(&world.mur(["run", "--task", "alpha"]).run());
    ok(&world.mur(["run"]).env("MURMUR_A2A_TIMEOUT_SECS", "1").run());
    let done = world.mur(["run", "--resume", "--task", "x"]).run();
    done.refused("E-RUN-016");
    let hint = done.stderr.split("hint: the newest that ran one: ").nth(1).expect("a hint").trim();
    let (resume, list) = hint.split_once("; all of them: mur ").expect("two commands");
    let listed = world.mur(list.split_whitespace()).ok().stdout;
    let session = resume.strip_prefix("--resume ").expect("a flag");
    assert!(listed.contains(session), "{listed}");
    ok(&world.mur(["run"]).args(resume.split(' ')).args(["--task", "beta"]).run());
}

#[test]
fn a_context_that_would_leave_the_conversations_is_none() {
    let world = project(&witness());
    ok(&world.mur(["run", "--task", "alpha"]).run());
    let trace = newest(&world).directory().join("trace.jsonl");
    let context = newest(&world).one("task_start")["context_id"].as_str().expect("an id").to_owned();
    let text = fs::read_to_string(&trace).expect("a trace").replace(&context, "../../config");
    fs::write(world.project().join("forged.jsonl"), text).expect("a file");
    world.mur(["run", "--resume", "./forged.jsonl", "--task", "x"]).run().refused("E-RUN-016");
}

#[test]
fn a_pipe_or_device_in_a_traces_place_is_refused_and_never_waited_for() {
    for place in ["pipe", "zero"] {
        let world = project(&witness());
        ok(&world.mur(["run", "--task", "x"]).run());
        let trace = newest(&world).directory().join("trace.jsonl");
        fs::remove_file(&trace).expect("the trace");
        match place {
            "pipe" => nix::unistd::mkfifo(&trace, nix::sys::stat::Mode::S_IRUSR).expect("a pipe"),
            _ => std::os::unix::fs::symlink("/dev/zero", &trace).expect("a link"),
        }
        let done = world.mur(["run", "--task", "again", "--resume"]).arg(&trace).run();
        done.refused("E-IO-003");
        assert!(done.stderr.contains("it is not a regular file"), "{}", done.stderr);
        ok(&world.mur(["trace", "list"]).run());
    }
}

#[test]
fn a_trace_that_breaks_off_is_resumed_and_a_damaged_one_refused() {
    let world = project(&witness());
    ok(&world.mur(["run", "--task", "alpha"]).run());
    let text = fs::read_to_string(newest(&world).directory().join("trace.jsonl")).expect("a trace");
    let cut_in_last_line = &text[..text.trim_end().len() - 10];
    world.write("cut.jsonl", cut_in_last_line);
    ok(&world.mur(["run", "--resume", "./cut.jsonl", "--task", "beta"]).run());
    assert_eq!(newest(&world).result().as_deref(), Some("alpha|beta|3 messages|1 answers"));

    let lines: Vec<&str> = text.lines().collect();
    let garbage = [&lines[..1], &["{\"event_ty"], &lines[1..]].concat().join("\n");
    let headless = lines[1..].join("\n");
    let nameless = text.replace("\"session_id\":\"ses_", "\"session_id\":\"");
    for (name, damaged) in
        [("garbage", garbage), ("empty", String::new()), ("headless", headless), ("nameless", nameless)]
    {
        let file = world.write(format!("{name}.jsonl"), damaged);
        let done = world.mur(["run", "--task", "x", "--resume"]).arg(&file).run();
        done.refused("E-TRC-001");
        assert!(done.stderr.contains(&format!("{name}.jsonl")), "{name}: {}", done.stderr);
    }
}

#[test]
fn a_context_without_a_record_cannot_be_resumed_and_the_hint_says_what_can() {
    let world = project(&witness());
    ok(&world.mur(["run", "--task", "alpha"]).run());
    let kept = record(&world, "witness");
    let refused = |what: &str, hint: &str| {
        let before = contents(&world);
        let done = world.mur(["run", "--resume", "--task", "x"]).run();
        done.refused("E-RUN-017");
        assert!(done.stderr.contains(what) && done.stderr.contains(hint), "{}", done.stderr);
        assert_eq!(contents(&world), before);
    };
    // Another capsule has another record.
    world.write("murmur.yaml", Agent::scripted("other", json!({"rules": []})).manifest());
    refused("holds no message", "the session was one of 'witness'");
    world.write("murmur.yaml", witness().with(&["context", "record_store"], "elsewhere").manifest());
    refused("elsewhere", "context.record_store");
    world.write("murmur.yaml", witness().with(&["context", "record"], "off").manifest());
    refused("context.record is off", "context.record: on");
    world.write("murmur.yaml", witness().manifest());
    let text = fs::read_to_string(&kept).expect("a record");
    for damaged in [text.lines().next().expect("a header").to_owned(), String::new(), "nonsense\n\u{0}".to_owned()] {
        fs::write(&kept, damaged).expect("a file");
        refused("holds no message", "~/.murmur/conversations");
    }
    fs::remove_dir_all(kept.parent().expect("a folder")).expect("it is ours");
    refused("holds no message", "~/.murmur/conversations");
}

#[test]
fn a_record_that_is_no_file_of_its_own_or_too_long_is_not_read() {
    let away = |path: &Path| {
        let elsewhere = path.with_file_name("away");
        fs::rename(path, &elsewhere).expect("a move");
        std::os::unix::fs::symlink(&elsewhere, path).expect("a link");
    };
    let rows: [(&str, Box<dyn Fn(&Path)>); 6] = [
        ("a linked context", Box::new(move |kept| away(kept.parent().expect("a folder")))),
        ("a linked store", Box::new(move |kept| away(kept.ancestors().nth(2).expect("a folder")))),
        ("another user's", Box::new(|kept| std::os::unix::fs::chown(kept, Some(65534), None).expect("root runs this"))),
        (
            "a link",
            Box::new(|kept| {
                let elsewhere = kept.with_file_name("moved.jsonl");
                fs::rename(kept, &elsewhere).expect("a move");
                std::os::unix::fs::symlink(&elsewhere, kept).expect("a link");
            }),
        ),
        (
            "a folder",
            Box::new(|kept| {
                fs::remove_file(kept).expect("it is ours");
                fs::create_dir(kept).expect("a folder");
            }),
        ),
        (
            "65 MiB",
            Box::new(|kept| {
                fs::OpenOptions::new().write(true).open(kept).expect("a file").set_len(65 << 20).expect("a long file");
            }),
        ),
    ];
    for (what, spoil) in rows {
        let world = project(&witness());
        ok(&world.mur(["run", "--task", "alpha"]).run());
        let kept = record(&world, "witness");
        spoil(&kept);
        let before = world.files();
        let done = world.mur(["run", "--resume", "--task", "x"]).run();
        done.refused("E-IO-003");
        assert!(done.stderr.contains(&kept.display().to_string()), "{what}: {}", done.stderr);
        assert_eq!(world.files(), before, "{what}");
    }
}

#[test]
fn a_linked_context_is_not_written_through_and_the_task_goes_on() {
    let world = project(&witness());
    ok(&world.mur(["run", "--task", "alpha"]).run());
    let kept = record(&world, "witness");
    let context = kept.parent().expect("a folder");
    let elsewhere = context.with_file_name("away");
    fs::rename(context, &elsewhere).expect("a move");
    std::os::unix::fs::symlink(&elsewhere, context).expect("a link");
    let before = fs::read(elsewhere.join("conversation.jsonl")).expect("a record");
    let id = context.file_name().expect("a name");
    let done = world.mur(["run", "--task", "beta", "--context"]).arg(id).run();
    ok(&done);
    assert!(done.stderr.contains("cannot be written"), "{}", done.stderr);
    assert_eq!(fs::read(elsewhere.join("conversation.jsonl")).expect("a record"), before);
}

#[test]
fn a_session_whose_trace_is_another_users_or_behind_a_link_is_not_resumed() {
    let world = project(&witness());
    ok(&world.mur(["run", "--task", "alpha"]).run());
    let dir = newest(&world).directory().to_path_buf();
    let trace = dir.join("trace.jsonl");
    let before = contents(&world);
    std::os::unix::fs::chown(&trace, Some(65534), None).expect("root runs this");
    for address in [trace.as_path(), Path::new("@1")] {
        let done = world.mur(["run", "--task", "x", "--resume"]).arg(address).run();
        done.refused("E-IO-003");
        assert!(done.stderr.contains("it belongs to another user (uid 65534)"), "{}", done.stderr);
    }
    std::os::unix::fs::chown(&trace, Some(0), None).expect("root runs this");
    assert_eq!(contents(&world), before);
    let elsewhere = world.home().join("elsewhere");
    fs::rename(&dir, &elsewhere).expect("a move");
    std::os::unix::fs::symlink(&elsewhere, &dir).expect("a link");
    let done = world.mur(["run", "--task", "x", "--resume", "@1"]).run();
    done.refused("E-IO-003");
    assert!(done.stderr.contains("a link stands on the path"), "{}", done.stderr);
}

#[test]
fn a_compacted_resumption_needs_a_hook_that_compacts() {
    let world = project(&witness());
    ok(&world.mur(["run", "--task", "alpha"]).run());
    let before = contents(&world);
    let done = world.mur(["run", "--resume", "--resume-mode", "compact", "--task", "x"]).run();
    done.refused("E-RUN-018");
    assert!(done.stderr.contains("on-compaction") && done.stderr.contains("--resume-mode full"), "{}", done.stderr);
    assert_eq!(contents(&world), before);
}
