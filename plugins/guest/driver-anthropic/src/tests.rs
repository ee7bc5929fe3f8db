use mur_guest_kit::provider::Stop;
use mur_guest_kit::provider::testing::{Pieces, Seen};
use serde_json::json;

use super::*;

fn request(messages: &Value, tools: &Value) -> String {
    json!({"model": "m", "max_tokens": 100, "messages": messages, "tools": tools, "params": {}, "system": "be brief",
        "prompt_cache_key": "c:1:x"})
    .to_string()
}

fn read(status: u16, kind: &str, mut body: Pieces) -> (Result<Reply, Failure>, Vec<String>) {
    let mut seen = Seen::default();
    let header = |name: &str| match name {
        "content-type" => Some(kind.to_owned()),
        "retry-after" => Some("3".to_owned()),
        _ => None,
    };
    let reply = incoming(status, header, &mut body, &mut seen);
    (reply, seen.0)
}

const STREAM: &str = r#"event: message_start
data: {"type":"message_start","message":{"usage":{"input_tokens":11,"cache_read_input_tokens":3,"output_tokens":1}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}

data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}

data: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"s1"}}

data: {"type":"content_block_stop","index":0}

: ping
event: ping
data: {"type": "ping"}

data: {"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}

data: {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"Hä"}}

data: {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"user"}}

data: {"type":"content_block_stop","index":1}

data: {"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"t1","name":"read-file","input":{}}}

data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{\"path\":"}}

data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":" \"a\"}"}}

data: {"type":"content_block_stop","index":2}

data: {"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":42}}

data: {"type":"message_stop"}

"#;

#[test]
fn a_stream_becomes_blocks_whatever_its_pieces() {
    for size in [1, 7, 100, STREAM.len()] {
        let (reply, seen) = read(200, "text/event-stream; charset=utf-8", Pieces::of(STREAM, size));
        let reply = reply.unwrap();
        assert_eq!(reply.stop, Stop::ToolCall);
        let thinking = json!({"type": "thinking", "thinking": "hm", "signature": "s1"});
        assert_eq!(
            reply.content,
            [
                json!({"type": "thinking", "anthropic": thinking}),
                json!({"type": "text", "text": "Häuser"}),
                json!({"type": "tool_call", "id": "t1", "name": "read-file", "input": {"path": "a"}}),
            ]
        );
        assert_eq!(Value::from(reply.usage), json!({"input_tokens": 11, "output_tokens": 42, "cached_tokens": 3}));
        assert_eq!(seen, ["thinking hm", "text Hä", "text user", "started t1 read-file", "bytes t1 8", "bytes t1 13"]);
    }
}

#[test]
fn a_stream_that_is_cut_or_ends_early_may_be_tried_again() {
    for end in [0, 30, 200, STREAM.len() - 2] {
        for body in [Pieces::cut(&STREAM[..end], 64), Pieces::of(&STREAM[..end], 64)] {
            let (reply, _) = read(200, "text/event-stream", body);
            assert_eq!(reply.unwrap_err().transient, Some(true), "cut at {end}");
        }
    }
}

#[test]
fn errors_inside_a_stream_say_whether_they_pass() {
    let stream = |kind: &str| {
        format!("event: error\ndata: {{\"type\":\"error\",\"error\":{{\"type\":\"{kind}\",\"message\":\"no\"}}}}\n\n")
    };
    let (reply, _) = read(200, "text/event-stream", Pieces::of(&stream("overloaded_error"), 9));
    assert_eq!(reply.unwrap_err().transient, Some(true));
    let (reply, _) = read(200, "text/event-stream", Pieces::of(&stream("invalid_request_error"), 9));
    assert_eq!(reply.unwrap_err().transient, Some(false));
}

#[test]
fn a_refusal_carries_status_reason_and_wait() {
    let body = r#"{"type":"error","error":{"type":"rate_limit_error","message":"slow down"}}"#;
    let (reply, _) = read(429, "application/json", Pieces::of(body, 10));
    let failure = reply.unwrap_err();
    assert_eq!(failure.reason, "the provider answered 429 rate_limit_error: slow down");
    assert_eq!((failure.status, failure.retry_after_ms, failure.transient), (Some(429), Some(3000), None));
    let (reply, _) = read(502, "text/html", Pieces::cut("<html>bad gate", 5));
    assert_eq!(reply.unwrap_err().status, Some(502));
}

