//! `murmur:process/exec` from a real tool: decided by `mur`, run as a shell command is run.

use mur_tests::commands::{CLASSES, Ran, TWO, caller, run};
use mur_tests::hooked::entry;
use mur_tests::{World, component};
use serde_json::{Value, json};

/// A program to run, and what of the outcome is told.
struct Asked<'a> {
    binary: &'a str,
    args: &'a [&'a str],
    stdin: Option<&'a str>,
    env: &'a [(&'a str, &'a str)],
    timeout_ms: Option<u64>,
}

impl Default for Asked<'_> {
    fn default() -> Self {
        Self { binary: "sh", args: &[], stdin: None, env: &[], timeout_ms: None }
    }
}

impl Asked<'_> {
    /// A component that runs it. It answers with the standard output, or the refusal as a failed result.
    fn component(&self) -> Vec<u8> {
        let mut memory = vec![0_u8; 2048];
        let mut text = |bytes: &str| {
            let at = memory.len();
            memory.extend_from_slice(bytes.as_bytes());
            memory.resize(memory.len().next_multiple_of(8), 0);
            (at, bytes.len())
        };
        let (binary, stdin) = (text(self.binary), self.stdin.map(&mut text));
        let args: Vec<_> = self.args.iter().map(|arg| text(arg)).collect();
        let env: Vec<_> = self.env.iter().flat_map(|(name, value)| [text(name), text(value)]).collect();
        let mut list = |items: &[(usize, usize)]| {
            let at = memory.len();
            for (place, length) in items {
                memory.extend(u32::try_from(*place).unwrap().to_le_bytes());
                memory.extend(u32::try_from(*length).unwrap().to_le_bytes());
            }
            at
        };
        let (args_at, env_at) = (list(&args), list(&env));
        let escaped: String = memory.iter().map(|byte| format!("\\{byte:02x}")).collect();
        let (has_stdin, stdin) = stdin.map_or((0, (0, 0)), |place| (1, place));
        let (has_timeout, timeout) = self.timeout_ms.map_or((0, 0), |timeout| (1, timeout));
        let call = format!(
            "(i32.const {}) (i32.const {}) (i32.const {args_at}) (i32.const {}) (i32.const {has_stdin}) (i32.const {}) \
             (i32.const {}) (i32.const {env_at}) (i32.const {}) (i32.const {has_timeout}) (i64.const {timeout}) \
             (i32.const 256)",
            binary.0,
            binary.1,
            args.len(),
            stdin.0,
            stdin.1,
            env.len() / 2
        );
        let core = CORE.replace("$MEMORY", &escaped).replace("$CALL", &call);
        let core = core.replace("$FREE", &memory.len().next_multiple_of(8).to_string());
        wat::parse_str(component::tool(&core, "$libc")).expect("a component")
    }
}

