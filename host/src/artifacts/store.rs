//! Where artifacts come from: the project's store, the global one, configured ones, and what is bundled beside the
//! binary. Every store is a plugin and none is believed: the host hashes every byte.

mod verified;

use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::archive::{self, Archive, ArchiveError};
use super::lock::Bound;
use super::name::{ArtifactName, Digest, MURMUR_SCOPE, Platform, Version};
use crate::config::Config;
use crate::diagnostics::{Diagnostic, Result, codes, nearest};
use crate::manifest::{self, artifact_of};
use crate::paths::{MurmurHome, install_dir};
use crate::plugins::{Registry, Store, StoreEntry};

pub use verified::Verified;

/// Versions named beside one that is not there.
const MAX_OTHERS: usize = 8;

/// The plugin behind the project, global and bundled stores.
const DIRECTORY: &str = "directory";

/// Which store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// `.murmur/artifacts` of the project.
    Project,
    /// `~/.murmur/artifacts`.
    Global,
    /// A plugin of the global configuration's `stores:`.
    Configured(String),
    /// `lib/mur/artifacts` beside the binary; serves the scope `murmur` only.
    Bundled,
}

impl Place {
    /// The word of messages and of `mur list`.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Project => "project",
            Self::Global => "global",
            Self::Configured(name) => name,
            Self::Bundled => "bundled",
        }
    }
}

struct Opened {
    place: Place,
    location: String,
    store: Arc<dyn Store>,
}

/// The stores of one command, in search order.
pub struct Stores {
    opened: Vec<Opened>,
}

/// An artifact a store says it has.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its full name.
    pub name: ArtifactName,
    /// Its version.
    pub version: Version,
    /// What the store says its bytes hash to.
    pub sha256: Digest,
    /// Which store it is in.
    pub place: Place,
    /// The platform its payload is tagged with.
    pub platform: Option<Platform>,
    entry: StoreEntry,
}

impl Found {
    /// `<name>@<version>`, as messages name it.
    pub fn reference(&self) -> String {
        format!("{}@{}", self.name, self.version)
    }

    /// What a lock pins of it.
    pub fn bound(&self) -> Bound {
        Bound {
            name: self.name.clone(),
            version: self.version.clone(),
            platform: self.platform,
            sha256: self.sha256,
            owner_id: self.metadata().get("owner_id").and_then(Value::as_u64),
        }
    }

    /// What the store keeps beside the payload; empty when that is nothing readable.
    pub fn metadata(&self) -> Map<String, Value> {
        match serde_json::from_str(&self.entry.metadata) {
            Ok(Value::Object(map)) => map,
            _ => Map::new(),
        }
    }
}

impl Stores {
    /// Opens the stores in search order: project, global, configured, bundled. A store whose directory is not there
    /// yet is an empty one.
    pub fn open(home: &MurmurHome, project: Option<&Path>, config: &Config, registry: &mut Registry) -> Result<Self> {
        let mut stores = Self { opened: Vec::new() };
        let own = project.map(|project| project.join(".murmur/artifacts"));
        // A project at the home directory has one store, not two.
        if let Some(root) = own.filter(|root| *root != home.artifacts()) {
            stores.add_directory(Place::Project, &root, registry)?;
        }
        stores.add_directory(Place::Global, &home.artifacts(), registry)?;
        for configured in &config.stores {
            let store = registry.store(&configured.plugin, configured.config.clone())?;
            stores.add(Place::Configured(configured.plugin.clone()), store);
        }
        if let Ok(dir) = install_dir() {
            let bundled = dir.join("artifacts");
            if bundled.is_dir() {
                stores.add_directory(Place::Bundled, &bundled, registry)?;
            }
        }
        Ok(stores)
    }

    fn add_directory(&mut self, place: Place, root: &Path, registry: &mut Registry) -> Result<()> {
        let root = root.to_str().ok_or_else(|| {
            Diagnostic::new(
                codes::E_IO_003,
                format!("the artifact store '{}' has a path that is not UTF-8", root.display()),
            )
        })?;
        let store = registry.store(DIRECTORY, json!({ "root": root, "writable": place != Place::Bundled }))?;
        self.add(place, store);
        Ok(())
    }

