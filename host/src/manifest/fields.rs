//! A key of the manifest under the reader's hand: its dotted path, its value, and how a fault about it is worded.

use std::time::Duration;

use super::FILE_NAME;
use crate::diagnostics::{Diagnostic, Result, codes, nearest};
use crate::yaml::{Doc, Entry, Mark, Node};

/// Which words a fault begins with.
#[derive(Clone, Copy)]
pub(super) enum Stem {
    /// `invalid artifact declaration at index <n>: …`
    Entry(usize),
    /// `invalid <what> for '<path>': …`
    Of(&'static str),
    /// `field '<path>' …`
    Field,
}

/// Where the keys are described.
const KEYS: &str = "the keys and what each may hold: https://docs.murmur.nexus/reference/manifest/";

/// One key: written or not.
#[derive(Clone)]
pub(super) struct Field<'a> {
    doc: &'a Doc,
    path: String,
    stem: Stem,
    node: Option<&'a Node>,
    /// Of the value, or of the block that lacks the key.
    mark: Mark,
}

/// A mapping under the reader's hand; an absent one has no keys.
#[derive(Clone)]
pub(super) struct Block<'a> {
    doc: &'a Doc,
    path: String,
    stem: Stem,
    entries: &'a [Entry],
    mark: Mark,
}

impl<'a> Block<'a> {
    /// The top level of a file.
    pub(super) fn top(doc: &'a Doc, stem: Stem) -> Result<Self> {
        let root = Field { doc, path: String::new(), stem, node: Some(doc.root()), mark: doc.root().mark };
        root.block_or_empty()
    }

    /// The key's field.
    pub(super) fn key(&self, name: &str) -> Field<'a> {
        let entry = self.entries.iter().find(|entry| &*entry.key == name);
        let path = if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) };
        let node = entry.map(|entry| &entry.value);
        let mark =
            entry.map_or(self.mark, |entry| if entry.value.is_valueless() { entry.mark } else { entry.value.mark });
        Field { doc: self.doc, path, stem: self.stem, node, mark }
    }

    /// Every key with its field, in the order written.
    pub(super) fn keys(&self) -> impl Iterator<Item = (&'a str, Field<'a>)> + '_ {
        self.entries.iter().map(|entry| (&*entry.key, self.key(&entry.key)))
    }
}

impl<'a> Field<'a> {
    /// The same field with other words for its faults.
    pub(super) fn worded(mut self, stem: Stem) -> Self {
        self.stem = stem;
        self
    }

    /// Its dotted path.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// Written at all, even without a value.
    pub(super) fn is_written(&self) -> bool {
        self.node.is_some()
    }

