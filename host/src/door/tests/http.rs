//! Framing, bounds, paths and the card.

use super::client::{post, request};
use super::*;

#[tokio::test]
async fn one_connection_carries_many_requests_also_written_at_once() {
    let house = House::open(PUBLIC);
    let mut client = house.client().await;
    let pipelined: Vec<u8> = (0..20).flat_map(|_| request(&[], "GetTask", &json!({ "id": "tsk_x" }))).collect();
    client.send(&pipelined).await;
    for _ in 0..20 {
        assert_eq!(client.answer().await.json()["error"]["code"], -32001);
    }
    assert_eq!(client.get("GET /", &[]).await.status, 404);
    assert_eq!(client.call(&[], "ListTasks", json!({})).await.status, 200);
}

#[tokio::test]
async fn a_request_may_come_in_pieces() {
    let house = House::open(PUBLIC);
    let mut client = house.client().await;
    let bytes = request(&[], "GetTask", &json!({ "id": "tsk_é" }));
    for byte in bytes.chunks(1) {
        client.send(byte).await;
        tokio::task::yield_now().await;
    }
    assert_eq!(client.answer().await.json()["error"]["data"][0]["metadata"]["taskId"], "tsk_é");
}

#[tokio::test]
async fn a_client_that_leaves_within_its_body_harms_nobody() {
    let house = House::open(PUBLIC);
    let mut client = house.client().await;
    let bytes = request(&[], "SendMessage", &message("x"));
    client.send(&bytes[..bytes.len() - 5]).await;
    drop(client);
    assert_eq!(house.result(&[], "ListTasks", json!({})).await["totalSize"], 0);
}

#[tokio::test]
async fn heads_and_bodies_are_bounded() {
    let house = House::open(PUBLIC);
    let mut client = house.client().await;
    let large = format!("X-Large: {}", "x".repeat(MAX_HEADERS));
    assert_eq!(client.get("GET /.well-known/agent-card.json", &[&large]).await.status, 431);
    let mut client = house.client().await;
    let fits = format!("X-Large: {}", "x".repeat(MAX_HEADERS - 2048));
    assert_eq!(client.get("GET /.well-known/agent-card.json", &[&fits]).await.status, 200);
    // Refused by its length: nothing of the body is waited for.
    let mut client = house.client().await;
    let head = format!(
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        MAX_BODY + 1
    );
    client.send(head.as_bytes()).await;
    assert_eq!(client.answer().await.status, 413);
    let mut client = house.client().await;
    let text = "x".repeat(MAX_BODY - 300);
    let mut params = message(&text);
    params["configuration"] = json!({ "returnImmediately": true });
    let answer = client.call(&[], "SendMessage", params).await;
    assert_eq!(answer.json()["result"]["task"]["status"]["state"], "TASK_STATE_SUBMITTED");
    assert_eq!(house.start().await.text.len(), text.len());
}

#[tokio::test]
async fn what_is_no_request_of_ours_is_404_and_says_what_one_would_be() {
    let house = House::open(PUBLIC);
    let mut client = house.client().await;
    for line in [
        "GET /",
        "GET /x",
        "POST /x",
        "DELETE /",
        "GET /.well-known/agent-card.json?x",
        "GET /resources",
        "PUT /control/x",
        "GET /control",
    ] {
        let answer = client.get(line, &[]).await;
        assert_eq!((answer.status, answer.json()["error"].as_str()), (404, Some("not_found")), "{line}");
    }
    let good = String::from_utf8(post(&[], "{}")).unwrap();
    for (bad, why) in [
        (good.replace("application/json", "text/plain"), "Content-Type: application/json"),
        (good.replace("POST / ", "POST /?x "), "nothing is at this path"),
        (good.replace("Content-Type: application/json\r\n", ""), "Content-Type: application/json"),
        (good.replace("Content-Length: 2\r\n\r\n{}", "Content-Length: 0\r\n\r\n"), "Content-Length"),
        (
            good.replace("Content-Length: 2\r\n\r\n{}", "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"),
            "Content-Length",
        ),
    ] {
        let mut client = house.client().await;
        client.send(bad.as_bytes()).await;
        let answer = client.answer().await;
        assert_eq!(answer.status, 404, "{bad}");
        assert!(answer.json()["message"].as_str().is_some_and(|said| said.contains(why)), "{bad}");
    }
    let good = good.replace("application/json", "Application/JSON; charset=utf-8");
    client.send(good.as_bytes()).await;
    assert_eq!(client.answer().await.json()["error"]["code"], -32600);
}

#[tokio::test]
async fn the_planes_that_are_absent_say_so() {
    let house = House::open(PUBLIC);
    let mut client = house.client().await;
    for (line, status, error) in [
        ("GET /resources/files", 404, "no_resource_plane"),
        ("GET /resources/other", 404, "no_resource_plane"),
        ("PUT /resources/files", 405, "method_not_allowed"),
        ("GET /resources/peer", 404, "no_peer_plane"),
        ("GET /resources/peer/mh1.x", 404, "no_peer_plane"),
        ("DELETE /resources/peer/mh1.x", 405, "method_not_allowed"),
    ] {
        let answer = client.get(line, &[]).await;
        assert_eq!((answer.status, answer.json()["error"].as_str().unwrap()), (status, error), "{line}");
        assert_eq!(answer.header("allow"), (status == 405).then_some("GET"));
    }
}

