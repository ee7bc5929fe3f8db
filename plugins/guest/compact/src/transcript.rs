//! The older part of a conversation as one text, for a model to read.

use serde_json::Value;

/// Characters of one message that are written out: what is longer loses its middle.
const ENTRY_MAX: usize = 16_000;

/// The same of an earlier summary, which is all that is left of what it tells.
const SUMMARY_MAX: usize = 64_000;

/// One message of the conversation.
#[derive(Clone, Debug)]
pub struct Entry {
    /// `user`, `assistant` or `tool`.
    pub role: String,
    /// A block list as JSON, plain text, or the envelope of a tool's result.
    pub content: String,
    /// What it takes.
    pub tokens: u64,
    /// Whether it is what an earlier compaction left.
    pub inserted: bool,
}

/// The transcript in pieces of at most so many tokens; a single message is never divided.
pub fn pieces(entries: &[Entry], most: u64, count: impl Fn(&str) -> u64) -> Vec<String> {
    let mut pieces: Vec<String> = Vec::new();
    let mut held = 0;
    for entry in entries {
        let text = written(entry);
        if text.is_empty() {
            continue;
        }
        let tokens = count(&text);
        match pieces.last_mut() {
            Some(piece) if held + tokens <= most => {
                piece.push_str("\n\n");
                piece.push_str(&text);
                held += tokens;
            }
            _ => {
                pieces.push(text);
                held = tokens;
            }
        }
    }
    pieces
}

/// One message. It can hold no end of the transcript.
fn written(entry: &Entry) -> String {
    let most = if entry.inserted { SUMMARY_MAX } else { ENTRY_MAX };
    let text = match entry.role.as_str() {
        "tool" => result(&entry.content),
        role => parts(role, &entry.content),
    };
    without_middle(&text, most).replace("</transcript", "<\\/transcript")
}

/// The blocks of a user's or an assistant's message; what the model thought is left out.
fn parts(role: &str, content: &str) -> String {
    let Ok(Value::Array(blocks)) = serde_json::from_str(content) else { return format!("{role}: {content}") };
    let lines = blocks.iter().filter_map(|block| match block["type"].as_str() {
        Some("text") => Some(format!("{role}: {}", block["text"].as_str().unwrap_or_default())),
        Some("tool_call") => {
            let word = |key: &str| block[key].as_str().unwrap_or_default();
            Some(format!("{role} calls {} [{}] with {}", word("name"), word("id"), block["input"]))
        }
        _ => None,
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn result(content: &str) -> String {
    let envelope: Value = serde_json::from_str(content).unwrap_or_default();
    let id = envelope["tool_call_id"].as_str().unwrap_or_default();
    let word = if envelope["is_error"] == true { "error" } else { "result" };
    let body = match &envelope["body"] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    format!("{word} of [{id}]: {body}")
}

/// Three quarters from the beginning and a quarter from the end.
fn without_middle(text: &str, most: usize) -> String {
    let length = text.chars().count();
    if length <= most {
        return text.to_owned();
    }
    let head: String = text.chars().take(most / 4 * 3).collect();
    let tail: String = text.chars().skip(length - most / 4).collect();
    format!("{head}\n[… {} characters are left out here …]\n{tail}", length - most / 4 * 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(role: &str, content: &str) -> Entry {
        Entry { role: role.into(), content: content.into(), tokens: 0, inserted: false }
    }

    #[test]
    fn a_message_is_written_out_with_who_said_it() {
        let blocks = r#"[{"type":"thinking","text":"hm"},{"type":"text","text":"I look"},
            {"type":"tool_call","id":"c1","name":"read-file","input":{"path":"a"}}]"#;
        let expected = "assistant: I look\nassistant calls read-file [c1] with {\"path\":\"a\"}";
        assert_eq!(written(&entry("assistant", blocks)), expected);
        assert_eq!(written(&entry("user", "plain")), "user: plain");
        let envelope = r#"{"__murmur_tool_msg__":true,"tool_call_id":"c1","is_error":true,"body":"no </transcript>"}"#;
        assert_eq!(written(&entry("tool", envelope)), "error of [c1]: no <\\/transcript>");
        assert_eq!(written(&entry("assistant", r#"[{"type":"thinking","text":"hm"}]"#)), "");
    }

    #[test]
    fn pieces_hold_as_much_as_fits_and_at_least_one_message() {
        let list: Vec<Entry> = ["one", "two", "three"].map(|text| entry("user", text)).into();
        let of = |most| pieces(&list, most, |text| text.len() as u64);
        assert_eq!(of(20), ["user: one\n\nuser: two", "user: three"]);
        assert_eq!(of(1).len(), 3);
        assert!(pieces(&[], 10, |_| 0).is_empty());
    }

    #[test]
    fn what_is_too_long_loses_its_middle() {
        let text = format!("{}{}{}", "ä".repeat(75), "b".repeat(10), "c".repeat(25));
        let cut = without_middle(&text, 100);
        assert!(cut.starts_with(&"ä".repeat(75)) && cut.ends_with(&"c".repeat(25)), "{cut}");
        assert!(cut.contains("[… 10 characters"), "{cut}");
        assert_eq!(without_middle("short", 100), "short");
    }
}
