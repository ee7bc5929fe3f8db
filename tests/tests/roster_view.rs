//! `mur roster show` and `mur roster explain`, through the binary and the real stores.

use mur_tests::{Agent, Roster, World};
use serde_json::Value;

fn formation() -> Roster {
    let lead = Agent::scripted("lead", Value::Null).authenticated().network(&["localhost"]);
    let worker = Agent::scripted("worker", Value::Null).peer();
    Roster::new().member("lead", lead).member("worker", worker).rule("lead", &["worker"])
}

#[test]
fn a_roster_is_shown_in_every_form_as_it_is_installed() {
    let world = World::new();
    world.roster(&formation());
    let text = world.mur(["roster", "show"]).ok().stdout;
    for part in ["roster.yaml: admitted", "lead (entry member)", "local/worker@0.1.0", "member:lead"] {
        assert!(text.contains(part), "{part:?} not in\n{text}");
    }
    let shown = world.mur(["roster", "show", "roster.yaml", "--format", "json"]).ok().json();
    assert_eq!(shown["edges"][0]["from"], "lead");
    assert_eq!(shown["edges"][0]["to"], "worker");
    let digest = shown["members"][1]["sha256"].as_str().expect("a digest");
    let store = world.murmur().join("artifacts/local/worker/0.1.0");
    let on_disk = std::fs::read_dir(&store).unwrap_or_else(|fault| panic!("{}: {fault}", store.display())).flatten();
    let archive = on_disk.map(|entry| entry.path()).find(|path| path.extension().is_some_and(|end| end == "zip"));
    let bytes = std::fs::read(archive.expect("an archive in the store")).expect("an archive");
    let own: String = <sha2::Sha256 as sha2::Digest>::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(digest, own);
    for (format, start) in [("mermaid", "flowchart LR\n"), ("dot", "digraph roster {\n"), ("svg", "<svg xmlns=")] {
        let one = world.mur(["roster", "show", "--format", format]).ok().stdout;
        assert!(one.starts_with(start), "{one}");
        assert_eq!(one, world.mur(["roster", "show", "--format", format]).ok().stdout);
    }
    assert_eq!(world.mur(["roster", "show", "--format", "png"]).run().code(), Some(2));
}

#[test]
fn a_roster_whose_members_are_missing_is_shown_and_refused_as_a_launch_refuses_it() {
    let world = World::new();
    world.write("roster.yaml", formation().text());
    let shown = world.mur(["roster", "show"]).run();
    shown.refused("E-ROS-007");
    for part in ["refused with E-ROS-007", "missing    roster.yaml: member 'worker'", "calls      worker (line "] {
        assert!(shown.stdout.contains(part), "{part:?} not in\n{}", shown.stdout);
    }
    let launched = world.mur(["run", "--roster"]).run();
    let refusal = |text: &str| text[text.find("error[").expect("an error")..].to_owned();
    assert_eq!(refusal(&shown.stderr), refusal(&launched.stderr));
    let svg = world.mur(["roster", "show", "--format", "svg"]).run();
    assert!(svg.refused("E-ROS-007").stdout.contains("missing: E-ROS-007"));
    let explained = world.mur(["roster", "explain", "lead", "worker"]).run();
    assert!(explained.refused("E-ROS-007").stdout.starts_with("May lead call worker?"), "{}", explained.stdout);
}

#[test]
fn a_roster_without_a_rosters_shape_shows_nothing() {
    let world = World::new();
    world.write("roster.yaml", formation().text().replace("\"entry\": true", "\"entry\": false"));
    let shown = world.mur(["roster", "show", "--format", "json"]).run();
    assert!(shown.refused("E-ROS-002").stdout.is_empty());
    let missing = world.mur(["roster", "show", "nowhere"]).run();
    assert!(missing.refused("E-ROS-001").stdout.is_empty());
}

