//! "What a member's components are handed" of the roster seed: virtual addresses, as real components use them. The test
//! stands in for the launcher, and a server of its own for the called member's door, so it sees what really arrives.

#![allow(clippy::disallowed_methods, reason = "a shell reads what components are handed")]

use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsRawFd;
use std::time::Instant;

use mur_tests::launcher::{FORMATION, Member, first_line, pipe, token, urls_line};
use mur_tests::{Agent, Answer, Door, Provider, Roster, Seen, World, bundled_component, wait_until};
use nix::sys::signal::Signal::SIGTERM;
use serde_json::{Value, json};

/// A tool that makes the request it is told to, with headers no component may set for itself, and tells what came back.
fn caller_config() -> Value {
    json!({"rules": [{"turns": [request_steps(json!({"raw": "{{response | quote}}"}))], "repeat": true}]})
}

/// Steps that make the request the text describes.
fn request_steps(last: Value) -> Value {
    json!([
        {"let": {"asked": "{{text | json}}"}},
        {"http": "{{asked.url}}", "method": "{{asked.method | default \"POST\"}}", "body": "{{asked.body | default \"\"}}",
         "headers": {
            "Authorization": "Bearer forged", "x-murmur-task-origin": "user", "X-Murmur-Task-Trust": "trusted",
            "Content-Type": "application/json", "A2A-Version": "1.0", "x-own": "kept",
         }},
        last,
    ])
}

/// An agent that hands each task to its tool, or, where the task says so, makes the request in its driver. A task of
/// `env` tells the environments of both.
fn agent(world: &World) -> Agent {
    let tool = world.install_tool("caller", &bundled_component("driver-scripted"));
    let input = json!({"model": "m", "max_tokens": 1, "system": "", "tools": [], "params": {},
        "messages": [{"role": "user", "content": [{"type": "text", "text": "{{text}}"}]}]});
    let tool_rules = caller_config();
    let mut rules = vec![json!({"when": {"equals": "env"}, "turns": [[{"raw": "{{env | quote}}"}]], "repeat": true})];
    rules.extend(tool_rules["rules"].as_array().cloned().unwrap_or_default());
    let script = json!({"rules": [
        {"when": {"contains": "\"by\":\"driver\""}, "repeat": true,
         "turns": [request_steps(json!({"say": "{{response | quote}}"}))]},
        {"when": {"equals": "env"}, "repeat": true,
         "turns": [[{"call": "caller", "input": input}], [{"say": "{\"driver\":{{env | quote}},\"tool\":{{result}}}"}]]},
        {"turns": [[{"call": "caller", "input": input}], [{"say": "{{result}}"}]], "repeat": true},
    ]});
    let mut entry = tool;
    entry["config"] = json!({"rules": rules});
    // The script lies in the driver's own entry, so that the tool is not handed it.
    Agent::scripted("boss", Value::Null)
        .driver_entry(|driver| driver["config"] = script)
        .artifact(entry)
        .peer()
        .network(&["localhost"])
}

/// Has a task made into a request, and gives what came back of it.
#[track_caller]
fn ask(member: &Member, task: &Value) -> Value {
    answer(&member.door(), &task.to_string())
}

/// What a task answers, as JSON.
#[track_caller]
fn answer(door: &Door, text: &str) -> Value {
    let task = door.ask(text);
    let told = task["artifacts"][0]["parts"][0]["text"].as_str().unwrap_or_else(|| panic!("{task}")).to_owned();
    serde_json::from_str(&told).unwrap_or_else(|fault| panic!("{fault}: {told}"))
}

/// A door of the test's own.
fn peer() -> Provider {
    Provider::play([Answer::json(200, &json!({"from": "the peer"}))])
}

/// A provider's address as a door's: by the name the runtime gives doors.
fn door_url(peer: &Provider) -> String {
    peer.url().replace("127.0.0.1", "localhost")
}

fn count(seen: &Seen, name: &str) -> usize {
    seen.headers.iter().filter(|(key, _)| key == name).count()
}

/// Both kinds of component a member runs: a tool and its http driver.
const BOTH: [&str; 2] = ["tool", "driver"];

