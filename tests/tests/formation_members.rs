//! What a member is started as, what it holds, and what it learns; and the entry member's own part.

use std::fs;

use mur_tests::live::capsule::{Capsule, roster};
use mur_tests::live::door::message;
use mur_tests::live::formation::{Launched, lead, standard, worker};
use mur_tests::live::{Home, proc, run, trace};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

fn closed(formation: Launched) {
    formation.launcher.signal(Signal::SIGTERM);
    formation.launcher.finish().expect(143);
}

/// The traces by roster name.
fn traced(home: &Home) -> Vec<(String, Vec<Value>)> {
    let all = trace::sessions(home.murmur().join("records"));
    let named = all.iter().map(trace::read).map(|records| {
        let name = records[0]["formation_member"].as_str().unwrap_or_default().to_owned();
        (name, records)
    });
    named.collect()
}

#[test]
fn the_entry_members_failure_is_the_formations() {
    let home = Home::new();
    let failing = Capsule::scripted("lead", json!({"rules": [{"turns": [[{"error": "broken", "transient": false}]]}]}));
    let (failing, worker) = (failing.member(), worker());
    failing.install(&home);
    worker.install(&home);
    let members = [("lead", &failing), ("coder", &worker)];
    home.write("roster.yaml", roster(&members, json!([{"from": "lead", "to": ["coder"]}])));
    let output = home.mur(["run", "--roster", "--task", "x"]).refused("E-RUN-040");
    assert!(output.stdout.ends_with("status:  failed\n"), "{}", output.stdout);
    let coder = traced(&home).into_iter().find(|(name, _)| name == "coder").expect("it ran").1;
    assert_eq!(coder.last().unwrap()["exit_status"], "ok", "it wound down");
}

#[test]
fn the_launchs_own_task_is_a_task_at_the_entry_members_door() {
    let home = Home::new();
    let asking = Capsule::scripted("lead", json!({"rules": [{"turns": [[{"ask": "go on?"}, {"say": "done"}]]}]}));
    let (asking, worker) = (asking.member(), worker());
    asking.install(&home);
    worker.install(&home);
    let members = [("lead", &asking), ("coder", &worker)];
    home.write("roster.yaml", roster(&members, json!([{"from": "lead", "to": ["coder"]}])));
    let formation = Launched::with(&home, &["--task", "x"]);
    let door = formation.door(&home);
    run::until("it asks", || {
        let list = door.call("ListTasks", json!({}));
        list.pointer("/result/tasks/0/status/state") == Some(&json!("TASK_STATE_INPUT_REQUIRED"))
    });
    let listed = door.call("ListTasks", json!({}))["result"]["tasks"].take();
    assert_eq!(listed.as_array().map(Vec::len), Some(1));
    let id = listed[0]["id"].as_str().unwrap();
    let mut stream = door.stream("SubscribeToTask", json!({"id": id}), &[]);
    assert!(stream.next_event().is_some_and(|event| event.data.to_string().contains(id)));
    door.call("CancelTask", json!({"id": id}));
    let mut last = Value::Null;
    while let Some(event) = stream.next_event() {
        last = event.data;
    }
    assert!(last.to_string().contains("TASK_STATE_CANCELED"), "{last}");
    let output = formation.launcher.finish().refused("E-RUN-040");
    assert!(output.stderr.contains("canceled"), "{}", output.stderr);
}

#[test]
fn all_lets_everybody_that_serves_call_everybody_that_serves_but_the_entry_member() {
    for entry_serves in [true, false] {
        let home = Home::new();
        let worker = worker();
        let auth = json!({"network": {"authentication": {"scheme": "bearer"}},
            "capabilities": {"network": {"allow": ["localhost"]}}});
        let quiet = Capsule::saying("quiet", "x").with(auth.clone());
        let mut first = lead();
        if !entry_serves {
            first.manifest["exports"] = json!({"peer_tasks": {"accept": false}});
        }
        for capsule in [&first, &worker, &quiet] {
            capsule.install(&home);
        }
        let members = [("lead", &first), ("coder", &worker), ("reviewer", &worker), ("quiet", &quiet)];
        home.write("roster.yaml", roster(&members, json!("all")));
        closed(Launched::open(&home));
        let mut callees: Vec<(String, Value)> =
            traced(&home).into_iter().map(|(name, records)| (name, records[0]["formation_callees"].clone())).collect();
        callees.sort_by(|a, b| a.0.cmp(&b.0));
        let of_lead = if entry_serves { json!(["coder", "reviewer"]) } else { json!([]) };
        let expected =
            [("coder", json!(["reviewer"])), ("lead", of_lead), ("quiet", json!([])), ("reviewer", json!(["coder"]))];
        assert_eq!(callees, expected.map(|(name, callees)| (name.to_owned(), callees)));
    }
}

