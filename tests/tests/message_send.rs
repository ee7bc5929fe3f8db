//! `murmur:message/send` from a real tool: to a member's virtual address, to a real one, and to what it may not reach.

use mur_tests::launcher::{Member, token};
use mur_tests::{Agent, Answer, Door, Provider, Roster, World, component};
use nix::sys::signal::Signal::SIGTERM;
use serde_json::{Value, json};

/// Sends "hello" under the id `m-1` to the address in its input, and answers with the state or the error.
fn sender() -> Vec<u8> {
    let text = component::tool(
        r#"(import "murmur:message/send@0.1.0" (instance $api
            (type $message0 (record (field "message-id" string) (field "context-id" (option string))
                (field "text" string)))
            (export "message" (type $message (eq $message0)))
            (type $answer0 (record (field "task-id" string) (field "context-id" string) (field "state" string)))
            (export "task-result" (type $answer (eq $answer0)))
            (export "send" (func (param "peer-url" string) (param "message" $message)
                (result (result $answer (error string)))))))
        (core module $libc
            (memory (export "memory") 4)
            (global $free (mut i32) (i32.const 4096))
            (func (export "realloc") (param i32 i32 i32 i32) (result i32)
                (local $at i32)
                (local.set $at (i32.and (i32.add (global.get $free) (i32.const 7)) (i32.const -8)))
                (global.set $free (i32.add (local.get $at) (local.get 3)))
                (local.get $at)))
        (core instance $libc (instantiate $libc))
        (alias export $api "send" (func $send))
        (core func $send' (canon lower (func $send) (memory $libc "memory") (realloc (func $libc "realloc"))))
        (core module $m
            (import "host" "send" (func $send (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32)))
            (import "libc" "memory" (memory 1))
            (data (i32.const 1024) "m-1hello")
            ;; The input is {"url":"…"}: parameters 1 and 2. What `send` returns lies at 256, the result at 64.
            (func (export "run") (param i32 i32 i32 i32 i32 i32) (result i32)
                (call $send
                    (i32.add (local.get 1) (i32.const 8)) (i32.sub (local.get 2) (i32.const 10))
                    (i32.const 1024) (i32.const 3) (i32.const 0) (i32.const 0) (i32.const 0)
                    (i32.const 1027) (i32.const 5) (i32.const 256))
                (i32.store8 (i32.const 64) (i32.load8_u (i32.const 256)))
                (i32.store (i32.const 80) (i32.const 1))
                (if (i32.load8_u (i32.const 256))
                    (then
                        (i32.store (i32.const 84) (i32.load (i32.const 260)))
                        (i32.store (i32.const 88) (i32.load (i32.const 264))))
                    (else
                        (i32.store (i32.const 84) (i32.load (i32.const 276)))
                        (i32.store (i32.const 88) (i32.load (i32.const 280)))))
                (i32.const 64)))
        (core instance $code (instantiate $m (with "host" (instance (export "send" (func $send'))))
            (with "libc" (instance $libc))))"#,
        "$libc",
    );
    wat::parse_str(text).expect("a component")
}

/// A member that has its tool send to the address each task names.
fn agent(world: &World) -> Agent {
    let tool = world.install_tool("sender", &sender());
    let script = json!({"rules": [{"repeat": true, "turns": [
        [{"call": "sender", "input": {"url": "{{text}}"}}], [{"say": "{{result}}"}],
    ]}]});
    Agent::scripted("boss", script).artifact(tool).peer().network(&["localhost"])
}

/// A door that takes every task.
fn taking() -> Provider {
    let task = json!({"id": "tsk_1", "contextId": "ctx_1", "status": {"state": "TASK_STATE_INPUT_REQUIRED"}});
    Provider::play([Answer::json(200, &json!({"jsonrpc": "2.0", "id": "m-1", "result": {"task": task}}))])
}

fn door_url(peer: &Provider) -> String {
    peer.url().replace("127.0.0.1", "localhost")
}

#[track_caller]
fn told(door: &Door, address: &str) -> String {
    let task = door.ask(address);
    task["artifacts"][0]["parts"][0]["text"].as_str().unwrap_or_else(|| panic!("{task}")).to_owned()
}

#[test]
fn a_message_reaches_a_member_at_its_virtual_address_and_the_trace_records_that_address() {
    let world = World::new();
    let agent = agent(&world);
    let peer = taking();
    let mut member = Member::start(&world, &agent, &["coder"]);
    member.tell(&[("coder", &door_url(&peer))]);
    let vouching = member.door().header("x-murmur-task-origin", "peer").header("x-murmur-task-trust", "trusted");
    for (door, trust) in [(member.door(), "untrusted"), (vouching, "trusted")] {
        assert_eq!(told(&door, "http://coder.formation.invalid"), "input-required");
        let seen = peer.seen().pop().expect("a request");
        assert_eq!(
            (seen.method.as_str(), seen.path.as_str(), &seen.body["method"]),
            ("POST", "/", &json!("SendMessage"))
        );
        let message = &seen.body["params"]["message"];
        assert_eq!((&message["messageId"], &message["parts"]), (&json!("m-1"), &json!([{"text": "hello"}])));
        assert_eq!(seen.header("authorization"), Some(&*format!("Bearer {}", token("boss", "coder"))));
        assert_eq!(
            (seen.header("x-murmur-task-origin"), seen.header("x-murmur-task-trust")),
            (Some("peer"), Some(trust))
        );
        assert_eq!(seen.header("a2a-version"), Some("1.0"));
    }
    let trace = member.trace();
    let sent = trace.all("a2a_send");
    assert_eq!(sent.len(), 2);
    for (record, trust) in sent.iter().zip(["untrusted", "trusted"]) {
        let expected = json!({"peer_url": "http://coder.formation.invalid", "message_id": "m-1", "task_id": "tsk_1",
            "context_id": "ctx_1", "trust": trust});
        for (key, value) in expected.as_object().expect("an object") {
            assert_eq!(&record[key.as_str()], value, "{key}");
        }
    }
    let port = peer.url().rsplit(':').next().expect("a port").to_owned();
    let text: String = trace.records().iter().map(|record| record.0.to_string()).collect();
    assert!(!text.contains(&format!("localhost:{port}")) && !text.contains("mft1."), "{text}");
    member.running.signal(SIGTERM);
}

#[test]
fn a_message_to_what_may_not_be_reached_is_refused_in_one_way_and_nothing_connects() {
    let world = World::new();
    let agent = agent(&world).artifact_capability("sender", json!({"network": {"allow": ["localhost:1"]}}));
    let peer = taking();
    let mut member = Member::start(&world, &agent, &["coder"]);
    member.tell(&[("coder", &door_url(&peer)), ("reviewer", &door_url(&peer))]);
    for address in [
        // Callable, but the tool's own list does not reach the door.
        "http://coder.formation.invalid",
        "http://reviewer.formation.invalid",
        "http://nobody.formation.invalid",
        "https://coder.formation.invalid",
        "http://coder.formation.invalid:81",
        "http://formation.invalid",
        &door_url(&peer),
        "http://example.com",
        "no address at all",
        "ftp://localhost",
    ] {
        let expected = format!("network policy: '{address}' not in capabilities.network.allow");
        assert_eq!(told(&member.door(), address), expected);
    }
    assert!(peer.seen().is_empty());
    assert!(member.trace().all("a2a_send").is_empty());
    member.running.signal(SIGTERM);
}

#[test]
fn a_message_to_a_real_address_carries_no_token_and_what_the_door_says_comes_back() {
    let world = World::new();
    let agent = agent(&world);
    let refusal = json!({"error": "unauthenticated", "message": "this door takes a token"});
    let peer = Provider::play([Answer::json(401, &refusal), Answer::text(200, "text/plain", "no JSON")]);
    let member = Member::start(&world, &agent, &["coder"]);
    let url = door_url(&peer);
    assert_eq!(told(&member.door(), &url), format!("'{url}' answered 401 Unauthorized: this door takes a token"));
    let seen = peer.seen();
    assert_eq!((seen[0].header("authorization"), seen[0].header("x-murmur-task-origin")), (None, Some("peer")));
    assert_eq!(told(&member.door(), &url), format!("'{url}' answered 200 OK without JSON"));
    assert!(member.trace().all("a2a_send").is_empty(), "only what a door took is sent");
    member.running.signal(SIGTERM);
}

#[test]
fn in_a_real_formation_the_member_that_is_sent_a_message_knows_who_sent_it() {
    let world = World::new();
    let say = json!({"rules": [{"turns": [[{"say": "done: {{text}}"}]], "repeat": true}]});
    let roster = Roster::new()
        .member("boss", agent(&world))
        .member("coder", Agent::scripted("coder", say).peer())
        .rule("boss", &["coder"]);
    world.roster(&roster);
    let done = world.mur(["run", "--roster", "--task", "http://coder.formation.invalid"]).run();
    assert_eq!(done.code(), Some(0), "{}", done.stderr);
    let (boss, coder) = (world.trace("boss"), world.trace("coder"));
    let (sent, received) = (boss.one("a2a_send"), coder.one("a2a_task_received"));
    assert_eq!((&sent["task_id"], &sent["context_id"]), (&received["task_id"], &received["context_id"]));
    assert_eq!((&received["caller_member"], &received["message_id"]), (&json!("boss"), &json!("m-1")));
    assert_eq!((&sent["peer_url"], &sent["trust"]), (&json!("http://coder.formation.invalid"), &json!("trusted")));
    assert!(["submitted", "working", "completed"].contains(&boss.result().unwrap_or_default().as_str()));
    let shown = world.mur(["trace", "show", boss.session(), "--workdir", "."]).ok().stdout;
    assert!(shown.contains("to http://coder.formation.invalid"), "{shown}");
    assert_ne!(sent["parent_id"], Value::Null);
}
