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
    assert_eq!(rows[4], "");
    assert!(
        rows[5].starts_with(&format!("formation {id}: 3 listed (3 running, 0 unreachable); no other member found in"))
    );
    let all: Value = serde_json::from_str(&home.mur(["ps", "--json"]).expect(0).stdout).unwrap();
    assert_eq!(all["formations"][0]["entry_member"], "lead");
    let capsules = all["capsules"].as_array().unwrap();
    assert_eq!(capsules.iter().filter(|capsule| capsule["formation_entry"] == true).count(), 1);
    assert!(!all.to_string().contains("mdt1."), "no token is shown");

    let coder = formation.peer("coder");
    kill(Pid::from_raw(coder), Signal::SIGKILL).unwrap();
    run::until("the member is gone", || !proc::runs(coder));
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
