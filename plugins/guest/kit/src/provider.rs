//! What drivers of a model provider share: the request as the host sends it, the reply as it wants it back, and the
//! failures between.

use serde_json::{Map, Value, json};

use crate::sse::{Decoder, Event};
use crate::{Answer, Status};

/// The longest answer that is not a stream.
pub const MAX_BODY: usize = 32 * 1024 * 1024;
/// How much of a provider's error text is passed on.
pub const MAX_ERROR: usize = 2000;

/// What a driver shows while an answer grows.
pub trait Events {
    /// A piece of the answer's text.
    fn text(&mut self, chunk: &str);
    /// A piece of the model's reasoning.
    fn thinking(&mut self, chunk: &str);
    /// The model began to write a tool call.
    fn call_started(&mut self, id: &str, name: &str);
    /// How long the call's input is by now.
    fn call_bytes(&mut self, id: &str, bytes: u64);
}

/// The body of an answer, in pieces.
pub trait Body {
    /// The next piece, `None` at the end; a body cut off is a fault.
    fn next(&mut self) -> Result<Option<Vec<u8>>, String>;
}

/// The host's request.
#[derive(Debug, Default)]
pub struct Request {
    /// Which model is asked.
    pub model: String,
    /// The output cap.
    pub max_tokens: Option<u64>,
    /// The system prompt, empty for none.
    pub system: String,
    /// The conversation, oldest first.
    pub messages: Vec<Message>,
    /// What the model may call: the entries as they came.
    pub tools: Vec<Value>,
    /// The provider's cache is asked to group requests by this.
    pub cache_key: Option<String>,
}

/// One message of the conversation.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// From outside the model.
    User(Vec<Value>),
    /// The model's own, as this driver returned it.
    Assistant(Vec<Value>),
    /// A tool's result.
    Tool {
        /// The call it answers.
        id: String,
        /// Whether the call went wrong.
        is_error: bool,
        /// Its text.
        text: String,
    },
}

impl Request {
    /// Reads the call's JSON text.
    pub fn read(text: &str) -> Result<Self, Failure> {
        let value: Value =
            serde_json::from_str(text).map_err(|fault| Failure::fixed(format!("the request is not JSON: {fault}")))?;
        let Value::Object(map) = value else { return Err(Failure::fixed("the request is no JSON object")) };
        let text = |key: &str| map.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let list = |key: &str| map.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
        let messages = list("messages")
            .into_iter()
            .enumerate()
            .map(|(at, message)| {
                Message::read(message).ok_or_else(|| Failure::fixed(format!("message {at} has no role known here")))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            model: text("model"),
            max_tokens: map.get("max_tokens").and_then(Value::as_u64),
            system: text("system"),
            messages,
            tools: list("tools"),
            cache_key: map.get("prompt_cache_key").and_then(Value::as_str).map(str::to_owned),
        })
    }
}

impl Message {
    fn read(value: Value) -> Option<Self> {
        let Value::Object(mut map) = value else { return None };
        let content = match map.remove("content") {
            Some(Value::Array(blocks)) => blocks,
            Some(Value::String(text)) => vec![json!({"type": "text", "text": text})],
            _ => Vec::new(),
        };
        match map.get("role")?.as_str()? {
            "user" => Some(Self::User(content)),
            "assistant" => Some(Self::Assistant(content)),
            "tool" => Some(Self::Tool {
                id: map.get("tool_call_id").and_then(Value::as_str).unwrap_or_default().to_owned(),
                is_error: map.get("is_error").and_then(Value::as_bool).unwrap_or_default(),
                text: text_of(&content),
            }),
            _ => None,
        }
    }

    /// The message's text blocks, joined by line feeds.
    pub fn text(&self) -> String {
        match self {
            Self::User(content) | Self::Assistant(content) => text_of(content),
            Self::Tool { text, .. } => text.clone(),
        }
    }
}