#[test]
fn a_component_calls_a_member_at_its_virtual_address_with_the_edges_token_and_the_runtimes_stamp() {
    let world = World::new();
    let agent = agent(&world);
    let peer = peer();
    let mut member = Member::start(&world, &agent, &["coder"]);
    member.tell(&[("coder", &door_url(&peer))]);
    let vouching = member.door().header("x-murmur-task-origin", "peer").header("x-murmur-task-trust", "trusted");
    for by in BOTH {
        // A task of an outside client is untrusted; one that the operator's token vouches for is trusted.
        for (door, trust) in [(&member.door(), "untrusted"), (&vouching, "trusted")] {
            let task = json!({"url": "http://coder.formation.invalid/a/b?c=d", "by": by, "body": "{\"n\":1}"});
            let told = answer(door, &task.to_string());
            assert_eq!((&told["status"], &told["error"]), (&json!(200), &Value::Null), "{by}: {told}");
            assert!(told["body"].as_str().expect("a body").contains("the peer"), "{told}");
            let seen = peer.seen().pop().expect("a request");
            assert_eq!((seen.method.as_str(), seen.path.as_str(), &seen.body), ("POST", "/a/b?c=d", &json!({"n": 1})));
            assert_eq!(seen.header("authorization"), Some(&*format!("Bearer {}", token("boss", "coder"))), "{by}");
            assert_eq!(seen.header("x-murmur-task-origin"), Some("peer"), "{by}");
            assert_eq!(seen.header("x-murmur-task-trust"), Some(trust), "{by}");
            for name in ["authorization", "x-murmur-task-origin", "x-murmur-task-trust", "host"] {
                assert_eq!(count(&seen, name), 1, "{by}: {name}");
            }
            assert_eq!(seen.header("x-own"), Some("kept"));
            assert_eq!(seen.header("host"), door_url(&peer).strip_prefix("http://"));
        }
    }
    member.running.signal(SIGTERM);
}

#[test]
fn a_launch_task_is_trusted_and_its_calls_say_so() {
    let world = World::new();
    let agent = agent(&world);
    let peer = peer();
    world.write("murmur.yaml", agent.manifest());
    let ((channel, tell), (lifeline, _holder)) = (pipe(), pipe());
    let task = json!({"url": "http://coder.formation.invalid/"});
    let lines = first_line("boss", &["coder"]) + &urls_line(&[("coder", &door_url(&peer))]);
    File::from(tell).write_all(lines.as_bytes()).expect("a pipe takes a line");
    let done = world
        .mur(["run", "--json", "--lifecycle-task-acceptance", "single", "--lifecycle-after-task", "exit", "--task"])
        .arg(task.to_string())
        .env("MURMUR_FORMATION_ID", FORMATION)
        .env("MURMUR_FORMATION_CHANNEL", channel.as_raw_fd().to_string())
        .env("MURMUR_FORMATION_LIFELINE", lifeline.as_raw_fd().to_string())
        .run();
    assert_eq!(done.code(), Some(0), "{}", done.stderr);
    assert_eq!(peer.seen()[0].header("x-murmur-task-trust"), Some("trusted"));
}

#[test]
fn components_are_handed_their_callees_in_roster_order_and_nothing_else_supplies_the_variable() {
    let world = World::new();
    // Neither a list of the manifest nor the project's file puts anything into it.
    world.write(".env", "MURMUR_FORMATION_PEERS=forged=http://forged.example\nPLAIN=1\n");
    let agent = agent(&world).with(
        &["capabilities", "env", "allow"],
        json!(["MURMUR_FORMATION_PEERS", "MURMUR_FORMATION_ID", "MURMUR_FORMATION_CHANNEL", "PLAIN"]),
    );
    let member = Member::start(&world, &agent, &["zoe", "ada", "coder"]);
    let told = answer(&member.door(), "env");
    let peers =
        "zoe=http://zoe.formation.invalid ada=http://ada.formation.invalid coder=http://coder.formation.invalid";
    // A script reads it without a parser.
    let lines = std::process::Command::new("sh")
        .args(["-c", "for peer in $MURMUR_FORMATION_PEERS; do echo \"${peer%%=*} answers at ${peer#*=}\"; done"])
        .env("MURMUR_FORMATION_PEERS", told["tool"]["MURMUR_FORMATION_PEERS"].as_str().expect("a text"))
        .output()
        .expect("a shell");
    let lines = String::from_utf8(lines.stdout).expect("a text");
    assert_eq!(lines.lines().nth(1), Some("ada answers at http://ada.formation.invalid"), "{lines}");
    for kind in BOTH {
        let env = &told[kind];
        assert_eq!((&env["MURMUR_FORMATION_PEERS"], &env["PLAIN"]), (&json!(peers), &json!("1")), "{kind}: {told}");
        assert!(env.get("MURMUR_FORMATION_CHANNEL").is_none(), "{kind}: {told}");
        assert!(!env.to_string().contains("mft1."), "{kind}: {told}");
    }
    member.running.signal(SIGTERM);
}

