//! "What a door answers" of the roster seed, row by row, at a real member's door. The test stands in for the launcher: it
//! holds the signing key, so it can also sign what a launcher never would.

#![allow(unsafe_code, reason = "descriptors are handed over between fork and exec")]

use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use mur_tests::launcher::{self, FORMATION, key, signed, token};
use mur_tests::live::door::message;
use mur_tests::live::formation::slow_worker;
use mur_tests::live::{Capsule, Door, Home, Running, trace};
use serde_json::{Value, json};

/// A member started with credentials of the test's own making. Dropping it closes its lifeline.
struct Member {
    running: Running,
    address: String,
    operator: String,
    _lifeline: OwnedFd,
}

fn start(home: &Home, capsule: &Capsule) -> Member {
    capsule.install(home);
    let first = launcher::first_line("coder", &[]);
    let (channel, write) = nix::unistd::pipe().unwrap();
    std::fs::File::from(write).write_all(first.as_bytes()).unwrap();
    // Only this process may hold the write end: the member must not inherit it.
    let (lifeline, holder) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).unwrap();
    let mut command =
        home.command(capsule.run_flags().iter().map(String::as_str).chain(["--json", "--readiness-tokens"]));
    command.env("MURMUR_FORMATION_ID", FORMATION);
    command.env("MURMUR_FORMATION_CHANNEL", "60").env("MURMUR_FORMATION_LIFELINE", "61");
    let (from_channel, from_lifeline) = (channel.as_raw_fd(), lifeline.as_raw_fd());
    // SAFETY: dup2 between fork and exec, on descriptors this process holds open.
    unsafe {
        command.pre_exec(move || {
            for (from, to) in [(from_channel, 60), (from_lifeline, 61)] {
                if libc::dup2(from, to) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
    let running = Running::start(command);
    let line = running.json_line("session_id");
    assert_eq!(line["formation_id"], FORMATION);
    Member {
        address: line["url"].as_str().unwrap().to_owned(),
        operator: line["tokens"]["operator"].as_str().unwrap().to_owned(),
        running,
        _lifeline: holder,
    }
}

impl Member {
    fn door(&self, token: &str) -> Door {
        Door::new(&self.address, token)
    }
}

#[test]
fn every_row_of_what_a_door_answers() {
    let home = Home::new();
    let member = start(&home, &slow_worker(600_000));
    let ask = |token: &str| member.door(token).ask("GetTask", json!({"id": "tsk_none"}), &[]);

    let none = ask("");
    assert_eq!((none.status, none.json()["error"].clone()), (401, json!("unauthenticated")));
    assert_eq!(none.header("www-authenticate"), Some("Bearer realm=\"worker\""));

    let good = token("lead", "coder");
    let payload = good.split('.').nth(1).unwrap();
    let signature = good.split('.').nth(2).unwrap();
    let plain = |text: String| signed(&key(1), &text);
    let invalid = [
        "nonsense".to_owned(),
        "mft1.".to_owned(),
        format!("mft1.{payload}"),
        // Signed by another key, altered, padded, another formation's.
        signed(&key(2), &format!(r#"{{"formation":"{FORMATION}","from":"lead","to":"coder"}}"#)),
        format!(
            "mft1.{}.{signature}",
            URL_SAFE_NO_PAD.encode(format!(r#"{{"formation":"{FORMATION}","from":"root","to":"coder"}}"#))
        ),
        format!("{good}="),
        format!("mft1.{payload}=.{signature}"),
        plain(format!(r#"{{"formation":"{}","from":"lead","to":"coder"}}"#, FORMATION.replace('a', "b"))),
        // Well signed, but not the three keys, each once, in their order, unescaped.
        plain(format!(r#"{{"formation":"{FORMATION}","from":"lead","to":"coder","x":"y"}}"#)),
        plain(format!(r#"{{"from":"lead","formation":"{FORMATION}","to":"coder"}}"#)),
        plain(format!(r#"{{"formation":"{FORMATION}","from":"lead","to":"other","to":"coder"}}"#)),
        plain(format!(r#"{{"formation":"{FORMATION}","from":"l\u0065ad","to":"coder"}}"#)),
        plain(format!(r#"{{"formation":"{FORMATION}","from":"Lead","to":"coder"}}"#)),
        plain(format!(r#"{{"formation":"{FORMATION}","from":"lead"}}"#)),
    ];
    let first = ask(&invalid[0]);
    assert_eq!((first.status, first.json()["error"].clone()), (401, json!("invalid_token")));
    for bad in &invalid {
        let answer = ask(bad);
        assert_eq!((answer.status, &answer.body), (401, &first.body), "{bad}");
        assert_eq!(answer.header("www-authenticate"), first.header("www-authenticate"));
    }

    let elsewhere = ask(&token("lead", "reviewer"));
    assert_eq!((elsewhere.status, elsewhere.json()["error"].clone()), (403, json!("not_permitted")));
    assert_eq!(elsewhere.json()["message"], "member 'lead' may not call this capsule");
    assert!(!String::from_utf8_lossy(&elsewhere.body).contains("reviewer"));

    for method in ["SendStreamingMessage", "murmur.WatchSession", "murmur.StopSession"] {
        let answer = member.door(&good).ask(method, json!({}), &[]);
        assert_eq!((answer.status, answer.json()["error"].clone()), (403, json!("insufficient_scope")), "{method}");
        assert_eq!(answer.json()["message"], format!("credential 'member:lead' does not reach {method}"));
    }
    let files = member.door(&good).raw("GET", "/resources/files", &[("authorization", &format!("Bearer {good}"))], b"");
    assert_eq!(files.status, 403);

    for method in ["GetTask", "ListTasks", "CancelTask", "SubscribeToTask"] {
        assert_eq!(member.door(&good).ask(method, json!({"id": "tsk_none"}), &[]).status, 200, "{method}");
    }
    let card = member.door(&good).call("GetExtendedAgentCard", json!({}));
    assert!(card["result"]["name"].is_string(), "{card}");

    let peer = [("x-murmur-task-origin", "peer"), ("x-murmur-task-trust", "trusted")];
    let sent = member.door(&good).ask("SendMessage", message("work", true), &peer).json();
    let task = sent["result"]["task"]["id"].as_str().unwrap().to_owned();
    assert_eq!(member.door(&good).call("GetTask", json!({"id": task}))["result"]["id"], task.as_str());
    assert_eq!(member.door(&member.operator).call("GetTask", json!({"id": task}))["result"]["id"], task.as_str());
    let session = trace::sessions(home.murmur().join("records")).remove(0);
    mur_tests::live::run::until("the task is traced", || {
        !trace::of(&trace::read(&session), "a2a_task_received").is_empty()
    });
    let records = trace::read(&session);
    assert_eq!(trace::of(&records, "a2a_task_received")[0]["caller_member"], "lead");
    member.running.signal(nix::sys::signal::Signal::SIGTERM);
}

#[test]
fn another_members_task_answers_as_one_that_never_was() {
    let home = Home::new();
    let member = start(&home, &slow_worker(600_000));
    let (ada, bela) = (member.door(&token("ada", "coder")), member.door(&token("bela", "coder")));
    let task = |door: &Door| {
        let peer = [("x-murmur-task-origin", "peer")];
        door.ask("SendMessage", message("work", true), &peer).json()["result"]["task"]["id"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let (live, queued) = (task(&ada), task(&ada));
    let own = task(&bela);
    // One that has ended: cancelled by its owner while it waited.
    let ended = task(&ada);
    ada.call("CancelTask", json!({"id": ended}));
    for method in ["GetTask", "CancelTask", "SubscribeToTask"] {
        let unknown = bela.call(method, json!({"id": "tsk_00000000000000000000000000000000"}));
        assert_eq!(unknown["error"]["code"], -32001, "{method}: {unknown}");
        for id in [&live, &queued, &ended] {
            let answer = bela.call(method, json!({"id": id}));
            let expected = unknown.to_string().replace("tsk_00000000000000000000000000000000", id);
            assert_eq!(answer.to_string(), expected, "{method}");
        }
    }
    let listed = |door: &Door| {
        let list = door.call("ListTasks", json!({}));
        let mut ids: Vec<String> = list["result"]["tasks"]
            .as_array()
            .unwrap()
            .iter()
            .map(|task| task["id"].as_str().unwrap().to_owned())
            .collect();
        ids.sort();
        ids
    };
    assert_eq!(listed(&bela), std::slice::from_ref(&own));
    let mut of_ada = vec![live.clone(), queued.clone(), ended];
    of_ada.sort();
    assert_eq!(listed(&ada), of_ada);
    for id in [&live, &queued] {
        let state = ada.call("GetTask", json!({"id": id}))["result"]["status"]["state"].clone();
        assert!(state != "TASK_STATE_CANCELED", "nothing of another's was cancelled: {state}");
    }
    member.running.signal(nix::sys::signal::Signal::SIGTERM);
}

#[test]
fn a_door_that_serves_no_peers_refuses_their_tasks_after_the_token() {
    let home = Home::new();
    let capsule = Capsule::saying("worker", "x").with(json!({"network": {"authentication": {"scheme": "bearer"}}}));
    let member = start(&home, &capsule);
    let peer = [("x-murmur-task-origin", "peer")];
    let stranger = member.door("mft1.x.y").ask("SendMessage", message("x", true), &peer);
    assert_eq!(stranger.status, 401);
    let refused = member.door(&token("lead", "coder")).ask("SendMessage", message("x", true), &peer);
    assert_eq!(refused.status, 403);
    assert_eq!(
        refused.json(),
        json!({"error": "peer_not_accepted", "message": "this capsule does not accept tasks from peers"})
    );
    member.running.signal(nix::sys::signal::Signal::SIGTERM);
}

#[test]
fn a_door_in_no_formation_takes_every_formation_token_for_invalid() {
    let home = Home::new();
    let capsule = Capsule::saying("worker", "x").member();
    capsule.install(&home);
    let running = home.start(capsule.run_flags().iter().map(String::as_str).chain(["--json"]));
    let line = running.json_line("session_id");
    let answer =
        Door::new(line["url"].as_str().unwrap(), &token("lead", "coder")).ask("GetTask", json!({"id": "t"}), &[]);
    assert_eq!((answer.status, answer.json()["error"].clone()), (401, json!("invalid_token")));
    running.signal(nix::sys::signal::Signal::SIGTERM);
    running.finish().expect(0);
}

#[test]
fn a_subscriber_sees_the_present_state_first_and_a_lost_one_harms_nothing() {
    let home = Home::new();
    let member = start(&home, &slow_worker(1500));
    let door = member.door(&token("ada", "coder"));
    let peer = [("x-murmur-task-origin", "peer")];
    let sent = door.ask("SendMessage", message("work", true), &peer).json();
    let task = sent["result"]["task"]["id"].as_str().unwrap().to_owned();
    drop(door.stream("SubscribeToTask", json!({"id": task}), &[]));
    let mut stream = door.stream("SubscribeToTask", json!({"id": task}), &[]);
    assert_eq!(stream.status, 200);
    assert_eq!(stream.headers.iter().find(|(name, _)| name == "content-type").unwrap().1, "text/event-stream");
    let first = stream.next_event().unwrap();
    assert_eq!(first.data["result"]["task"]["id"], task.as_str());
    let mut last = Value::Null;
    while let Some(event) = stream.next_event() {
        last = event.data;
    }
    assert_eq!(last.pointer("/result/statusUpdate/status/state"), Some(&json!("TASK_STATE_COMPLETED")), "{last}");
    let over = door.call("SubscribeToTask", json!({"id": task}));
    assert_eq!(over["error"]["code"], -32004, "{over}");
    member.running.signal(nix::sys::signal::Signal::SIGTERM);
}
