//! `{{value | filter argument | …}}` in the texts of a script.

use regex_lite::Regex;
use serde_json::{Map, Value};

use crate::text;

/// How deep templates may hold templates.
const MAX_DEPTH: usize = 8;
/// How long a filled-in text may become.
const MAX_TEXT: usize = 16 * 1024 * 1024;

/// The names a template can use: innermost first.
#[derive(Clone)]
pub struct Scope<'a> {
    /// Names of this level.
    pub own: Map<String, Value>,
    /// The levels around it.
    pub outer: Option<&'a Scope<'a>>,
}

impl<'a> Scope<'a> {
    /// The outermost level.
    pub fn root(own: Map<String, Value>) -> Self {
        Self { own, outer: None }
    }

    /// A level inside this one.
    pub fn inside(&'a self) -> Self {
        Scope { own: Map::new(), outer: Some(self) }
    }

    fn find(&self, name: &str) -> Option<&Value> {
        self.own.get(name).or_else(|| self.outer.and_then(|outer| outer.find(name)))
    }

    fn path(&self, path: &str) -> Result<Value, String> {
        let (name, rest) = path.split_once('.').map_or((path, None), |(name, rest)| (name, Some(rest)));
        let value = self.find(name).ok_or_else(|| format!("'{name}' is no name known here"))?;
        Ok(rest.map_or_else(|| value.clone(), |rest| field(value, rest)))
    }
}

/// Fills in every template of a JSON value.
pub fn fill(value: &Value, scope: &Scope<'_>) -> Result<Value, String> {
    Ok(match value {
        Value::String(text) => expand(text, scope, 0)?,
        Value::Array(items) => Value::Array(items.iter().map(|item| fill(item, scope)).collect::<Result<_, _>>()?),
        Value::Object(map) => {
            let mut filled = Map::new();
            for (key, item) in map {
                filled.insert(key.clone(), fill(item, scope)?);
            }
            Value::Object(filled)
        }
        other => other.clone(),
    })
}

/// A text that is one template and nothing else keeps the kind of its value.
fn expand(template: &str, scope: &Scope<'_>, depth: usize) -> Result<Value, String> {
    if depth > MAX_DEPTH {
        return Err("templates are nested too deep".to_owned());
    }
    let mut out = String::new();
    let mut rest = template;
    let mut first = true;
    while let Some(start) = rest.find("{{") {
        let body = &rest[start + 2..];
        let end = closing(body).ok_or_else(|| format!("'{{{{' without '}}}}' in {}", shorten(template)))?;
        let value =
            evaluate(&body[..end], scope, depth).map_err(|fault| format!("{{{{{}}}}}: {fault}", &body[..end]))?;
        let after = &body[end + 2..];
        if first && start == 0 && after.is_empty() {
            return Ok(value);
        }
        out.push_str(&rest[..start]);
        out.push_str(&as_text(&value));
        if out.len() > MAX_TEXT {
            return Err("a filled-in text is too long".to_owned());
        }
        rest = after;
        first = false;
    }
    out.push_str(rest);
    Ok(Value::String(out))
}

/// Where the template ends: the first `}}` outside quotes.
fn closing(body: &str) -> Option<usize> {
    let bytes = body.as_bytes();
    let (mut at, mut quoted) = (0, false);
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if quoted => at += 1,
            b'"' => quoted = !quoted,
            b'}' if !quoted && bytes.get(at + 1) == Some(&b'}') => return Some(at),
            _ => {}
        }
        at += 1;
    }
    None
}

#[derive(Debug, PartialEq)]
enum Token {
    Pipe,
    Text(String),
    Number(i64),
    Path(String),
}

fn tokens(body: &str) -> Result<Vec<Token>, String> {
    let mut found = Vec::new();
    let mut chars = body.chars().peekable();
    while let Some(&c) = chars.peek() {
        if c.is_whitespace() {
            chars.next();
        } else if c == '|' {
            chars.next();
            found.push(Token::Pipe);
        } else if c == '"' {
            chars.next();
            found.push(Token::Text(quoted(&mut chars)?));
        } else {
            let mut word = String::new();
            while let Some(&c) = chars.peek() {
                if c.is_whitespace() || c == '|' || c == '"' {
                    break;
                }
                word.push(c);
                chars.next();
            }
            found.push(match word.parse() {
                // A bare number at the front of a template names a capture; as an argument it is a number.
                Ok(number) if !found.is_empty() => Token::Number(number),
                _ => Token::Path(word),
            });
        }
    }
    Ok(found)
}