#[test]
fn a_member_that_may_call_nobody_is_handed_no_variable_at_all() {
    let world = World::new();
    world.write(".env", "MURMUR_FORMATION_PEERS=forged=http://forged.example\n");
    let agent = agent(&world).with(&["capabilities", "env", "allow"], json!(["MURMUR_FORMATION_PEERS"]));
    let member = Member::start(&world, &agent, &[]);
    let told = answer(&member.door(), "env");
    for kind in BOTH {
        assert!(told[kind].is_object() && told[kind].get("MURMUR_FORMATION_PEERS").is_none(), "{kind}: {told}");
    }
    member.running.signal(SIGTERM);
}

#[test]
fn peers_set_in_the_environment_of_mur_run_refuse_the_launch() {
    let world = World::new();
    world.write("murmur.yaml", Agent::scripted("plain", Value::Null).manifest());
    world.write("roster.yaml", "x");
    for value in ["coder=http://coder.formation.invalid", "", " "] {
        let done = world.mur(["run", "--task", "x"]).env("MURMUR_FORMATION_PEERS", value).run();
        done.refused("E-RUN-046");
        assert!(done.stderr.contains("MURMUR_FORMATION_PEERS"), "{}", done.stderr);
        world.mur(["run", "--roster"]).env("MURMUR_FORMATION_PEERS", value).run().refused("E-RUN-046");
    }
    assert!(world.traces().is_empty());
}

#[test]
fn a_name_that_may_not_be_called_and_one_that_does_not_exist_are_refused_alike_before_a_connection_opens() {
    let world = World::new();
    let agent =
        agent(&world).network(&["localhost", "127.0.0.1", "nobody.formation.invalid", "coder.formation.invalid"]);
    let peer = peer();
    let url = door_url(&peer);
    let mut member = Member::start(&world, &agent, &["coder"]);
    // The launcher tells only callees' doors; even one told by mistake opens nothing.
    member.tell(&[("coder", &url), ("reviewer", &url), ("boss", &url)]);
    for by in BOTH {
        let refused = |address: &str| {
            let told = ask(&member, &json!({"url": format!("{address}/x"), "by": by}));
            assert!(told["status"].is_null(), "{by} {address}: {told}");
            told["error"].as_str().unwrap_or_else(|| panic!("{told}")).replace(address, "ADDRESS")
        };
        let nobody = refused("http://nobody.formation.invalid");
        for address in [
            "http://reviewer.formation.invalid",
            "http://boss.formation.invalid",
            "http://formation.invalid",
            "http://.formation.invalid",
            "http://x.coder.formation.invalid",
            "http://reviewer.formation.invalid..",
            // The right member, at what is not its address.
            "https://coder.formation.invalid",
            "http://coder.formation.invalid:8080",
            "https://coder.formation.invalid:80",
            // Near misses, which are ordinary hosts that nothing allows.
            "http://coder.formation.invalid.example",
            "http://coder-formation.invalid",
            "http://xn--codr-loa.formation.invalid",
        ] {
            assert_eq!(refused(address), nobody, "{by} {address}");
        }
        // A user name is no part of any address that is sent to.
        let user = refused("http://coder@coder.formation.invalid");
        assert_eq!(user, refused("http://coder@nobody.formation.invalid"));
    }
    assert!(peer.seen().is_empty(), "{:?}", peer.seen());
    for by in BOTH {
        for address in
            ["http://Coder.FORMATION.invalid", "http://coder.formation.invalid:80", "http://coder.formation.invalid."]
        {
            let told = ask(&member, &json!({"url": address, "by": by}));
            assert_eq!(told["status"], 200, "{by} {address}: {told}");
        }
    }
    member.running.signal(SIGTERM);
}