    /// Its value, unless it is null or not written.
    pub(super) fn value(&self) -> Option<&'a Node> {
        self.node.filter(|node| !node.is_null())
    }

    /// A value the runtime rejects: `E-MAN-003`. `why` is a predicate of the field.
    pub(super) fn fault(&self, why: &str) -> Diagnostic {
        let path = &self.path;
        let message = match self.stem {
            Stem::Entry(index) => format!("{FILE_NAME}: invalid artifact declaration at index {index}: {path} {why}"),
            Stem::Of(what) => format!("{FILE_NAME}: invalid {what} for '{path}': {why}"),
            Stem::Field => format!("{FILE_NAME}: field '{path}' {why}"),
        };
        self.place_on(Diagnostic::new(codes::E_MAN_003, message))
    }

    /// A malformed artifact name: `E-MAN-003`, with a hint when there is one.
    pub(super) fn name_fault(&self, message: &str, hint: Option<String>) -> Diagnostic {
        let message = format!("{FILE_NAME}: invalid artifact name in '{}': {message}", self.path);
        let diagnostic = self.place_on(Diagnostic::new(codes::E_MAN_003, message));
        match hint {
            Some(hint) => diagnostic.hint(hint),
            None => diagnostic,
        }
    }

    /// A wrong type: `E-MAN-002`, as every YAML fault.
    pub(super) fn type_fault(&self, expected: &str) -> Diagnostic {
        let found = self.node.map_or("nothing", Node::found);
        let what = if self.path.is_empty() { "the top level" } else { &self.path };
        self.yaml_fault(&format!("{what}: expected {expected}, found {found}"))
    }

    /// A fault reported as one of the YAML: `E-MAN-002`.
    pub(super) fn yaml_fault(&self, message: &str) -> Diagnostic {
        self.doc.fault(self.mark, message).into_diagnostic(codes::E_MAN_002, FILE_NAME).hint(KEYS)
    }

    /// Puts the field's place on a diagnostic.
    pub(super) fn place_on(&self, diagnostic: Diagnostic) -> Diagnostic {
        diagnostic.at(self.doc.place(self.mark))
    }

    /// Text as written; null is absent.
    pub(super) fn text(&self) -> Result<Option<String>> {
        match self.value() {
            None => Ok(None),
            Some(node) => node.text().map(|text| Some(text.to_owned())).ok_or_else(|| self.type_fault("text")),
        }
    }

    /// Text that is not blank; a blank one is absent.
    pub(super) fn nonblank(&self) -> Result<Option<String>> {
        Ok(self.text()?.filter(|text| !text.trim().is_empty()))
    }

    /// One of a few words; blank and null are absent.
    pub(super) fn one_of(&self, words: &[&str]) -> Result<Option<String>> {
        match self.nonblank()? {
            Some(text) if !words.contains(&text.as_str()) => Err(self.not_one_of(words, &text)),
            text => Ok(text),
        }
    }

    /// The fault of a value that is none of these words.
    pub(super) fn not_one_of(&self, words: &[&str], text: &str) -> Diagnostic {
        let fault = self.fault(&format!("must be one of: {}; got '{text}'", words.join(", ")));
        match nearest(text, words.iter().copied()) {
            Some(near) => fault.hint(format!("did you mean '{near}'?")),
            None => fault,
        }
    }

    /// Text that must be there and not blank.
    pub(super) fn required(&self) -> Result<String> {
        self.nonblank()?.ok_or_else(|| self.fault("is required"))
    }

    /// A plain boolean; written without a value it is a wrong type.
    pub(super) fn bool_or(&self, default: bool) -> Result<bool> {
        match self.node {
            None => Ok(default),
            Some(node) => node.boolean().ok_or_else(|| self.type_fault("true or false")),
        }
    }

    /// A boolean that must be there.
    pub(super) fn required_bool(&self) -> Result<bool> {
        match self.value() {
            None => Err(self.fault("is required: true or false")),
            Some(_) => self.bool_or(false),
        }
    }

    /// A whole number of at least 0.
    pub(super) fn whole(&self) -> Result<Option<u64>> {
        match self.value() {
            None => Ok(None),
            Some(node) => {
                node.integer().and_then(|value| u64::try_from(value).ok()).map(Some).ok_or_else(|| self.not_whole(node))
            }
        }
    }

    /// A number with a unit is one where a unit is taken; elsewhere the key's own name says which it counts in.
    fn not_whole(&self, node: &Node) -> Diagnostic {
        let fault = self.type_fault("a whole number of at least 0");
        let counts = |words: &[&str]| words.iter().any(|word| self.path.ends_with(word));
        let plain = node.text().and_then(|text| match () {
            () if counts(&["_bytes", "_bytes_per_sec"]) => Some(("bytes", scaled(text, &SIZES)?)),
            () if counts(&["_secs", "_seconds"]) => Some(("seconds", scaled(text, &DURATIONS)?)),
            () => None,
        });
        match plain {
            Some((unit, number)) => fault.hint(format!("this key counts {unit}, without a unit: {number}")),
            None => fault,
        }
    }

    /// A whole number that fits 32 bits.
    pub(super) fn small(&self) -> Result<Option<u32>> {
        let too_large = |_| self.type_fault("a whole number up to 4294967295");
        self.whole()?.map(|value| u32::try_from(value).map_err(too_large)).transpose()
    }

    /// A whole number of at least 1.
    pub(super) fn positive(&self) -> Result<Option<u64>> {
        match self.whole()? {
            Some(0) => Err(self.fault("must be greater than zero")),
            value => Ok(value),
        }
    }

    /// A number.
    pub(super) fn number(&self) -> Result<Option<f64>> {
        match self.value() {
            None => Ok(None),
            Some(node) => {
                node.number().filter(|value| value.is_finite()).map(Some).ok_or_else(|| self.type_fault("a number"))
            }
        }
    }

    /// A list's items, or `None` when it is not written. Without a value it is empty; a literal null is a wrong type.
    pub(super) fn list(&self) -> Result<Option<Vec<Field<'a>>>> {
        let Some(node) = self.node else { return Ok(None) };
        if node.is_valueless() {
            return Ok(Some(Vec::new()));
        }
        let items = node.list().ok_or_else(|| self.type_fault("a list"))?;
        let field = |(index, node): (usize, &'a Node)| Field {
            doc: self.doc,
            path: format!("{}[{index}]", self.path),
            stem: self.stem,
            node: Some(node),
            mark: node.mark,
        };
        Ok(Some(items.iter().enumerate().map(field).collect()))
    }

    /// A list of texts as written; absent is empty.
    pub(super) fn texts(&self) -> Result<Vec<String>> {
        let items = self.list()?.unwrap_or_default();
        items.iter().map(|item| item.text()?.ok_or_else(|| item.type_fault("text"))).collect()
    }

    /// A mapping; null is absent.
    pub(super) fn block(&self) -> Result<Option<Block<'a>>> {
        match self.value() {
            None => Ok(None),
            Some(node) => {
                let entries = node.map().ok_or_else(|| self.type_fault("a mapping"))?;
                Ok(Some(Block { doc: self.doc, path: self.path.clone(), stem: self.stem, entries, mark: self.mark }))
            }
        }
    }

    /// A mapping; null and absent have no keys.
    pub(super) fn block_or_empty(&self) -> Result<Block<'a>> {
        let empty = Block { doc: self.doc, path: self.path.clone(), stem: self.stem, entries: &[], mark: self.mark };
        Ok(self.block()?.unwrap_or(empty))
    }

    /// A mapping as JSON.
    pub(super) fn json_map(&self) -> Result<Option<serde_json::Map<String, serde_json::Value>>> {
        match self.value().map(Node::to_json) {
            None => Ok(None),
            Some(serde_json::Value::Object(map)) => Ok(Some(map)),
            Some(_) => Err(self.fault("expected mapping/object")),
        }
    }

    /// A duration: an integer with an optional `s`, `m`, `h` or `d`.
    pub(super) fn duration(&self) -> Result<Option<Duration>> {
        let Some(text) = self.text()? else { return Ok(None) };
        let bad = || self.fault(&format!("'{text}' must be a duration: an integer, optionally suffixed s/m/h/d"));
        let seconds = scaled(&text, &DURATIONS).ok_or_else(bad)?;
        if seconds == 0 {
            return Err(self.fault("must be greater than zero"));
        }
        Ok(Some(Duration::from_secs(seconds)))
    }

    /// A byte size: an integer with an optional `Ki`, `Mi` or `Gi`.
    pub(super) fn size(&self) -> Result<Option<u64>> {
        let Some(text) = self.text()? else { return Ok(None) };
        let bad = || self.fault(&format!("'{text}' must be a byte count, optionally suffixed Ki/Mi/Gi"));
        let bytes = scaled(&text, &SIZES).ok_or_else(bad)?;
        if bytes == 0 {
            return Err(self.fault("must be greater than zero"));
        }
        Ok(Some(bytes))
    }
}

const DURATIONS: [(&str, u64); 4] = [("s", 1), ("m", 60), ("h", 3600), ("d", 86_400)];
const SIZES: [(&str, u64); 3] = [("Ki", 1 << 10), ("Mi", 1 << 20), ("Gi", 1 << 30)];

fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let unit = units.iter().find_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, *factor)));
    let (digits, factor) = unit.unwrap_or((text, 1));
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(factor)
}
