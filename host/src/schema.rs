//! The JSON Schemas of the files an operator writes, for the completion of editors.
//!
//! They say what the readers say of keys, types, words and bounds, from the same tables. What one key demands of another
//! (a driver named that is declared, say) only the readers know.

use serde_json::{Value, json};

use crate::diagnostics::DOCS_BASE;
use crate::shape::{Key, object};
use crate::{config, manifest, roster};

/// A file that has a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum File {
    /// roster.yaml
    Roster,
    /// murmur.yaml, of capsules and of artifacts
    Manifest,
    /// config.yaml
    Config,
}

impl File {
    /// Every file, in the order they are listed.
    pub const ALL: [Self; 3] = [Self::Roster, Self::Manifest, Self::Config];

    /// The schema's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Roster => "roster",
            Self::Manifest => "manifest",
            Self::Config => "config",
        }
    }

    /// Where the schema is published with the book.
    pub fn url(self) -> String {
        let site = DOCS_BASE.strip_suffix("/reference").unwrap_or(DOCS_BASE);
        format!("{site}/schemas/{}.json", self.name())
    }

    /// The line by which a file tells an editor which schema it keeps to.
    pub fn modeline(self) -> String {
        format!("# yaml-language-server: $schema={}", self.url())
    }

    /// The schema.
    pub fn schema(self) -> Value {
        let (title, keys): (_, Vec<Key>) = match self {
            Self::Roster => (roster::FILE_NAME, roster::keys::TOP.to_vec()),
            Self::Manifest => (manifest::FILE_NAME, manifest::keys::all()),
            Self::Config => ("config.yaml", config::keys::TOP.to_vec()),
        };
        let mut schema = serde_json::Map::new();
        schema.insert("$schema".into(), "https://json-schema.org/draft/2020-12/schema".into());
        schema.insert("$id".into(), self.url().into());
        schema.insert("title".into(), title.into());
        schema.extend(object(&keys));
        if self == Self::Config {
            // An empty file is a configuration.
            schema.insert("type".into(), json!(["object", "null"]));
        }
        Value::Object(schema)
    }

    /// The schema's text, as `mur schema` prints it.
    pub fn text(self) -> String {
        format!("{:#}\n", self.schema())
    }
}

#[cfg(test)]
mod tests;
