//! "Launching a formation", "Member directories", "What each member learns" and "Giving a member work" of the roster
//! seed, on real processes.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use mur_tests::live::capsule::{Capsule, roster};
use mur_tests::live::formation::{Launched, lead, slow_worker, standard, worker};
use mur_tests::live::{Home, proc, run, trace};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

fn result(home: &Home) -> String {
    let session = entry_session(home);
    fs::read_to_string(session.join("out/result.txt")).expect("a result")
}

fn entry_session(home: &Home) -> std::path::PathBuf {
    let group = home.murmur().join("records").join(home.project().strip_prefix("/").unwrap());
    let mut sessions = trace::sessions(group);
    sessions.retain(|dir| trace::read(dir).first().is_some_and(|start| start["formation_member"] == "lead"));
    sessions.pop().expect("the entry member's session")
}

#[test]
fn a_task_is_split_handed_over_answered_and_joined() {
    let home = Home::new();
    standard(&home, &worker());
    let output = home.mur(["run", "--roster", "--task", "count"]).expect(0);
    // Answers stand in the order they arrived in.
    let text = result(&home);
    let mut answers: Vec<&str> = text.lines().collect();
    answers.sort_unstable();
    assert_eq!(answers, ["coder said: done: count for coder", "reviewer said: done: count for reviewer"]);
    // stdout belongs to the entry member; the announcement and the peers' talk are on stderr.
    assert!(output.stdout.starts_with("murmur: url localhost:"), "{}", output.stdout);
    assert!(output.stdout.ends_with("status:  ok\n"), "{}", output.stdout);
    for line in ["formation: frm_", "  peer   coder     local/worker@1.0.0  pid ", "  entry  lead      starting"] {
        assert!(output.stderr.contains(line), "{line:?} not in\n{}", output.stderr);
    }
    assert!(!output.stderr.contains("E-RUN-040"), "{}", output.stderr);
    assert!(home.running().is_empty());
}

#[test]
fn a_roster_of_one_member_makes_no_formation_directory() {
    let home = Home::new();
    let one = Capsule::saying("one", "alone: {{text}}");
    one.install(&home);
    home.write("roster.yaml", roster(&[("lead", &one)], json!([])));
    home.mur(["run", "--roster", "--task", "hello"]).expect(0);
    assert_eq!(result(&home), "alone: hello");
    assert!(home.formations().is_empty());
}

#[test]
fn the_announcement_is_one_json_line_before_the_entry_members() {
    let home = Home::new();
    standard(&home, &worker());
    let output = home.mur(["run", "--roster", "--json", "--task", "x"]).expect(0);
    let lines: Vec<Value> = output.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.len(), 2, "{}", output.stdout);
    assert_eq!(lines[0]["entry"], "lead");
    assert_eq!(lines[0]["deadline"], Value::Null);
    let names: Vec<&str> =
        lines[0]["peers"].as_array().unwrap().iter().map(|peer| peer["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["coder", "reviewer"]);
    let peer = &lines[0]["peers"][0];
    assert!(peer["url"].as_str().unwrap().starts_with("http://localhost:"));
    assert!(peer.get("tokens").is_none());
    assert_eq!(lines[1]["formation_id"], lines[0]["formation_id"]);
    assert!(lines[1]["url"].as_str().unwrap().starts_with("localhost:"));
}

#[test]
fn each_peer_has_a_private_directory_and_the_formation_a_marker() {
    let home = Home::new();
    standard(&home, &worker());
    home.mur(["run", "--roster", "--task", "x"]).expect(0);
    let [dir] = &home.formations()[..] else { panic!("one formation") };
    let marker: Value = serde_json::from_slice(&fs::read(dir.join("formation.json")).unwrap()).unwrap();
    assert_eq!(marker["project_dir"], home.project().to_str().unwrap());
    assert!(marker["launcher_pid"].is_u64() && marker["launcher_start"].is_string());
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&dir.join("formation.json")), 0o600);
    for peer in ["coder", "reviewer"] {
        assert_eq!(mode(&dir.join(peer)), 0o700);
        assert_eq!(fs::read_dir(dir.join(peer)).unwrap().count(), 0, "the runtime made something in {peer}'s folder");
        let group = home.murmur().join("records").join(dir.join(peer).strip_prefix("/").unwrap());
        assert_eq!(trace::sessions(group).len(), 1);
    }
    let mut left: Vec<_> = fs::read_dir(home.project()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    left.sort();
    assert_eq!(left, ["roster.yaml"], "something was written in the entry member's folder");
}