#[tokio::test]
async fn the_public_card_is_exact() {
    let house = House::open(PUBLIC);
    let answer = house.client().await.get("GET /.well-known/agent-card.json", &["x-murmur-task-origin: peer"]).await;
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let card = answer.json();
    let keys: Vec<&String> = card.as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        [
            "name",
            "description",
            "version",
            "supportedInterfaces",
            "capabilities",
            "securitySchemes",
            "securityRequirements",
            "defaultInputModes",
            "defaultOutputModes",
            "skills"
        ]
    );
    assert_eq!(card["description"], "Murmur capsule tally 2.0.1");
    let url = format!("http://localhost:{}", house.door.port());
    assert_eq!(
        card["supportedInterfaces"],
        json!([{ "url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0" }])
    );
    let extensions = card["capabilities"]["extensions"].as_array().unwrap();
    let uris: Vec<&str> = extensions.iter().map(|it| it["uri"].as_str().unwrap()).collect();
    assert_eq!(uris, [DOOR_EXTENSION, CAPSULE_EXTENSION, STREAM_EXTENSION]);
    assert_eq!(
        extensions[0]["params"],
        json!({
            "methods": [
                "SendMessage", "SendStreamingMessage", "murmur.WatchSession", "GetTask", "ListTasks", "CancelTask",
                "SubscribeToTask", "murmur.StopSession",
            ],
            "peerTasks": true,
        })
    );
    assert_eq!(
        extensions[1]["params"],
        json!({ "sessionId": house.session, "tools": ["stats"], "shell": false, "network": true, "planes": [] })
    );
    assert_eq!(extensions[2]["params"]["frames"].as_array().unwrap().len(), 9);
    assert_eq!(card["skills"][0]["id"], "task");
    let none = House::open(Kind { accepts_tasks: false, ..PUBLIC });
    let card = none.client().await.get("GET /.well-known/agent-card.json", &[]).await.json();
    assert_eq!((&card["skills"], &card["capabilities"]["streaming"]), (&json!([]), &json!(false)));
}

#[tokio::test]
async fn an_authenticated_doors_card_keeps_the_session_for_admitted_callers() {
    let house = House::open(MEMBER);
    let card = house.client().await.get("GET /.well-known/agent-card.json", &[]).await;
    assert!(!card.text().contains(house.session.as_str()));
    let card = card.json();
    assert_eq!(card["capabilities"]["extendedAgentCard"], true);
    assert_eq!(card["securityRequirements"], json!([{ "schemes": { "bearer": { "list": [] } } }]));
    assert_eq!(card["securitySchemes"]["bearer"]["httpAuthSecurityScheme"]["scheme"], "Bearer");
    assert_eq!(card["skills"][0]["securityRequirements"].as_array().unwrap().len(), 2);
    let methods = card["capabilities"]["extensions"][0]["params"]["methods"].as_array().unwrap();
    assert_eq!(methods.last().unwrap(), "GetExtendedAgentCard");
    for caller in [house.operator(), house.watcher(), house.member("planner")] {
        // Without params, as clients send it.
        let body = r#"{"jsonrpc":"2.0","id":3,"method":"GetExtendedAgentCard"}"#;
        let mut client = house.client().await;
        client.send(&post(&[&caller], body)).await;
        let extended = client.answer().await.json()["result"].clone();
        let extensions = &extended["capabilities"]["extensions"];
        assert_eq!(extensions[1]["uri"], CAPSULE_EXTENSION);
        assert_eq!(extensions[1]["params"]["sessionId"], house.session.as_str());
        assert_eq!(extended["skills"], card["skills"]);
    }
}

#[tokio::test]
async fn a_port_that_is_taken_is_refused_by_its_code() {
    let taken = bind("127.0.0.1", None).unwrap();
    let refusal = bind("127.0.0.1", Some(taken.port())).err().unwrap();
    assert_eq!(refusal.code(), codes::E_RUN_010);
    assert_eq!(refusal.message(), format!("internal_port {} is already bound", taken.port()));
    assert_eq!(bind("203.0.113.1", None).err().unwrap().code(), codes::E_IO_003);
    assert!(bind("[::1]", None).is_ok() || bind("::1", None).is_err());
}

#[tokio::test]
async fn a_closed_door_takes_no_connection() {
    let house = House::open(PUBLIC);
    let mut idle = house.client().await;
    assert_eq!(idle.get("GET /", &[]).await.status, 404);
    let port = house.door.port();
    house.door.close().await;
    assert!(idle.is_closed().await);
    assert!(tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err());
}