// The outcome: exit code at 264, signal at 272, standard output at 280. A refusal's text lies at 264.
const CORE: &str = r#"(import "murmur:process/exec@0.1.0" (instance $api
        (type $request0 (record (field "binary" string) (field "args" (list string))
            (field "stdin" (option (list u8))) (field "env" (list (tuple string string)))
            (field "timeout-ms" (option u64))))
        (export "request" (type $request (eq $request0)))
        (type $outcome0 (record (field "exit-code" (option s32)) (field "signal" (option s32))
            (field "stdout" (list u8)) (field "stderr" (list u8)) (field "truncated" bool)))
        (export "outcome" (type $outcome (eq $outcome0)))
        (export "run" (func (param "request" $request) (result (result $outcome (error string)))))))
    (core module $libc
        (memory (export "memory") 64)
        (data (i32.const 0) "$MEMORY")
        (global $free (mut i32) (i32.const $FREE))
        (func (export "realloc") (param i32 i32 i32 i32) (result i32)
            (local $at i32)
            (local.set $at (i32.and (i32.add (global.get $free) (i32.const 7)) (i32.const -8)))
            (global.set $free (i32.add (local.get $at) (local.get 3)))
            (local.get $at)))
    (core instance $libc (instantiate $libc))
    (alias export $api "run" (func $run_program))
    (core func $run_program' (canon lower (func $run_program) (memory $libc "memory")
        (realloc (func $libc "realloc"))))
    (core module $m
        (import "host" "run" (func $run_program
            (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i64 i32)))
        (import "libc" "memory" (memory 1))
        (func (export "run") (param i32 i32 i32 i32 i32 i32) (result i32)
            (call $run_program $CALL)
            (i32.store8 (i32.const 64) (i32.load8_u (i32.const 256)))
            (i32.store (i32.const 80) (i32.const 1))
            (if (i32.load8_u (i32.const 256))
                (then
                    (i32.store (i32.const 84) (i32.load (i32.const 260)))
                    (i32.store (i32.const 88) (i32.load (i32.const 264))))
                (else
                    (i32.store (i32.const 84) (i32.load (i32.const 276)))
                    (i32.store (i32.const 88) (i32.load (i32.const 280)))))
            (i32.const 64)))
    (core instance $code (instantiate $m (with "host" (instance (export "run" (func $run_program'))))
        (with "libc" (instance $libc))))"#;

fn asked(asked: &Asked<'_>, class: &str, own: Option<&[&str]>) -> Ran {
    asked_before(asked, class, own, |_| Vec::new())
}

/// The same in a session with hooks.
fn asked_before(asked: &Asked<'_>, class: &str, own: Option<&[&str]>, hooks: impl Fn(&World) -> Vec<Value>) -> Ran {
    let world = World::new();
    let tool = world.install_tool("asking", &asked.component());
    let mut agent = caller("agent", &["sh", "env"], &[("asking", json!({}))])
        .artifact(tool)
        .with(&["capabilities", "filesystem", "read_only"], json!(["kept"]));
    if let Some(own) = own {
        agent = agent.artifact_capability("asking", json!({"shell": {"allow": own}}));
    }
    let agent = hooks(&world).into_iter().fold(agent, mur_tests::Agent::artifact);
    let ran = run(&world, &agent, class);
    // The world goes, the answer stays.
    drop(world);
    ran
}

#[test]
fn a_component_runs_a_program_with_arguments_input_and_environment() {
    for class in CLASSES {
        let ran = asked(
            &Asked {
                args: &[
                    "-c",
                    "read line; echo \"$0 $1 $line $OWN $MURMUR_SESSION_ID $OPENAI_API_KEY.\"",
                    "zero",
                    "one two",
                ],
                stdin: Some("from the tool\n"),
                env: &[("OWN", "set"), ("MURMUR_SESSION_ID", "forged"), ("OPENAI_API_KEY", "sk-own")],
                ..Asked::default()
            },
            class,
            None,
        );
        let expected = format!("zero one two from the tool set {} .\n", ran.trace.session());
        assert_eq!(ran.text(0), expected, "{class}");
        let record = ran.trace.one("shell");
        assert_eq!((&record["exit_code"], &record["artifact"]), (&json!(0), &json!("asking")));
        assert_eq!(record["stdout_bytes"], expected.len());
        assert_eq!(ran.trace.one("task_end")["shell_calls"], 1);
    }
}

#[test]
fn what_is_not_granted_is_refused_in_these_words_and_nothing_runs() {
    let mark = &["-c", "echo ran > mark"][..];
    for (binary, args, own, words) in [
        ("perl", mark, None, "not-granted: 'perl' is not in capabilities.shell.allow"),
        ("/bin/sh", mark, None, "not-granted: '/bin/sh' is not in capabilities.shell.allow"),
        ("sh", mark, Some(&["env"][..]), "not-granted: 'sh' is not in capabilities.shell.allow of 'asking'"),
        ("sh", mark, Some(&[][..]), "not-granted: 'sh' is not in capabilities.shell.allow of 'asking'"),
        ("sh", &["-c", "echo x > kept/a"][..], None, "not-granted: 'sh' would write to 'kept/a'"),
    ] {
        let ran = asked(&Asked { binary, args, ..Asked::default() }, "unconfined", own);
        assert!(ran.text(0).starts_with(words), "{}", ran.text(0));
        assert_eq!(ran.results[0]["is_error"], true);
        assert!(ran.trace.all("shell").is_empty());
    }
    let ran = asked(&Asked { args: &["-c", "echo allowed"], ..Asked::default() }, "unconfined", Some(&["sh"]));
    assert_eq!(ran.text(0), "allowed\n");
    assert!(!ran.done.stderr.contains("W-SEC-008"), "{}", ran.done.stderr);
}

#[test]
fn a_program_that_runs_too_long_is_ended_with_what_it_started() {
    for class in TWO {
        let line = "sh -c 'while :; do :; done' & while :; do :; done";
        let ran = asked(&Asked { args: &["-c", line], timeout_ms: Some(300), ..Asked::default() }, class, None);
        assert_eq!(ran.text(0), "timed-out: 'sh' ran longer than 300 ms", "{class}");
        assert!(!ran.done.stderr.contains("still runs"), "{class}: {}", ran.done.stderr);
    }
}

#[test]
fn an_output_of_megabytes_comes_back_and_a_longer_one_is_cut() {
    let line = "i=0; while [ $i -lt 2048 ]; do printf %01024d $i; i=$((i+1)); done";
    let ran = asked(&Asked { args: &["-c", line], ..Asked::default() }, "unconfined", None);
    assert_eq!(ran.text(0).len(), 2 << 20);
}

#[test]
fn what_a_component_runs_is_decided_and_watched_by_hooks_as_a_command_is() {
    let program = Asked { args: &["-c", "echo made"], ..Asked::default() };
    let ran = asked_before(&program, "unconfined", None, |world| {
        let contract = json!({"binding": "on-shell", "commit_policy": "deny"});
        let config = json!({"answers": {"on-shell": {"deny": "not this", "when": "made"}}});
        vec![entry(world.install_hook("guard", &contract), json!({}), config)]
    });
    assert!(
        ran.text(0).starts_with("not-granted: 'sh' was not run: hook 'guard' denied it: not this"),
        "{}",
        ran.text(0)
    );
    let denied = ran.trace.one("call_denied");
    assert_eq!((&denied["event"], &denied["target"]), (&json!("on-shell"), &json!("sh")));
    assert!(ran.trace.all("shell").is_empty());

    let told = json!({"answers": {"on-shell": {"error": "told"}}});
    let ran = asked_before(&program, "unconfined", None, |world| {
        vec![entry(world.install_hook("watcher", &json!({"binding": "on-shell"})), json!({}), told.clone())]
    });
    assert_eq!(ran.text(0), "made\n");
    let faults = ran.trace.all("hook_dispatch_error");
    assert_eq!((faults.len(), &faults[0]["event"]), (1, &json!("on-shell")), "once, after it ended");
}