/// Addresses a process listens at, as the kernel writes them.
fn listens(pid: i32) -> Vec<String> {
    let sockets: Vec<String> = proc::descriptors(pid)
        .into_iter()
        .filter_map(|(_, what)| Some(what.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    ["tcp", "tcp6"]
        .iter()
        .flat_map(|table| {
            let text = fs::read_to_string(format!("/proc/net/{table}")).unwrap_or_default();
            text.lines().skip(1).map(str::to_owned).collect::<Vec<_>>()
        })
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            // State 0A is listening; the tenth field is the inode.
            (fields[3] == "0A" && sockets.iter().any(|inode| inode == fields[9])).then(|| fields[1].to_owned())
        })
        .collect()
}

#[test]
fn a_peer_is_a_capsule_run_of_its_own_on_this_machine_and_the_entry_member_has_the_launchs_lifecycle() {
    let home = Home::new();
    standard(&home, &worker());
    let formation = Launched::open(&home);
    for name in ["coder", "reviewer"] {
        let pid = formation.peer(name);
        let line = proc::command_line(pid);
        for part in ["run --capsule local/worker --capsule-version 1.0.0 ", " --json"] {
            assert!(line.contains(part), "{part:?} not in {line}");
        }
        assert!(!line.contains("--task") && !line.contains("--lifecycle"), "work comes at its door alone: {line}");
        let addresses = listens(pid);
        assert!(!addresses.is_empty() && addresses.iter().all(|at| at.starts_with("0100007F:")), "{addresses:?}");
        let dir = &home.formations()[0].join(name);
        assert_eq!(formation.peer_line(name)["workdir"], dir.to_str().unwrap());
    }
    let line = proc::command_line(formation.entry_pid());
    assert!(line.contains(" --lifecycle-task-acceptance queue --lifecycle-after-task sleep"), "{line}");
    closed(formation);
    // With a task: one, and then it ends.
    let slow =
        Capsule::scripted("lead", json!({"rules": [{"turns": [[{"ask": "go on?"}, {"say": "done"}]]}]})).member();
    slow.install(&home);
    let formation = Launched::with(&home, &["--task", "x"]);
    let line = proc::command_line(formation.entry_pid());
    assert!(line.contains(" --lifecycle-task-acceptance single --lifecycle-after-task exit --task=x"), "{line}");
    closed(formation);
}

#[test]
fn members_without_work_wait_as_long_as_the_formation_stands() {
    let mut home = Home::new();
    // What ends any other session that has waited for so long.
    home.set("MURMUR_A2A_TIMEOUT_SECS", "1");
    let single = worker().with(json!({"lifecycle": {"task_acceptance": "single"}}));
    standard(&home, &single);
    let formation = Launched::open(&home);
    let pids = formation.members();
    // Not a synchronisation: nothing is meant to happen in this time.
    std::thread::sleep(std::time::Duration::from_millis(2500));
    assert!(pids.iter().all(|pid| proc::runs(*pid)), "a member left");
    let door = formation.door(&home);
    assert_eq!(door.ended(&door.send("x"))["status"]["state"], "TASK_STATE_COMPLETED");
    closed(formation);
}

#[test]
fn a_relative_task_file_is_the_one_in_the_launchers_directory() {
    let home = Home::new();
    standard(&home, &worker());
    let elsewhere = home.scratch("elsewhere");
    fs::write(elsewhere.join("notes.txt"), "from the file").unwrap();
    let project = home.project();
    let args = ["run".as_ref(), "--roster".as_ref(), project.as_os_str(), "--task".as_ref(), "notes.txt".as_ref()];
    mur_tests::live::Running::start(home.command_in(&elsewhere, args)).finish().expect(0);
    let results: Vec<String> = trace::sessions(home.murmur().join("records"))
        .iter()
        .map(|session| fs::read_to_string(session.join("out/result.txt")).unwrap_or_default())
        .collect();
    assert!(results.iter().any(|text| text == "done: from the file for coder"), "{results:?}");
    let left: Vec<_> = fs::read_dir(&project).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left, ["roster.yaml"]);
}

