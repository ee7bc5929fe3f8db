//! Writes down every event it gets, and answers what its configuration says.

#[cfg(target_family = "wasm")]
mod component;
#[cfg(target_family = "wasm")]
mod file;

use serde_json::Value;

/// What a hook answers an event with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Nothing.
    None,
    /// The call is not made.
    Deny(String),
    /// The task goes on.
    Reopen(String),
    /// What the conversation begins with: users' texts.
    Seed(Vec<String>),
    /// The conversation from here on.
    Replace(Vec<Piece>),
    /// A JSON object for the task's stream.
    Artifact(String),
    /// The hook fails.
    Fail(String),
    /// The component traps.
    Trap,
    /// It never comes back.
    Spin,
}

/// One message of a conversation that takes another's place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// One of those that are there, by its place; from the end when negative. With a text it is changed.
    Kept(i64, Option<String>),
    /// A new one: role and content.
    New(String, String),
}

/// The answer of a configuration to an event. `text` is what `when` looks into, `times` how often this event's answer was
/// given before.
pub fn answer(config: &Value, event: &str, text: &str, times: u64) -> Answer {
    let rule = &config["answers"][event];
    let holds = rule["when"].as_str().is_none_or(|wanted| text.contains(wanted));
    if !holds || rule["times"].as_u64().is_some_and(|most| times >= most) {
        return Answer::None;
    }
    let word = |key: &str| rule[key].as_str().map(str::to_owned);
    if let Some(reason) = word("deny") {
        return Answer::Deny(reason);
    }
    if let Some(reason) = word("reopen") {
        return Answer::Reopen(reason);
    }
    if let Some(texts) = rule["seed"].as_array() {
        return Answer::Seed(texts.iter().filter_map(|text| text.as_str().map(str::to_owned)).collect());
    }
    if let Some(list) = rule["replace"].as_array() {
        return Answer::Replace(list.iter().map(piece).collect());
    }
    if let Some(why) = word("error") {
        return Answer::Fail(why);
    }
    if let Some(text) = word("artifact") {
        return Answer::Artifact(text);
    }
    if rule["artifact"].is_object() {
        return Answer::Artifact(rule["artifact"].to_string());
    }
    if rule["trap"] == true {
        return Answer::Trap;
    }
    if rule["spin"] == true {
        return Answer::Spin;
    }
    Answer::None
}

/// `{at, content}` or `{role, content}`; a text alone is a user's.
fn piece(value: &Value) -> Piece {
    let text = |key: &str| value[key].as_str().map(str::to_owned);
    match value["at"].as_i64() {
        Some(at) => Piece::Kept(at, text("content")),
        None => {
            let content = text("content").or_else(|| value.as_str().map(str::to_owned)).unwrap_or_default();
            Piece::New(text("role").unwrap_or_else(|| "user".to_owned()), content)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_is_answered_as_its_rule_says() {
        let config = json!({"answers": {
            "on-tool-call": {"deny": "not that", "when": "secret"},
            "on-task-end": {"reopen": "again", "times": 1},
            "on-task-start": {"seed": ["a", "b"]},
            "on-inference": {"artifact": {"n": 1}},
            "on-compaction": {"replace": ["short", {"role": "assistant", "content": "x"}, {"at": -1}]},
            "on-session-end": {"trap": true},
        }});
        let of = |event, text, times| answer(&config, event, text, times);
        assert_eq!(of("on-tool-call", "the secret", 0), Answer::Deny("not that".into()));
        assert_eq!(of("on-tool-call", "anything", 0), Answer::None);
        assert_eq!(of("on-task-end", "", 0), Answer::Reopen("again".into()));
        assert_eq!(of("on-task-end", "", 1), Answer::None);
        assert_eq!(of("on-task-start", "", 0), Answer::Seed(vec!["a".into(), "b".into()]));
        assert_eq!(of("on-inference", "", 0), Answer::Artifact(r#"{"n":1}"#.into()));
        let pieces = vec![
            Piece::New("user".into(), "short".into()),
            Piece::New("assistant".into(), "x".into()),
            Piece::Kept(-1, None),
        ];
        assert_eq!(of("on-compaction", "", 0), Answer::Replace(pieces));
        assert_eq!(of("on-session-end", "", 0), Answer::Trap);
        assert_eq!(of("on-session-start", "", 0), Answer::None);
        assert_eq!(answer(&Value::Null, "on-tool-call", "", 0), Answer::None);
    }
}
