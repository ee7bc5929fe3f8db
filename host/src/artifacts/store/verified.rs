//! An artifact whose bytes were read, and what is known of it from them alone.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::Place;
use crate::artifacts::archive::{self, Archive, ArchiveError, Payload};
use crate::artifacts::level::Interfaces;
use crate::artifacts::lock::Bound;
use crate::artifacts::name::{ArtifactName, Digest, Platform, Version};
use crate::diagnostics::{Diagnostic, Result, codes, output};
use crate::manifest::{self, ArtifactManifest, Execution, artifact_of};
use crate::plugins::StoreEntry;
use crate::yaml::Doc;

/// The media type of what is stored.
const MEDIA_TYPE: &str = "application/zip";

/// An artifact whose bytes were read and hash to what was said.
#[derive(Clone, Debug)]
pub struct Verified {
    /// Its full name.
    pub name: ArtifactName,
    /// Its version.
    pub version: Version,
    /// The platform its payload is tagged with.
    pub platform: Option<Platform>,
    /// The store it was read from, `None` for a file.
    pub place: Option<Place>,
    /// The archive's bytes.
    pub bytes: Bytes,
    /// Their hash, by the host.
    pub sha256: Digest,
    /// The archive, guards passed.
    pub archive: Archive,
    /// What the packed manifest says.
    pub manifest: ArtifactManifest,
    /// The packed manifest, parsed.
    pub doc: Arc<Doc>,
}

impl Verified {
    /// Opens an archive's bytes as the artifact of this scope that its packed manifest says it is.
    pub fn of_file(bytes: Bytes, scope: &str, shown: &str) -> Result<Self> {
        let fault = |error: ArchiveError| Diagnostic::new(codes::E_IO_003, format!("{shown}: {error}"));
        let archive = Archive::open(bytes.clone()).map_err(fault)?;
        let text = archive.manifest_text().map_err(fault)?;
        let doc = manifest::parse(text.as_bytes(), archive::MANIFEST)?;
        let manifest = artifact_of(&doc)?;
        let name = ArtifactName::new(scope, &manifest.name).map_err(|fault| {
            Diagnostic::new(
                codes::E_REG_002,
                format!("{shown}: its packed name '{}' cannot be filed: {}", manifest.name, fault.message()),
            )
            .hint("rebuild it with a bare name: a-z, 0-9 and '-' only")
        })?;
        let version = Version::parse(&manifest.version).map_err(|fault| fault.diagnostic())?;
        let sha256 = Digest::of(&bytes);
        let doc = Arc::new(doc);
        Ok(Self { name, version, platform: None, place: None, bytes, sha256, archive, manifest, doc })
    }

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
            owner_id: None,
        }
    }

    /// The payload its packaging selects.
    pub fn payload(&self) -> Result<Payload> {
        self.archive
            .payload(self.manifest.execution, &self.manifest.runtime, self.name.bare())
            .map_err(|error| error.diagnostic(&self.reference()))
    }

    /// Whether it has a component that a worker or a script capsule runs.
    pub fn is_wasm(&self) -> bool {
        self.manifest.execution == Execution::Wasm
    }

    /// What its component names; nothing when it has none that can be read.
    pub fn interfaces(&self) -> Option<Interfaces> {
        match self.payload() {
            Ok(Payload::Wasm { bytes, .. }) => Some(Interfaces::of(&bytes)),
            _ => None,
        }
    }

    /// The warning `W-REG-001` of a native payload that was found without a platform tag.
    pub fn untagged_native(&self) -> Option<Diagnostic> {
        (self.manifest.execution == Execution::Native && self.platform.is_none() && self.place.is_some()).then(|| {
            Diagnostic::new(
                codes::W_REG_001,
                format!("native artifact '{}' was found without a platform tag in its store", self.reference()),
            )
            .hint(format!("mur install {}", self.reference()))
        })
    }

    /// Prints that warning where a command resolves the artifact.
    pub fn warn_untagged(&self) {
        if let Some(warning) = self.untagged_native() {
            output::stderr_line(&format!("warning[{}]: {}", warning.code(), warning.message()));
            output::stderr_line(&format!("  Fix: {}", warning.hint_text().unwrap_or_default()));
            output::stderr_line(&format!("  {}", warning.link()));
        }
    }

    /// The entry a store files it under, with its metadata.
    pub(super) fn entry(&self, owner_id: Option<u64>) -> Result<StoreEntry> {
        let level = self.archive.built_at_level().map_err(|error| error.diagnostic(&self.reference()))?;
        let mut meta = Map::new();
        meta.insert("name".into(), self.name.as_str().into());
        meta.insert("version".into(), self.version.as_str().into());
        meta.insert("runtime".into(), self.manifest.execution.as_str().into());
        meta.insert("artifact_runtime".into(), self.manifest.runtime.as_str().into());
        let platforms: Vec<Value> =
            self.platform.and_then(Platform::parts).into_iter().map(|p| json!([p.0, p.1])).collect();
        meta.insert("platforms".into(), platforms.into());
        meta.insert("description".into(), Value::Null);
        meta.insert("tags".into(), json!([]));
        if let Some(interfaces) = self.interfaces() {
            let contracts = json!({ "exports": interfaces.exports, "imports": interfaces.imports });
            meta.insert("wit_contracts".into(), contracts);
        }
        if let Some(owner) = owner_id {
            meta.insert("owner_id".into(), owner.into());
        }
        if let Some(level) = level {
            meta.insert("built_at_level".into(), level.into());
        }
        Ok(StoreEntry {
            name: self.name.as_str().to_owned(),
            version: self.version.as_str().to_owned(),
            platform: self.platform.map(|platform| platform.tag().to_owned()),
            sha256: self.sha256.hex(),
            size: self.bytes.len() as u64,
            media_type: MEDIA_TYPE.to_owned(),
            metadata: Value::Object(meta).to_string(),
        })
    }
}
