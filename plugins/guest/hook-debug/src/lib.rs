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
    /// A JSON object for the task's stream.
    Artifact(String),
    /// The hook fails.
    Fail(String),
    /// The component traps.
    Trap,
    /// It never comes back.
    Spin,
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
            "on-session-end": {"trap": true},
        }});
        let of = |event, text, times| answer(&config, event, text, times);
        assert_eq!(of("on-tool-call", "the secret", 0), Answer::Deny("not that".into()));
        assert_eq!(of("on-tool-call", "anything", 0), Answer::None);
        assert_eq!(of("on-task-end", "", 0), Answer::Reopen("again".into()));
        assert_eq!(of("on-task-end", "", 1), Answer::None);
        assert_eq!(of("on-task-start", "", 0), Answer::Seed(vec!["a".into(), "b".into()]));
        assert_eq!(of("on-inference", "", 0), Answer::Artifact(r#"{"n":1}"#.into()));
        assert_eq!(of("on-session-end", "", 0), Answer::Trap);
        assert_eq!(of("on-session-start", "", 0), Answer::None);
        assert_eq!(answer(&Value::Null, "on-tool-call", "", 0), Answer::None);
    }
}
