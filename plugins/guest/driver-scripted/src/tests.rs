use mur_guest_kit::Status;
use mur_guest_kit::provider::Events;
use serde_json::{Value, json};

use super::*;

#[derive(Default)]
struct Rehearsal {
    seen: Vec<String>,
    counted: u64,
}

impl Events for Rehearsal {
    fn text(&mut self, chunk: &str) {
        self.seen.push(format!("text {chunk}"));
    }
    fn thinking(&mut self, chunk: &str) {
        self.seen.push(format!("thinking {chunk}"));
    }
    fn call_started(&mut self, id: &str, name: &str) {
        self.seen.push(format!("started {id} {name}"));
    }
    fn call_bytes(&mut self, _: &str, _: u64) {}
}

impl Stage for Rehearsal {
    fn wait(&mut self, millis: u64) {
        self.seen.push(format!("wait {millis}"));
    }
    fn http(&mut self, method: &str, url: &str, _: &[(String, String)], _: &str) -> Result<(u16, String), String> {
        self.seen.push(format!("{method} {url}"));
        if url.ends_with("no") { Err("refused".into()) } else { Ok((200, "body".into())) }
    }
    fn count(&mut self, _: &str) -> Result<u64, String> {
        self.counted += 1;
        Ok(self.counted - 1)
    }
    fn ask(&mut self, prompt: &str) -> String {
        format!("answer to {prompt}")
    }
    fn env(&self) -> Vec<(String, String)> {
        vec![("MURMUR_FORMATION_PEERS".into(), "a=http://a.formation.invalid".into())]
    }
    fn spin(&mut self) {}
    fn grow(&mut self, _: u64) {}
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": [{"type": "text", "text": text}]})
}

fn request(messages: Vec<Value>) -> String {
    let call_member = json!({"name": "call-member", "parameters": {"type": "object", "properties": {
        "member": {"type": "string", "enum": ["a", "b"]}, "task": {"type": "string"}}}});
    json!({"model": "scripted", "max_tokens": 100, "messages": messages, "tools": [call_member], "params": {},
        "system": "be brief"})
    .to_string()
}

fn played(script: &Value, messages: Vec<Value>) -> (Value, Vec<String>) {
    let mut stage = Rehearsal::default();
    let answer = run(&request(messages), Some(&script.to_string()), &mut stage);
    assert_eq!(answer.status, Status::Passed, "{}", answer.data);
    (serde_json::from_str(&answer.data).unwrap(), stage.seen)
}

fn refused(script: &Value) -> String {
    let answer = run(&request(vec![user("hello")]), Some(&script.to_string()), &mut Rehearsal::default());
    assert_eq!(answer.status, Status::Error);
    serde_json::from_str::<Value>(&answer.data).unwrap()["error"].as_str().unwrap().to_owned()
}

#[test]
fn the_rule_is_chosen_by_the_last_outside_message_and_the_turn_by_the_answers_since() {
    let script = json!({"rules": [
        {"when": {"matches": "count (?<what>\\w+)"}, "turns": [
            {"call": "text-stats", "input": {"text": "{{what}}", "top": 3}},
            {"say": "{{result.words}} words, turn {{turn}} of {{turns}}"}]},
        {"turns": [{"say": "what?"}]},
    ]});
    let (reply, seen) = played(&script, vec![user("hi"), json!({"role": "assistant", "content": []}), user("count x")]);
    assert_eq!(reply["stop_reason"], "tool_call");
    assert_eq!(reply["content"][0]["input"], json!({"text": "x", "top": 3}));
    assert_eq!(seen, ["started call_1_1 text-stats"]);
    let call = reply["content"].clone();
    let result = json!({"role": "tool", "tool_call_id": "call_1_1", "is_error": false, "content": [{"type": "text",
        "text": "<untrusted-content source=tool:text-stats>\n{\"words\":7}\n</untrusted-content>"}]});
    let (reply, _) = played(&script, vec![user("count x"), json!({"role": "assistant", "content": call}), result]);
    assert_eq!(reply["content"][0]["text"], "7 words, turn 1 of 1");
    assert_eq!(reply["stop_reason"], "end_turn");
}

