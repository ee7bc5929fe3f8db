//! The task methods.

use super::*;
use crate::session::tasks::{Closing, Origin, State, Trust};

#[tokio::test]
async fn a_message_is_answered_when_its_task_has_ended() {
    let house = House::open(PUBLIC);
    let mut client = house.client().await;
    let asked = tokio::spawn(async move { client.call(&[], "SendMessage", message("Count.")).await });
    let task = house.start().await;
    assert_eq!(task.text, "Count.");
    assert_eq!((task.origin, task.trust, &task.owner), (Origin::Event, Trust::Untrusted, &Owner::Operator));
    // The door answers others while a task runs.
    assert_eq!(house.result(&[], "ListTasks", json!({})).await["tasks"][0]["status"]["state"], "TASK_STATE_WORKING");
    assert!(!asked.is_finished());
    house.finish(&task.id, "42");
    let answer = asked.await.unwrap();
    let sent = answer.json()["result"]["task"].clone();
    assert_eq!(sent["status"]["state"], "TASK_STATE_COMPLETED");
    assert_eq!(sent["artifacts"][0]["parts"][0]["text"], "42");
    assert_eq!(house.result(&[], "GetTask", json!({ "id": task.id })).await, sent);
    assert_eq!(answer.header("a2a-extensions"), None);
}

#[tokio::test]
async fn a_message_is_answered_at_acceptance_when_it_asks_for_that() {
    let house = House::open(MEMBER);
    let peer = [
        house.member("planner"),
        "x-murmur-task-origin: peer".to_owned(),
        "x-murmur-task-trust: trusted".to_owned(),
        "traceparent: 00-1-2-01".to_owned(),
    ];
    let headers: Vec<&str> = peer.iter().map(String::as_str).collect();
    let id = house.submit(&headers, "x").await;
    let task = house.start().await;
    assert_eq!(task.id, id);
    assert_eq!((task.origin, task.trust), (Origin::Peer, Trust::Trusted));
    assert_eq!(task.caller_member(), Some(&name("planner")));
    assert_eq!((task.message_id.as_deref(), task.traceparent.as_deref()), (Some("m1"), Some("00-1-2-01")));
}

#[tokio::test]
async fn a_client_that_leaves_does_not_stop_its_task() {
    let house = House::open(PUBLIC);
    let mut client = house.client().await;
    client.send(&super::client::request(&[], "SendMessage", &message("x"))).await;
    let task = house.start().await;
    drop(client);
    house.result(&[], "ListTasks", json!({})).await;
    assert!(!task.canceled.is_set());
    house.finish(&task.id, "42");
    assert_eq!(house.result(&[], "GetTask", json!({ "id": task.id })).await["status"]["state"], "TASK_STATE_COMPLETED");
}

#[tokio::test]
async fn a_busy_or_closing_door_answers_a_rejected_task_at_once() {
    let house = House::open(PUBLIC);
    for _ in 0..8 {
        house.submit(&[], "x").await;
    }
    let rejected = house.result(&[], "SendMessage", message("x")).await["task"].clone();
    assert_eq!(rejected["status"]["state"], "TASK_STATE_REJECTED");
    assert_eq!(rejected["status"]["message"]["parts"][0]["text"], "task rejected: capsule is busy");
    assert_eq!(house.error(&[], "GetTask", json!({ "id": rejected["id"] })).await["code"], -32001);
    let mut stream = house.stream(&[], "SendStreamingMessage", message("x")).await;
    let opening = stream.next().await.unwrap();
    assert_eq!((opening.id, opening.word()), (None, "task REJECTED".to_owned()));
    assert_eq!(stream.word().await, "end");
    house.registry.close(Closing::Stopped);
    let rejected = house.result(&[], "SendMessage", message("x")).await;
    let text = &rejected["task"]["status"]["message"]["parts"][0]["text"];
    assert_eq!(text, "task rejected: the session is closing");
}

#[tokio::test]
async fn an_answer_still_held_when_the_door_closes_is_the_task_as_it_stands() {
    let house = House::open(PUBLIC);
    let mut client = house.client().await;
    let asked = tokio::spawn(async move { client.call(&[], "SendMessage", message("x")).await });
    house.start().await;
    let House { door, .. } = house;
    door.close().await;
    assert_eq!(asked.await.unwrap().json()["result"]["task"]["status"]["state"], "TASK_STATE_WORKING");
}