/// The text blocks among `content`, joined by line feeds.
pub fn text_of(content: &[Value]) -> String {
    let texts: Vec<&str> =
        content.iter().filter(|block| block["type"] == "text").filter_map(|block| block["text"].as_str()).collect();
    texts.join("\n")
}

/// Why the model's turn ended, in the host's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// It said all it had to say.
    EndTurn,
    /// It wants its tool calls run.
    ToolCall,
    /// It ran into the output cap.
    MaxTokens,
}

/// An answer of a model.
#[derive(Debug, PartialEq)]
pub struct Reply {
    /// Why it ended.
    pub stop: Stop,
    /// Its blocks.
    pub content: Vec<Value>,
    /// Token counts by the host's names; only those the provider gave.
    pub usage: Map<String, Value>,
}

impl Reply {
    /// The reply as the host reads it.
    pub fn answer(self) -> Answer {
        let stop = match self.stop {
            Stop::EndTurn => "end_turn",
            Stop::ToolCall => "tool_call",
            Stop::MaxTokens => "max_tokens",
        };
        let mut reply = json!({"stop_reason": stop, "content": self.content});
        if !self.usage.is_empty() {
            reply["usage"] = Value::Object(self.usage);
        }
        Answer::json(&reply)
    }
}

/// A request that got no answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    /// What happened.
    pub reason: String,
    /// Whether asking again can help, where this driver knows better than the status tells.
    pub transient: Option<bool>,
    /// The provider's status, when there was one.
    pub status: Option<u16>,
    /// How long the provider asks to wait.
    pub retry_after_ms: Option<u64>,
}

impl Failure {
    /// One that asking again will not mend.
    pub fn fixed(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), transient: Some(false), status: None, retry_after_ms: None }
    }

    /// One that asking again may mend.
    pub fn transient(reason: impl Into<String>) -> Self {
        Self { transient: Some(true), ..Self::fixed(reason) }
    }

    /// One that the host judges by what it saw of the connection.
    pub fn open(reason: impl Into<String>) -> Self {
        Self { transient: None, ..Self::fixed(reason) }
    }

    /// The failure as the host reads it.
    pub fn answer(self) -> Answer {
        let mut answer = Answer {
            status: Status::Error,
            ..Answer::json(&json!({"stop_reason": "error", "content": [], "error": self.reason}))
        };
        if let Some(transient) = self.transient {
            answer = answer.note("transient", if transient { "true" } else { "false" });
        }
        if let Some(status) = self.status {
            answer = answer.note("http_status", status.to_string());
        }
        if let Some(millis) = self.retry_after_ms {
            answer = answer.note("retry_after_ms", millis.to_string());
        }
        answer
    }
}

/// How long a refused client is asked to wait, by the headers of the refusal. A date is left to the host, which has
/// the headers too.
pub fn retry_after_ms<'a>(header: impl Fn(&str) -> Option<&'a str>) -> Option<u64> {
    if let Some(millis) = header("retry-after-ms").and_then(|text| text.trim().parse::<f64>().ok()) {
        return whole(millis);
    }
    header("retry-after").and_then(|text| text.trim().parse::<f64>().ok()).and_then(|secs| whole(secs * 1000.0))
}

fn whole(millis: f64) -> Option<u64> {
    // A cast of a float saturates; a week is more than anyone waits.
    (millis.is_finite() && millis >= 0.0).then(|| millis.min(7.0 * 86_400_000.0) as u64)
}

/// Reads a stream of events until `take` says that it has the whole answer. An end before that is a cut.
pub fn stream(body: &mut dyn Body, mut take: impl FnMut(&Event) -> Result<bool, Failure>) -> Result<(), Failure> {
    let mut decoder = Decoder::default();
    loop {
        // A cut may be mended by asking again, whatever the host thinks of a connection that did answer.
        let Some(bytes) = body.next().map_err(Failure::transient)? else {
            return Err(Failure::transient("the provider's stream ended before its answer was complete"));
        };
        for event in decoder.push(&bytes).map_err(Failure::fixed)? {
            if take(&event)? {
                return Ok(());
            }
        }
    }
}

