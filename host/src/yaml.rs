//! The one YAML reader: strict, bounded, and with the place of everything it read.
//!
//! It builds a small tree from the parser's events instead of typed values, because a typed layer would have turned
//! `1.20` into a number before anybody could ask for its text. Every scalar keeps the text it was written with, and who
//! reads it decides whether that text is a version, a number or a truth. Anchors, aliases, merge keys, tags beyond the
//! core schema, repeated keys and second documents are refused, so that a file means what it looks like.

pub mod known;
mod scalar;

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::Read;
use std::path::Path;

use serde_saphyr::granit_parser::{self, Event, Marker, Parser, ScalarStyle, Tag};

use crate::diagnostics::{Code, Diagnostic, Place};

/// Deepest nesting of any file of ours; nothing legitimate comes near.
const MAX_DEPTH: usize = 64;

/// Bytes a node takes at least in a source, as a bound on nodes by size: memory stays within a small factor of the file.
const MIN_BYTES_A_NODE: u64 = 2;

/// Most nodes of any file, whatever its size limit.
const MAX_NODES: u64 = 4_000_000;

/// Where something begins: 1-based line, and column in characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// 1-based.
    pub line: u32,
    /// 1-based.
    pub column: u32,
}

/// A value of the tree.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Where it begins.
    pub mark: Mark,
    /// What it is.
    pub kind: Kind,
}

/// What a node is.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// A scalar: its text as written, and whether it was plain (unquoted), which alone can be null, a boolean or a number.
    Scalar {
        /// Escapes of quoted scalars resolved, line folding done.
        text: Box<str>,
        /// Neither quoted, nor a block scalar, nor tagged as text.
        plain: bool,
    },
    /// A sequence.
    List(Vec<Node>),
    /// A mapping in the order written.
    Map(Vec<Entry>),
}

/// One key of a mapping and its value.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The key's text.
    pub key: Box<str>,
    /// The key was plain and reads as null, boolean or number: it is no text.
    pub key_is_text: bool,
    /// Where the key begins.
    pub mark: Mark,
    /// The value.
    pub value: Node,
}

/// A parsed file.
#[derive(Debug)]
pub struct Doc {
    file: String,
    text: String,
    root: Node,
}

/// Why a text is not a file of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// In words, without the place.
    pub message: String,
    /// Where, when it is known.
    pub place: Option<Place>,
    /// The text is no YAML of ours, rather than a value none of the key's.
    pub syntax: bool,
}

impl Fault {
    /// The printed message: what kind of fault, where, and which.
    pub fn message(&self) -> String {
        let kind = if self.syntax { "YAML syntax error at " } else { "" };
        match &self.place {
            Some(place) => format!("{kind}line {}, column {}: {}", place.line, place.column, self.message),
            None => format!("YAML syntax error: {}", self.message),
        }
    }

    /// What to do about it, by its cause. It repeats nothing of the text.
    pub fn hint(&self) -> Option<&'static str> {
        let by_cause = [
            (TAB, "indent with spaces"),
            (UNCLOSED, "close it, or put a value that begins with such a character in quotes"),
            ("twice", "keep one of the two"),
            ("not accepted", "write what is meant where it is used, in plain YAML"),
            ("UTF-", "save the file as UTF-8 text"),
            ("larger than", "no file of this kind needs that much: is it the right one?"),
            ("${NAME}", "put the value in quotes"),
        ];
        let known = by_cause.iter().find(|(words, _)| self.message.contains(words));
        let usual = "look at the indentation, quotes and brackets there and on the line above";
        self.syntax.then(|| known.map_or(usual, |(_, hint)| hint))
    }

    /// As a diagnostic whose message begins with the file's name.
    pub fn into_diagnostic(self, code: Code, name: &str) -> Diagnostic {
        let mut diagnostic = Diagnostic::new(code, format!("{name}: {}", self.message()));
        if let Some(hint) = self.hint() {
            diagnostic = diagnostic.hint(hint);
        }
        match self.place {
            Some(place) => diagnostic.at(place),
            None => diagnostic,
        }
    }
}

/// Why a file could not be read at all.
#[derive(Debug)]
pub enum ReadFault {
    /// There is none.
    Missing,
    /// The cause in words.
    Other(String),
}

