//! A session of a formation, named from where its roster was run or from anywhere: what finds it, and what refuses it with
//! the words that would.

use std::fs;

use mur_tests::{Agent, Done, Roster, Trace, World};
use serde_json::json;

/// A formation that ran one task and ended: its world, its id, and the peer's trace.
fn ended() -> (World, String, Trace) {
    let world = World::new();
    let script = json!({"usage": {"input_tokens": 7, "output_tokens": 3}, "rules": [{"turns": [[{"say": "done"}]], "repeat": true}]});
    let hand_over = json!({"rules": [
        {"when": {"contains": "[call-member] call "}, "turns": [[{"say": "it is done"}]]},
        {"turns": [[{"call": "call-member", "input": {"member": "ada", "task": "your part"}}], [{"say": "waiting"}]]},
    ]});
    let lead = Agent::scripted("lead", hand_over).authenticated().network(&["localhost"]);
    let clerk = Agent::scripted("clerk", script).peer();
    world.roster(&Roster::new().member("boss", lead).member("ada", clerk).rule("boss", &["ada"]));
    world.mur(["run", "--roster", "--task", "the work"]).ok();
    let peer = world.trace("ada");
    let formation = peer.one("session_start")["formation_id"].as_str().expect("an id").to_owned();
    (world, formation, peer)
}

fn trace(world: &World, args: &[&str]) -> Done {
    world.mur(["trace"].iter().chain(args)).run()
}

/// The hint of a refusal.
#[track_caller]
fn hint(done: &Done) -> &str {
    done.stderr.rsplit_once("hint: ").unwrap_or_else(|| panic!("no hint in {}", done.stderr)).1.trim()
}

#[test]
fn a_peers_session_is_found_from_where_the_roster_was_run_and_from_anywhere_else() {
    let (world, _, peer) = ended();
    let boss = world.trace("boss");
    let elsewhere = world.home().join("elsewhere");
    fs::create_dir(&elsewhere).expect("a folder");
    for session in [peer.session(), boss.session()] {
        let capsule = if session == peer.session() { "clerk" } else { "lead" };
        for address in [session, &session[20..], &session[20..].to_uppercase()] {
            for cwd in [world.project(), &elsewhere] {
                for command in ["show", "steps", "report"] {
                    let shown = world.mur(["trace", command, address]).cwd(cwd).ok().stdout;
                    assert!(shown.contains(capsule) && shown.contains(session), "{command} {address}: {shown}");
                }
            }
        }
    }
    let both = trace(&world, &["diff", peer.session(), boss.session()]);
    assert_eq!(both.code(), Some(0), "{}", both.stderr);
}

#[test]
fn a_root_that_is_named_is_the_one_that_is_meant_and_the_refusal_names_the_other() {
    let (world, _, peer) = ended();
    let refused = trace(&world, &["show", "--workdir", "workdir", peer.session()]);
    let flag = hint(refused.refused("E-TRC-002")).rsplit_once(": ").expect("a flag").1.to_owned();
    let (name, root) = flag.split_once(' ').expect("its value");
    let shown = trace(&world, &["show", peer.session(), name, root]);
    assert_eq!(shown.code(), Some(0), "{}", shown.stderr);
    trace(&world, &["show", "ses_00000000000000000000000000000000"]).refused("E-TRC-002");
}

#[test]
fn what_is_done_with_a_session_that_lies_elsewhere_wants_its_whole_id() {
    let (world, _, peer) = ended();
    let (session, suffix) = (peer.session(), &peer.session()[20..]);
    let refused = trace(&world, &["rm", suffix]);
    assert!(hint(refused.refused("E-TRC-002")).contains(session), "{}", refused.stderr);
    let clerk = ["run", "--capsule", "local/clerk", "--capsule-version", "0.1.0", "--task", "more"];
    let once = ["--lifecycle-task-acceptance", "queue", "--lifecycle-after-task", "exit", "--resume"];
    let refused = world.mur(clerk).args(once).arg(suffix).run();
    assert!(hint(refused.refused("E-TRC-002")).contains(session), "{}", refused.stderr);
    let resumed = world.mur(clerk).args(once).arg(session).ok();
    assert!(resumed.stderr.contains(&format!("resuming {session}: ")), "{}", resumed.stderr);
    let removed = trace(&world, &["rm", session]);
    assert_eq!(removed.stdout, format!("removed records {}\n", peer.directory().display()), "{}", removed.stderr);
    assert!(!peer.directory().exists());
}

#[test]
fn a_formations_id_is_refused_where_one_session_is_wanted_with_its_sessions() {
    let (world, formation, peer) = ended();
    let boss = world.trace("boss");
    let rows = [format!("{}  ada", peer.session()), format!("{}  boss", boss.session())];
    let resume = ["run", "--capsule", "local/clerk", "--capsule-version", "0.1.0", "--resume"];
    let refusals = [
        trace(&world, &["report", &formation]),
        trace(&world, &["diff", &formation, "@1"]),
        trace(&world, &["rm", &formation]),
        world.mur(resume).arg(&formation).run(),
    ];
    for refused in refusals {
        refused.refused("E-TRC-002");
        for row in &rows {
            assert!(refused.stderr.contains(row), "{row:?} not in {}", refused.stderr);
        }
    }
    assert!(peer.directory().is_dir() && boss.directory().is_dir());
    let unknown = trace(&world, &["report", "frm_0199c4e2f1b7712a9d3e4f5061728394"]);
    assert!(hint(unknown.refused("E-TRC-002")).contains("mur trace show frm_0199"), "{}", unknown.stderr);
}

#[test]
fn a_summary_a_report_and_a_comparison_count_the_same_tokens() {
    let (world, _, peer) = ended();
    let session = peer.session();
    let end = peer.one("session_end").clone();
    let (input, output) = (&end["total_input_tokens"], &end["total_output_tokens"]);
    assert!(input.as_u64() > Some(7) && output.as_u64() != Some(3), "the provider counted something else: {end:?}");
    let shown = trace(&world, &["show", session]).stdout;
    assert!(shown.contains(&format!("\ninput:  {input}\noutput: {output}\n")), "{shown}");
    assert!(shown.contains("\nthe provider counted 7 in, 3 out, in 1 of 1 call\n"), "{shown}");
    let report = trace(&world, &["report", session]).stdout;
    let diff = trace(&world, &["diff", session, session]).stdout;
    for (name, count) in [("input tokens", input), ("output tokens", output)] {
        for text in [&report, &diff] {
            let row = text.lines().find(|row| row.starts_with(name)).expect("a row");
            assert_eq!(row[name.len()..].split_whitespace().next(), Some(&*count.to_string()), "{row}");
        }
    }
}

#[test]
fn what_a_killed_session_left_goes_with_its_records() {
    let world = World::new();
    let silent = Agent::scripted("silent", json!({"rules": []})).with(&["lifecycle", "task_acceptance"], "queue");
    world.write("murmur.yaml", silent.manifest());
    let running = world.mur(["run", "--json"]).start();
    let ready = running.json_line(0);
    let session = ready["session_id"].as_str().expect("an id");
    let left = world.murmur().join("sessions").join(session);
    assert!(left.is_dir());
    trace(&world, &["rm", session]).refused("E-RUN-024");
    running.signal(nix::sys::signal::Signal::SIGKILL);
    running.wait();
    assert!(left.is_dir(), "nobody was there to remove it");
    let removed = trace(&world, &["rm", session]).stdout;
    assert!(removed.ends_with(&format!("removed runtime directory {}\n", left.display())), "{removed}");
    assert!(!left.exists());
}
