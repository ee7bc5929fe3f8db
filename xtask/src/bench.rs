//! `cargo xtask bench`: the budget of the architecture page, measured on a release build.

// As in `sh`.
#![allow(clippy::disallowed_methods)]

use std::process::Command;

use serde_json::Value;

use crate::dist::{self, Dist, Profile};
use crate::{Outcome, sh};

mod admission;
mod formation;
mod provider;
mod table;

use formation::Place;
use table::{Row, Table};

/// How often each row is measured unless `--runs` says otherwise.
const RUNS: usize = 10;

/// Start costs of the classes.
fn classes(table: &mut Table, measure: &std::path::Path, dist: &Dist, place: &Place) {
    sh::say("enclosure and workers under each class");
    let found = measured(measure, "classes", dist, place);
    for (what, key, budget) in [
        ("a session's enclosure, from its process's start", "enclosure", 4.0),
        ("trying what the host backs of scoped", "probe", 4.0),
        ("a worker under advisory, start to ready", "advisory", 6.0),
        ("a worker under scoped, start to ready", "scoped", 6.0),
        ("a worker under sealed, start to ready", "sealed", 8.0),
    ] {
        match &found {
            Ok(found) => table.add(Row::new(what, "ms", budget, numbers(&found[key]))),
            Err(fault) => table.add(Row::missing(what, "ms", budget, fault)),
        }
    }
    let commands = measured(measure, "commands", dist, place);
    for (what, key, budget) in [
        ("a command under scoped, above the bare command", "scoped", 2.0),
        ("a command under sealed, above the bare command", "sealed", 3.0),
    ] {
        match &commands {
            Ok(found) => table.add(Row::new(what, "ms", budget, numbers(&found[key]))),
            Err(fault) => table.add(Row::missing(what, "ms", budget, fault)),
        }
    }
}

/// What a class costs a whole formation: by turns with an unconfined one, so that both meet the same machine.
fn confined_formation(table: &mut Table, place: &Place, runs: usize) -> Outcome {
    sh::say("formations of 1 + 8, by turns unconfined and under scoped");
    let bare = place.formation(9)?;
    let scoped = place.formation(9)?.under("scoped");
    // The first under a class makes what it keeps.
    scoped.times(1)?;
    let mut pairs = Vec::with_capacity(runs);
    for _ in 0..runs {
        let (bare, scoped) = (bare.times(1)?, scoped.times(1)?);
        pairs.extend(bare.iter().zip(&scoped).map(|(bare, scoped)| (bare.0, scoped.0)));
    }
    let what = "formation of 1 + 8 under scoped, launch to the first model request";
    table.add(Row::new(what, "ms", 300.0, pairs.iter().map(|pair| pair.1)));
    table.add(Row::new(&format!("{what}, over an unconfined one"), "×", 1.5, pairs.iter().map(|pair| pair.1 / pair.0)));
    Ok(())
}