/// Reads a regular file of at most `max_bytes`; a larger one is refused before any of it is read.
///
/// # Errors
/// [`ReadFault`]; a pipe or device in the file's place is refused rather than waited for.
pub fn read_file(path: &Path, max_bytes: u64) -> Result<Vec<u8>, ReadFault> {
    let fault = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => ReadFault::Missing,
        _ => ReadFault::Other(error.to_string()),
    };
    // Asked first and without opening: opening a pipe would wait for its writer.
    let meta = std::fs::metadata(path).map_err(fault)?;
    if !meta.is_file() {
        return Err(ReadFault::Other("it is not a regular file".to_owned()));
    }
    let too_large = || ReadFault::Other(format!("it is larger than {max_bytes} bytes"));
    if meta.len() > max_bytes {
        return Err(too_large());
    }
    let mut bytes = Vec::with_capacity(usize::try_from(meta.len()).unwrap_or(0));
    std::fs::File::open(path).map_err(fault)?.take(max_bytes + 1).read_to_end(&mut bytes).map_err(fault)?;
    if bytes.len() as u64 > max_bytes {
        return Err(too_large());
    }
    Ok(bytes)
}

/// Parses one document. `file` is how the file is shown in places.
///
/// # Errors
/// The first fault, with its place where there is one. Work and memory are linear in the text and bounded by
/// `max_bytes`.
pub fn parse(file: &str, bytes: &[u8], max_bytes: u64) -> Result<Doc, Fault> {
    let unplaced = |message: &str| Fault { message: message.to_owned(), place: None, syntax: true };
    if bytes.len() as u64 > max_bytes {
        return Err(unplaced(&format!("the file is larger than {max_bytes} bytes")));
    }
    if let Some(encoding) = foreign_encoding(bytes) {
        return Err(unplaced(&format!("the file is {encoding}; save it as UTF-8")));
    }
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let before = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
            let mark = end_of(&before);
            let place = place_of(file, &before, mark);
            return Err(Fault { message: "the file is not UTF-8".to_owned(), place: Some(place), syntax: true });
        }
    };
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    match Builder::new(bytes.len() as u64).build(text) {
        Ok(root) => Ok(Doc { file: file.to_owned(), text: text.to_owned(), root }),
        Err((mark, message)) => {
            let line = lines(text).nth(mark.line.saturating_sub(1) as usize).unwrap_or("");
            let message = if in_flow_reference(line) {
                format!("{message}; within {{ }} a value such as ${{NAME}} has to stand in quotes")
            } else {
                message
            };
            Err(Fault { message, place: Some(place_of(file, text, mark)), syntax: true })
        }
    }
}

/// Whether a line has `${NAME}` unquoted in a flow mapping, where the braces end the value.
fn in_flow_reference(line: &str) -> bool {
    line.match_indices("${").any(|(at, _)| {
        let before = &line[..at];
        before.contains('{') && before.trim_end().ends_with([':', ','])
    })
}

/// The name of an encoding other than UTF-8 that the first bytes give away.
fn foreign_encoding(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0xff, 0xfe, 0, 0, ..] | [0, 0, 0xfe, 0xff, ..] | [0, 0, 0, 1..=0x7f, ..] => Some("UTF-32"),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] | [0, 1..=0x7f, ..] | [1..=0x7f, 0, ..] => Some("UTF-16"),
        _ => None,
    }
}

/// The position after a text.
fn end_of(text: &str) -> Mark {
    let line = lines(text).count().max(1);
    let last = lines(text).last().unwrap_or("");
    mark(line, last.chars().count() + 1)
}

/// The lines of a text: LF, CRLF and lone CR each end one.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let Some(at) = text.find(['\n', '\r']) else {
            rest = None;
            return Some(text);
        };
        let end = if text[at..].starts_with("\r\n") { at + 2 } else { at + 1 };
        rest = Some(&text[end..]);
        Some(&text[..at])
    })
}

/// Longest line that is shown whole; a longer one is left out of the message.
const MAX_SHOWN: usize = 400;

fn place_of(file: &str, text: &str, mark: Mark) -> Place {
    let at = mark.line.saturating_sub(1) as usize;
    let mut around = lines(text).skip(at.saturating_sub(1));
    // A value may stand on the line after its key.
    let before = if at > 0 { around.next().unwrap_or("") } else { "" };
    let line = around.next().unwrap_or("");
    let unshowable = line.len() > MAX_SHOWN || line.chars().any(|c| c.is_control() && c != '\t');
    let shown = if unshowable || holds_secret(before) || holds_secret(line) { "" } else { line };
    Place { file: file.to_owned(), line: mark.line as usize, column: mark.column as usize, text: shown.to_owned() }
}