#[test]
fn the_real_door_is_checked_against_the_sending_components_own_network_list() {
    let peer = peer();
    let url = door_url(&peer);
    let port = url.rsplit(':').next().expect("a port").to_owned();
    // The capsule's list, the tool's own list, whether the driver and the tool get through.
    let exact = format!("localhost:{port}");
    let (plain, secure) = (format!("http://localhost:{port}"), "https://localhost".to_owned());
    let rows: Vec<(Vec<&str>, Option<Vec<&str>>, bool, bool)> = vec![
        (vec!["localhost"], None, true, true),
        (vec!["localhost"], Some(vec![]), true, false),
        (vec!["localhost", "example.com"], Some(vec!["example.com"]), true, false),
        (vec!["localhost"], Some(vec![&exact]), true, true),
        (vec![&plain], None, true, true),
        (vec![&secure, "127.0.0.1", "coder.formation.invalid"], None, false, false),
        // A tool's own list adds nothing to the capsule's.
        (vec!["example.com"], Some(vec!["localhost"]), false, false),
        (vec![], None, false, false),
    ];
    for (capsule, own, driver, tool) in rows {
        let world = World::new();
        let mut agent = agent(&world).network(&capsule);
        if let Some(own) = &own {
            agent = agent.artifact_capability("caller", json!({"network": {"allow": own}}));
        }
        let mut member = Member::start(&world, &agent, &["coder"]);
        member.tell(&[("coder", &url)]);
        for (by, through) in [("driver", driver), ("tool", tool)] {
            let before = peer.seen().len();
            let told = ask(&member, &json!({"url": "http://coder.formation.invalid", "by": by}));
            assert_eq!(told["status"] == 200, through, "{capsule:?} {own:?} {by}: {told}");
            assert_eq!(peer.seen().len() - before, usize::from(through), "{capsule:?} {own:?} {by}");
            if !through {
                // Refused as any name is that may not be called, and without a word of the door.
                let nobody = ask(&member, &json!({"url": "http://nobody.formation.invalid", "by": by}));
                let text = |told: &Value| told["error"].as_str().unwrap_or_default().to_owned();
                assert_eq!(text(&told).replace("coder", "nobody"), text(&nobody), "{by}");
                assert!(!text(&told).contains(&port), "{told}");
            }
        }
        member.running.signal(SIGTERM);
    }
}

#[test]
fn a_request_to_the_real_door_past_the_virtual_address_carries_no_token() {
    let world = World::new();
    let agent = agent(&world);
    let peer = peer();
    let mut member = Member::start(&world, &agent, &["coder"]);
    member.tell(&[("coder", &door_url(&peer))]);
    let told = ask(&member, &json!({"url": door_url(&peer)}));
    assert_eq!(told["status"], 200, "{told}");
    assert_eq!(peer.seen()[0].header("authorization"), Some("Bearer forged"));
    member.running.signal(SIGTERM);
}

#[test]
fn an_address_that_has_not_arrived_yet_is_waited_for() {
    let world = World::new();
    let agent = agent(&world);
    let peer = peer();
    let mut member = Member::start(&world, &agent, &["coder"]);
    for by in BOTH {
        let task = member.door().send(&json!({"url": "http://coder.formation.invalid", "by": by}).to_string());
        let id = task["id"].as_str().expect("an id").to_owned();
        // Only when the component is at it does the launcher speak.
        wait_until("the task runs", || {
            let begun = if by == "tool" { "inference" } else { "task_start" };
            member.trace().all(begun).iter().any(|record| record["task_id"] == id.as_str())
        });
        member.tell(&[("coder", &door_url(&peer))]);
        let task = member.door().wait_for(&id, "TASK_STATE_COMPLETED");
        let told = task["artifacts"][0]["parts"][0]["text"].as_str().unwrap_or_default().to_owned();
        assert!(told.contains("\"status\":200"), "{by}: {told}");
        if by == "tool" {
            // The next one begins again without an address.
            member.running.signal(SIGTERM);
            member = Member::start(&world, &agent, &["coder"]);
        }
    }
    member.running.signal(SIGTERM);
}

#[test]
fn an_address_that_never_arrives_is_refused_after_ten_seconds_like_a_name_that_is_none() {
    let world = World::new();
    let agent = agent(&world);
    let member = Member::start(&world, &agent, &["coder"]);
    let nobody = ask(&member, &json!({"url": "http://nobody.formation.invalid"}));
    let begun = Instant::now();
    let told = ask(&member, &json!({"url": "http://coder.formation.invalid"}));
    assert!(begun.elapsed().as_secs() >= 9, "it was not waited for");
    assert_eq!(
        told["error"].as_str().map(|text| text.replace("coder", "nobody")),
        nobody["error"].as_str().map(str::to_owned)
    );
    member.running.signal(SIGTERM);
}

