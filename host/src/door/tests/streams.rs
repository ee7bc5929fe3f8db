//! Streams of events.

use std::time::Instant;

use super::*;
use crate::session::tasks::{ArtifactFrame, Frame, READER_LAG};

const ACTIVATED: &str =
    "A2A-Extensions: https://example.org/x, https://docs.murmur.nexus/reference/streaming-protocol/#murmur-stream-v1";

fn chunk(text: &str) -> Frame {
    Frame::Text { text: text.into(), last: false }
}

#[tokio::test]
async fn a_streamed_message_tells_its_task_to_the_end() {
    let house = House::open(PUBLIC);
    let mut stream = house.stream(&[], "SendStreamingMessage", message("x")).await;
    let header = |name: &str| stream.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
    assert_eq!(header("content-type").as_deref(), Some("text/event-stream"));
    assert_eq!(header("cache-control").as_deref(), Some("no-cache"));
    assert_eq!(header("content-encoding"), None);
    assert_eq!(header("a2a-extensions"), None);
    let opening = stream.next().await.unwrap();
    assert_eq!((opening.id, opening.word()), (None, "task SUBMITTED".to_owned()));
    let task = house.start().await;
    house.registry.status(&task.id, "inference turn 1");
    house.registry.frame(Some(&task.id), chunk("a"));
    house.finish(&task.id, "42");
    let first = stream.next().await.unwrap();
    assert_eq!((first.id, first.word()), (Some(1), "status WORKING inference turn 1".to_owned()));
    // A plain stream skips the frame's number.
    let answer = stream.next().await.unwrap();
    assert_eq!((answer.id, answer.word()), (Some(3), "response 42".to_owned()));
    assert_eq!(answer.result["artifactUpdate"]["lastChunk"], true);
    let last = stream.next().await.unwrap();
    assert_eq!((last.id, last.word()), (Some(4), "status COMPLETED task completed".to_owned()));
    assert!(last.result["statusUpdate"].get("final").is_none());
    assert_eq!(stream.word().await, "end");
}

#[tokio::test]
async fn an_activated_stream_carries_the_tasks_frames() {
    let house = House::open(PUBLIC);
    let mut stream = house.stream(&[ACTIVATED], "SendStreamingMessage", message("x")).await;
    assert!(stream.headers.contains(&("a2a-extensions".to_owned(), STREAM_EXTENSION.to_owned())));
    let task = house.start().await;
    house.registry.frame(Some(&task.id), chunk("a"));
    let started = Frame::ToolCallStarted { tool_call_id: "c1".into(), tool_name: "stats".into() };
    house.registry.frame(Some(&task.id), started);
    house.registry.frame(Some(&task.id), Frame::Artifact(ArtifactFrame::default()));
    house.registry.reopened(&task.id, "check", 1);
    house.registry.frame(None, chunk("of no task"));
    house.finish(&task.id, "");
    assert_eq!(stream.word().await, "task SUBMITTED");
    let text = stream.next().await.unwrap();
    assert_eq!(
        text.result["statusUpdate"]["metadata"][STREAM_EXTENSION],
        json!({ "frame": "text", "text": "a", "final": false })
    );
    assert_eq!(text.result["statusUpdate"]["status"]["state"], "TASK_STATE_WORKING");
    assert_eq!(stream.word().await, "statusUpdate tool-call-started");
    assert_eq!(stream.word().await, "statusUpdate artifact");
    let reopened = stream.next().await.unwrap();
    assert_eq!(reopened.word(), "status WORKING reopened by hook check");
    assert_eq!(reopened.result["statusUpdate"]["metadata"][STREAM_EXTENSION], json!({ "reopen": 1 }));
    assert_eq!(stream.rest().await, ["status COMPLETED task completed"]);
}