/// Whether a line may hold a credential, which no message repeats: it has a key that is named like one, or a URL with a
/// user in it.
fn holds_secret(line: &str) -> bool {
    let lower = line.to_lowercase();
    let keyed = ["api_key", "apikey", "token", "secret", "password"].iter().any(|word| {
        lower
            .match_indices(word)
            .any(|(at, _)| lower[at + word.len()..].trim_start_matches(['"', '\'', ' ']).starts_with(':'))
    });
    keyed || lower.split("://").skip(1).any(|rest| rest.split(['/', ' ']).next().is_some_and(|host| host.contains('@')))
}

fn mark(line: usize, column: usize) -> Mark {
    Mark { line: u32::try_from(line).unwrap_or(u32::MAX), column: u32::try_from(column).unwrap_or(u32::MAX) }
}

fn mark_of(marker: Marker) -> Mark {
    mark(marker.line(), marker.col() + 1)
}

impl Doc {
    /// The root; null for an empty file.
    pub fn root(&self) -> &Node {
        &self.root
    }

    /// The text it was parsed from, without a byte order mark.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The file as places show it.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// A place of this file, with the line's text.
    pub fn place(&self, mark: Mark) -> Place {
        place_of(&self.file, &self.text, mark)
    }

    /// A value at a place of this file that its key cannot hold.
    pub fn fault(&self, mark: Mark, message: impl Into<String>) -> Fault {
        Fault { message: message.into(), place: Some(self.place(mark)), syntax: false }
    }
}

/// A collection that is being read.
enum Open {
    List { mark: Mark, items: Vec<Node> },
    Map { mark: Mark, entries: Vec<Entry>, key: Option<(Box<str>, bool, Mark)>, seen: Option<HashMap<Box<str>, u32>> },
}

/// From this many keys on a mapping is searched by hash.
const HASH_FROM: usize = 12;

struct Builder {
    open: Vec<Open>,
    root: Option<Node>,
    nodes_left: u64,
}

type Built<T> = Result<T, (Mark, String)>;

impl Builder {
    fn new(bytes: u64) -> Self {
        Self { open: Vec::new(), root: None, nodes_left: (bytes / MIN_BYTES_A_NODE + 16).min(MAX_NODES) }
    }

    fn build(mut self, text: &str) -> Built<Node> {
        let options = granit_parser::options! {
            emit_unresolved_aliases: true,
            flow_nesting_limit: MAX_DEPTH,
            block_nesting_limit: MAX_DEPTH,
        };
        let mut documents = 0_u32;
        let mut start = mark(1, 1);
        for next in Parser::new_from_str_with_options(text, options) {
            let (event, span) = next.map_err(|error| broken(text, mark_of(*error.marker()), error.info()))?;
            let at = mark_of(span.start);
            match event {
                Event::DocumentStart(..) => {
                    documents += 1;
                    if documents > 1 {
                        return Err((at, "a second document begins here; the file holds one".to_owned()));
                    }
                    start = at;
                }
                Event::Alias(_) | Event::UnresolvedAlias(_) => {
                    return Err((at, "aliases (*name) are not accepted; write the value out".to_owned()));
                }
                Event::Anchor(..) => return Err((at, ANCHOR.to_owned())),
                Event::Scalar(value, style, anchor, tag) => {
                    refuse_anchor(anchor, at)?;
                    // The parser reports a value that is not written as a `~` of no length.
                    let value = if span.start.index() == span.end.index() { Cow::Borrowed("") } else { value };
                    self.scalar(value, style, tag.as_deref(), at)?;
                }
                Event::SequenceStart(_, anchor, tag) => {
                    refuse_anchor(anchor, at)?;
                    expect_tag(tag.as_deref(), "seq", at)?;
                    self.begin(Open::List { mark: at, items: Vec::new() }, at)?;
                }
                Event::MappingStart(_, anchor, tag) => {
                    refuse_anchor(anchor, at)?;
                    expect_tag(tag.as_deref(), "map", at)?;
                    self.begin(Open::Map { mark: at, entries: Vec::new(), key: None, seen: None }, at)?;
                }
                Event::SequenceEnd | Event::MappingEnd => self.end()?,
                _ => {}
            }
        }
        let empty = Node { mark: start, kind: Kind::Scalar { text: "".into(), plain: true } };
        Ok(self.root.unwrap_or(empty))
    }

