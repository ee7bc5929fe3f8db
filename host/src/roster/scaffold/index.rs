//! `--index`: a list of published artifacts, schema 2, from which the newest driver that fits is taken.

use std::path::Path;

use serde::Deserialize;

use crate::artifacts::level;
use crate::artifacts::name::{ArtifactName, Version};
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::yaml::{self, ReadFault};

/// An index larger than this is refused before it is read.
const MAX_BYTES: u64 = 64 << 20;

/// The only schema read.
const SCHEMA: u64 = 2;

/// A parsed index and where it came from.
pub struct Index {
    source: String,
    listing: Listing,
}

#[derive(Deserialize)]
struct Listing {
    scope: String,
    artifacts: Vec<Artifact>,
}

#[derive(Deserialize)]
struct Artifact {
    name: String,
    versions: Vec<Published>,
}

#[derive(Deserialize)]
struct Published {
    version: String,
    #[serde(default)]
    interfaces: Vec<String>,
}

impl Index {
    /// Reads an index file.
    ///
    /// # Errors
    /// `E-NEW-006` when it cannot be read, `E-IDX-002` when it is no index of schema 2.
    pub fn open(source: &str) -> Result<Self> {
        let unreadable = |why: String| {
            Diagnostic::new(codes::E_NEW_006, format!("the index {source} cannot be read: {why}"))
                .hint("give --index a file, or leave it out to use the drivers that come with mur")
        };
        if source.starts_with("http://") || source.starts_with("https://") {
            return Err(unreadable("this version of mur reads index files, not URLs".to_owned()));
        }
        let bytes = yaml::read_file(Path::new(source), MAX_BYTES).map_err(|fault| match fault {
            ReadFault::Missing => unreadable("there is no such file".to_owned()),
            ReadFault::Other(why) => unreadable(why),
        })?;
        Self::parse(source, &bytes)
    }

    fn parse(source: &str, bytes: &[u8]) -> Result<Self> {
        let no_index = |why: String| {
            Diagnostic::new(codes::E_IDX_002, format!("{source} is not a readable schema-{SCHEMA} index: {why}"))
                .hint("its publisher has to generate it again")
        };
        #[derive(Deserialize)]
        struct Schema {
            schema_version: u64,
        }
        let schema: Schema = serde_json::from_slice(bytes).map_err(|error| no_index(error.to_string()))?;
        if schema.schema_version != SCHEMA {
            return Err(no_index(format!("its schema_version is {}", schema.schema_version)));
        }
        let listing = serde_json::from_slice(bytes).map_err(|error| no_index(error.to_string()))?;
        Ok(Self { source: source.to_owned(), listing })
    }

    /// The newest version whose interfaces this host serves.
    ///
    /// # Errors
    /// `E-NEW-007` for another scope, or when none fits.
    pub fn newest_fitting(&self, driver: &ArtifactName) -> Result<Version> {
        let refused = |why: String| {
            Diagnostic::new(codes::E_NEW_007, format!("the index {} {why}", self.source))
                .hint("upgrade mur, or name another index with --index")
        };
        if self.listing.scope != driver.scope() {
            return Err(refused(format!("is of scope '{}', and {driver} is wanted", self.listing.scope)));
        }
        let Some(artifact) = self.listing.artifacts.iter().find(|artifact| artifact.name == driver.bare()) else {
            return Err(refused(format!("does not list {driver}")));
        };
        let fits = |published: &&Published| published.interfaces.iter().all(|interface| level::fits(interface));
        let fitting =
            artifact.versions.iter().filter(fits).filter_map(|published| Version::parse(&published.version).ok());
        fitting.max().ok_or_else(|| refused(format!("lists no version of {driver} that fits this mur")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn newest(text: &str) -> std::result::Result<String, &'static str> {
        let driver = ArtifactName::parse("murmur/driver-anthropic").unwrap();
        let version = Index::parse("i", text.as_bytes()).and_then(|index| index.newest_fitting(&driver));
        version.map(|version| version.as_str().to_owned()).map_err(|error| error.code().as_str())
    }

    #[test]
    fn the_newest_version_that_fits_is_taken() {
        let text = r#"{"schema_version":2,"scope":"murmur","artifacts":[{"name":"driver-anthropic","versions":[
            {"version":"1.3.0","interfaces":["murmur:driver/run@9.9.9"]},
            {"version":"1.2.0","interfaces":[],"assets":[]},{"version":"1.10.0","interfaces":[]}]}]}"#;
        assert_eq!(newest(text), Ok("1.10.0".to_owned()));
        assert_eq!(newest(&text.replace("\"murmur\"", "\"other\"")), Err("E-NEW-007"));
        assert_eq!(newest(&text.replace("driver-anthropic", "driver-x")), Err("E-NEW-007"));
        assert_eq!(newest(&text.replace(":2,", ":1,")), Err("E-IDX-002"));
        assert_eq!(newest("{"), Err("E-IDX-002"));
    }
}