/// Reads a whole body, bounded.
pub fn whole_body(body: &mut dyn Body) -> Result<Vec<u8>, String> {
    let mut all = Vec::new();
    while let Some(bytes) = body.next()? {
        if all.len() + bytes.len() > MAX_BODY {
            return Err(format!("the provider's answer is longer than {MAX_BODY} bytes"));
        }
        all.extend_from_slice(&bytes);
    }
    Ok(all)
}

/// Reads an answer that must be JSON. A page of a proxy or of a wrong endpoint is told apart by how it begins.
pub fn whole_json(body: &[u8]) -> Result<Value, Failure> {
    const SHOWN: usize = 80;
    serde_json::from_slice(body).map_err(|fault| {
        let text = String::from_utf8_lossy(body);
        let words = text.split_whitespace().take(SHOWN).collect::<Vec<_>>().join(" ");
        match crate::input::cut(&words, SHOWN).0 {
            "" => Failure::fixed("the provider's answer is empty"),
            begin => Failure::fixed(format!("the provider's answer is not JSON ({fault}); it begins: {begin}")),
        }
    })
}

/// What a provider's error body says: `error.message` where it is JSON of the usual kind, else its text.
pub fn error_text(body: &[u8]) -> (Option<String>, String) {
    let text = String::from_utf8_lossy(body);
    let (kind, message) = match serde_json::from_str::<Value>(&text) {
        Ok(value) => {
            let error = if value["error"].is_object() { &value["error"] } else { &value };
            let kind = ["type", "code"].iter().find_map(|key| error[*key].as_str()).map(str::to_owned);
            let message = error["message"].as_str().or_else(|| value["error"].as_str()).map(str::to_owned);
            (kind, message.unwrap_or_else(|| text.trim().to_owned()))
        }
        Err(_) => (None, text.trim().to_owned()),
    };
    let (cut, _) = crate::input::cut(&message, MAX_ERROR);
    (kind, cut.to_owned())
}

/// The driver's own settings, `inference.driver.config`.
#[derive(Debug, Default)]
pub struct Config(Map<String, Value>);

impl Config {
    /// Reads the settings; a key that is not among `known` is refused, since it would silently do nothing.
    pub fn read(text: Option<&str>, known: &[&str]) -> Result<Self, Failure> {
        let Some(text) = text else { return Ok(Self::default()) };
        let map = match serde_json::from_str(text) {
            Ok(Value::Object(map)) => map,
            Ok(_) => return Err(Failure::fixed("inference.driver.config must be a mapping")),
            Err(fault) => return Err(Failure::fixed(format!("inference.driver.config is not JSON: {fault}"))),
        };
        if let Some(key) = map.keys().find(|key| !known.contains(&key.as_str())) {
            return Err(Failure::fixed(format!(
                "inference.driver.config has an unknown key '{key}'; known are: {}",
                known.join(", ")
            )));
        }
        Ok(Self(map))
    }

    /// A yes or no.
    pub fn flag(&self, key: &str, default: bool) -> Result<bool, Failure> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(Failure::fixed(format!("inference.driver.config.{key} must be true or false"))),
        }
    }

    /// A text.
    pub fn text(&self, key: &str) -> Result<Option<&str>, Failure> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(Failure::fixed(format!("inference.driver.config.{key} must be text"))),
        }
    }

    /// Lays the mapping `body` over a provider's request, for parameters this driver has no name for.
    pub fn lay_over(&self, request: &mut Map<String, Value>, reserved: &[&str]) -> Result<(), Failure> {
        match self.0.get("body") {
            None | Some(Value::Null) => Ok(()),
            Some(Value::Object(body)) => {
                for (key, value) in body {
                    if reserved.contains(&key.as_str()) {
                        return Err(Failure::fixed(format!(
                            "inference.driver.config.body may not set '{key}': it is the runtime's"
                        )));
                    }
                    request.insert(key.clone(), value.clone());
                }
                Ok(())
            }
            Some(_) => Err(Failure::fixed("inference.driver.config.body must be a mapping")),
        }
    }
}