#[tokio::test]
async fn r027_an_event_reaches_its_subscriber_at_once() {
    let house = House::open(PUBLIC);
    let id = house.submit(&[], "x").await;
    house.start().await;
    let mut stream = house.stream(&[], "SubscribeToTask", json!({ "id": id })).await;
    assert_eq!(stream.word().await, "task WORKING");
    for turn in 1..=20 {
        let made = Instant::now();
        house.registry.status(&id, &format!("inference turn {turn}"));
        assert_eq!(stream.word().await, format!("status WORKING inference turn {turn}"));
        assert!(made.elapsed() < Duration::from_millis(100));
    }
}

#[tokio::test]
async fn r026_a_subscriber_that_leaves_changes_nothing_and_another_gets_the_rest() {
    let house = House::open(PUBLIC);
    let id = house.submit(&[], "x").await;
    let task = house.start().await;
    house.registry.status(&id, "inference turn 1");
    let mut first = house.stream(&[], "SubscribeToTask", json!({ "id": id })).await;
    assert_eq!(first.word().await, "task WORKING");
    drop(first);
    house.registry.status(&id, "inference turn 2");
    let mut second = house.stream(&[], "SubscribeToTask", json!({ "id": id })).await;
    let mut replaying = house.stream(&["Last-Event-ID: 1"], "SubscribeToTask", json!({ "id": id })).await;
    assert_eq!(second.word().await, "task WORKING");
    assert!(!task.canceled.is_set());
    house.finish(&id, "42");
    let ending = ["response 42", "status COMPLETED task completed"];
    assert_eq!(second.rest().await, ending);
    assert_eq!(replaying.word().await, "task WORKING");
    assert_eq!(replaying.word().await, "status WORKING inference turn 2");
    assert_eq!(replaying.rest().await, ending);
    let ended = house.error(&[], "SubscribeToTask", json!({ "id": id })).await;
    assert_eq!(ended["code"], -32004);
    assert_eq!(
        ended["message"],
        format!("task {id} has ended in TASK_STATE_COMPLETED; there is nothing left to subscribe to")
    );
    let without = house.error(&[], "SubscribeToTask", json!({})).await;
    assert_eq!(without["message"], "Invalid params: SubscribeToTask requires an id");
}

#[tokio::test]
async fn input_ends_a_messages_stream_and_not_a_subscription() {
    let house = House::open(PUBLIC);
    let mut sent = house.stream(&[], "SendStreamingMessage", message("x")).await;
    let task = house.start().await;
    let mut subscribed = house.stream(&[], "SubscribeToTask", json!({ "id": task.id })).await;
    let _wait = house.registry.require_input(&task.id, "sure?").unwrap();
    assert_eq!(sent.rest().await, ["task SUBMITTED", "status INPUT_REQUIRED sure?"]);
    let mut reply = message("yes");
    reply["message"]["taskId"] = json!(task.id);
    let mut replied = house.stream(&[], "SendStreamingMessage", reply).await;
    assert_eq!(replied.word().await, "task WORKING");
    house.finish(&task.id, "");
    assert_eq!(replied.rest().await, ["status WORKING resumed", "status COMPLETED task completed"]);
    assert_eq!(
        subscribed.rest().await,
        ["task WORKING", "status INPUT_REQUIRED sure?", "status WORKING resumed", "status COMPLETED task completed"]
    );
}