#[test]
fn work_is_split_over_all_peers_and_joined() {
    let script = json!({"rules": [
        {"when": {"contains": "[call-member] call "}, "turns": [
            {"say": "{{answers | each \"{{it.member}}={{it.text | find \\\"(\\d+)\\\"}} \"}}{{text | find_all \"n=(\\d+)\" | sum}}"}]},
        {"turns": [[{"for_each": "{{peers}}", "as": "peer", "do": [
            {"call": "call-member", "input": {"member": "{{peer}}", "task": "{{text | part index of}}"}}]}]]},
    ]});
    let (reply, _) = played(&script, vec![user("one\ntwo\n")]);
    let tasks: Vec<&Value> = reply["content"].as_array().unwrap().iter().map(|call| &call["input"]).collect();
    assert_eq!(tasks, [&json!({"member": "a", "task": "one\n"}), &json!({"member": "b", "task": "two\n"})]);
    let answers = "[call-member] call mcl_1 to a ended completed:\n<untrusted-content source=member:a>\nn=3\n\
        </untrusted-content>\n\n[call-member] call mcl_2 to b ended completed:\n<untrusted-content source=member:b>\n\
        n=4\n</untrusted-content>";
    let (reply, _) = played(&script, vec![user("x"), user(answers)]);
    assert_eq!(reply["content"][0]["text"], "a=3 b=4 7");
}

#[test]
fn texts_stream_in_chunks_with_pauses() {
    let script = json!({"usage": "estimate", "rules": [{"turns": [[
        {"think": "hm"}, {"say": "one two three", "chunks": 3, "every_ms": 5}, {"wait_ms": 7}, {"say": ["a", "b"]},
        {"usage": {"input_tokens": 3}}, {"stop": "max_tokens"}, {"metadata": {"continuation_id": "c"}}]]}]});
    let (reply, seen) = played(&script, vec![user("x")]);
    assert_eq!(
        seen,
        ["thinking hm", "text one ", "wait 5", "text two ", "wait 5", "text three", "wait 7", "text a", "text b"]
    );
    assert_eq!(reply["usage"], json!({"input_tokens": 3}));
    assert_eq!(reply["stop_reason"], "max_tokens");
}

#[test]
fn failures_come_out_as_they_are_written() {
    let script = json!({"rules": [{"turns": [[
        {"count": "tries", "as": "n"},
        {"if": {"of": "{{n}}", "less": 1}, "then": [{"error": "overloaded {{n}}", "transient": true}],
         "else": [{"say": "at last"}]}]]}]});
    let mut stage = Rehearsal::default();
    let first = run(&request(vec![user("x")]), Some(&script.to_string()), &mut stage);
    assert_eq!(first.status, Status::Error);
    assert_eq!(first.metadata, [("transient".to_owned(), "true".to_owned())]);
    let second = run(&request(vec![user("x")]), Some(&script.to_string()), &mut stage);
    assert!(second.data.contains("at last"));
    let raw = json!({"rules": [{"turns": [{"raw": "not json", "status": "passed"}]}]});
    assert_eq!(run(&request(vec![user("x")]), Some(&raw.to_string()), &mut stage).data, "not json");
}

#[test]
fn requests_of_a_script_give_their_outcome() {
    let script = json!({"rules": [{"turns": [[
        {"http": "http://x/yes", "as": "a"}, {"http": "http://x/no", "method": "PUT", "as": "b"},
        {"say": "{{a.status}} {{a.body}} {{b.error}} {{env.MURMUR_FORMATION_PEERS}}"}]]}]});
    let (reply, seen) = played(&script, vec![user("x")]);
    assert_eq!(reply["content"][0]["text"], "200 body refused a=http://a.formation.invalid");
    assert_eq!(seen[..2], ["GET http://x/yes", "PUT http://x/no"]);
}

