//! `murmur.lock`: which bytes a project's artifacts are.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::name::{ArtifactName, Digest, Platform, Version};
use crate::diagnostics::{Diagnostic, Result, codes};

/// The lock's file name, beside `murmur.yaml` or `roster.yaml`.
pub const FILE: &str = "murmur.lock";

/// The only version read and written.
pub const VERSION: u64 = 3;

/// The hashes of one pinned artifact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hashes {
    /// One payload for every machine.
    Any(Digest),
    /// One payload a platform; tags are kept as written.
    Platforms(BTreeMap<String, Digest>),
}

/// Who had the artifact pinned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The operator, by an install or a first run.
    Operator,
    /// A session that pulled it while it ran.
    Runtime {
        /// That session's id, as written.
        session: String,
    },
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The artifact.
    pub name: ArtifactName,
    /// Its version.
    pub version: Version,
    /// Its bytes.
    pub hashes: Hashes,
    /// Who pinned it.
    pub origin: Origin,
    /// The GitHub owner id of the source that served it, when known.
    pub owner_id: Option<u64>,
}

/// A lock file, read or about to be written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lock {
    pins: Vec<Pin>,
}

impl Pin {
    /// The hash this machine's payload must have: `E-RUN-003` when the lock has none for it.
    pub fn hash_here(&self) -> Result<Digest> {
        match &self.hashes {
            Hashes::Any(digest) => Ok(*digest),
            Hashes::Platforms(platforms) => platforms.get(Platform::host().tag()).copied().ok_or_else(|| {
                Diagnostic::new(
                    codes::E_RUN_003,
                    format!("murmur.lock has no hash of '{}' for this platform ({})", self.name, Platform::host()),
                )
                .hint("run `mur install` on this machine")
            }),
        }
    }
}

impl Lock {
    /// Where a project's lock lies.
    pub fn path(project: &Path) -> PathBuf {
        project.join(FILE)
    }

    /// The lock of a project, `None` when it has none.
    pub fn read(project: &Path) -> Result<Option<Self>> {
        Err(Diagnostic::new(codes::E_RUN_003, format!("{} cannot be read yet", Self::path(project).display())))
    }

    /// What pins an artifact.
    pub fn pin(&self, name: &ArtifactName) -> Option<&Pin> {
        self.pins.iter().find(|pin| pin.name == *name)
    }

    /// All entries, in file order.
    pub fn pins(&self) -> &[Pin] {
        &self.pins
    }

    /// Writes the lock beside the project's manifest: a reader sees the old file or the whole new one.
    pub fn write(&self, project: &Path) -> Result<()> {
        Err(Diagnostic::new(codes::E_IO_003, format!("{} cannot be written yet", Self::path(project).display())))
    }
}
