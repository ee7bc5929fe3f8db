//! Classes as seen from outside: what a running worker is held by, and what is refused before anything runs.

use std::collections::BTreeMap;
use std::fs;

use mur_tests::{Agent, Running, World, wait_until};
use serde_json::json;

/// A session whose driver takes its time.
fn start(world: &World, class: Option<&str>) -> Running {
    let agent = Agent::scripted("slow", json!({"rules": [{"turns": [[{"wait_ms": 60000}, {"say": "done"}]]}]}));
    let name = world.install(&agent);
    let work = world.project().join("work");
    fs::create_dir_all(&work).unwrap();
    let mut command = world
        .mur(["run", "--capsule", &name, "--capsule-version", agent.version(), "--task", "x", "--workdir"])
        .arg(&work);
    if let Some(class) = class {
        command = command.args(["--containment", class]);
    }
    command.start()
}

/// `/proc/PID/status` as keys and values.
fn status(pid: u32) -> BTreeMap<String, String> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.map(|(key, value)| (key.to_owned(), value.trim().to_owned())).collect()
}

/// The driver worker of a session, once its driver is called: by then it is ready.
fn worker(session: &Running, world: &World) -> u32 {
    let mut found = None;
    wait_until("the driver's worker runs its first call", || {
        let started = world.traces().first().is_some_and(|trace| trace.kinds().contains(&"task_start"));
        found = children(session.pid()).into_iter().find(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.windows(14).any(|window| window == b"__guest-worker")
        });
        started && found.is_some()
    });
    found.unwrap()
}

fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}

/// The soft limit of a resource, as `/proc/PID/limits` prints it.
fn limit(pid: u32, name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.split_whitespace().next().unwrap().to_owned()
}

#[test]
fn a_worker_under_advisory_holds_no_privilege_and_under_unconfined_what_its_user_holds() {
    let world = World::new();
    let session = start(&world, None);
    let pid = worker(&session, &world);
    let held = status(pid);
    assert_eq!(held["NoNewPrivs"], "1");
    assert_eq!(held["Seccomp"], "2");
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(held[set], "0000000000000000", "{set}");
    }
    assert_eq!(limit(pid, "Max open files"), "1024");
    assert_eq!(limit(pid, "Max file size"), "4294967296");
    assert_eq!(limit(pid, "Max core file size"), "0");
    assert_eq!(group(pid), pid);
    drop(session);

    let world = World::new();
    let session = start(&world, Some("unconfined"));
    let pid = worker(&session, &world);
    let (held, mine) = (status(pid), status(std::process::id()));
    assert_eq!(held["Seccomp"], "0");
    assert_eq!(held["CapEff"], mine["CapEff"]);
    session.stderr_line(|line| line.contains("warning[W-SEC-034]"));
}

/// The process group of a process: the third field after its name.
fn group(pid: u32) -> u32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(')').next().unwrap().split_whitespace().nth(2).unwrap().parse().unwrap()
}

#[test]
fn a_floor_this_mur_cannot_meet_is_refused_before_anything_is_made() {
    let world = World::new();
    for class in ["scoped", "sealed"] {
        let done = start(&world, Some(class)).wait();
        done.refused("E-CAP-003");
        assert!(done.stderr.contains(&format!("declared containment class '{class}' is not achievable")));
        assert!(done.stderr.contains("lower --containment to 'advisory'"), "{}", done.stderr);
    }
    let done = start(&world, Some("Advisory")).wait();
    done.refused("E-IO-003");
    assert!(done.stderr.contains("--containment must be one of: unconfined, advisory, scoped, sealed; got 'Advisory'"));
    assert!(world.traces().is_empty());
}