#[tokio::test]
async fn r024_anothers_task_is_answered_as_one_that_never_was() {
    let house = House::open(MEMBER);
    let (mine, other) = (house.member("planner"), house.member("reviewer"));
    let id = house.submit(&[&mine], "x").await;
    let unknown = TaskId::mint();
    let watcher = house.watcher();
    for phase in ["waiting", "running", "ended"] {
        match phase {
            "running" => drop(house.start().await),
            "ended" => house.finish(&id, "42"),
            _ => {}
        }
        for method in ["GetTask", "CancelTask", "SubscribeToTask", "SendMessage"] {
            let ask = async |id: &TaskId| {
                let mut params = json!({ "id": id });
                if method == "SendMessage" {
                    params = message("x");
                    params["message"]["taskId"] = json!(id);
                }
                house.call(&[&other], method, params).await.text().replace(id.as_str(), "ID")
            };
            assert_eq!(ask(&id).await, ask(&unknown).await, "{phase} {method}");
            assert!(ask(&id).await.contains("-32001"), "{phase} {method}");
        }
        assert_eq!(house.error(&[&watcher], "GetTask", json!({ "id": id })).await["code"], -32001);
        assert_eq!(house.result(&[&other], "ListTasks", json!({})).await["totalSize"], 0, "{phase}");
        assert_eq!(house.result(&[&mine], "ListTasks", json!({})).await["totalSize"], 1, "{phase}");
        assert_eq!(house.result(&[&house.operator()], "ListTasks", json!({})).await["totalSize"], 1, "{phase}");
    }
    let mut referring = message("x");
    referring["message"]["referenceTaskIds"] = json!([id]);
    referring["configuration"] = json!({ "returnImmediately": true });
    house.result(&[&other], "SendMessage", referring.clone()).await;
    house.result(&[&mine], "SendMessage", referring).await;
    let told = house.start().await;
    assert_eq!(told.text, format!("x\n\nReferenced tasks:\n- {id}: not a task this capsule holds"));
    house.finish(&told.id, "");
    assert!(house.start().await.text.contains("completed\n```response\n42\n```"));
}

#[tokio::test]
async fn a_cancel_is_answered_before_the_runner_has_stopped() {
    let house = House::open(PUBLIC);
    let id = house.submit(&[], "x").await;
    let task = house.start().await;
    let canceled = house.result(&[], "CancelTask", json!({ "id": id })).await;
    assert_eq!(canceled["status"]["state"], "TASK_STATE_CANCELED");
    assert_eq!(canceled["status"].as_object().unwrap().len(), 2);
    assert!(canceled.get("artifacts").is_none());
    assert!(task.canceled.is_set());
    let again = house.error(&[], "CancelTask", json!({ "id": id })).await;
    assert_eq!(again["code"], -32002);
    assert_eq!(again["message"], "Task cannot be canceled: it is already TASK_STATE_CANCELED");
    assert_eq!(again["data"][0]["metadata"], json!({ "taskId": id, "state": "TASK_STATE_CANCELED" }));
    assert_eq!(house.error(&[], "CancelTask", json!({})).await["message"], "Invalid params: CancelTask requires an id");
    assert_eq!(house.error(&[], "CancelTask", json!({ "id": "" })).await["code"], -32001);
    assert_eq!(
        house.error(&[], "GetTask", json!({ "id": "" })).await["message"],
        "Invalid params: GetTask requires an id"
    );
}

#[tokio::test]
async fn stopping_a_session_names_what_it_stopped_once() {
    let house = House::open(PUBLIC);
    let mut ids = vec![house.submit(&[], "x").await, house.submit(&[], "y").await];
    house.start().await;
    ids.sort();
    let answer = house.call(&[], "murmur.StopSession", json!({})).await;
    assert_eq!(answer.header("a2a-extensions"), Some(DOOR_EXTENSION));
    let result = &answer.json()["result"];
    assert_eq!(result, &json!({ "session_id": house.session, "canceled": ids, "residue": [] }));
    assert_eq!(house.result(&[], "murmur.StopSession", json!({})).await["canceled"], json!([]));
}