#[test]
fn traces_name_members_callees_and_callers() {
    let home = Home::new();
    standard(&home, &worker());
    home.mur(["run", "--roster", "--task", "x"]).expect(0);
    let sessions = trace::sessions(home.murmur().join("records"));
    assert_eq!(sessions.len(), 3);
    let mut callees = Vec::new();
    for session in &sessions {
        let records = trace::read(session);
        let start = &records[0];
        assert_eq!(start["event_type"], "session_start");
        assert_eq!(records.last().unwrap()["event_type"], "session_end");
        callees.push((start["formation_member"].as_str().unwrap().to_owned(), start["formation_callees"].clone()));
        for received in trace::of(&records, "a2a_task_received") {
            assert_eq!(received["caller_member"], "lead");
        }
    }
    callees.sort_by(|a, b| a.0.cmp(&b.0));
    let expected = [("coder", json!([])), ("lead", json!(["coder", "reviewer"])), ("reviewer", json!(["coder"]))];
    assert_eq!(callees, expected.map(|(name, callees)| (name.to_owned(), callees)));
    let lead = trace::read(entry_session(&home));
    assert_eq!(trace::of(&lead, "member_call").len(), 2);
    assert_eq!(trace::of(&lead, "task_continued").len(), 1);
    let shown = home.mur(["trace", "show", lead[0]["formation_id"].as_str().unwrap()]).expect(0);
    assert!(shown.stdout.contains("lead → coder"), "{}", shown.stdout);
    assert!(shown.stdout.contains("calls:      2"), "{}", shown.stdout);
}

#[test]
fn members_run_their_own_processes_groups_and_environment() {
    let home = Home::new();
    standard(&home, &worker());
    let formation = Launched::open(&home);
    let id = formation.id();
    for (pid, entry) in formation.members().into_iter().zip([true, false, false]) {
        let environment = String::from_utf8_lossy(&proc::environment(pid)).replace('\0', "\n");
        assert!(environment.contains(&format!("MURMUR_FORMATION_ID={id}\n")), "{environment}");
        assert!(
            environment.contains("MURMUR_FORMATION_CHANNEL=") && environment.contains("MURMUR_FORMATION_LIFELINE=")
        );
        assert!(environment.contains("MURMUR_HOST_WARNINGS_REPORTED=1"));
        assert!(!environment.contains("MURMUR_FORMATION_PEERS"));
        let group = nix::unistd::getpgid(Some(nix::unistd::Pid::from_raw(pid))).unwrap().as_raw();
        let launcher =
            nix::unistd::getpgid(Some(nix::unistd::Pid::from_raw(formation.launcher.pid()))).unwrap().as_raw();
        assert_eq!(group == launcher, entry, "process group of {pid}");
        assert_eq!(group == pid, !entry);
        let cwd = fs::read_link(format!("/proc/{pid}/cwd")).unwrap();
        assert_eq!(cwd, home.project(), "the current directory is the launcher's");
    }
    formation.launcher.signal(Signal::SIGTERM);
    formation.launcher.finish().expect(128 + 15);
}

#[test]
fn without_a_task_the_entry_member_takes_tasks_one_after_another() {
    let home = Home::new();
    standard(&home, &worker());
    let formation = Launched::open(&home);
    let door = formation.door(&home);
    for text in ["one", "two"] {
        let task = door.ended(&door.send(text));
        assert_eq!(task["status"]["state"], "TASK_STATE_COMPLETED", "{task}");
        assert!(mur_tests::live::door::answer_text(&task).contains(text), "{task}");
    }
    let stopped = home.mur(["stop", &formation.id()]).expect(0);
    assert!(stopped.stdout.contains(&format!("stopped:  {}", formation.id())), "{}", stopped.stdout);
    assert!(stopped.stdout.contains(", SIGTERM"), "{}", stopped.stdout);
    assert_eq!(stopped.stdout.matches("formation_ended").count(), 3, "{}", stopped.stdout);
    let output = formation.launcher.finish().expect(128 + 15);
    assert!(
        output.stderr.contains("[mur run] SIGTERM: the formation was stopped; stopped: lead (pid "),
        "{}",
        output.stderr
    );
}