    fn add(&mut self, place: Place, store: Arc<dyn Store>) {
        let location = store.description().location.clone();
        self.opened.push(Opened { place, location, store });
    }

    /// The stores that are open, in search order.
    pub fn places(&self) -> impl Iterator<Item = &Place> {
        self.opened.iter().map(|opened| &opened.place)
    }

    /// Where was looked, for a message: each store by its word and location.
    pub fn searched(&self, name: &ArtifactName) -> String {
        let places: Vec<String> =
            self.serving(name).map(|opened| format!("{} ({})", opened.place.as_str(), opened.location)).collect();
        places.join(", ")
    }

    fn serving(&self, name: &ArtifactName) -> impl Iterator<Item = &Opened> {
        let default = name.scope() == MURMUR_SCOPE;
        self.opened.iter().filter(move |opened| default || opened.place != Place::Bundled)
    }

    /// The first store that has the artifact for this machine; only "not there" falls through to the next.
    pub fn find(&self, name: &ArtifactName, version: &Version) -> Result<Option<Found>> {
        for opened in self.serving(name) {
            if let Some(found) = find_in(opened, name, version)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The artifact in one store.
    pub fn find_at(&self, place: &Place, name: &ArtifactName, version: &Version) -> Result<Option<Found>> {
        match self.serving(name).find(|opened| opened.place == *place) {
            Some(opened) => find_in(opened, name, version),
            None => Ok(None),
        }
    }

    /// Reads what was found and checks every byte: `E-REG-002` when it is something else.
    pub fn read(&self, found: &Found) -> Result<Verified> {
        verified(found, self.read_bytes(found)?)
    }

    /// Reads the bytes of what was found, hash checked, without looking into them.
    pub fn read_bytes(&self, found: &Found) -> Result<Bytes> {
        let opened =
            self.opened.iter().find(|opened| opened.place == found.place).ok_or_else(|| {
                Diagnostic::new(codes::E_IO_003, format!("no {} store is open", found.place.as_str()))
            })?;
        let bytes = Bytes::from(opened.store.read(&found.entry, archive::ceiling())?);
        let actual = Digest::of(&bytes);
        if actual != found.sha256 {
            return Err(Diagnostic::new(
                codes::E_REG_002,
                format!(
                    "artifact integrity check failed for {}: the {} store records sha256 {}, its bytes have {actual}",
                    found.reference(),
                    found.place.as_str(),
                    found.sha256
                ),
            )
            .hint(format!("install {} again from where it came", found.reference())));
        }
        Ok(bytes)
    }

    /// Files an artifact in the project's or the global store, replacing what was there.
    pub fn write(&self, place: &Place, artifact: &Verified, owner_id: Option<u64>) -> Result<()> {
        if let Err(reason) = &artifact.manifest.models {
            return Err(Diagnostic::new(
                codes::E_REG_011,
                format!("artifact '{}' has a malformed models: table: {reason}", artifact.reference()),
            )
            .hint("use another release of the driver"));
        }
        let opened = self
            .opened
            .iter()
            .find(|opened| opened.place == *place)
            .ok_or_else(|| Diagnostic::new(codes::E_IO_003, format!("no {} store is open", place.as_str())))?;
        let entry = artifact.entry(owner_id)?;
        opened.store.write(&entry, Box::new(Cursor::new(artifact.bytes.clone())))
    }

    /// Where a store keeps things.
    pub fn location(&self, place: &Place) -> Option<&str> {
        self.opened.iter().find(|opened| opened.place == *place).map(|opened| opened.location.as_str())
    }

    /// Everything in one store that keeps the rules of names, sorted by name, version text and platform.
    pub fn list(&self, place: &Place) -> Result<Vec<Found>> {
        let Some(opened) = self.opened.iter().find(|opened| opened.place == *place) else { return Ok(Vec::new()) };
        let mut all: Vec<Found> =
            opened.store.list(None)?.into_iter().filter_map(|entry| found(opened, entry).ok()).collect();
        all.sort_by(|a, b| {
            let key = |found: &Found| (found.name.clone(), found.version.as_str().to_owned(), found.platform);
            key(a).cmp(&key(b))
        });
        Ok(all)
    }

    /// The versions of an artifact that are there, oldest first; a store that cannot be listed adds none.
    pub fn versions(&self, name: &ArtifactName) -> Vec<Version> {
        let mut versions: Vec<Version> = Vec::new();
        for opened in self.serving(name) {
            let entries = opened.store.list(Some(name.scope())).unwrap_or_default();
            let all = entries.into_iter().filter_map(|entry| found(opened, entry).ok());
            versions.extend(all.filter(|found| found.name == *name).map(|found| found.version));
        }
        versions.sort();
        versions.dedup_by(|a, b| a.as_str() == b.as_str());
        versions
    }

    /// `; installed: 0.1.0, 0.2.0` for the message that another version is not there; empty when none is.
    pub fn others(&self, name: &ArtifactName) -> String {
        let versions = self.versions(name);
        let shown: Vec<&str> = versions.iter().rev().take(MAX_OTHERS).map(Version::as_str).collect();
        if shown.is_empty() { String::new() } else { format!("; installed: {}", shown.join(", ")) }
    }

    /// The name that may have been meant by one that is in no store, of those in the directory stores.
    pub fn near(&self, name: &ArtifactName) -> Option<ArtifactName> {
        let listed =
            [Place::Project, Place::Global].into_iter().flat_map(|place| self.list(&place).unwrap_or_default());
        let names: Vec<ArtifactName> = listed.map(|found| found.name).filter(|other| other != name).collect();
        let near = nearest(name.as_str(), names.iter().map(ArtifactName::as_str))?.to_owned();
        names.into_iter().find(|name| name.as_str() == near)
    }

    /// The newest version of an artifact in one store.
    pub fn newest(&self, place: &Place, name: &ArtifactName) -> Result<Option<Found>> {
        let Some(opened) = self.serving(name).find(|opened| opened.place == *place) else { return Ok(None) };
        let entries = opened.store.list(Some(name.scope()))?;
        let candidates = entries.into_iter().filter_map(|entry| found(opened, entry).ok());
        Ok(candidates.filter(|found| found.name == *name).max_by(|a, b| a.version.cmp(&b.version)))
    }
}

/// Looks into the bytes of what was found, which [`Stores::read_bytes`] has checked.
pub fn verified(found: &Found, bytes: Bytes) -> Result<Verified> {
    let name = found.reference();
    let fault = |error: ArchiveError| error.diagnostic(&name);
    let archive = Archive::open(bytes.clone()).map_err(fault)?;
    let text = archive.manifest_text().map_err(fault)?;
    let refused = |refusal: Diagnostic| ArchiveError::new(refusal.message()).diagnostic(&name);
    let doc = manifest::parse(text.as_bytes(), archive::MANIFEST).map_err(refused)?;
    let manifest = artifact_of(&doc).map_err(refused)?;
    if manifest.name != found.name.bare() || manifest.version != found.version.as_str() {
        return Err(Diagnostic::new(
            codes::E_REG_002,
            format!("the archive stored as {name} says it is {}@{}", manifest.name, manifest.version),
        )
        .hint(format!("install {name} again from where it came")));
    }
    Ok(Verified {
        name: found.name.clone(),
        version: found.version.clone(),
        platform: found.platform,
        place: Some(found.place.clone()),
        sha256: found.sha256,
        bytes,
        archive,
        manifest,
        doc: Arc::new(doc),
    })
}

fn find_in(opened: &Opened, name: &ArtifactName, version: &Version) -> Result<Option<Found>> {
    let tag = match Platform::host() {
        Platform::Unknown => None,
        platform => Some(platform.tag()),
    };
    let Some(entry) = opened.store.find(name.as_str(), version.as_str(), tag)? else { return Ok(None) };
    let found = found(opened, entry)?;
    if found.name != *name || found.version != *version {
        return Err(misfiled(opened, &format!("{name}@{version} was asked for and {} answered", found.reference())));
    }
    Ok(Some(found))
}

fn found(opened: &Opened, entry: StoreEntry) -> Result<Found> {
    let refused = |what: &str| misfiled(opened, &format!("'{}@{}': {what}", entry.name, entry.version));
    let name = ArtifactName::parse(&entry.name).map_err(|fault| refused(&fault.message()))?;
    let version = Version::parse(&entry.version).map_err(|fault| refused(&fault.message()))?;
    let sha256 = Digest::parse(entry.sha256.trim()).ok_or_else(|| refused("its recorded sha256 is not one"))?;
    let platform = match entry.platform.as_deref() {
        None => None,
        Some(tag) => Some(Platform::from_tag(tag).ok_or_else(|| refused("its platform is not known"))?),
    };
    Ok(Found { name, version, sha256, place: opened.place.clone(), platform, entry })
}

fn misfiled(opened: &Opened, what: &str) -> Diagnostic {
    Diagnostic::new(
        codes::E_REG_002,
        format!("the {} store ({}) is damaged: {what}", opened.place.as_str(), opened.location),
    )
    .hint("install the artifact again from where it came")
}

/// Version directories of the layout before scopes (`<root>/<name>/<version>/`), which no store reads: safe to delete.
/// At most `limit` of them.
pub fn unscoped_leftovers(root: &Path, limit: usize) -> Vec<PathBuf> {
    let dirs = |dir: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect()
    };
    let holds_archive = |dir: &Path| {
        let mut entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        entries.any(|entry| entry.file_name().to_string_lossy().ends_with(".mur.zip"))
    };
    let versions = dirs(root).into_iter().flat_map(|name| dirs(&name));
    let mut found: Vec<PathBuf> = versions.filter(|version| holds_archive(version)).take(limit).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Read;
    use std::sync::Mutex;

    use super::super::build::tests::archive_of;
    use super::*;
    use crate::plugins::StoreDescription;

    /// A store that answers whatever it was given: what the host checks must not depend on a store's honesty.
    struct Lying {
        description: StoreDescription,
        held: Mutex<BTreeMap<(String, String), (StoreEntry, Vec<u8>)>>,
    }

    impl Store for Lying {
        fn description(&self) -> &StoreDescription {
            &self.description
        }
        fn find(&self, name: &str, version: &str, _platform: Option<&str>) -> Result<Option<StoreEntry>> {
            Ok(self.held.lock().unwrap().get(&(name.into(), version.into())).map(|(entry, _)| entry.clone()))
        }
        fn list(&self, _scope: Option<&str>) -> Result<Vec<StoreEntry>> {
            Ok(self.held.lock().unwrap().values().map(|(entry, _)| entry.clone()).collect())
        }
        fn read(&self, entry: &StoreEntry, _limit: u64) -> Result<Vec<u8>> {
            Ok(self.held.lock().unwrap()[&(entry.name.clone(), entry.version.clone())].1.clone())
        }
        fn write(&self, entry: &StoreEntry, mut payload: Box<dyn Read + Send>) -> Result<()> {
            let mut bytes = Vec::new();
            payload.read_to_end(&mut bytes).unwrap();
            self.held.lock().unwrap().insert((entry.name.clone(), entry.version.clone()), (entry.clone(), bytes));
            Ok(())
        }
        fn remove(&self, _name: &str, _version: &str) -> Result<bool> {
            Ok(false)
        }
    }

    fn lying() -> Arc<Lying> {
        let description = StoreDescription { name: "lying".into(), location: "/x".into(), writable: true };
        Arc::new(Lying { description, held: Mutex::default() })
    }

    fn stores(places: &[(Place, &Arc<Lying>)]) -> Stores {
        let mut stores = Stores { opened: Vec::new() };
        for (place, store) in places {
            stores.add(place.clone(), Arc::clone(store) as Arc<dyn Store>);
        }
        stores
    }

    fn artifact(name: &str, version: &str) -> Verified {
        let manifest = format!("name: {name}\nversion: '{version}'\nruntime: capsule\nexecution: static\n");
        Verified::of_file(archive_of(&[("murmur.yaml", manifest.as_bytes())]).into(), "local", "x.mur.zip").unwrap()
    }

    fn name(text: &str) -> ArtifactName {
        ArtifactName::parse(text).unwrap()
    }

    fn version(text: &str) -> Version {
        Version::parse(text).unwrap()
    }

    #[test]
    fn the_project_store_comes_first_and_only_not_found_falls_through() {
        let (project, global) = (lying(), lying());
        let stores = stores(&[(Place::Project, &project), (Place::Global, &global)]);
        stores.write(&Place::Global, &artifact("x", "1.0.0"), None).unwrap();
        let found = stores.find(&name("local/x"), &version("1.0.0")).unwrap().unwrap();
        assert_eq!(found.place, Place::Global);
        stores.write(&Place::Project, &artifact("x", "1.0.0"), None).unwrap();
        project.held.lock().unwrap().values_mut().next().unwrap().0.sha256 = "nonsense".into();
        let refusal = stores.find(&name("local/x"), &version("1.0.0")).unwrap_err();
        assert_eq!(refusal.code(), codes::E_REG_002);
    }

    #[test]
    fn other_bytes_than_recorded_are_refused_whatever_the_store_says() {
        let store = lying();
        let stores = stores(&[(Place::Global, &store)]);
        stores.write(&Place::Global, &artifact("x", "1.0.0"), None).unwrap();
        let found = stores.find(&name("local/x"), &version("1.0.0")).unwrap().unwrap();
        assert_eq!(stores.read(&found).unwrap().manifest.runtime, "capsule");
        store.held.lock().unwrap().values_mut().next().unwrap().1.push(0);
        let refusal = stores.read(&found).unwrap_err();
        assert_eq!(refusal.code(), codes::E_REG_002);
        assert!(refusal.message().contains("integrity check failed for local/x@1.0.0"), "{refusal}");
    }

    #[test]
    fn an_archive_filed_under_another_name_is_refused() {
        let store = lying();
        let stores = stores(&[(Place::Global, &store)]);
        let mut artifact = artifact("x", "1.0.0");
        artifact.name = name("local/y");
        stores.write(&Place::Global, &artifact, None).unwrap();
        let found = stores.find(&name("local/y"), &version("1.0.0")).unwrap().unwrap();
        assert_eq!(stores.read(&found).unwrap_err().code(), codes::E_REG_002);
    }

    #[test]
    fn the_bundled_store_serves_its_scope_only() {
        let store = lying();
        let stores = stores(&[(Place::Bundled, &store)]);
        stores.write(&Place::Bundled, &artifact("x", "1.0.0"), None).unwrap();
        assert!(stores.find(&name("local/x"), &version("1.0.0")).unwrap().is_none());
    }

    #[test]
    fn the_versions_that_are_there_are_named_newest_first() {
        let store = lying();
        let stores = stores(&[(Place::Global, &store)]);
        assert_eq!(stores.others(&name("local/x")), "");
        for known in ["1.9.0", "1.10.0"] {
            stores.write(&Place::Global, &artifact("x", known), None).unwrap();
        }
        assert_eq!(stores.others(&name("local/x")), "; installed: 1.10.0, 1.9.0");
        assert_eq!(stores.others(&name("local/y")), "");
    }

    #[test]
    fn metadata_has_the_keys_of_the_format_in_order() {
        let artifact = artifact("x", "1.0.0");
        let entry = artifact.entry(Some(7)).unwrap();
        assert_eq!(
            entry.metadata,
            r#"{"name":"local/x","version":"1.0.0","runtime":"static","artifact_runtime":"capsule","platforms":[],"description":null,"tags":[],"owner_id":7}"#
        );
    }

    #[test]
    fn only_the_layout_without_scopes_is_a_leftover() {
        let dir = tempfile::tempdir().unwrap();
        for version in ["old/1.0.0", "local/new/1.0.0"] {
            let version = dir.path().join(version);
            std::fs::create_dir_all(&version).unwrap();
            std::fs::write(version.join("x-1.0.0.mur.zip"), b"").unwrap();
        }
        assert_eq!(unscoped_leftovers(dir.path(), 10), [dir.path().join("old/1.0.0")]);
    }

    #[test]
    fn the_newest_version_is_by_precedence() {
        let store = lying();
        let stores = stores(&[(Place::Global, &store)]);
        for one in ["1.9.0", "1.10.0", "nightly"] {
            stores.write(&Place::Global, &artifact("x", one), None).unwrap();
        }
        let newest = stores.newest(&Place::Global, &name("local/x")).unwrap().unwrap();
        assert_eq!(newest.version.as_str(), "1.10.0");
    }
}
