//! What this version reads and does not run: a launch that declares it is refused by name, so that nothing it would have
//! done is silently left out.

use mur_tests::{Agent, World};
use serde_json::json;

#[test]
fn what_a_capsule_declares_and_this_version_does_not_run_is_refused_by_name() {
    let quick = || Agent::scripted("quick", json!({"rules": [{"turns": [[{"say": "done"}]]}]}));
    for (path, value, named) in [
        (&["capabilities", "plan", "submit"][..], json!(true), "capabilities.plan.submit"),
        (&["capabilities", "spawn", "allow"], json!(["local/child"]), "capabilities.spawn.allow"),
        (&["observability", "otel_endpoint"], json!("http://127.0.0.1:9"), "observability.otel_endpoint"),
    ] {
        let world = World::new();
        world.write("murmur.yaml", quick().with(path, value).manifest());
        let before = world.files();
        let done = world.mur(["run", "--task", "work"]).run();
        done.refused("E-MAN-003");
        let words = format!("{named} is declared, and this version of mur does not run it");
        assert!(done.stderr.contains(&words), "{}", done.stderr);
        assert_eq!(world.files(), before, "nothing is left behind");
    }
}

#[test]
fn another_driver_choice_is_refused_by_name() {
    let world = World::new();
    let choice = json!({"name": "other", "model": "other", "driver": {"artifact": "murmur/driver-scripted"}});
    let agent = Agent::scripted("quick", json!({"rules": [{"turns": [[{"say": "done"}]]}]}))
        .with(&["inference", "alternates"], json!([choice]))
        .with(&["control", "settings"], json!(["inference.driver"]));
    world.write("murmur.yaml", agent.manifest());
    let done = world.mur(["run", "--task", "work"]).run();
    done.refused("E-MAN-003");
    assert!(done.stderr.contains("inference.alternates is declared"), "{}", done.stderr);
}