#[test]
fn a_busy_member_is_offered_the_task_until_it_takes_it() {
    let home = Home::new();
    // Two callers and room for one task: the second call is answered busy first.
    let single = slow_worker(1500).with(json!({"lifecycle": {"queue_depth": 1}}));
    let lead = lead();
    let middle = {
        let mut middle = lead.clone();
        middle.name = "middle".into();
        middle.with(json!({"name": "middle"}))
    };
    for capsule in [&lead, &middle, &single] {
        capsule.install(&home);
    }
    let rules = json!([{"from": "lead", "to": ["m1", "m2", "m3"]}, {"from": "m1", "to": ["shared"]},
        {"from": "m2", "to": ["shared"]}, {"from": "m3", "to": ["shared"]}]);
    let members = [("lead", &lead), ("m1", &middle), ("m2", &middle), ("m3", &middle), ("shared", &single)];
    home.write("roster.yaml", roster(&members, rules));
    let output = home.mur(["run", "--roster", "--task", "x"]).expect(0);
    assert!(output.stderr.contains("warning[W-ROS-001]"), "{}", output.stderr);
    let text = result(&home);
    assert_eq!(text.matches("shared said: late:").count(), 3, "{text}");
    let busy: usize = trace::sessions(home.murmur().join("records"))
        .iter()
        .map(|session| trace::of(&trace::read(session), "member_call_busy").len())
        .sum();
    assert!(busy >= 1, "no member was ever busy");
}

#[test]
fn a_chain_of_calls_answers_all_the_way_up() {
    let home = Home::new();
    let link = lead();
    let end = worker();
    link.install(&home);
    end.install(&home);
    let rules = json!([{"from": "a", "to": ["b"]}, {"from": "b", "to": ["c"]}, {"from": "c", "to": ["d"]},
        {"from": "d", "to": ["e"]}]);
    let members = [("a", &link), ("b", &link), ("c", &link), ("d", &link), ("e", &end)];
    home.write("roster.yaml", roster(&members, rules));
    home.mur(["run", "--roster", "--task", "deep"]).expect(0);
    let session = trace::sessions(home.murmur().join("records").join(home.project().strip_prefix("/").unwrap()));
    let text = fs::read_to_string(session[0].join("out/result.txt")).unwrap();
    assert!(text.starts_with("b said: c said: d said: e said: done: deep for b for c for d for e"), "{text}");
}

#[test]
fn proxies_in_the_environment_change_nothing() {
    let mut home = Home::new();
    standard(&home, &worker());
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"] {
        home.set(name, "http://127.0.0.1:1");
    }
    home.mur(["run", "--roster", "--task", "x"]).expect(0);
    assert!(result(&home).contains("coder said:"));
}

#[test]
fn a_project_reached_by_a_link_and_named_in_any_alphabet_is_one_project() {
    let home = Home::new();
    standard(&home, &worker());
    let real = home.scratch("проект-名前");
    fs::copy(home.project().join("roster.yaml"), real.join("roster.yaml")).unwrap();
    let link = home.scratch("links").join("link");
    std::os::unix::fs::symlink(&real, &link).unwrap();
    home.mur(["run".as_ref(), "--roster".as_ref(), link.as_os_str(), "--task".as_ref(), "x".as_ref()]).expect(0);
    let [dir] = &home.formations()[..] else { panic!("one formation") };
    let marker: Value = serde_json::from_slice(&fs::read(dir.join("formation.json")).unwrap()).unwrap();
    assert_eq!(marker["project_dir"], real.to_str().unwrap());
    let group = home.murmur().join("records").join(real.strip_prefix("/").unwrap());
    assert_eq!(trace::sessions(group).len(), 1);
}

#[test]
fn a_launch_leaves_no_process_behind() {
    let home = Home::new();
    standard(&home, &worker());
    let formation = Launched::open(&home);
    let all = proc::descendants(formation.launcher.pid());
    assert!(all.len() >= 1 + 3 + 3, "launcher, members and a worker each: {all:?}");
    formation.launcher.signal(Signal::SIGINT);
    formation.launcher.finish().expect(128 + 2);
    run::until("every process is gone", || all.iter().all(|pid| !proc::runs(*pid)));
}
