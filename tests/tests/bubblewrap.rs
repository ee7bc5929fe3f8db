//! Sessions whose class `sealed` is served by the backend that drives an installed `bwrap`.

#![allow(clippy::disallowed_methods, reason = "mur is started in a mount namespace of the test's own")]

use std::fs;
use std::process::Command;

use mur_tests::World;
use mur_tests::commands::{caller, launch, line, run};
use serde_json::json;

const CONFIG: &str = "plugins:\n  containment:\n    sealed: bubblewrap\n";

#[test]
fn a_session_runs_bash_under_bubblewrap_and_says_so() {
    let world = World::new();
    world.config(CONFIG);
    let outside = world.write("outside.txt", "not granted");
    let look = format!(
        "echo here > made; test -e {} || echo absent; mapfile a < /etc/passwd; \
         echo ${{#a[@]}}; (: > /usr/x) 2>/dev/null || echo closed; echo t > /tmp/t; kill -9 $$",
        outside.display()
    );
    let calls = [
        ("bash", line(&look)),
        (
            "bash",
            line("read -r a < made; read -r b < /tmp/t; echo $a $b; read -r x <> /tmp/never >/dev/null 2>&1 & exit 5"),
        ),
        ("bash", line("exec 3<>/dev/tcp/127.0.0.1/9 || echo refused")),
    ];
    let ran = run(&world, &caller("agent", &["bash"], &calls), "sealed");
    let first = ran.text(0);
    assert!(first.contains("Exit code: 137\n"), "{first}");
    assert!(first.contains("Stdout:\nabsent\n1\nclosed\n"), "{first}");
    assert!(ran.text(1).contains("Exit code: 5\nStdout:\nhere t\n"), "{}", ran.text(1));
    assert!(ran.text(2).contains("refused"), "the session's network is the only one: {}", ran.text(2));
    assert_eq!(fs::read_to_string(ran.work.join("made")).unwrap(), "here\n");
    let grants = &ran.trace.one("session_start")["effective_grants"];
    assert_eq!(grants["enforcement_tier"], "bubblewrap+landlock+seccomp", "{grants}");
    assert_eq!(grants["achieved_containment"], json!("sealed"));
}

#[test]
fn without_an_installed_bwrap_the_class_is_unavailable_and_one_remedy_is_named() {
    let world = World::new();
    world.config(CONFIG);
    let agent = caller("agent", &["bash"], &[("bash", line("echo ran > made"))]);
    let mur = launch(&world, &agent, "sealed").args(["--task", "go"]).command();
    let mut command = Command::new("unshare");
    let hide = "for file in /usr/bin/bwrap /usr/local/bin/bwrap; do \
                if test -e $file; then mount --bind /dev/null $file; fi; done; exec \"$@\"";
    command.args(["--user", "--map-root-user", "--mount", "/bin/sh", "-ec", hide, "sh"]);
    command.arg(mur.get_program()).args(mur.get_args());
    let variables = mur.get_envs().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())));
    command.env_clear().envs(variables).current_dir(world.project());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("error[E-CAP-003]") && said.contains("executing bwrap failed with ENOENT"), "{said}");
    let hints: Vec<&str> = said.lines().filter(|line| line.trim_start().starts_with("hint: ")).collect();
    assert!(hints.len() == 1 && hints[0].contains("apt-get install bubblewrap"), "{hints:?}");
    assert!(world.traces().is_empty() && !world.project().join("work/made").exists(), "nothing ran");
}