#[test]
fn a_member_learns_its_own_name_and_nothing_of_those_it_may_not_call() {
    let home = Home::new();
    let telling = Capsule::saying("worker", "{{system}}\n{{env}}").member();
    standard(&home, &telling);
    let formation = Launched::open(&home);
    let door = formation.door(&home);
    door.ended(&door.send("who are you?"));
    let mut inventories = Vec::new();
    for record in home.running() {
        let session = record["session_id"].as_str().unwrap();
        let file = home.murmur().join("sessions").join(session).join("runtime/MURMUR.md");
        inventories.push((record["formation_member"].as_str().unwrap().to_owned(), fs::read_to_string(file).unwrap()));
    }
    let id = formation.id();
    closed(formation);
    assert_eq!(inventories.len(), 3);
    for (name, text) in &inventories {
        assert!(text.contains(&format!("- Formation member: {name} (your name in this formation")), "{text}");
        assert!(text.contains(&format!("- Formation ID: {id}")), "{text}");
    }
    for (name, records) in traced(&home) {
        let told = trace::of(&records, "member_call");
        for call in told {
            let text = call["output"].as_str().unwrap_or_default();
            let member = call["member"].as_str().unwrap();
            assert!(text.contains(&format!("Formation member: {member} (")), "{name} was told: {text}");
            // The reviewer may call the coder; the coder may call nobody and knows of nobody.
            assert_eq!(text.contains("MURMUR_FORMATION_PEERS"), member == "reviewer", "{text}");
            if member == "coder" {
                assert!(!text.contains("reviewer") && !text.contains("lead"), "{text}");
            }
            assert!(!text.contains("mft1.") && !text.contains("frm_"), "{text}");
        }
    }
}

#[test]
fn a_channel_is_held_by_the_launcher_and_its_member_alone() {
    let home = Home::new();
    standard(&home, &worker());
    let formation = Launched::open(&home);
    let door = formation.door(&home);
    door.ended(&door.send("x"));
    let launcher = formation.launcher.pid();
    let everybody = proc::descendants(launcher);
    for member in formation.members() {
        let environment = String::from_utf8_lossy(&proc::environment(member)).into_owned();
        let number = environment.split('\0').find_map(|pair| pair.strip_prefix("MURMUR_FORMATION_CHANNEL=")).unwrap();
        let pipe = proc::descriptors(member).into_iter().find(|(fd, _)| fd.to_string() == number).map(|(_, what)| what);
        // Once it is read to its end the member may have closed it; held, it is nobody else's.
        let Some(pipe) = pipe.filter(|what| what.starts_with("pipe:")) else { continue };
        for other in everybody.iter().filter(|pid| **pid != member && **pid != launcher) {
            let holds = proc::descriptors(*other).iter().any(|(_, what)| *what == pipe);
            assert!(!holds, "{} holds {member}'s channel", proc::command_line(*other));
        }
    }
    closed(formation);
}

#[test]
fn the_operators_token_opens_every_door_of_a_formation_and_a_peers_task_none_that_serves_no_peers() {
    let home = Home::new();
    let quiet = Capsule::saying("quiet", "alone: {{text}}").with(json!({
        "network": {"authentication": {"scheme": "bearer"}},
        "lifecycle": {"task_acceptance": "queue", "after_task": "sleep"},
    }));
    let (lead, worker) = (lead(), worker());
    for capsule in [&lead, &worker, &quiet] {
        capsule.install(&home);
    }
    let members = [("lead", &lead), ("coder", &worker), ("quiet", &quiet)];
    home.write("roster.yaml", roster(&members, json!([{"from": "lead", "to": ["coder"]}])));
    let formation = Launched::open(&home);
    for (name, answer) in [("coder", "done: x"), ("quiet", "alone: x")] {
        let door = formation.peer_door(&home, name);
        let peer = [("x-murmur-task-origin", "peer")];
        if name == "quiet" {
            let refused = door.ask("SendMessage", message("x", true), &peer);
            assert_eq!((refused.status, refused.json()["error"].clone()), (403, json!("peer_not_accepted")));
        }
        let task = door.ended(&door.send("x"));
        assert_eq!(mur_tests::live::door::answer_text(&task), answer);
    }
    closed(formation);
}

