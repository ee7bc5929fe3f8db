//! Artifact store `directory`: a directory tree, one directory a version.
//!
//! `<root>/<scope>/<name>/<version>/` holds for each platform a payload, its digest and its metadata, under the bare name
//! and version. Names are checked before they become paths, so nothing outside the root is ever reached by one.
//!
//! A writer replaces the three files under an exclusive lock of the version's directory and readers look at them under a
//! shared one, so that no reader sees half a replacement; what was opened stays readable whatever follows.

mod layout;
mod replace;

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use mur_plugin_api::{About, ArtifactStore, ErrorKind, PluginError, StoreInfo, StoredEntry, export_plugin};
use serde::Deserialize;

use layout::{Files, is_part, is_version};

/// A digest file is 64 characters; anything much longer is not one.
const MAX_DIGEST: u64 = 1 << 10;
/// Metadata of one payload, at most.
const MAX_METADATA: u64 = 4 << 20;
/// Room for most digests and metadata, so that they are read in one piece.
const USUAL_TEXT: usize = 2 << 10;
const MEDIA_TYPE: &str = "application/zip";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    root: PathBuf,
    #[serde(default = "yes")]
    writable: bool,
}

fn yes() -> bool {
    true
}

struct DirectoryStore {
    root: PathBuf,
    writable: bool,
}

impl ArtifactStore for DirectoryStore {
    const ABOUT: About = About {
        summary: "keeps artifacts in a directory tree",
        vendor: "murmur",
        config_schema: r#"{"type":"object","required":["root"],"properties":{"root":{"type":"string","description":"absolute path of the tree; need not exist"},"writable":{"type":"boolean","default":true}},"additionalProperties":false,"examples":[{"root":"{scratch}/artifacts"}]}"#,
    };

    fn open(config: &str) -> Result<Self, PluginError> {
        let Config { root, writable } = serde_json::from_str(config).map_err(|error| invalid(error.to_string()))?;
        if !root.is_absolute() {
            return Err(invalid(format!("'root' is '{}', which is not an absolute path", root.display())));
        }
        Ok(Self { root, writable })
    }

    fn info(&self) -> Result<StoreInfo, PluginError> {
        Ok(StoreInfo { location: self.root.to_string_lossy().into_owned().into(), writable: self.writable })
    }

    fn find(&self, name: &str, version: &str, platform: &str) -> Result<Option<StoredEntry>, PluginError> {
        let Some(dir) = self.version_dir(name, version) else { return Ok(None) };
        let Some(_shared) = lock_shared(&dir)? else { return Ok(None) };
        if !platform.is_empty()
            && is_platform(platform)
            && let Some(found) = entry(&dir, name, version, platform)?
        {
            return Ok(Some(found));
        }
        entry(&dir, name, version, "")
    }

    fn list(&self, scope: &str) -> Result<Vec<StoredEntry>, PluginError> {
        let scopes = if scope.is_empty() { names_in(&self.root)? } else { vec![scope.to_owned()] };
        let mut found = Vec::new();
        for scope in scopes.iter().filter(|scope| is_part(scope)) {
            for bare in names_in(&self.root.join(scope))?.iter().filter(|bare| is_part(bare)) {
                let dir = self.root.join(scope).join(bare);
                for version in names_in(&dir)?.iter().filter(|version| is_version(version)) {
                    list_version(&dir.join(version), scope, bare, version, &mut found)?;
                }
            }
        }
        found.sort_by(|a, b| (&a.name, &a.version, &a.platform).cmp(&(&b.name, &b.version, &b.platform)));
        Ok(found)
    }