#[test]
fn a_script_with_a_fault_says_where_it_is() {
    for (script, part) in [
        (json!([]), "must be a mapping"),
        (json!({"rules": [], "rulez": 1}), "'rulez'"),
        (json!({"rules": [{"turns": []}]}), "rule 1: 'turns'"),
        (json!({"rules": [{"turns": [[{"say": "a"}, {"sing": "b"}]]}]}), "rule 1: turn 0: step 2: 'sing' is no step"),
        (json!({"rules": [{"turns": [{"say": "a", "loud": true}]}]}), "'loud'"),
        (json!({"rules": [{"when": {"like": "a"}, "turns": [{"say": "a"}]}]}), "'like' is no condition"),
        (
            json!({"rules": [{"when": {"contains": "bye"}, "turns": [{"say": "a"}]}]}),
            "no rule fits turn 0 after 'hello'",
        ),
        (json!({"rules": [{"turns": [{"for_each": 30000, "do": [{"say": "a"}]}]}]}), "more than 20000 steps"),
    ] {
        let fault = refused(&script);
        assert!(fault.contains(part), "{script}: {fault}");
    }
}

#[test]
fn without_a_script_work_is_handed_on_or_said_back() {
    let mut stage = Rehearsal::default();
    let reply = run(&request(vec![user("do it")]), None, &mut stage);
    assert!(reply.data.contains(r#""member":"b","task":"do it""#), "{}", reply.data);
    let alone = json!({"model": "m", "messages": [user("do it")], "tools": []}).to_string();
    assert!(run(&alone, None, &mut stage).data.contains("says them back: do it"));
    let answers = "[call-member] call mcl_1 to a ended completed:\n<untrusted-content source=member:a>\nyes\n\
        </untrusted-content>";
    assert!(run(&request(vec![user("x"), user(answers)]), None, &mut stage).data.contains("a answered: yes"));
}

#[test]
fn without_a_script_a_member_that_gave_no_answer_is_reported_plainly() {
    let calls = json!([{"type": "tool_call", "id": "c1", "name": "call-member", "input": {}},
        {"type": "tool_call", "id": "c2", "name": "call-member", "input": {}}]);
    let result = |id: &str, is_error: bool, data: Value, note: &str| {
        json!({"role": "tool", "tool_call_id": id, "is_error": is_error, "content": [{"type": "text", "text":
            format!("<untrusted-content source=tool:call-member>\n{data}\n</untrusted-content>\n{note}")}]})
    };
    let gone = json!({"call_id": "mcl_1", "member": "a", "status": "unreachable", "output": "its door is closed"});
    let taken = json!({"call_id": "mcl_2", "member": "b", "status": "started", "task_id": "tsk_1"});
    let talk = vec![
        user("do it"),
        json!({"role": "assistant", "content": calls}),
        result("c1", true, gone, "Do not present anything as a's answer."),
        result("c2", false, taken, "Its answer is not here yet."),
    ];
    let text = |messages: Vec<Value>| {
        let reply = run(&request(messages), None, &mut Rehearsal::default());
        let reply: Value = serde_json::from_str(&reply.data).unwrap();
        let blocks = reply["content"].as_array().unwrap().iter();
        blocks.map(|block| block["text"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(text(talk), ["No answer from a (unreachable): its door is closed", "Handed to b."]);
    let answers = "[call-member] call mcl_2 to b ended timed_out, with no answer from b:\n\
        <untrusted-content source=member:b>\ntoo late\n</untrusted-content>\n\n\
        [call-member] No answer came from: b (call mcl_2, timed_out). Say so.";
    assert_eq!(
        text(vec![user("x"), user(answers)]),
        ["No answer from b (timed_out): too late", "No answer from a: it did not take the task."]
    );
}