fn quoted(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Result<String, String> {
    let mut text = String::new();
    while let Some(c) = chars.next() {
        match c {
            '"' => return Ok(text),
            '\\' => match chars.next() {
                Some('n') => text.push('\n'),
                Some('t') => text.push('\t'),
                Some(c @ ('"' | '\\')) => text.push(c),
                // Patterns are full of backslashes; those that mean nothing here stay.
                Some(other) => text.extend(['\\', other]),
                None => break,
            },
            other => text.push(other),
        }
    }
    Err("a quote is not closed".to_owned())
}

fn evaluate(body: &str, scope: &Scope<'_>, depth: usize) -> Result<Value, String> {
    let tokens = tokens(body)?;
    let mut stages = tokens.split(|token| *token == Token::Pipe);
    let mut value = match stages.next() {
        Some([Token::Path(path)]) => scope.path(path)?,
        Some([Token::Text(text)]) => expand(text, scope, depth + 1)?,
        _ => return Err("it must begin with one name or one quoted text".to_owned()),
    };
    for stage in stages {
        let Some((Token::Path(name), arguments)) = stage.split_first() else {
            return Err("after '|' comes the name of a filter".to_owned());
        };
        // A filter that makes up for a missing value gets to see that it is missing.
        value = apply(name, value, &Arguments { given: arguments, scope }, depth)?;
    }
    Ok(value)
}

struct Arguments<'a> {
    given: &'a [Token],
    scope: &'a Scope<'a>,
}

impl Arguments<'_> {
    fn value(&self, at: usize) -> Result<Value, String> {
        match self.given.get(at) {
            Some(Token::Text(text)) => Ok(Value::from(text.as_str())),
            Some(Token::Number(number)) => Ok(Value::from(*number)),
            Some(Token::Path(path)) => self.scope.path(path),
            _ => Err(format!("argument {} is missing", at + 1)),
        }
    }

    fn text(&self, at: usize) -> Result<String, String> {
        self.value(at).map(|value| as_text(&value))
    }

    fn number(&self, at: usize) -> Result<i64, String> {
        let value = self.value(at)?;
        number(&value).map(|number| number as i64).ok_or_else(|| format!("argument {} is no number", at + 1))
    }

    fn size(&self, at: usize) -> Result<usize, String> {
        usize::try_from(self.number(at)?).map_err(|_| format!("argument {} must be zero or more", at + 1))
    }

    fn pattern(&self, at: usize) -> Result<Regex, String> {
        pattern(&self.text(at)?)
    }
}

fn apply(name: &str, value: Value, with: &Arguments<'_>, depth: usize) -> Result<Value, String> {
    let text = || as_text(&value);
    Ok(match name {
        "trim" => text().trim().into(),
        "upper" => text().to_uppercase().into(),
        "lower" => text().to_lowercase().into(),
        "lines" => text().lines().map(Value::from).collect(),
        "words" => text().split_whitespace().map(Value::from).collect(),
        "split" => text().split(with.text(0)?.as_str()).map(Value::from).collect(),
        "parts" => text::parts(&text(), bounded(with.size(0)?)?).into_iter().map(Value::from).collect(),
        "part" => {
            let (number, count) = (with.size(0)?, bounded(with.size(1)?)?);
            let parts = text::parts(&text(), count);
            let part = number.checked_sub(1).and_then(|at| parts.into_iter().nth(at));
            part.ok_or_else(|| format!("there is no part {number} of {count}"))?.into()
        }
        "head" => text().chars().take(with.size(0)?).collect::<String>().into(),
        "repeat" => {
            let count = with.size(0)?;
            if text().len().saturating_mul(count) > MAX_TEXT {
                return Err("the repeated text is too long".to_owned());
            }
            text().repeat(count).into()
        }
        "replace" => text().replace(&with.text(0)?, &with.text(1)?).into(),
        "find" => capture(&with.pattern(0)?, &text()).map_or(Value::Null, Value::from),
        "find_all" => {
            let pattern = with.pattern(0)?;
            let text = text();
            pattern.captures_iter(&text).filter_map(|found| group(&found)).map(Value::from).collect()
        }
        "json" => serde_json::from_str(&text()).map_err(|fault| format!("it is not JSON: {fault}"))?,
        "quote" => value.to_string().into(),
        "field" => field(&value, &with.text(0)?),
        "len" => match &value {
            Value::Array(items) => items.len().into(),
            Value::Object(map) => map.len().into(),
            Value::Null => 0.into(),
            _ => text().chars().count().into(),
        },
        "join" => items(&value)?.iter().map(as_text).collect::<Vec<_>>().join(&with.text(0)?).into(),
        "sum" => {
            let numbers = items(&value)?.iter().map(|item| number(item).ok_or_else(|| format!("{item} is no number")));
            tidy(numbers.sum::<Result<f64, _>>()?)
        }
        "add" => {
            let of = number(&value).ok_or("only numbers are added")?;
            tidy(of + with.number(0)? as f64)
        }
        "default" if value.is_null() => with.value(0)?,
        "default" => value,
        "each" => {
            let template = with.text(0)?;
            let mut out = String::new();
            for (at, item) in items(&value)?.iter().enumerate() {
                let mut inner = with.scope.inside();
                inner.own.insert("it".into(), item.clone());
                inner.own.insert("index".into(), (at + 1).into());
                out.push_str(&as_text(&expand(&template, &inner, depth + 1)?));
            }
            out.into()
        }
        other => return Err(format!("'{other}' is no filter")),
    })
}

