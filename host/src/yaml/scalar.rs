//! What a plain scalar reads as, by the core schema, and the questions readers ask of a node.

use serde_json::{Map, Number, Value};

use super::{Entry, Kind, Node};

/// The longest text that can be a number; a longer run of digits is text.
const MAX_NUMBER: usize = 64;

/// Whether a plain text reads as neither null, boolean nor number.
pub(super) fn is_text(text: &str) -> bool {
    !is_null(text) && boolean(text).is_none() && number(text).is_none()
}

/// Whether a plain text is of the core-schema kind a tag names.
pub(super) fn is_kind(text: &str, kind: &str) -> bool {
    match kind {
        "null" => is_null(text),
        "bool" => boolean(text).is_some(),
        "int" => integer(text).is_some(),
        "float" => number(text).is_some(),
        _ => false,
    }
}

fn is_null(text: &str) -> bool {
    matches!(text, "" | "~" | "null" | "Null" | "NULL")
}

/// Plain `true` and `false` only; `yes`, `on` and their like are text.
fn boolean(text: &str) -> Option<bool> {
    match text {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}

fn integer(text: &str) -> Option<i128> {
    if text.len() > MAX_NUMBER {
        return None;
    }
    let digits = |text: &str, radix: u32| {
        let plain = !text.is_empty() && text.chars().all(|c| c.is_digit(radix));
        plain.then(|| i128::from_str_radix(text, radix).ok()).flatten()
    };
    if let Some(hex) = text.strip_prefix("0x") {
        return digits(hex, 16);
    }
    if let Some(octal) = text.strip_prefix("0o") {
        return digits(octal, 8);
    }
    match text.strip_prefix('-') {
        Some(rest) => digits(rest, 10).map(|value| -value),
        None => digits(text.strip_prefix('+').unwrap_or(text), 10),
    }
}

fn number(text: &str) -> Option<f64> {
    if let Some(value) = integer(text) {
        // A number as wide as this is compared, never computed with.
        return Some(value as f64);
    }
    let body = text.strip_prefix(['-', '+']).unwrap_or(text);
    let negative = text.starts_with('-');
    match body {
        ".inf" | ".Inf" | ".INF" => return Some(if negative { f64::NEG_INFINITY } else { f64::INFINITY }),
        ".nan" | ".NaN" | ".NAN" if body == text => return Some(f64::NAN),
        _ => {}
    }
    let decimal = text.len() <= MAX_NUMBER
        && body.bytes().any(|b| b.is_ascii_digit())
        && body.bytes().next().is_some_and(|b| b.is_ascii_digit() || b == b'.')
        && body.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'+' | b'-'));
    decimal.then(|| text.parse().ok()).flatten()
}

impl Node {
    /// Null in any spelling, or no value at all.
    pub fn is_null(&self) -> bool {
        matches!(&self.kind, Kind::Scalar { text, plain: true } if is_null(text))
    }

    /// No value is written, not even `null` or `~`.
    pub fn is_valueless(&self) -> bool {
        matches!(&self.kind, Kind::Scalar { text, plain: true } if text.is_empty())
    }

    /// A scalar's text as written; `None` for null and collections.
    pub fn text(&self) -> Option<&str> {
        match &self.kind {
            Kind::Scalar { text, plain } if !(*plain && is_null(text)) => Some(text),
            _ => None,
        }
    }

    /// A string: quoted, or plain and neither null, boolean nor number.
    pub fn string(&self) -> Option<&str> {
        match &self.kind {
            Kind::Scalar { text, plain } if !*plain || is_text(text) => Some(text),
            _ => None,
        }
    }

    /// Plain `true` or `false`.
    pub fn boolean(&self) -> Option<bool> {
        match &self.kind {
            Kind::Scalar { text, plain: true } => boolean(text),
            _ => None,
        }
    }

    /// A plain integer.
    pub fn integer(&self) -> Option<i128> {
        match &self.kind {
            Kind::Scalar { text, plain: true } => integer(text),
            _ => None,
        }
    }

    /// A plain number, integers included.
    pub fn number(&self) -> Option<f64> {
        match &self.kind {
            Kind::Scalar { text, plain: true } => number(text),
            _ => None,
        }
    }

    /// A sequence's items.
    pub fn list(&self) -> Option<&[Self]> {
        match &self.kind {
            Kind::List(items) => Some(items),
            _ => None,
        }
    }

    /// A mapping's entries.
    pub fn map(&self) -> Option<&[Entry]> {
        match &self.kind {
            Kind::Map(entries) => Some(entries),
            _ => None,
        }
    }

    /// A mapping's value under a key; null counts as a value.
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.entry(key).map(|entry| &entry.value)
    }

    /// A mapping's entry under a key.
    pub fn entry(&self, key: &str) -> Option<&Entry> {
        self.map()?.iter().find(|entry| &*entry.key == key)
    }

    /// What the node is, in the words of a message.
    pub fn found(&self) -> &'static str {
        match &self.kind {
            Kind::List(_) => "a sequence",
            Kind::Map(_) => "a mapping",
            Kind::Scalar { .. } if self.is_null() => "an empty block",
            Kind::Scalar { .. } if self.boolean().is_some() => "a boolean",
            Kind::Scalar { .. } if self.number().is_some() => "a number",
            Kind::Scalar { .. } => "a string",
        }
    }

    /// As JSON, order kept. Numbers stay numbers; what JSON has no number for stays text.
    pub fn to_json(&self) -> Value {
        match &self.kind {
            Kind::List(items) => Value::Array(items.iter().map(Self::to_json).collect()),
            Kind::Map(entries) => {
                let pairs = entries.iter().map(|entry| (entry.key.to_string(), entry.value.to_json()));
                Value::Object(pairs.collect::<Map<_, _>>())
            }
            Kind::Scalar { text, plain: true } => plain_to_json(text),
            Kind::Scalar { text, .. } => Value::String(text.to_string()),
        }
    }
}

fn plain_to_json(text: &str) -> Value {
    if is_null(text) {
        return Value::Null;
    }
    if let Some(value) = boolean(text) {
        return Value::Bool(value);
    }
    if let Some(value) = integer(text) {
        if let Ok(value) = i64::try_from(value) {
            return value.into();
        }
        if let Ok(value) = u64::try_from(value) {
            return value.into();
        }
    }
    match number(text).and_then(Number::from_f64) {
        Some(number) => Value::Number(number),
        None => Value::String(text.to_owned()),
    }
}