    fn scalar(&mut self, value: Cow<'_, str>, style: ScalarStyle, tag: Option<&Tag>, at: Mark) -> Built<()> {
        let mut plain = matches!(style, ScalarStyle::Plain);
        if let Some(tag) = tag {
            match tag.core_suffix() {
                Some("str") => plain = false,
                Some(kind) if plain && scalar::is_kind(&value, kind) => {}
                Some(kind) => return Err((at, format!("'{value}' is tagged !!{kind} and is none"))),
                None => return Err((at, foreign_tag(tag))),
            }
        }
        if let Some(Open::Map { key: key @ None, entries, seen, .. }) = self.open.last_mut() {
            if plain && value == "<<" {
                return Err((at, "merge keys (<<) are not accepted; write the keys out".to_owned()));
            }
            refuse_repeated(&value, at, entries, seen)?;
            let is_text = !plain || scalar::is_text(&value);
            *key = Some((value.into(), is_text, at));
            return Ok(());
        }
        self.add(Node { mark: at, kind: Kind::Scalar { text: value.into(), plain } })
    }

    fn begin(&mut self, collection: Open, at: Mark) -> Built<()> {
        if let Some(Open::Map { key: None, .. }) = self.open.last() {
            return Err((at, "a key must be text, not a collection".to_owned()));
        }
        if self.open.len() >= MAX_DEPTH {
            return Err((at, format!("nested deeper than {MAX_DEPTH}")));
        }
        self.open.push(collection);
        Ok(())
    }

    fn end(&mut self) -> Built<()> {
        let node = match self.open.pop() {
            Some(Open::List { mark, items }) => Node { mark, kind: Kind::List(items) },
            Some(Open::Map { mark, entries, .. }) => Node { mark, kind: Kind::Map(entries) },
            None => return Ok(()),
        };
        self.add(node)
    }

    fn add(&mut self, node: Node) -> Built<()> {
        self.nodes_left = self
            .nodes_left
            .checked_sub(1)
            .ok_or_else(|| (node.mark, "the file holds more values than any of its kind may".to_owned()))?;
        match self.open.last_mut() {
            Some(Open::List { items, .. }) => items.push(node),
            Some(Open::Map { entries, key, .. }) => {
                let Some((key, key_is_text, mark)) = key.take() else {
                    return Err((node.mark, "a key must be text, not a collection".to_owned()));
                };
                entries.push(Entry { key, key_is_text, mark, value: node });
            }
            None => self.root = Some(node),
        }
        Ok(())
    }
}

/// What is said of a tab where indentation is.
const TAB: &str = "a tab indents this line";

/// What the parser says of a bracket or quote that has no end.
const UNCLOSED: &str = "unclosed";

/// What the parser says; of a tab it names another place.
fn broken(text: &str, at: Mark, info: String) -> (Mark, String) {
    let mut around = (1..).zip(lines(text)).skip(at.line.saturating_sub(1) as usize).take(2);
    let tab = around.find_map(|(number, line)| {
        let indent = &line[..line.len() - line.trim_start().len()];
        indent.contains('\t').then(|| mark(number, indent.chars().take_while(|c| *c != '\t').count() + 1))
    });
    match tab {
        Some(tab) => (tab, format!("{TAB}; YAML takes spaces only")),
        None => (at, info),
    }
}

const ANCHOR: &str = "anchors (&name) are not accepted; write the value out where it is used";

fn refuse_anchor(id: usize, at: Mark) -> Built<()> {
    if id == 0 { Ok(()) } else { Err((at, ANCHOR.to_owned())) }
}

fn expect_tag(tag: Option<&Tag>, kind: &str, at: Mark) -> Built<()> {
    match tag {
        None => Ok(()),
        Some(tag) => match tag.core_suffix() {
            Some(found) if found == kind => Ok(()),
            Some(found) => Err((at, format!("tagged !!{found} and is none"))),
            None => Err((at, foreign_tag(tag))),
        },
    }
}

fn foreign_tag(tag: &Tag) -> String {
    format!("a tagged value is not accepted: '{}' is no tag of the core schema", tag.original())
}

fn refuse_repeated(key: &str, at: Mark, entries: &[Entry], seen: &mut Option<HashMap<Box<str>, u32>>) -> Built<()> {
    let first = if entries.len() < HASH_FROM {
        entries.iter().find(|entry| &*entry.key == key).map(|entry| entry.mark.line)
    } else {
        let seen = seen.get_or_insert_with(HashMap::new);
        // The last key is added when its successor is looked up; the first time, all that came before.
        for entry in &entries[seen.len()..] {
            seen.insert(entry.key.clone(), entry.mark.line);
        }
        seen.get(key).copied()
    };
    match first {
        Some(line) => Err((at, format!("key '{key}' is written twice, on lines {line} and {}", at.line))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
