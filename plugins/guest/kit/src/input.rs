//! Reading a tool call's input: every complaint names the field, so that a model can mend its call.

use serde_json::{Map, Value};

use crate::Answer;

/// The call's input object.
pub struct Input(Map<String, Value>);

impl Input {
    /// Reads the call's JSON text.
    pub fn read(text: &str) -> Result<Self, Answer> {
        match serde_json::from_str(text) {
            Ok(Value::Object(map)) => Ok(Self(map)),
            Ok(other) => Err(Answer::error(format!("the input must be a JSON object, not {}", kind(&other)))),
            Err(fault) => Err(Answer::error(format!("the input is not JSON: {fault}"))),
        }
    }

    /// A text that must be there.
    pub fn text(&self, key: &str) -> Result<&str, Answer> {
        self.optional_text(key)?.ok_or_else(|| Answer::error(format!("'{key}' is missing")))
    }

    /// A text that may be there.
    pub fn optional_text(&self, key: &str) -> Result<Option<&str>, Answer> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(Answer::error(format!("'{key}' must be a string, not {}", kind(other)))),
        }
    }

    /// A number that may be there; models like to send numbers as text.
    pub fn number(&self, key: &str) -> Result<Option<u64>, Answer> {
        let found = match self.0.get(key) {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::Number(number)) => number.as_u64(),
            Some(Value::String(text)) => text.trim().parse().ok(),
            Some(_) => None,
        };
        found.map(Some).ok_or_else(|| Answer::error(format!("'{key}' must be a whole number of zero or more")))
    }

    /// A yes or no that may be there.
    pub fn flag(&self, key: &str) -> Result<bool, Answer> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(Answer::error(format!("'{key}' must be true or false, not {}", kind(other)))),
        }
    }

    /// The value under a key, as it is.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Cuts `text` to at most `limit` bytes on a character boundary, and says whether it did.
pub fn cut(text: &str, limit: usize) -> (&str, bool) {
    if text.len() <= limit {
        return (text, false);
    }
    let mut end = limit;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    (&text[..end], true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complaint_names_the_field() {
        let input = Input::read(r#"{"path": 3, "limit": "12", "deep": "yes"}"#).ok().unwrap();
        assert_eq!(input.text("path").unwrap_err().data, "'path' must be a string, not a number");
        assert_eq!(input.text("other").unwrap_err().data, "'other' is missing");
        assert_eq!(input.number("limit").unwrap(), Some(12));
        assert!(input.flag("deep").is_err());
    }

    #[test]
    fn only_an_object_is_an_input() {
        assert_eq!(Input::read("[]").err().unwrap().data, "the input must be a JSON object, not a list");
        assert!(Input::read("{").err().unwrap().data.starts_with("the input is not JSON"));
    }

    #[test]
    fn a_cut_keeps_whole_characters() {
        assert_eq!(cut("häuser", 2), ("h", true));
        assert_eq!(cut("häuser", 7), ("häuser", false));
    }
}