#[test]
fn who_reachability_all_leaves_out_is_said_and_what_a_member_holds_is_worded_as_it_is() {
    let world = World::new();
    let lead = Agent::scripted("lead", Value::Null).authenticated().network(&["localhost"]);
    let worker = Agent::scripted("worker", Value::Null).peer();
    let all = Roster::new().member("lead", lead).member("ada", worker.clone()).member("bela", worker).all();
    world.roster(&all);
    let notice = "reachability: all leaves out lead (the entry member): without exports.peer_tasks.accept: true";
    let shown = world.mur(["roster", "show"]).ok().stdout;
    assert!(shown.contains(notice), "{shown}");
    let checked = world.mur(["doctor"]).ok().stdout;
    assert!(checked.contains(notice), "{checked}");
    assert!(shown.contains("holds one task running and 1 waiting ("), "{shown}");
    let explained = world.mur(["roster", "explain", "ada", "bela"]).run().stdout;
    assert!(explained.contains("bela holds one task running and 1 waiting"), "{explained}");
    let picture = world.mur(["roster", "show", "--format", "svg"]).ok().stdout;
    assert!(picture.contains("1 task and 1 waiting"), "{picture}");
    world.roster(&formation());
    let shown = world.mur(["roster", "show"]).ok().stdout;
    assert!(!shown.contains("leaves out"), "{shown}");
}

#[test]
fn the_exit_status_says_whether_one_member_may_call_another() {
    let world = World::new();
    world.roster(&formation());
    let yes = world.mur(["roster", "explain", "lead", "worker"]).ok();
    assert!(yes.stdout.starts_with("May lead call worker? yes\n"), "{}", yes.stdout);
    let line = 1 + formation()
        .text()
        .lines()
        .position(|line| line.contains("\"worker\"\n") || line.trim() == "\"worker\"")
        .expect("the rule");
    assert!(yes.stdout.contains(&format!("roster.yaml:{line}: reachability[0].to[0]")), "{}", yes.stdout);
    let no = world.mur(["roster", "explain", "worker", "lead", ".", "--json"]).run();
    assert_eq!(no.code(), Some(3), "{}", no.stderr);
    assert_eq!(no.json()["by"], "entry");
    assert_eq!(no.json()["may_call"], false);
    world.mur(["roster", "explain", "lead", "wroker"]).run().refused("E-ROS-009");
    assert_eq!(world.mur(["roster", "explain", "lead"]).run().code(), Some(2));

    // Without the network grant the edge is there, and every call would fail.
    let world = World::new();
    let lead = Agent::scripted("lead", Value::Null).authenticated();
    let worker = Agent::scripted("worker", Value::Null).peer();
    world.roster(&Roster::new().member("lead", lead).member("worker", worker).rule("lead", &["worker"]));
    let cut_off = world.mur(["roster", "explain", "lead", "worker", "--json"]).run();
    assert_eq!(cut_off.code(), Some(3));
    let told = cut_off.json();
    assert_eq!((&told["may_call"], &told["can_call"]), (&Value::Bool(true), &Value::Bool(false)));
    let needs = told["needs"].as_array().expect("needs");
    assert!(needs.iter().any(|need| need["code"] == "W-RUN-008" && need["state"] == "missing"), "{told}");
}

#[test]
fn a_schema_is_printed_for_every_file_and_a_new_formation_names_its_own() {
    let world = World::new();
    world.mur(["new", "--roster", "first"]).ok();
    for (name, file) in [("roster", "first/roster.yaml"), ("manifest", "first/lead/murmur.yaml")] {
        let schema = world.mur(["schema", name]).ok().json();
        let id = schema["$id"].as_str().expect("an id");
        assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
        let text = std::fs::read_to_string(world.project().join(file)).expect("a scaffold");
        assert_eq!(text.lines().next(), Some(format!("# yaml-language-server: $schema={id}").as_str()));
    }
    assert_eq!(world.mur(["schema", "config"]).ok().json()["title"], "config.yaml");
    assert_eq!(world.mur(["schema", "lock"]).run().code(), Some(2));
}