/// Measures and prints. The machine should be idle: the numbers are wall-clock.
pub fn bench(arguments: &[&str]) -> Outcome {
    let mut runs = RUNS;
    let mut profile = Profile::Release;
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match *argument {
            "--runs" => {
                let number = rest.next().and_then(|number| number.parse().ok());
                runs = number.filter(|runs| *runs > 0).ok_or("--runs needs a number")?;
            }
            // For work on the measurements themselves.
            "--debug" => profile = Profile::Debug,
            _ => return Err("usage: cargo xtask bench [--runs N] [--debug]".to_owned()),
        }
    }
    let dist = dist::dist(profile)?;
    let measure = build_measure(&dist, profile)?;
    let place = Place::new(&dist)?;
    let mut table = Table::default();
    for (members, to_request, to_exit, runs) in [
        (3, 80.0, 120.0, runs),
        (9, 200.0, 280.0, runs),
        (33, 700.0, 900.0, runs.div_ceil(2)),
        // Twice the members of the row before, so twice its budget.
        (64, 1400.0, 1800.0, runs.div_ceil(5)),
    ] {
        sh::say(&format!("formations of 1 + {} members, {runs} runs", members - 1));
        let formation = place.formation(members)?;
        let times = formation.times(runs)?;
        let name = |what: &str| format!("formation of 1 + {}, launch to {what}", members - 1);
        table.add(Row::new(&name("the first model request"), "ms", to_request, times.iter().map(|time| time.0)));
        table.add(Row::new(&name("exit"), "ms", to_exit, times.iter().map(|time| time.1)));
    }
    sh::say("memory of a running formation of 1 + 8");
    let memory = place.formation(9)?.memory(runs.min(3))?;
    table.add(Row::new("memory of a member with one worker (PSS of all processes / members)", "MiB", 14.0, memory));
    for (name, what, unit, budget) in [
        ("plugins", "loading and checking one plugin, hash included", "ms", 1.0),
        ("tool-call", "tool call through a worker, above the same call in process", "µs", 60.0),
    ] {
        sh::say(what);
        // A plugin stays loaded, so it is loaded once a process.
        let times = if name == "plugins" { runs } else { 1 };
        let values = (0..times)
            .map(|_| measured(&measure, name, &dist, &place).map(|value| numbers(&value["values"])))
            .collect::<Outcome<Vec<_>>>();
        match values {
            Ok(values) => table.add(Row::new(what, unit, budget, values.concat())),
            Err(fault) => table.add(Row::missing(what, unit, budget, &fault)),
        }
    }
    classes(&mut table, &measure, &dist, &place);
    confined_formation(&mut table, &place, runs)?;
    for (what, shape) in [
        ("admission, 1,000 members, reachability all (999,000 edges)", admission::Shape::All),
        ("admission, 1,000 members, 100,000 rule edges", admission::Shape::Rules),
    ] {
        sh::say(what);
        table.add(Row::new(what, "ms", 150.0, admission::times(&place, shape, runs)?));
    }
    sh::say("door: GetTask");
    match measured(&measure, "door", &dist, &place) {
        Ok(value) => {
            let door = "door: GetTask under a formation token, 8 connections";
            table.add(Row::at_least(&format!("{door}, a second"), "", 30_000.0, numbers(&value["per_second"])));
            table.add(Row::new(&format!("{door}, p99"), "ms", 0.5, numbers(&value["p99_ms"])));
        }
        Err(fault) => table.add(Row::missing("door: GetTask under a formation token", "", 0.0, &fault)),
    }
    let _ = std::fs::remove_file(&measure);
    sh::print(&table.text());
    if profile == Profile::Debug {
        sh::say("a debug build: these numbers say nothing about the budget");
    }
    Ok(())
}

/// The measurements that need the library: an example of the host.
fn build_measure(dist: &Dist, profile: Profile) -> Outcome<std::path::PathBuf> {
    sh::say("building the measurements that need the library");
    let mut command = sh::cargo(&sh::root());
    command.args(["build", "--workspace", "--exclude", "xtask", "--example", "measure"]);
    if profile == Profile::Release {
        command.arg("--release");
    }
    sh::run(&mut command)?;
    // Plugins are found from where a program lies, so it lies where mur does while it measures.
    let copy = dist.root.join("bin/mur-measure");
    sh::copy(&sh::target().join(profile.name()).join("examples/measure"), &copy, 0o755)?;
    Ok(copy)
}

fn measured(measure: &std::path::Path, name: &str, dist: &Dist, place: &Place) -> Outcome<Value> {
    let mut command = Command::new(measure);
    command.arg(name).arg(&dist.root).arg(place.home());
    let output = sh::output(&mut command)?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        return Err(reason.lines().last().unwrap_or("it failed without a word").to_owned());
    }
    serde_json::from_str(text.trim()).map_err(|fault| format!("{name} printed '{}': {fault}", text.trim()))
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
}
