//! `mur doctor` beside a roster: what the launch would warn of, and whether what it would run is what lies there.

use std::fs;

use mur_tests::{Agent, Roster, World};
use serde_json::{Value, json};

fn lead() -> Agent {
    Agent::scripted("lead", Value::Null).authenticated().network(&["localhost"])
}

fn clerk() -> Agent {
    Agent::scripted("clerk", json!({"rules": [{"turns": [[{"say": "done"}]], "repeat": true}]})).peer()
}

fn roster(lead: Agent, clerk: Agent) -> Roster {
    Roster::new().member("boss", lead).member("ada", clerk).rule("boss", &["ada"])
}

/// Codes of warnings in a text, each once, that are not said of the host by one of the two alone.
fn warned(text: &str) -> Vec<&str> {
    let mut codes: Vec<&str> = text.split("warning[").skip(1).filter_map(|rest| rest.split(']').next()).collect();
    codes.sort_unstable();
    codes.dedup();
    codes
}

#[test]
fn a_check_beside_a_roster_warns_of_what_its_launch_warns_of() {
    let world = World::new();
    let lead = lead().with(&["nmae"], "x").with(&["capabilities", "env", "allow"], json!(["MY_TOKEN"]));
    world.roster(&roster(lead, clerk().with(&["lifecycle", "quue_depth"], 3)));
    fs::create_dir_all(world.project().join(".murmur/artifacts")).expect("a store of the project's");
    let checked = world.mur(["doctor"]).ok();
    let launched = world.mur(["run", "--roster", "--task", "go"]).env("MY_TOKEN", "t").ok();
    let said = warned(&launched.stderr);
    for code in ["W-SEC-019", "W-SEC-024", "W-SEC-037"] {
        assert!(said.contains(&code), "{code}: {}", launched.stderr);
    }
    assert_eq!(warned(&format!("{}{}", checked.stdout, checked.stderr)), said, "{}", checked.stderr);
    for (key, whose) in [
        ("'nmae' at the top level — did you mean 'name'? (line ", " of murmur.yaml of member 'boss', capsule 'lead')"),
        (
            "'quue_depth' in lifecycle — did you mean 'queue_depth'? (line ",
            " of murmur.yaml of member 'ada', capsule 'clerk')",
        ),
    ] {
        let begins = format!("[murmur-artifact] warning[W-SEC-019]: unrecognized key {key}");
        let mut lines = checked.stderr.lines();
        assert!(lines.any(|line| line.starts_with(&begins) && line.contains(whose)), "{begins}: {}", checked.stderr);
    }
    // The launch, too, says whose key it is: the entry member's lines have nothing before them.
    assert!(launched.stderr.contains(" of murmur.yaml, capsule 'lead')"), "{}", launched.stderr);
}

#[test]
fn an_edit_that_was_not_built_and_installed_again_is_told_and_how_to_is_as_pasted() {
    let world = World::new();
    world.roster(&roster(lead(), clerk()));
    let source = world.write("clerk/murmur.yaml", clerk().manifest());
    let unedited = world.mur(["doctor"]).ok().stderr;
    assert!(!unedited.contains("W-REG-004"), "{unedited}");
    let launch = ["run", "--roster", "--task", "go"];
    assert!(!world.mur(launch).ok().stderr.contains("W-REG-004"));
    let edited = clerk().with(&["lifecycle", "queue_depth"], 5).manifest();
    fs::write(&source, edited).expect("an edit");
    let dir = source.parent().expect("a folder").display();
    let what =
        format!("the installed local/clerk@0.1.0 (global store) is not what {dir} would build: murmur.yaml differs");
    let checked = world.mur(["doctor"]).ok();
    assert!(checked.stderr.contains(&format!("[mur doctor] warning[W-REG-004]: {what}")), "{}", checked.stderr);
    let inside = world.mur(["doctor"]).arg("clerk").run();
    assert!(inside.stderr.contains(&what), "{}", inside.stderr);
    let launched = world.mur(launch).ok();
    assert!(launched.stderr.contains(&format!("[mur run] warning[W-REG-004]: {what}")), "{}", launched.stderr);
    let fix = checked.stdout.lines().find_map(|line| line.strip_prefix("Fix: to run what is there: ")).expect("a fix");
    assert!(launched.stderr.contains(fix), "{}", launched.stderr);
    for command in fix.split(" && ") {
        world.mur(command.split(' ').skip(1)).ok();
    }
    let afterwards = world.mur(["doctor"]).ok().stderr;
    assert!(!afterwards.contains("W-REG-004"), "{afterwards}");
    assert!(!world.mur(launch).ok().stderr.contains("W-REG-004"));
}

#[test]
fn a_file_that_a_capsule_packs_is_compared_too_and_a_source_that_does_not_build_is_told() {
    let world = World::new();
    world.write("clerk/prompt.txt", "be brief");
    let packing = clerk().with(&["requires_files"], json!(["prompt.txt"]));
    world.write("clerk/murmur.yaml", packing.manifest());
    world.mur(["build", "clerk"]).ok();
    world.mur(["install", "-g", "clerk/clerk-0.1.0.mur.zip"]).ok();
    world.install(&lead());
    world.write("roster.yaml", roster(lead(), packing).text());
    assert!(!world.mur(["doctor"]).ok().stderr.contains("W-REG-004"));
    world.write("clerk/prompt.txt", "be long");
    let changed = world.mur(["doctor"]).ok().stderr;
    assert!(changed.contains("would build: prompt.txt differs"), "{changed}");
    fs::remove_file(world.project().join("clerk/prompt.txt")).expect("it was there");
    let broken = world.mur(["doctor"]).ok().stderr;
    assert!(
        broken.contains("cannot be compared with local/clerk@0.1.0: missing required file 'prompt.txt'"),
        "{broken}"
    );
}