    fn read(&self, wanted: &StoredEntry) -> Result<Box<dyn Read + Send>, PluginError> {
        let (name, version, platform) = (wanted.name.as_str(), wanted.version.as_str(), wanted.platform.as_str());
        let gone = || PluginError::new(ErrorKind::Missing, format!("{name}@{version} is not there any more"));
        let dir = self.version_dir(name, version).filter(|_| is_platform_or_none(platform)).ok_or_else(gone)?;
        let _shared = lock_shared(&dir)?.ok_or_else(gone)?;
        let Files { payload: path, digest, .. } = Files::new(&dir, bare(name), version, platform);
        if payload_size(&path)?.is_none() {
            return Err(gone());
        }
        let file = File::open(&path).map_err(|error| fault(&path, &error))?;
        if read_digest(&digest)?.ok_or_else(gone)? != wanted.sha256.as_str() {
            return Err(PluginError::new(ErrorKind::Unavailable, format!("{name}@{version} was replaced meanwhile")));
        }
        Ok(Box::new(file))
    }

    fn write(&self, new: &StoredEntry, payload: &mut dyn Read) -> Result<(), PluginError> {
        let (name, version, platform) = (new.name.as_str(), new.version.as_str(), new.platform.as_str());
        self.check_writable()?;
        let dir = self.version_dir(name, version).filter(|_| is_platform_or_none(platform));
        let dir = dir.ok_or_else(|| invalid(format!("'{name}@{version}' cannot be a place in this store")))?;
        if !is_digest(new.sha256.as_str()) {
            return Err(invalid("the digest is not 64 lowercase hex digits".to_owned()));
        }
        let metadata = render_metadata(new.metadata.as_str())?;
        fs::create_dir_all(&dir).map_err(|error| fault(&dir, &error))?;
        let files = Files::new(&dir, bare(name), version, platform);
        replace::replace(&dir, &files, payload, new.size, new.sha256.as_str(), &metadata)
    }

    fn remove(&self, name: &str, version: &str) -> Result<bool, PluginError> {
        self.check_writable()?;
        let Some(dir) = self.version_dir(name, version) else { return Ok(false) };
        replace::remove(&self.root, &dir)
    }
}

impl DirectoryStore {
    /// The directory of a version; `None` when the texts cannot name one.
    fn version_dir(&self, name: &str, version: &str) -> Option<PathBuf> {
        let (scope, bare) = name.split_once('/')?;
        (is_part(scope) && is_part(bare) && is_version(version)).then(|| self.root.join(scope).join(bare).join(version))
    }

    fn check_writable(&self) -> Result<(), PluginError> {
        if self.writable {
            return Ok(());
        }
        Err(PluginError::new(ErrorKind::Denied, format!("{}: this store is read only", self.root.display())))
    }
}

fn bare(name: &str) -> &str {
    name.split_once('/').map_or(name, |(_, bare)| bare)
}

fn is_platform(tag: &str) -> bool {
    layout::is_platform(tag)
}

fn is_platform_or_none(tag: &str) -> bool {
    tag.is_empty() || is_platform(tag)
}

fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// The payload of exactly this platform; `None` unless payload and digest are both there.
fn entry(dir: &Path, name: &str, version: &str, platform: &str) -> Result<Option<StoredEntry>, PluginError> {
    let files = Files::new(dir, bare(name), version, platform);
    let Some(size) = payload_size(&files.payload)? else { return Ok(None) };
    let Some(digest) = read_digest(&files.digest)? else { return Ok(None) };
    Ok(Some(StoredEntry {
        name: name.into(),
        version: version.into(),
        platform: platform.into(),
        sha256: digest.as_str().into(),
        size,
        media_type: MEDIA_TYPE.into(),
        metadata: read_metadata(&files.metadata)?.into(),
    }))
}

/// The size of a payload; `None` when there is no plain file. Asked before it is opened, which a pipe would hold.
fn payload_size(path: &Path) -> Result<Option<u64>, PluginError> {
    match fs::metadata(path) {
        Ok(meta) => Ok(meta.is_file().then_some(meta.len())),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(fault(path, &error)),
    }
}