#[tokio::test]
async fn an_observer_sees_every_task_from_the_beginning() {
    let house = House::open(PUBLIC);
    let first = house.submit(&[], "x").await;
    house.start().await;
    house.registry.status(&first, "inference turn 1");
    let mut watch = house.stream(&[], "murmur.WatchSession", json!({})).await;
    let extensions = format!("{DOOR_EXTENSION}, {STREAM_EXTENSION}");
    assert!(watch.headers.contains(&("a2a-extensions".to_owned(), extensions)));
    let ack = watch.next().await.unwrap();
    assert_eq!((ack.id, ack.word()), (None, "message connection-ack".to_owned()));
    assert_eq!(
        ack.result["message"]["metadata"][STREAM_EXTENSION],
        json!({ "frame": "connection-ack", "role": "observer", "conversationMode": "stateless" })
    );
    assert_eq!(watch.next().await.unwrap().id, Some(1));
    house.registry.frame(None, chunk("of no task"));
    assert_eq!(watch.word().await, "message text");
    house.finish(&first, "");
    assert_eq!(watch.word().await, "status COMPLETED task completed");
    let second = house.submit(&[], "y").await;
    house.result(&[], "CancelTask", json!({ "id": second })).await;
    assert_eq!(watch.word().await, "status CANCELED task canceled before it started");
    // The door closes: what has happened is written, then the stream ends.
    let House { door, registry, .. } = house;
    registry.frame(None, chunk("last"));
    door.close().await;
    assert_eq!(watch.rest().await, ["message text"]);
}

#[tokio::test]
async fn a_lost_place_is_said_to_observers_and_activated_streams_only() {
    let house = House::open(PUBLIC);
    let id = house.submit(&[], "x").await;
    house.start().await;
    for turn in 0..600 {
        house.registry.status(&id, &format!("inference turn {turn}"));
    }
    let mut watch = house.stream(&[], "murmur.WatchSession", json!({})).await;
    assert_eq!(watch.word().await, "message connection-ack");
    let gap = watch.next().await.unwrap();
    assert_eq!(gap.id, None);
    assert_eq!(gap.result["message"]["metadata"][STREAM_EXTENSION], json!({ "frame": "gap", "firstAvailableId": 89 }));
    assert_eq!(watch.next().await.unwrap().id, Some(89));
    let cursor = "Last-Event-ID: 5";
    let mut plain = house.stream(&[cursor], "SubscribeToTask", json!({ "id": id })).await;
    assert_eq!(plain.word().await, "task WORKING");
    assert_eq!(plain.next().await.unwrap().id, Some(89));
    let mut active = house.stream(&[cursor, ACTIVATED], "SubscribeToTask", json!({ "id": id })).await;
    assert_eq!(active.word().await, "task WORKING");
    assert_eq!(active.word().await, "statusUpdate gap");
    let mut unread = house.stream(&["Last-Event-ID: x"], "SubscribeToTask", json!({ "id": id })).await;
    assert_eq!(unread.word().await, "task WORKING");
    house.finish(&id, "");
    assert_eq!(unread.rest().await, ["status COMPLETED task completed"]);
}

#[tokio::test]
async fn a_slow_observer_is_told_what_it_missed() {
    let house = House::open(PUBLIC);
    let id = house.submit(&[], "x").await;
    house.start().await;
    let mut watch = house.stream(&[], "murmur.WatchSession", json!({})).await;
    assert_eq!(watch.word().await, "message connection-ack");
    // One step of the runtime: the stream cannot be written meanwhile.
    for turn in 0..READER_LAG + 7 {
        house.registry.status(&id, &format!("inference turn {turn}"));
    }
    let lagged = watch.next().await.unwrap();
    assert_eq!(lagged.id, None);
    assert_eq!(lagged.result["message"]["metadata"][STREAM_EXTENSION], json!({ "frame": "lagged", "missed": 7 }));
    assert_eq!(watch.next().await.unwrap().id, Some(8));
}

#[tokio::test]
async fn an_idle_stream_is_kept_by_comments() {
    let house = House::open(Kind { heartbeat: Duration::from_millis(20), ..PUBLIC });
    assert_eq!(house.heartbeat, Duration::from_millis(20));
    let id = house.submit(&[], "x").await;
    let mut stream = house.stream(&[], "SubscribeToTask", json!({ "id": id })).await;
    assert_eq!(stream.word().await, "task SUBMITTED");
    for _ in 0..3 {
        assert_eq!(stream.word().await, ":heartbeat");
    }
}
