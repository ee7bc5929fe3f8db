//! Every row of what a door refuses, with its exact bytes.

use super::client::post;
use super::*;

const INVALID: &str = "{\"error\":\"invalid_token\",\"message\":\"the Authorization header does not present a token this session minted\"}";

#[tokio::test]
async fn a_caller_without_a_token_is_told_what_to_bring() {
    let house = House::open(MEMBER);
    for line in ["GET /", "GET /nowhere", "POST /x", "GET /resources/files"] {
        let answer = house.client().await.get(line, &[]).await;
        assert_eq!(answer.status, 401, "{line}");
        assert_eq!(answer.header("www-authenticate"), Some("Bearer realm=\"tally\""));
        assert_eq!(
            answer.json(),
            json!({
                "error": "unauthenticated",
                "message": "this door takes a token this capsule's runtime minted, as Authorization: Bearer <token>",
            })
        );
    }
    assert_eq!(house.call(&[], "GetTask", json!({})).await.status, 401);
    // An unknown path is a stranger's 401 and an admitted caller's 404.
    assert_eq!(house.client().await.get("GET /nowhere", &[&house.operator()]).await.status, 404);
}

#[tokio::test]
async fn r025_every_invalid_token_is_answered_alike() {
    let house = House::open(MEMBER);
    let other = House::open(MEMBER);
    let (good, operator) = (house.member("planner"), house.operator());
    let twin = format!("{}{}", &good[..good.len() - 1], if good.ends_with('A') { 'B' } else { 'A' });
    let two = format!("{operator}\r\n{operator}");
    let cases = [
        "Authorization: Basic eDp5".to_owned(),
        "Authorization: Bearer".to_owned(),
        "Authorization: Bearer ".to_owned(),
        "Authorization: Bearer mft1.".to_owned(),
        "Authorization: Bearer mdt1.x.y".to_owned(),
        "Authorization: Bearer \u{e9}".to_owned(),
        "Authorization:".to_owned(),
        other.operator(),
        other.member("planner"),
        twin,
        format!("{good}="),
        good.replace("Bearer ", "Bearer  "),
        good.replace("mft1", "mdt1"),
        two,
        format!("{operator}\r\n{good}"),
    ];
    for case in cases {
        let answer = house.call(&[&case], "GetTask", json!({ "id": "x" })).await;
        assert_eq!((answer.status, answer.text()), (401, INVALID), "{case}");
        assert_eq!(answer.header("www-authenticate"), Some("Bearer realm=\"tally\", error=\"invalid_token\""));
    }
}

#[tokio::test]
async fn a_door_in_no_formation_takes_every_formation_token_for_invalid() {
    let house = House::open(AUTHENTICATED);
    for token in [house.edge("planner", "coder"), house.edge("planner", "reviewer")] {
        let answer = house.call(&[&bearer(token.expose())], "GetTask", json!({ "id": "x" })).await;
        assert_eq!((answer.status, answer.text()), (401, INVALID));
    }
}

#[tokio::test]
async fn a_token_for_another_members_door_names_its_presenter_only() {
    let house = House::open(MEMBER);
    let answer = house.call(&[&bearer(house.edge("planner", "reviewer").expose())], "GetTask", json!({})).await;
    assert_eq!(answer.status, 403);
    assert_eq!(answer.header("www-authenticate"), Some("Bearer realm=\"tally\", error=\"insufficient_scope\""));
    assert_eq!(
        answer.json(),
        json!({ "error": "not_permitted", "message": "member 'planner' may not call this capsule" })
    );
}

