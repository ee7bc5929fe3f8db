//! Keys that a reader of a file does not know, found by the table of those it does, and what may have been meant.

use std::fmt;

use super::{Entry, Mark, Node};
use crate::diagnostics::nearest;
use crate::shape::{Keys, Shape, names};

/// Most unknown keys that are reported one by one.
const MOST: usize = 100;

/// A key that a reader does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// As written.
    pub key: String,
    /// The block it stands in; empty at the top level.
    pub block: String,
    /// Where it stands.
    pub mark: Mark,
    /// The known key it may have been meant for.
    pub near: Option<&'static str>,
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unrecognized key '{}' ", self.key)?;
        match self.block.as_str() {
            "" => f.write_str("at the top level")?,
            block => write!(f, "in {block}")?,
        }
        self.near.map_or(Ok(()), |near| write!(f, " — did you mean '{near}'?"))
    }
}

/// The keys below a node that are not in a table, [`MOST`] of them.
pub fn unknown(node: &Node, keys: Keys) -> Vec<Unknown> {
    let mut found = Vec::new();
    walk(node, "", keys, &mut found);
    found.truncate(MOST);
    found
}

/// Reports this block's own keys in alphabetical order, then its blocks in the table's order.
fn walk(node: &Node, path: &str, keys: Keys, found: &mut Vec<Unknown>) {
    let Some(entries) = node.map() else { return };
    let mut unknown: Vec<&Entry> =
        entries.iter().filter(|entry| !keys.iter().any(|known| known.name == &*entry.key)).collect();
    unknown.sort_unstable_by_key(|entry| &*entry.key);
    found.extend(unknown.into_iter().map(|entry| Unknown {
        key: entry.key.to_string(),
        block: path.to_owned(),
        mark: entry.mark,
        near: nearest(&entry.key, names(keys).into_iter()),
    }));
    for known in keys {
        // Where a table says nothing of what lies below, it is nobody's business here.
        let below = known.shape.keys();
        let Some(value) = node.get(known.name).filter(|_| !below.is_empty()) else { continue };
        let path = if path.is_empty() { known.name.to_owned() } else { format!("{path}.{}", known.name) };
        match known.shape {
            Shape::List(..) => {
                for (index, item) in value.list().unwrap_or_default().iter().enumerate() {
                    walk(item, &format!("{path}[{index}]"), below, found);
                }
            }
            Shape::Named(..) => {
                for entry in value.map().unwrap_or_default() {
                    walk(&entry.value, &format!("{path}.{}", entry.key), below, found);
                }
            }
            _ => walk(value, &path, below, found),
        }
        if found.len() > MOST {
            return;
        }
    }
}
