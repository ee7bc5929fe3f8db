//! An operator who is not root, with a place in the cgroup tree: what root can have made runs, and holds as it does for root.

use std::fs;

use mur_tests::commands::{CLASSES, HELD, caller, launch, line, ran};
use mur_tests::ordinary::{NOBODY, Place, own};
use mur_tests::{Agent, Roster, World, wait_until};
use nix::sys::signal::Signal::{SIGKILL, SIGTERM};
use serde_json::json;

#[test]
fn commands_run_as_the_operator_under_every_class_and_leave_no_group_behind() {
    let place = Place::new("commands");
    for class in CLASSES {
        let world = World::new();
        world.write("closed", "root's own");
        let closed = world.project().join("closed");
        // Where nothing is held, the temporary folder is the host's.
        let shared = tempfile::NamedTempFile::new_in("/tmp").unwrap();
        let temporary = format!("{}.made", shared.path().display());
        let look = format!(
            "id -u; echo made > made; echo t > {temporary} && cat {temporary}; cat {} 2> /dev/null || echo closed; \
             : > /etc/made-by-a-test || echo kept",
            closed.display()
        );
        let agent = caller("agent", &["bash", "id", "cat"], &[("bash", line(&look))]);
        let invocation = launch(&world, &agent, class).args(["--task", "go"]);
        own(&world);
        std::os::unix::fs::chown(&closed, Some(0), Some(0)).unwrap();
        fs::set_permissions(&closed, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let ran = ran(&world, place.run(invocation));
        let said = ran.text(0);
        assert!(said.contains(&format!("Stdout:\n{NOBODY}\nt\nclosed\nkept\n")), "{class}: {said}");
        assert_eq!(fs::remove_file(&temporary).is_ok(), class == "unconfined", "{class}");
        let made = fs::metadata(ran.work.join("made")).unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::uid(&made), NOBODY, "{class}");
        assert_eq!(ran.trace.one("session_start")["containment_achieved"], class);
        wait_until("the session's cgroups are gone", || place.processes().is_empty());
        let left: Vec<_> = place.groups().into_iter().filter(|group| !group.ends_with("murmur-supervisor")).collect();
        assert!(left.is_empty(), "{class}: {left:?}");
    }
}

/// The fields of `/proc/<pid>/status` that tell what a process may still do.
fn held(pid: i32) -> Vec<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let wanted = ["Uid:", "CapPrm:", "CapEff:", "CapBnd:", "NoNewPrivs:", "Seccomp:"];
    let lines = status.lines().filter(|line| wanted.iter().any(|name| line.starts_with(name)));
    lines.map(|line| line.split_whitespace().take(2).collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn a_command_holds_no_capability_is_filtered_and_ends_with_a_killed_session() {
    for class in HELD {
        let place = Place::new(&format!("held-{class}"));
        let world = World::new();
        let agent = caller("agent", &["bash", "sleep"], &[("bash", line("echo > started; sleep 1000"))]);
        let invocation = launch(&world, &agent, class).args(["--task", "go"]);
        own(&world);
        let session = place.run(invocation).start();
        let started = world.project().join("work/started");
        let sleeping = || {
            let named = |pid: &i32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "sleep\n");
            place.processes().into_iter().find(named)
        };
        wait_until("the command runs", || started.exists() && sleeping().is_some());
        let none = "0000000000000000";
        let expected = [
            format!("Uid: {NOBODY}"),
            format!("CapPrm: {none}"),
            format!("CapEff: {none}"),
            format!("CapBnd: {none}"),
            "NoNewPrivs: 1".to_owned(),
            "Seccomp: 2".to_owned(),
        ];
        assert_eq!(held(sleeping().expect("it runs")), expected, "{class}");
        session.signal(SIGKILL);
        assert_eq!(session.wait().signal(), Some(9));
        wait_until("everything of the session is gone", || place.processes().is_empty());
    }
}

#[test]
fn a_formation_of_an_ordinary_operator_works_and_ends_as_a_whole() {
    let place = Place::new("formation");
    let world = World::new();
    let lead = json!({"rules": [
        {"when": {"contains": "[call-member] call "}, "turns": [[{"say": "{{text}}"}]]},
        {"turns": [[{"call": "call-member", "input": {"member": "helper", "task": "help"}}], [{"say": "asked"}]]},
    ]});
    let helper = json!({"rules": [{"turns": [[{"call": "bash", "input": line("id -u")}], [{"say": "{{result}}"}]]}]});
    let helper =
        Agent::scripted("helper", helper).peer().with(&["capabilities", "shell", "allow"], json!(["bash", "id"]));
    let lead = Agent::scripted("lead", lead).authenticated().network(&["localhost"]);
    world.roster(&Roster::new().member("lead", lead).member("helper", helper).rule("lead", &["helper"]));
    own(&world);
    let done = place.run(world.mur(["run", "--roster", "--task", "go"])).run();
    assert_eq!(done.code(), Some(0), "{}{}", done.stdout, done.stderr);
    let results: Vec<_> = world.traces().iter().filter_map(mur_tests::Trace::result).collect();
    assert!(results.iter().any(|result| result.contains(&format!("Stdout:\n{NOBODY}\n"))), "{results:?}");
    wait_until("every member is gone", || place.processes().is_empty());

    // Stopped in the middle of it.
    let formation = place.run(world.mur(["run", "--roster"])).start();
    formation.stdout_line(|line| line.starts_with("session:"));
    assert!(place.processes().len() > 2, "{:?}", place.processes());
    formation.signal(SIGTERM);
    assert_eq!(formation.wait().code(), Some(143));
    wait_until("every member is gone", || place.processes().is_empty());
}
