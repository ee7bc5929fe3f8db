//! Seeing a formation: `mur ps`, `mur trace show`, and what each says once members are gone.

use mur_tests::live::formation::{Launched, standard, worker};
use mur_tests::live::{Home, proc, run};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

#[test]
fn ps_lists_the_members_together_and_sums_up_the_formation() {
    let home = Home::new();
    standard(&home, &worker());
    assert_eq!(home.mur(["ps"]).expect(0).stdout, "no running capsules\n");
    let formation = Launched::open(&home);
    let id = formation.id();
    let text = home.mur(["ps"]).expect(0).stdout;
    let rows: Vec<&str> = text.lines().collect();
    assert!(rows[0].starts_with("SESSION") && rows[0].contains("FORMATION"), "{text}");
    assert_eq!(rows[1..4].iter().filter(|row| row.contains(&id) && row.contains("running")).count(), 3, "{text}");
    let members: Vec<&str> = rows[1..4].iter().map(|row| row.split_whitespace().nth(6).unwrap()).collect();
    assert!(rows[0].contains("FORMATION") && rows[0].contains("  MEMBER  "), "{text}");
    for name in ["lead", "coder", "reviewer"] {
        assert!(members.contains(&name), "{name}: {text}");
    }
    assert_eq!(rows[4], "");
    assert!(
        rows[5].starts_with(&format!("formation {id}: 3 listed (3 running, 0 unreachable); no other member found in"))
    );
    let all: Value = serde_json::from_str(&home.mur(["ps", "--json"]).expect(0).stdout).unwrap();
    assert_eq!(all["formations"][0]["entry_member"], "lead");
    let capsules = all["capsules"].as_array().unwrap();
    assert_eq!(capsules.iter().filter(|capsule| capsule["formation_entry"] == true).count(), 1);
    assert!(!all.to_string().contains("mdt1."), "no token is shown");

    let refused = home.mur(["cancel", "@1", "tsk_nope"]).refused("E-IO-003").stderr;
    let hint = refused.split("hint: its tasks: mur ").nth(1).expect("a hint").trim();
    assert!(home.mur(hint.split(' ')).expect(0).stdout.contains("as lead"), "{hint}");
    let nobody = home.mur(["cancel", "--url", "localhost:1", "tsk_nope"]).refused("E-IO-003").stderr;
    assert!(nobody.contains("hint: mur ps lists the doors"), "{nobody}");

    let coder = formation.peer("coder");
    kill(Pid::from_raw(coder), Signal::SIGKILL).unwrap();
    run::until("the member is gone", || !proc::runs(coder));
    let shown = home.mur(["trace", "show", &id]).expect(0).stdout;
    let how = |member: &str| {
        let row = shown.lines().find(|row| row.split_whitespace().nth(1) == Some(member)).unwrap_or_default();
        assert!(row.starts_with("ses_"), "{member}: {shown}");
        row.to_owned()
    };
    assert!(how("coder").contains("no session_end: it was killed"), "{shown}");
    assert!(how("lead").contains("  running") && how("reviewer").contains("  running"), "{shown}");
    let kept: Value = serde_json::from_str(&home.mur(["ps", "--json"]).expect(0).stdout).unwrap();
    assert_eq!(kept["formations"][0]["gone_without_ending"], 1);
    assert_eq!(home.running().len(), 3, "--json removes nothing");
    let pruned = home.mur(["ps", "--verbose"]).expect(0);
    assert!(pruned.stderr.contains(&format!("(formation {id})")), "{}", pruned.stderr);
    assert!(
        pruned
            .stdout
            .contains("2 listed (2 running, 0 unreachable), 1 pruned now; not listed: 0 ended, 1 with no record"),
        "{}",
        pruned.stdout
    );
    assert_eq!(home.running().len(), 2);
    formation.launcher.signal(Signal::SIGTERM);
    formation.launcher.finish().expect(143);
}

#[test]
fn the_rosters_project_is_where_trace_looks_and_calls_are_drawn_in_their_task() {
    let home = Home::new();
    let nothing = home.mur(["trace", "list"]).expect(0).stdout;
    assert!(
        nothing.starts_with("no sessions in workdir at ") && nothing.contains("\n  hint: run it where"),
        "{nothing}"
    );
    standard(&home, &worker());
    home.mur(["run", "--roster", "--task", "work"]).expect(0);
    let listed = home.mur(["trace", "list"]).expect(0).stdout;
    let rows: Vec<Vec<&str>> = listed.lines().map(|row| row.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["SESSION", "STARTED", "STATUS", "EXIT", "CONTEXT"]);
    assert_eq!(rows[1][2..4], ["ended", "ok"], "{listed}");
    let all: Value = serde_json::from_str(&home.mur(["trace", "list", "--json"]).expect(0).stdout).unwrap();
    assert_eq!(all["sessions"][0]["exit_status"], "ok");
    assert!(home.mur(["trace", "show"]).expect(0).stdout.contains("as lead"));
    let tree = home.mur(["trace", "steps"]).expect(0).stdout;
    let depth = |row: &str| row.len() - row.trim_start().len();
    let task = tree.lines().find(|row| row.trim_start().starts_with("task_start")).expect("a task");
    for kind in ["member_call_start", "member_call "] {
        let row = tree.lines().find(|row| row.trim_start().starts_with(kind)).expect("a call");
        assert_eq!(depth(row), depth(task) + 2, "{tree}");
    }
    // Elsewhere the default is what it was, and a root that is named is the one that is meant.
    let elsewhere = home.scratch("elsewhere");
    let away = run::Running::start(home.command_in(&elsewhere, ["trace", "show"])).finish().refused("E-TRC-002");
    assert!(away.stderr.contains("--workdir DIR"), "{}", away.stderr);
    home.mur(["trace", "show", "--workdir", "workdir"]).refused("E-TRC-002");
}

#[test]
fn a_formation_of_a_killed_launcher_can_still_be_asked_about_and_stopped() {
    let home = Home::new();
    standard(&home, &worker());
    let formation = Launched::open(&home);
    let id = formation.id();
    let members = formation.members();
    // A stopped member cannot wind down; everybody else does when the launcher is gone.
    let coder = formation.peer("coder");
    kill(Pid::from_raw(coder), Signal::SIGSTOP).unwrap();
    kill(Pid::from_raw(formation.launcher.pid()), Signal::SIGKILL).unwrap();
    run::until("the others wound down", || members.iter().all(|pid| *pid == coder || !proc::runs(*pid)));
    let shown = home.mur(["trace", "show", &id]).expect(0).stdout;
    assert!(shown.contains("coder"), "{shown}");
    // The kernel may have woken it already: a stopped process whose group lost its parent gets SIGHUP and SIGCONT.
    let _ = kill(Pid::from_raw(coder), Signal::SIGCONT);
    let stopped = home.mur(["stop", &id]);
    if stopped.code() == 0 {
        assert!(
            stopped.stdout.contains("had already exited, so every lifeline was already closed"),
            "{}",
            stopped.stdout
        );
    } else {
        assert!(stopped.stderr.contains("E-RUN-022"), "{}", stopped.stderr);
    }
    run::until("the last one wound down", || !proc::runs(coder));
    home.mur(["stop", &id]).refused("E-RUN-022");
    home.mur(["stop", "frm_nonsense"]).refused("E-RUN-022");
    home.mur(["trace", "show", "frm_nonsense"]).refused("E-TRC-002");
}