/// What a digest file says; `None` when there is none.
fn read_digest(path: &Path) -> Result<Option<String>, PluginError> {
    let Some(mut digest) = read_text(path, MAX_DIGEST)? else { return Ok(None) };
    if digest.len() != digest.trim().len() {
        digest = digest.trim().to_owned();
    }
    if is_digest(&digest) {
        return Ok(Some(digest));
    }
    let what = if digest.is_empty() { "is empty" } else { "holds no SHA-256" };
    Err(PluginError::new(ErrorKind::Corrupt, format!("{} {what}", path.display())))
}

fn list_version(
    dir: &Path,
    scope: &str,
    bare: &str,
    version: &str,
    found: &mut Vec<StoredEntry>,
) -> Result<(), PluginError> {
    let Some(_shared) = lock_shared(dir)? else { return Ok(()) };
    let name = format!("{scope}/{bare}");
    for file in names_in(dir)? {
        let Some(platform) = layout::platform_of(&file, bare, version) else { continue };
        match entry(dir, &name, version, platform) {
            Ok(Some(one)) => found.push(one),
            // A damaged payload must not hide the others; looking for it says what is wrong.
            Ok(None) => {}
            Err(error) if error.kind() == ErrorKind::Corrupt => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[derive(Deserialize)]
struct Sidecar {
    meta: serde_json::Map<String, serde_json::Value>,
}

/// The metadata object as text; empty when the file is not there. A damaged file is no reason to refuse the payload: what
/// it says can be derived again.
fn read_metadata(path: &Path) -> Result<String, PluginError> {
    let Some(text) = read_text(path, MAX_METADATA)? else { return Ok(String::new()) };
    let sidecar = serde_json::from_str::<Sidecar>(&text);
    Ok(sidecar.map(|sidecar| serde_json::Value::Object(sidecar.meta).to_string()).unwrap_or_default())
}

fn render_metadata(object: &str) -> Result<String, PluginError> {
    if object.is_empty() {
        return Ok(String::new());
    }
    let meta: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(object).map_err(|error| invalid(format!("the metadata is no object: {error}")))?;
    serde_json::to_string_pretty(&serde_json::json!({ "meta": meta })).map_err(|error| invalid(error.to_string()))
}

/// A small text file; `None` when it is not there. Other than UTF-8 or longer than allowed is damage.
fn read_text(path: &Path, limit: u64) -> Result<Option<String>, PluginError> {
    let mut text = String::with_capacity(USUAL_TEXT);
    let outcome = File::open(path).and_then(|file| file.take(limit + 1).read_to_string(&mut text));
    match outcome {
        Ok(_) if text.len() as u64 > limit => {
            Err(PluginError::new(ErrorKind::Corrupt, format!("{} is too long", path.display())))
        }
        Ok(_) => Ok(Some(text)),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            Err(PluginError::new(ErrorKind::Corrupt, format!("{} is not UTF-8", path.display())))
        }
        Err(error) => Err(fault(path, &error)),
    }
}

/// The names in a directory; none when there is no such directory. Names that are not UTF-8 are nobody's.
fn names_in(dir: &Path) -> Result<Vec<String>, PluginError> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if is_absent(&error) => return Ok(Vec::new()),
        Err(error) => return Err(fault(dir, &error)),
    };
    let mut names = Vec::new();
    for one in entries {
        let name = one.map_err(|error| fault(dir, &error))?.file_name();
        names.extend(name.into_string().ok());
    }
    Ok(names)
}

/// Locks a version's directory against writers; `None` when there is none. A filesystem without locks gives up the
/// guarantee, not the read.
fn lock_shared(dir: &Path) -> Result<Option<File>, PluginError> {
    match File::open(dir) {
        Ok(file) => {
            let _ = file.lock_shared();
            Ok(Some(file))
        }
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(fault(dir, &error)),
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
        || error.kind() == io::ErrorKind::InvalidFilename
}

fn fault(path: &Path, error: &io::Error) -> PluginError {
    PluginError::io(path.display(), error)
}

fn invalid(what: String) -> PluginError {
    PluginError::new(ErrorKind::Invalid, what)
}

export_plugin!(store "directory", env!("CARGO_PKG_VERSION"), DirectoryStore);

#[cfg(test)]
mod tests;