#[test]
fn a_large_request_and_a_broken_answer_pass_as_they_are() {
    let world = World::new();
    let agent = agent(&world);
    let broken = Answer::text(200, "text/plain", "half of what was promised").cut_after(1);
    let peer = Provider::play([Answer::json(404, &json!({"what": "none"})), broken]);
    let mut member = Member::start(&world, &agent, &["coder"]);
    member.tell(&[("coder", &door_url(&peer))]);
    // Larger than what is under way between worker and host at once.
    let text = "x".repeat(3 << 20);
    let told =
        ask(&member, &json!({"url": "http://coder.formation.invalid", "body": json!({"text": text}).to_string()}));
    assert_eq!(told["status"], 404, "{told}");
    assert_eq!(peer.seen()[0].body["text"].as_str().map(str::len), Some(3 << 20));
    let told = ask(&member, &json!({"url": "http://coder.formation.invalid"}));
    let error = told["error"].as_str().unwrap_or_default();
    assert!(told["status"].is_null() && !error.is_empty() && !error.contains("localhost"), "{told}");
    // A door nobody answers at is told as such, and not where it was.
    drop(peer);
    let told = ask(&member, &json!({"url": "http://coder.formation.invalid"}));
    let error = told["error"].as_str().unwrap_or_default();
    assert!(!error.is_empty() && !error.contains("localhost") && !error.contains("127.0.0.1"), "{told}");
    member.running.signal(SIGTERM);
}

#[test]
fn in_a_real_formation_a_tool_gives_a_member_work_and_cannot_reach_one_it_may_not_call() {
    let world = World::new();
    let say = json!([[{"say": "done: {{text}}"}]]);
    let worker = |name: &str| Agent::scripted(name, json!({"rules": [{"turns": say, "repeat": true}]})).peer();
    let roster = Roster::new()
        .member("boss", agent(&world))
        .member("coder", worker("coder"))
        .member("reviewer", worker("reviewer"))
        .rule("boss", &["coder"]);
    world.roster(&roster);
    let launcher = world.mur(["run", "--roster", "--json"]).start();
    let _ = launcher.json_line(0);
    let entry = launcher.json_line(1);
    let operator = world.mur(["token", entry["session_id"].as_str().expect("an id")]).ok().stdout;
    let door = Door::at(entry["url"].as_str().expect("a url")).token(operator.trim());
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "SendMessage",
        "params": {"message": {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "count"}]}}});
    for by in BOTH {
        let told = answer(
            &door,
            &json!({"url": "http://coder.formation.invalid/", "body": message.to_string(), "by": by}).to_string(),
        );
        assert_eq!(told["status"], 200, "{told}");
        assert!(told["body"].as_str().unwrap_or_default().contains("done: "), "{told}");
        for stranger in ["reviewer", "nobody"] {
            let told = answer(
                &door,
                &json!({"url": format!("http://{stranger}.formation.invalid/"), "body": message.to_string(), "by": by})
                    .to_string(),
            );
            assert!(told["status"].is_null(), "{told}");
        }
    }
    launcher.signal(SIGTERM);
    launcher.wait();
    let coder = world.trace("coder");
    for received in coder.all("a2a_task_received") {
        assert_eq!(received["caller_member"], "boss");
    }
    let starts = coder.all("task_start");
    assert_eq!(starts.len(), 2);
    for start in starts {
        assert_eq!((&start["origin"], &start["trust"]), (&json!("peer"), &json!("untrusted")));
    }
    assert!(world.trace("reviewer").all("a2a_task_received").is_empty());
}

#[test]
fn in_a_real_formation_callees_are_named_in_roster_order_and_a_member_that_calls_nobody_is_told_of_nobody() {
    let world = World::new();
    let env = json!({"rules": [{"turns": [[{"say": "{{env | quote}}"}]], "repeat": true}]});
    let quiet = |name: &str| Agent::scripted(name, env.clone()).peer();
    let roster = Roster::new()
        .member("boss", agent(&world))
        .member("zoe", quiet("zoe"))
        .member("mid", quiet("mid"))
        .member("ada", quiet("ada"))
        .rule("boss", &["ada"])
        .rule("boss", &["zoe", "ada"]);
    world.roster(&roster);
    let launcher = world.mur(["run", "--roster", "--json"]).start();
    let formation = launcher.json_line(0);
    let entry = launcher.json_line(1);
    let door = |line: &Value| {
        let token = world.mur(["token", line["session_id"].as_str().expect("an id")]).ok().stdout;
        Door::at(line["url"].as_str().expect("a url")).token(token.trim())
    };
    let told = answer(&door(&entry), "env");
    for kind in BOTH {
        let expected = "zoe=http://zoe.formation.invalid ada=http://ada.formation.invalid";
        assert_eq!(told[kind]["MURMUR_FORMATION_PEERS"], expected, "{kind}: {told}");
    }
    for peer in formation["peers"].as_array().expect("peers") {
        let told = answer(&door(peer), "env");
        assert!(told.is_object() && told.get("MURMUR_FORMATION_PEERS").is_none(), "{told}");
    }
    launcher.signal(SIGTERM);
    launcher.wait();
}