/// Copies a token count under the host's name, when it is one.
pub fn count(usage: &mut Map<String, Value>, key: &str, value: &Value) {
    if let Some(number) = value.as_u64() {
        usage.insert(key.to_owned(), number.into());
    }
}

/// For tests of drivers: bodies and events that need no host.
pub mod testing {
    use super::{Body, Events};

    /// A body in given pieces, cut off at the end if asked.
    pub struct Pieces {
        pieces: std::vec::IntoIter<Vec<u8>>,
        cut: bool,
    }

    impl Pieces {
        /// The text in pieces of `size` bytes.
        pub fn of(text: &str, size: usize) -> Self {
            Self {
                pieces: text.as_bytes().chunks(size).map(<[u8]>::to_vec).collect::<Vec<_>>().into_iter(),
                cut: false,
            }
        }

        /// The same, ended by a broken connection.
        pub fn cut(text: &str, size: usize) -> Self {
            Self { cut: true, ..Self::of(text, size) }
        }
    }

    impl Body for Pieces {
        fn next(&mut self) -> Result<Option<Vec<u8>>, String> {
            match self.pieces.next() {
                Some(piece) => Ok(Some(piece)),
                None if self.cut => Err("the answer was cut off".to_owned()),
                None => Ok(None),
            }
        }
    }

    /// Keeps what it is told, one line an event.
    #[derive(Default)]
    pub struct Seen(pub Vec<String>);

    impl Events for Seen {
        fn text(&mut self, chunk: &str) {
            self.0.push(format!("text {chunk}"));
        }

        fn thinking(&mut self, chunk: &str) {
            self.0.push(format!("thinking {chunk}"));
        }

        fn call_started(&mut self, id: &str, name: &str) {
            self.0.push(format!("started {id} {name}"));
        }

        fn call_bytes(&mut self, id: &str, bytes: u64) {
            self.0.push(format!("bytes {id} {bytes}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_is_no_json_is_told_by_how_it_begins() {
        let told = |body: &[u8]| whole_json(body).unwrap_err().reason;
        assert!(told(b"<html>\n  <p>Sign in</p>").ends_with("; it begins: <html> <p>Sign in</p>"));
        assert_eq!(told(b" \n"), "the provider's answer is empty");
        assert!(told(&[b'x'; 4096]).len() < 200);
        assert_eq!(whole_json(b"[1]").unwrap(), serde_json::json!([1]));
    }

    #[test]
    fn waits_are_read_from_either_header() {
        let of =
            |name: &'static str, value: &'static str| retry_after_ms(move |asked| (asked == name).then_some(value));
        assert_eq!(of("retry-after", "2"), Some(2000));
        assert_eq!(of("retry-after", " 0.5 "), Some(500));
        assert_eq!(of("retry-after-ms", "17"), Some(17));
        assert_eq!(of("retry-after", "Wed, 21 Oct 2015 07:28:00 GMT"), None);
        assert_eq!(of("retry-after", "-1"), None);
        assert_eq!(of("retry-after", "inf"), None);
        assert_eq!(of("retry-after", "1e300"), Some(604_800_000));
    }

    #[test]
    fn error_bodies_of_every_shape_give_a_text() {
        let read = |text: &str| error_text(text.as_bytes());
        assert_eq!(read(r#"{"error":{"type":"a","message":"m"}}"#), (Some("a".into()), "m".into()));
        assert_eq!(read(r#"{"error":"plain"}"#), (None, "plain".into()));
        assert_eq!(read("<html>busy</html>\n"), (None, "<html>busy</html>".into()));
        assert_eq!(read(""), (None, String::new()));
        assert!(read(&"é".repeat(5000)).1.len() <= MAX_ERROR);
    }

    #[test]
    fn an_unknown_setting_is_refused() {
        let failure = Config::read(Some(r#"{"steam": true}"#), &["stream"]).unwrap_err();
        assert!(failure.reason.contains("'steam'") && failure.reason.contains("stream"));
    }
}