/// A text is never divided into more parts than anyone can call.
fn bounded(count: usize) -> Result<usize, String> {
    if (1..=4096).contains(&count) { Ok(count) } else { Err("a text is divided into 1 to 4096 parts".to_owned()) }
}

fn items(value: &Value) -> Result<&[Value], String> {
    match value {
        Value::Array(items) => Ok(items),
        Value::Null => Ok(&[]),
        _ => Err("it is no list".to_owned()),
    }
}

/// Reads a pattern.
pub fn pattern(text: &str) -> Result<Regex, String> {
    Regex::new(text).map_err(|fault| format!("the pattern '{text}': {fault}"))
}

fn capture(pattern: &Regex, text: &str) -> Option<String> {
    group(&pattern.captures(text)?)
}

/// The first group, or the whole match of a pattern without one.
fn group(found: &regex_lite::Captures<'_>) -> Option<String> {
    found.get(usize::from(found.len() > 1)).map(|group| group.as_str().to_owned())
}

/// Looks up `a.b.0` in a value; what is not there is null. Text that holds JSON is looked into.
fn field(value: &Value, path: &str) -> Value {
    path.split('.').fold(value.clone(), |value, key| {
        let value = match value {
            Value::String(text) => serde_json::from_str(&text).unwrap_or(Value::Null),
            other => other,
        };
        match &value {
            Value::Object(map) => map.get(key).cloned(),
            Value::Array(items) => key.parse().ok().and_then(|at: usize| items.get(at).cloned()),
            _ => None,
        }
        .unwrap_or_default()
    })
}

/// A number, or a text that reads as one.
pub fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok().filter(|number: &f64| number.is_finite()),
        _ => None,
    }
}

fn tidy(number: f64) -> Value {
    if number.fract() == 0.0 && number.abs() < 9e15 { (number as i64).into() } else { number.into() }
}

/// A value inside a text: texts as they are, nothing for null, JSON for the rest.
pub fn as_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn shorten(text: &str) -> String {
    let (cut, more) = mur_guest_kit::input::cut(text, 60);
    format!("'{cut}{}'", if more { "…" } else { "" })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn filled(template: &str) -> Result<Value, String> {
        let values = json!({
            "text": "one two\nthree four\n", "n": 2, "1": "first", "nothing": null,
            "stats": "{\"words\": 12, \"top\": [{\"word\": \"a\"}]}",
            "answers": [{"member": "a", "text": "words=3"}, {"member": "b", "text": "words=4"}],
        });
        let Value::Object(values) = values else { unreachable!() };
        expand(template, &Scope::root(values), 0)
    }

    #[test]
    fn values_keep_their_kind_alone_and_become_text_among_text() {
        assert_eq!(filled("{{n}}").unwrap(), json!(2));
        assert_eq!(filled("n={{n}}").unwrap(), json!("n=2"));
        assert_eq!(filled("{{1}}").unwrap(), json!("first"));
        assert_eq!(filled("{{stats.words}} {{stats.top.0.word}}").unwrap(), json!("12 a"));
    }

    #[test]
    fn filters_chain_and_take_names_as_arguments() {
        assert_eq!(filled("{{text | part 2 n | trim}}").unwrap(), json!("three four"));
        assert_eq!(filled("{{text | words | len | add 1}}").unwrap(), json!(5));
        assert_eq!(filled("{{answers | each \"{{it.text}};\" | find_all \"=(\\d+)\" | sum}}").unwrap(), json!(7));
        assert_eq!(filled("{{answers | each \"{{index}}{{it.member}} \"}}").unwrap(), json!("1a 2b "));
        assert_eq!(filled("{{nothing | default \"-\"}}").unwrap(), json!("-"));
        assert_eq!(filled("{{text | find \"(t\\w+)\"}}").unwrap(), json!("two"));
        assert_eq!(filled("{{\"}}\"}}").unwrap(), json!("}}"));
    }

    #[test]
    fn faults_say_where() {
        for (template, part) in [
            ("{{nobody}}", "'nobody' is no name"),
            ("a {{text", "without"),
            ("{{text | frob}}", "'frob' is no filter"),
            ("{{text | part 3 2}}", "no part 3 of 2"),
            ("{{text | find \"(\"}}", "the pattern"),
            ("{{text | parts 99999999}}", "1 to 4096"),
            ("{{text | repeat 99999999}}", "too long"),
            ("{{}}", "must begin"),
            ("{{\"{{\\\"x}}", "without"),
        ] {
            let fault = filled(template).unwrap_err();
            assert!(fault.contains(part), "{template}: {fault}");
        }
    }
}