#[tokio::test]
async fn lists_are_paged_and_their_parameters_checked() {
    let house = House::open(PUBLIC);
    for text in ["a", "b", "c"] {
        house.submit(&[], text).await;
    }
    let task = house.start().await;
    house.finish(&task.id, "42");
    let first = house.result(&[], "ListTasks", json!({ "pageSize": 2, "includeArtifacts": true })).await;
    assert_eq!((&first["pageSize"], &first["totalSize"]), (&json!(2), &json!(3)));
    assert_eq!(first["tasks"][0]["artifacts"][0]["name"], "response");
    assert_eq!(first["tasks"][1]["artifacts"], json!([]));
    let second = house.result(&[], "ListTasks", json!({ "pageSize": 2, "pageToken": first["nextPageToken"] })).await;
    assert_eq!(second["tasks"].as_array().unwrap().len(), 1);
    assert_eq!(second["nextPageToken"], "");
    assert!(second["tasks"][0].get("artifacts").is_none());
    assert_eq!(house.result(&[], "ListTasks", json!({ "pageSize": 1000 })).await["pageSize"], 100);
    let completed = house.result(&[], "ListTasks", json!({ "status": "TASK_STATE_COMPLETED" })).await;
    assert_eq!(completed["totalSize"], 1);
    for (params, named) in [
        (json!({ "contextId": 1 }), "contextId"),
        (json!({ "status": "completed" }), "status"),
        (json!({ "pageSize": 0 }), "pageSize"),
        (json!({ "pageSize": 1.5 }), "pageSize"),
        (json!({ "pageSize": -1 }), "pageSize"),
        (json!({ "pageToken": "x" }), "pageToken is not a nextPageToken this agent issued"),
        (
            json!({ "statusTimestampAfter": "today" }),
            "statusTimestampAfter must be an RFC 3339 timestamp, such as 2026-10-13T09:00:00Z",
        ),
        (json!({ "includeArtifacts": 1 }), "includeArtifacts"),
    ] {
        let error = house.error(&[], "ListTasks", params.clone()).await;
        assert_eq!(error["code"], -32602);
        assert!(error["message"].as_str().unwrap().contains(named), "{params}: {error}");
    }
    for since in ["2000-01-01T00:00:00+02:00", "2000-01-01T00:00:00.5Z"] {
        let result = house.result(&[], "ListTasks", json!({ "statusTimestampAfter": since })).await;
        assert_eq!(result["totalSize"], 3);
    }
}

#[tokio::test]
async fn a_task_that_asks_takes_its_reply_by_its_id() {
    let house = House::open(PUBLIC);
    let mut client = house.client().await;
    let asked = tokio::spawn(async move { client.call(&[], "SendMessage", message("x")).await });
    let task = house.start().await;
    let reply = |context: Value| {
        let mut params = message("yes");
        params["message"]["taskId"] = json!(task.id);
        params["message"]["contextId"] = context;
        params["configuration"] = json!({ "returnImmediately": true });
        params
    };
    let early = house.error(&[], "SendMessage", reply(json!(""))).await;
    assert_eq!(early["code"], -32004);
    assert!(early["message"].as_str().unwrap().starts_with(&format!("task {} is TASK_STATE_WORKING;", task.id)));
    let mut wait = house.registry.require_input(&task.id, "sure?").unwrap();
    let held = asked.await.unwrap().json()["result"]["task"].clone();
    assert_eq!(held["status"]["state"], "TASK_STATE_INPUT_REQUIRED");
    assert_eq!(held["artifacts"][0]["name"], "prompt");
    assert_eq!(house.error(&[], "SendMessage", reply(json!("other"))).await["code"], -32602);
    let taken = house.result(&[], "SendMessage", reply(json!(task.context))).await;
    assert_eq!(taken["task"]["status"]["state"], "TASK_STATE_WORKING");
    assert_eq!(wait.message().await.as_deref(), Some("yes"));
    house.finish(&task.id, "42");
    let late = house.error(&[], "SendMessage", reply(json!(""))).await;
    assert!(
        late["message"].as_str().unwrap().starts_with(&format!("task {} has ended in TASK_STATE_COMPLETED;", task.id))
    );
    assert_eq!(house.registry.view(&Owner::Operator, task.id.as_str()).unwrap().state, State::Completed);
}

#[tokio::test]
async fn a_message_that_used_the_door_extension_is_answered_with_its_name() {
    let house = House::open(PUBLIC);
    let mut params = message("x");
    params["message"]["metadata"] = json!({ DOOR_EXTENSION: {} });
    params["configuration"] = json!({ "returnImmediately": true });
    let answer = house.call(&[], "SendMessage", params.clone()).await;
    assert_eq!(answer.header("a2a-extensions"), Some(DOOR_EXTENSION));
    params["message"]["role"] = json!("user");
    assert_eq!(house.call(&[], "SendMessage", params).await.header("a2a-extensions"), None);
}