#[tokio::test]
async fn a_credential_reaches_its_scopes_and_no_other() {
    let house = House::open(MEMBER);
    let (member, watcher) = (house.member("planner"), house.watcher());
    for (caller, name, method) in [
        (&member, "member:planner", "SendStreamingMessage"),
        (&member, "member:planner", "murmur.WatchSession"),
        (&member, "member:planner", "murmur.StopSession"),
        (&watcher, "watcher", "SendMessage"),
        (&watcher, "watcher", "CancelTask"),
    ] {
        // Scope comes before parameters.
        let answer = house.call(&[caller], method, json!([])).await;
        assert_eq!(answer.status, 403, "{method}");
        let challenge = format!("Bearer realm=\"tally\", error=\"insufficient_scope\", scope=\"{method}\"");
        assert_eq!(answer.header("www-authenticate"), Some(challenge.as_str()));
        assert_eq!(
            answer.json(),
            json!({ "error": "insufficient_scope", "message": format!("credential '{name}' does not reach {method}") })
        );
    }
    for line in ["GET /resources/files", "PUT /resources/x"] {
        let answer = house.client().await.get(line, &[&member]).await;
        assert_eq!(answer.status, 403);
        assert_eq!(answer.json()["message"], "credential 'member:planner' does not reach resources/files");
        assert_eq!(
            house.client().await.get(line, &[&house.operator()]).await.status,
            if line.starts_with("GET") { 404 } else { 405 }
        );
    }
    for method in ["GetTask", "CancelTask", "SubscribeToTask"] {
        assert_eq!(house.error(&[&member], method, json!({ "id": "x" })).await["code"], -32001, "{method}");
    }
    assert_eq!(house.result(&[&member], "ListTasks", json!({})).await["totalSize"], 0);
    // The scheme in any case, names of headers too.
    let spelled = member.replace("Authorization: Bearer", "AUTHORIZATION: bEARER");
    assert_eq!(house.error(&[&spelled], "GetTask", json!({ "id": "x" })).await["code"], -32001);
}

#[tokio::test]
async fn a_peer_is_let_in_by_consent_alone() {
    let closed = House::open(Kind { accepts_peers: false, ..MEMBER });
    let peer = "x-murmur-task-origin: Peer";
    let expected = "{\"error\":\"peer_not_accepted\",\"message\":\"this capsule does not accept tasks from peers\"}";
    let member = closed.member("planner");
    for line in ["GET /", "GET /nowhere", "GET /resources/files"] {
        let answer = closed.client().await.get(line, &[&member, peer]).await;
        assert_eq!((answer.status, answer.text()), (403, expected), "{line}");
        assert_eq!(answer.header("www-authenticate"), None);
    }
    for method in ["SendMessage", "GetTask", "murmur.WatchSession", "nonsense"] {
        assert_eq!(closed.call(&[&member, peer], method, json!({})).await.text(), expected, "{method}");
    }
    // The token comes first; the card is never gated; who claims no origin is no peer.
    assert_eq!(closed.call(&[peer], "GetTask", json!({})).await.status, 401);
    assert_eq!(closed.client().await.get("GET /.well-known/agent-card.json", &[peer]).await.status, 200);
    assert_eq!(closed.call(&[&member], "ListTasks", json!({})).await.status, 200);
    let public = House::open(Kind { accepts_peers: false, ..PUBLIC });
    assert_eq!(public.call(&[peer], "SendMessage", message("x")).await.text(), expected);
}

#[tokio::test]
async fn a_refusal_does_not_wait_for_the_body() {
    let house = House::open(MEMBER);
    let mut client = house.client().await;
    let head = "POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n{";
    client.send(head.as_bytes()).await;
    assert_eq!(client.answer().await.status, 401);
    // A body that has been sent is read over, so that the connection goes on.
    let mut client = house.client().await;
    client.send(&post(&[], &"x".repeat(30_000))).await;
    assert_eq!(client.answer().await.status, 401);
    client.send(&post(&[&house.operator()], "{}")).await;
    assert_eq!(client.answer().await.json()["error"]["code"], -32600);
}