#[test]
fn a_whole_answer_is_read_too() {
    let body = r#"{"type":"message","content":[{"type":"text","text":"hi"},{"type":"redacted_thinking","data":"x"}],
        "stop_reason":"end_turn","usage":{"input_tokens":1,"output_tokens":2}}"#;
    let (reply, seen) = read(200, "application/json", Pieces::of(body, 8));
    let reply = reply.unwrap();
    assert_eq!(reply.stop, Stop::EndTurn);
    assert_eq!(reply.content[1], json!({"type": "thinking", "anthropic": {"type": "redacted_thinking", "data": "x"}}));
    assert!(seen.is_empty());
    for bad in ["", "[]", "{\"content\": 1}", "<html>", r#"{"content":[],"stop_reason":"dance"}"#] {
        assert!(read(200, "application/json", Pieces::of(bad, 8)).0.is_err(), "{bad}");
    }
}

#[test]
fn calls_cut_by_the_output_cap_are_left_out() {
    let stream = STREAM.replace("\\\"a\\\"}\"", "\\\"a\"").replace("\"tool_use\"}", "\"max_tokens\"}");
    let (reply, _) = read(200, "text/event-stream", Pieces::of(&stream, 50));
    let reply = reply.unwrap();
    assert_eq!(reply.stop, Stop::MaxTokens);
    assert_eq!(reply.content.len(), 2);
    let stream = STREAM.replace("\\\"a\\\"}\"", "\\\"a\"");
    assert_eq!(read(200, "text/event-stream", Pieces::of(&stream, 50)).0.unwrap_err().transient, Some(true));
}

#[test]
fn a_conversation_goes_out_in_the_providers_shape() {
    let messages = json!([
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "anthropic": {"type": "thinking", "thinking": "hm", "signature": "s"}},
            {"type": "thinking", "text": "another driver's"},
            {"type": "text", "text": ""},
            {"type": "tool_call", "id": "a", "name": "x", "input": {"k": 1}},
            {"type": "tool_call", "id": "b", "name": "y", "input": {}}]},
        {"role": "tool", "tool_call_id": "a", "is_error": false, "content": [{"type": "text", "text": "ok"}]},
        {"role": "tool", "tool_call_id": "b", "is_error": true, "content": [{"type": "text", "text": ""}]},
        {"role": "user", "content": "go on"},
    ]);
    let tools =
        json!([{"name": "x", "parameters": {"type": "object"}, "description": "d"}, {"name": "y", "parameters": {}}]);
    let body = outgoing(&request(&messages, &tools), None).unwrap().body;
    let cache = json!({"type": "ephemeral"});
    assert_eq!(
        body["messages"],
        json!([
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "tool_use", "id": "a", "name": "x", "input": {"k": 1}},
                {"type": "tool_use", "id": "b", "name": "y", "input": {}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "ok"},
                {"type": "tool_result", "tool_use_id": "b", "is_error": true},
                {"type": "text", "text": "go on", "cache_control": cache}]},
        ])
    );
    assert_eq!(body["system"], json!([{"type": "text", "text": "be brief", "cache_control": cache}]));
    assert_eq!(body["tools"][0], json!({"name": "x", "input_schema": {"type": "object"}, "description": "d"}));
    assert_eq!((&body["stream"], &body["max_tokens"]), (&json!(true), &json!(100)));
}

#[test]
fn settings_change_the_request_and_faults_in_them_are_named() {
    let plain = request(&json!([{"role": "user", "content": "hi"}]), &json!([]));
    let config = r#"{"stream":false,"cache":false,"betas":"b","body":{"temperature":0.2,"max_tokens":7}}"#;
    let outgoing_request = outgoing(&plain, Some(config)).unwrap();
    assert_eq!(outgoing_request.body["temperature"], 0.2);
    assert_eq!(outgoing_request.body["max_tokens"], 7);
    assert!(outgoing_request.headers.contains(&("anthropic-beta", "b".to_owned())));
    assert!(outgoing_request.body["messages"][0]["content"][0]["cache_control"].is_null());
    for (config, part) in [
        (r#"{"body":{"model":"other"}}"#, "'model'"),
        (r#"{"steam":true}"#, "'steam'"),
        (r#"{"stream":"no"}"#, "must be true or false"),
        ("[]", "must be a mapping"),
    ] {
        let failure = outgoing(&plain, Some(config)).unwrap_err();
        assert!(failure.reason.contains(part) && failure.transient == Some(false), "{}", failure.reason);
    }
}
