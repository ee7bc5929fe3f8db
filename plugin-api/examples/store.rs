//! A read-only store: a shelf of archives, `<root>/<scope>/<name>/<version>.mur.zip`, each with a `<version>.sha256` beside it.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use mur_plugin_api::{About, ArtifactStore, ErrorKind, PluginError, StoreInfo, StoredEntry, export_plugin};

struct Shelf {
    root: PathBuf,
}

impl ArtifactStore for Shelf {
    const ABOUT: About = About {
        summary: "serves archives from a folder and writes nothing",
        vendor: "example",
        config_schema: r#"{"type":"object","required":["root"],"properties":{"root":{"type":"string"}},"examples":[{"root":"{scratch}"}]}"#,
    };

    fn open(config: &str) -> Result<Self, PluginError> {
        let config: serde_json::Value = serde_json::from_str(config).map_err(|error| invalid(error.to_string()))?;
        let root = config["root"].as_str().ok_or_else(|| invalid("'root' must be a path"))?;
        Ok(Self { root: root.into() })
    }

    fn info(&self) -> Result<StoreInfo, PluginError> {
        Ok(StoreInfo { location: self.root.to_string_lossy().into_owned().into(), writable: false })
    }

    fn find(&self, name: &str, version: &str, _platform: &str) -> Result<Option<StoredEntry>, PluginError> {
        let Some(archive) = self.archive(name, version) else { return Ok(None) };
        let Ok(meta) = fs::metadata(&archive) else { return Ok(None) };
        let digest = archive.with_file_name(format!("{version}.sha256"));
        let sha256 = fs::read_to_string(&digest).map_err(|error| PluginError::io(digest.display(), &error))?;
        Ok(Some(StoredEntry {
            name: name.into(),
            version: version.into(),
            platform: "".into(),
            sha256: sha256.trim().into(),
            size: meta.len(),
            media_type: "application/zip".into(),
            metadata: "".into(),
        }))
    }

    fn list(&self, scope: &str) -> Result<Vec<StoredEntry>, PluginError> {
        let mut found = Vec::new();
        for owner in names(&self.root).into_iter().filter(|owner| scope.is_empty() || owner == scope) {
            for bare in names(&self.root.join(&owner)) {
                for file in names(&self.root.join(&owner).join(&bare)) {
                    if let Some(version) = file.strip_suffix(".mur.zip") {
                        found.extend(self.find(&format!("{owner}/{bare}"), version, "")?);
                    }
                }
            }
        }
        Ok(found)
    }

    fn read(&self, entry: &StoredEntry) -> Result<Box<dyn Read + Send>, PluginError> {
        let gone = || PluginError::new(ErrorKind::Missing, format!("{} is not there", entry.name));
        let archive = self.archive(entry.name.as_str(), entry.version.as_str()).ok_or_else(gone)?;
        Ok(Box::new(File::open(&archive).map_err(|error| PluginError::io(archive.display(), &error))?))
    }

    fn write(&self, _entry: &StoredEntry, _payload: &mut dyn Read) -> Result<(), PluginError> {
        Err(PluginError::new(ErrorKind::Unsupported, "this store is read only"))
    }

    fn remove(&self, _name: &str, _version: &str) -> Result<bool, PluginError> {
        Err(PluginError::new(ErrorKind::Unsupported, "this store is read only"))
    }
}

impl Shelf {
    /// Where an archive would be; none for texts that must not become paths.
    fn archive(&self, name: &str, version: &str) -> Option<PathBuf> {
        let (scope, bare) = name.split_once('/')?;
        let plain = |text: &str| {
            !text.is_empty() && !text.starts_with('.') && !text.contains(|c: char| c == '/' || c.is_control())
        };
        [scope, bare, version]
            .into_iter()
            .all(plain)
            .then(|| self.root.join(scope).join(bare).join(format!("{version}.mur.zip")))
    }
}

/// The names in a directory; none where there is no directory.
fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn invalid(what: impl Into<String>) -> PluginError {
    PluginError::new(ErrorKind::Invalid, what)
}

export_plugin!(store "shelf", env!("CARGO_PKG_VERSION"), Shelf);