#[tokio::test]
async fn a_public_door_ignores_tokens() {
    let house = House::open(PUBLIC);
    let answer = house.call(&["Authorization: Bearer x", "Authorization: y"], "ListTasks", json!({})).await;
    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn the_envelope_is_checked_before_version_method_and_parameters() {
    let house = House::open(PUBLIC);
    let body = |method: &str, params: Value| {
        json!({ "jsonrpc": "2.0", "id": 3, "method": method, "params": params }).to_string()
    };
    let ask = async |headers: &[&str], body: &str| {
        let mut client = house.client().await;
        client.send(&post(headers, body)).await;
        let answer = client.answer().await;
        assert_eq!(answer.status, 200);
        answer.json()
    };
    let old = "A2A-Version: 0.3";
    assert_eq!(
        ask(&[old], "{").await,
        json!({ "jsonrpc": "2.0", "id": null, "error": { "code": -32700, "message": "Invalid JSON payload" } })
    );
    assert_eq!(ask(&[old], "[]").await["error"]["message"], "Request payload validation error");
    let version = ask(&[old], &body("nonsense", json!([]))).await;
    assert_eq!(version["id"], 3);
    assert_eq!(
        version["error"],
        json!({
            "code": -32009, "message": "A2A version '0.3' is not supported; this agent speaks 1.0",
            "data": [{
                "@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "VERSION_NOT_SUPPORTED",
                "domain": "a2a-protocol.org", "metadata": { "requestedVersion": "0.3", "supportedVersions": "1.0" },
            }],
        })
    );
    let refused = async |method: &str, params: Value| ask(&[], &body(method, params)).await["error"].clone();
    for method in ["nonsense", "message/send", "gettask", "stream/watch", "resources/files", ""] {
        assert_eq!(
            refused(method, json!([])).await,
            json!({ "code": -32601, "message": "Method not found" }),
            "{method}"
        );
    }
    assert_eq!(refused("CreateTaskPushNotificationConfig", json!({})).await["code"], -32003);
    let card = refused("GetExtendedAgentCard", json!({})).await;
    assert_eq!((&card["code"], &card["message"]), (&json!(-32004), &json!("this agent serves no extended agent card")));
    assert_eq!(card["data"][0]["metadata"], json!({}));
    for params in [json!([]), json!("x"), json!(null)] {
        assert_eq!(refused("GetTask", params).await["message"], "Invalid parameters: params must be an object");
    }
    assert_eq!(
        refused("GetTask", json!({ "id": "x", "tenant": ["a"] })).await["message"],
        "Invalid params: tenant [\"a\"] names a tenant; this agent serves no tenants, so omit tenant"
    );
    assert_eq!(refused("GetTask", json!({ "id": "x", "tenant": "" })).await["code"], -32001);
    let none = House::open(Kind { accepts_tasks: false, ..PUBLIC });
    assert_eq!(none.error(&[], "SendMessage", message("x")).await["code"], -32601);
    for method in ["SendStreamingMessage", "SubscribeToTask"] {
        assert_eq!(
            none.error(&[], method, json!({})).await["message"],
            "this agent does not stream: it starts no task"
        );
    }
}

#[tokio::test]
async fn a_completion_never_becomes_a_task() {
    let house = House::open(PUBLIC);
    let origin = "x-murmur-task-origin: completion";
    let own = format!("x-murmur-completion-session: {}", house.session);
    assert_eq!(house.error(&[origin], "SendMessage", message("x")).await["code"], -31001);
    assert_eq!(
        house.error(&[origin, &own], "GetTask", json!({})).await["message"],
        "a completion is posted with SendMessage"
    );
    let refused = house.error(&[origin, &own, "x-murmur-delegation-id: dlg_1"], "SendMessage", message("x")).await;
    assert_eq!(refused["code"], -31002);
    assert_eq!(refused["data"][0]["domain"], "murmur.nexus");
    assert_eq!(refused["data"][0]["metadata"], json!({ "delegationId": "dlg_1" }));
    assert_eq!(house.registry.counts().waiting, 0);
}
