use mur_guest_kit::provider::Stop;
use mur_guest_kit::provider::testing::{Pieces, Seen};
use serde_json::json;

use super::*;

fn read(status: u16, kind: &str, mut body: Pieces) -> (Result<Reply, Failure>, Vec<String>) {
    let mut seen = Seen::default();
    let header = |name: &str| (name == "content-type").then(|| kind.to_owned());
    let reply = incoming(status, header, &mut body, &mut seen);
    (reply, seen.0)
}

fn stream(chunks: &[Value], done: bool) -> String {
    let mut text: String = chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect();
    if done {
        text.push_str("data: [DONE]\n\n");
    }
    text
}

fn chunk(delta: Value, finish: Option<&str>) -> Value {
    json!({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
}

fn calling() -> Vec<Value> {
    let call = |index: u64, rest: Value| json!({"tool_calls": [{"index": index, "function": rest}]});
    vec![
        chunk(json!({"role": "assistant", "content": ""}), None),
        chunk(json!({"reasoning_content": "hm"}), None),
        chunk(json!({"content": "Hä"}), None),
        chunk(json!({"content": "user"}), None),
        chunk(
            json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "read-file", "arguments": ""}}]}),
            None,
        ),
        chunk(call(0, json!({"arguments": "{\"path\":"})), None),
        chunk(call(0, json!({"arguments": "\"a\"}"})), None),
        chunk(json!({"tool_calls": [{"index": 1, "id": "b", "function": {"name": "fetch", "arguments": "{}"}}]}), None),
        chunk(json!({}), Some("tool_calls")),
        json!({"choices": [], "usage": {"prompt_tokens": 14, "completion_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 3}, "completion_tokens_details": {"reasoning_tokens": 2}}}),
    ]
}

#[test]
fn a_stream_becomes_blocks_whatever_its_pieces() {
    let text = stream(&calling(), true);
    for size in [1, 13, text.len()] {
        let (reply, seen) = read(200, "text/event-stream", Pieces::of(&text, size));
        let reply = reply.unwrap();
        assert_eq!(reply.stop, Stop::ToolCall);
        assert_eq!(
            reply.content,
            [
                json!({"type": "thinking", "text": "hm"}),
                json!({"type": "text", "text": "Häuser"}),
                json!({"type": "tool_call", "id": "a", "name": "read-file", "input": {"path": "a"}}),
                json!({"type": "tool_call", "id": "b", "name": "fetch", "input": {}}),
            ]
        );
        let usage = json!({"input_tokens": 11, "output_tokens": 7, "cached_tokens": 3, "thinking_tokens": 2});
        assert_eq!(Value::from(reply.usage), usage);
        assert_eq!(
            seen,
            [
                "thinking hm",
                "text Hä",
                "text user",
                "started a read-file",
                "bytes a 8",
                "bytes a 12",
                "started b fetch",
                "bytes b 2"
            ]
        );
    }
}

#[test]
fn a_stream_that_is_cut_may_be_tried_again_unless_it_said_why_it_ended() {
    let text = stream(&calling(), true);
    for end in [0, 20, text.len() / 2] {
        let (reply, _) = read(200, "text/event-stream", Pieces::cut(&text[..end], 64));
        assert_eq!(reply.unwrap_err().transient, Some(true));
    }
    let (reply, _) = read(200, "text/event-stream", Pieces::of(&stream(&calling()[..9], false), 64));
    assert_eq!(reply.unwrap().stop, Stop::ToolCall);
}

#[test]
fn errors_inside_a_stream_say_whether_they_pass() {
    let broken = |error: Value| stream(&[chunk(json!({"content": "a"}), None), json!({"error": error})], false);
    let (reply, _) =
        read(200, "text/event-stream", Pieces::of(&broken(json!({"message": "m", "type": "server_error"})), 9));
    assert_eq!(reply.unwrap_err().transient, Some(true));
    let (reply, _) = read(200, "text/event-stream", Pieces::of(&broken(json!({"code": "invalid_prompt"})), 9));
    assert_eq!(reply.unwrap_err().transient, Some(false));
}

#[test]
fn a_spent_quota_is_never_tried_again_though_its_status_says_so() {
    let body = r#"{"error":{"message":"pay","type":"insufficient_quota","code":"insufficient_quota"}}"#;
    let failure = read(429, "application/json", Pieces::of(body, 9)).0.unwrap_err();
    assert_eq!((failure.transient, failure.status), (Some(false), Some(429)));
    assert_eq!(failure.reason, "the provider answered 429 insufficient_quota: pay");
    let failure = read(503, "text/plain", Pieces::of("busy", 9)).0.unwrap_err();
    assert_eq!((failure.transient, failure.status), (None, Some(503)));
}

#[test]
fn whole_answers_of_several_kinds_of_server_are_read() {
    let whole = |message: Value, finish: &str| {
        json!({"choices": [{"message": message, "finish_reason": finish}], "usage": {"prompt_tokens": 1}}).to_string()
    };
    let read = |text: String| read(200, "application/json", Pieces::of(&text, 7)).0;
    assert_eq!(read(whole(json!({"content": "hi"}), "stop")).unwrap().content, [json!({"type": "text", "text": "hi"})]);
    let calls = json!([{"id": "", "function": {"name": "x", "arguments": {"k": 1}}}]);
    let reply = read(whole(json!({"content": null, "tool_calls": calls}), "stop")).unwrap();
    assert_eq!(reply.stop, Stop::ToolCall);
    assert_eq!(reply.content, [json!({"type": "tool_call", "id": "call_0", "name": "x", "input": {"k": 1}})]);
    assert_eq!(read(whole(json!({"content": "cut"}), "length")).unwrap().stop, Stop::MaxTokens);
    let slip = json!([{"id": "a", "function": {"name": "x", "arguments": "{\"k\":"}}]);
    assert_eq!(read(whole(json!({"tool_calls": slip}), "tool_calls")).unwrap_err().transient, Some(true));
    assert!(read(whole(json!({"refusal": "no", "content": null}), "stop")).unwrap_err().reason.contains("declined"));
    for bad in ["", "{}", r#"{"choices":[]}"#, r#"{"error":"boom"}"#, "<html>"] {
        assert!(read(bad.to_owned()).is_err(), "{bad}");
    }
}

#[test]
fn a_conversation_goes_out_in_the_providers_shape() {
    let request = json!({"model": "m", "max_tokens": 9, "system": "be brief", "params": {}, "prompt_cache_key": "k",
        "tools": [{"name": "x", "parameters": {"type": "object"}, "description": "d"}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": [{"type": "thinking", "text": "hm"},
                {"type": "tool_call", "id": "c", "name": "x", "input": {"k": 1}}]},
            {"role": "tool", "tool_call_id": "c", "is_error": true, "content": [{"type": "text", "text": "no"}]},
            {"role": "assistant", "content": []}]})
    .to_string();
    let body = outgoing(&request, None).unwrap();
    assert_eq!(
        body["messages"],
        json!([
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "x", "arguments": "{\"k\":1}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "no"}])
    );
    assert_eq!(body["tools"][0]["function"]["name"], "x");
    assert_eq!((&body["max_completion_tokens"], &body["prompt_cache_key"]), (&json!(9), &json!("k")));
    assert_eq!(body["stream_options"], json!({"include_usage": true}));
    let plain = outgoing(&request, Some(r#"{"dialect":"plain","stream":false,"body":{"temperature":0}}"#)).unwrap();
    assert_eq!((&plain["max_tokens"], &plain["temperature"]), (&json!(9), &json!(0)));
    assert!(plain["prompt_cache_key"].is_null() && plain["stream_options"].is_null());
    assert!(outgoing(&request, Some(r#"{"dialect":"latin"}"#)).unwrap_err().reason.contains("'latin'"));
}