#[test]
fn each_launch_is_a_formation_of_its_own() {
    let home = Home::new();
    standard(&home, &worker());
    let mut ids = Vec::new();
    for _ in 0..2 {
        let formation = Launched::open(&home);
        ids.push(formation.id());
        closed(formation);
    }
    assert_ne!(ids[0], ids[1]);
    let dirs: Vec<String> =
        home.formations().iter().map(|dir| dir.file_name().unwrap().to_string_lossy().into_owned()).collect();
    assert_eq!(dirs, ids, "both are there, the older first");
}

#[test]
fn a_file_of_one_member_is_not_there_for_another() {
    let home = Home::new();
    let script = json!({"rules": [
        {"when": {"matches": "^write (?<path>.+)"}, "turns": [
            [{"call": "write-file", "input": {"path": "{{path}}", "content": "for my eyes"}}], [{"say": "{{result}}"}],
        ]},
        {"when": {"matches": "^read (?<path>.+)"}, "turns": [
            [{"call": "read-file", "input": {"path": "{{path}}"}}], [{"say": "{{result}}"}],
        ]},
        {"turns": [[{"ask": "go on?"}, {"say": "done"}]]},
    ]});
    let worker = Capsule::scripted("worker", script).member().tool("read-file").tool("write-file");
    standard(&home, &worker);
    let formation = Launched::open(&home);
    let (coder, reviewer) = (formation.peer_door(&home, "coder"), formation.peer_door(&home, "reviewer"));
    let said =
        |door: &mur_tests::live::Door, text: &str| mur_tests::live::door::answer_text(&door.ended(&door.send(text)));
    said(&coder, "write mine.txt");
    assert!(said(&coder, "read mine.txt").contains("for my eyes"));
    let dir = home.formations()[0].join("coder");
    assert!(dir.join("mine.txt").is_file());
    for path in ["mine.txt".to_owned(), "../coder/mine.txt".to_owned(), dir.join("mine.txt").display().to_string()] {
        let told = said(&reviewer, &format!("read {path}"));
        assert!(!told.contains("for my eyes"), "{path}: {told}");
    }
    // Both at work at once: each has its own task in its own place.
    for (door, text) in [(&coder, "one task"), (&reviewer, "another task")] {
        let task = door.send(text);
        run::until("it asks", || {
            door.call("GetTask", json!({"id": task}))["result"]["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        });
    }
    for (name, text) in [("coder", "one task"), ("reviewer", "another task")] {
        let session = formation.peer_line(name)["session_id"].as_str().unwrap();
        let file = home.murmur().join("sessions").join(session).join("runtime/task.md");
        assert_eq!(fs::read_to_string(file).unwrap(), text);
    }
    closed(formation);
}

#[test]
fn a_formation_directory_removed_by_hand_takes_its_peers_from_view_and_stops_nothing() {
    let home = Home::new();
    standard(&home, &worker());
    home.mur(["run", "--roster", "--task", "x"]).expect(0);
    let [ended] = &home.formations()[..] else { panic!("one formation") };
    let id = ended.file_name().unwrap().to_string_lossy().into_owned();
    // Another launch stands meanwhile.
    let formation = Launched::open(&home);
    let before = home.mur(["trace", "show", &id]).expect(0);
    assert!(before.stdout.contains("coder") && before.stdout.contains("reviewer"), "{}", before.stdout);
    fs::remove_dir_all(ended).unwrap();
    let after = home.mur(["trace", "show", &id]).expect(0);
    let members = after.stdout.lines().filter(|line| line.contains("ses_")).count();
    assert_eq!(members, 1, "{}", after.stdout);
    let door = formation.door(&home);
    assert_eq!(door.ended(&door.send("y"))["status"]["state"], "TASK_STATE_COMPLETED");
    closed(formation);
}
