//! The stores behind admission, in the process that may load their plugins.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::Member;
use super::super::admission::{Installed, Reason, Source};
use super::ahead::Ahead;
use super::parent::PROGRESS;
use crate::artifacts::archive::MANIFEST;
use crate::artifacts::lock::Lock;
use crate::artifacts::name::how_to_get;
use crate::artifacts::source::{self, SourceDir};
use crate::artifacts::store::{Found, Place, Stores, verified};
use crate::artifacts::{ArtifactName, Version};
use crate::config::Config;
use crate::diagnostics::{Diagnostic, Result, output};
use crate::manifest::capsule_of;
use crate::paths::MurmurHome;
use crate::plugins::Registry;
use bytes::Bytes;

/// The project's stores and lock.
pub(super) struct StoreSource {
    project: PathBuf,
    stores: Arc<Stores>,
    ahead: Ahead,
    /// What was taken from a store: which one, and its manifest.
    taken: Vec<(ArtifactName, Version, Place, String)>,
}

/// What a store gave for a member: its bytes hash to what the store says, and nobody has looked into them.
pub(super) type Fetched = std::result::Result<(Found, Bytes), Reason>;

impl StoreSource {
    /// Opens the stores; this is where plugins are loaded.
    pub(super) fn open(home: &MurmurHome, project: &Path) -> Result<Self> {
        let config = Config::load_global(home)?;
        progress(|| "the stores are being opened".to_owned());
        let mut registry = Registry::new(home, &config.plugins);
        let stores = Arc::new(Stores::open(home, Some(project), &config, &mut registry)?);
        Ok(Self { project: project.to_owned(), stores, ahead: Ahead::default(), taken: Vec::new() })
    }
}

/// Tells the launcher what is about to happen, in case it is the last thing.
fn progress(what: impl FnOnce() -> String) {
    output::stderr_line(&format!("{PROGRESS}{}", what()));
}

impl Source for StoreSource {
    fn expect(&mut self, members: &[&Member]) {
        let stores = Arc::clone(&self.stores);
        self.ahead = Ahead::of(members, move |member| fetch(&stores, member));
    }

    fn installed(&mut self, member: &Member) -> std::result::Result<Installed, Reason> {
        let (found, bytes) = self.ahead.take(member).unwrap_or_else(|| fetch(&self.stores, member))?;
        let verified = verified(&found, bytes).map_err(|error| reason(&error))?;
        let (capsule, _) = capsule_of(&verified.doc).map_err(|refusal| {
            as_is(
                format!("its packed manifest cannot be used: {}", refusal.message()),
                Some("correct the capsule's murmur.yaml, rebuild it and install it again".to_owned()),
            )
        })?;
        let manifest = verified.doc.text().to_owned();
        self.taken.push((found.name, found.version, found.place, manifest.clone()));
        Ok(Installed { sha256: verified.sha256, manifest, capsule, bound: verified.bound() })
    }

    fn stale(&self) -> Vec<Diagnostic> {
        // Compared by bytes first: where nothing changed, nothing is parsed.
        let same = |source: &SourceDir| self.taken.iter().any(|(_, _, _, text)| text.as_bytes() == source.manifest);
        let others = source::beside(&self.project).into_iter().filter(|source| !same(source));
        let meant = others.filter_map(|other| {
            let (name, version, place, _) = self.taken.iter().find(|(name, version, ..)| other.is_of(name, version))?;
            Some(source::stale(name, version, place, &other.dir, MANIFEST))
        });
        meant.collect()
    }

    fn lock(&mut self) -> Result<Option<Lock>> {
        Lock::read(&self.project)
    }
}

/// Asks the stores for one member.
fn fetch(stores: &Stores, member: &Member) -> Fetched {
    progress(|| {
        let (name, coordinate) = (&member.name, member.coordinate());
        format!("member '{name}' ({coordinate}): asking {}", stores.searched(&member.capsule))
    });
    let Some(found) = stores.find(&member.capsule, &member.version).map_err(|error| reason(&error))? else {
        let (searched, others) = (stores.searched(&member.capsule), stores.others(&member.capsule));
        let text = format!("not installed in the project or global store (looked in: {searched}{others})");
        let near = stores.near(&member.capsule).filter(|_| others.is_empty());
        let get = how_to_get(&member.capsule, &member.version);
        let hint = near.map(|near| format!("did you mean '{near}', which is installed? otherwise {get}"));
        return Err(Reason { text, hint, other_version: !others.is_empty() });
    };
    let bytes = stores.read_bytes(&found).map_err(|error| reason(&error))?;
    Ok((found, bytes))
}

fn reason(error: &Diagnostic) -> Reason {
    as_is(format!("{} [{}]", error.message(), error.code()), error.hint_text().map(str::to_owned))
}

fn as_is(text: String, hint: Option<String>) -> Reason {
    Reason { text, hint, other_version: false }
}
