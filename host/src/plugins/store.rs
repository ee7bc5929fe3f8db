//! A store as the rest of the host sees it: deadlines, checked answers, faults by name.

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use mur_plugin_api::store::StoreModuleRef;
use mur_plugin_api::{ErrorKind, PluginError, ReaderObject, StoreObject, StoredEntry};

use super::call::{Caller, detach};
use super::library::Library;
use super::{Store, StoreDescription, StoreEntry};
use crate::diagnostics::Result;

/// Opening, finding, removing.
const SHORT: Duration = Duration::from_secs(30);
/// Listing everything.
const LIST: Duration = Duration::from_secs(120);
/// Moving a whole payload.
const TRANSFER: Duration = Duration::from_secs(600);
/// Asked for at once when a payload is read.
const CHUNK: usize = 256 << 10;
/// What a store claims of a payload's size reserves at most this much ahead.
const RESERVE: u64 = 16 << 20;
/// Entries one listing may have.
const MAX_ENTRIES: usize = 1_000_000;

struct Guarded {
    caller: Caller,
    description: StoreDescription,
    object: Option<Arc<StoreObject>>,
}

/// Opens a store of a loaded plugin.
pub(super) fn open(library: &Library, config: &serde_json::Value) -> Result<Arc<dyn Store>> {
    let module: StoreModuleRef = library.module()?;
    let caller = Caller::new(&library.info);
    let config = config.to_string();
    let (object, info) = caller.call("open", SHORT, move || {
        let object = module.open()(config.as_str().into()).into_result()?;
        let info = object.info()?;
        Ok((object, info))
    })?;
    let name = caller.name().to_owned();
    let location = info.location.into_string();
    let caller = caller.at(&location);
    let description = StoreDescription { name, location, writable: info.writable };
    Ok(Arc::new(Guarded { caller, description, object: Some(Arc::new(object)) }))
}

impl Guarded {
    fn call<T: Send + 'static>(
        &self,
        what: &'static str,
        within: Duration,
        body: impl FnOnce(&StoreObject) -> std::result::Result<T, PluginError> + Send + 'static,
    ) -> Result<T> {
        let object = self.object.clone();
        self.caller.call(what, within, move || match &object {
            Some(object) => body(object),
            None => Err(PluginError::new(ErrorKind::Invalid, "the store is closed")),
        })
    }
}

impl Store for Guarded {
    fn description(&self) -> &StoreDescription {
        &self.description
    }

    fn find(&self, name: &str, version: &str, platform: Option<&str>) -> Result<Option<StoreEntry>> {
        let asked = (name.to_owned(), version.to_owned(), platform.unwrap_or_default().to_owned());
        let found = self.call("find", SHORT, {
            let (name, version, platform) = asked.clone();
            move |object| object.find(&name, &version, &platform)
        })?;
        let Some(entry) = found.map(from_plugin) else { return Ok(None) };
        let platform_fits = entry.platform.as_deref().is_none_or(|tag| tag == asked.2);
        if entry.name != asked.0 || entry.version != asked.1 || !platform_fits || !is_digest(&entry.sha256) {
            return Err(self.caller.fault(&format!("answered 'find' for {name}@{version} with something else")));
        }
        Ok(Some(entry))
    }

    fn list(&self, scope: Option<&str>) -> Result<Vec<StoreEntry>> {
        let scope = scope.unwrap_or_default().to_owned();
        let found = self.call("list", LIST, move |object| object.list(&scope))?;
        if found.len() > MAX_ENTRIES {
            return Err(self.caller.fault("listed more entries than a store can have"));
        }
        Ok(found.into_iter().map(from_plugin).collect())
    }

    fn read(&self, entry: &StoreEntry, limit: u64) -> Result<Vec<u8>> {
        let wanted = to_plugin(entry);
        self.call("read", TRANSFER, move |object| {
            let mut reader = object.read(&wanted)?;
            let ahead = usize::try_from(wanted.size.min(limit).min(RESERVE)).unwrap_or(0);
            let mut bytes: Vec<u8> = Vec::with_capacity(ahead);
            // A small payload costs a small buffer, with a byte of room in which its end is seen.
            let mut chunk = vec![0; CHUNK.min(ahead + 1)];
            loop {
                let size = reader.pull(&mut chunk)?;
                if size == 0 {
                    return Ok(bytes);
                }
                if bytes.len() as u64 + size as u64 > limit {
                    let what = format!("{}@{} is larger than {limit} bytes", wanted.name, wanted.version);
                    return Err(PluginError::new(ErrorKind::Corrupt, what));
                }
                bytes.extend_from_slice(&chunk[..size]);
            }
        })
    }

    fn write(&self, entry: &StoreEntry, payload: Box<dyn Read + Send>) -> Result<()> {
        let entry = to_plugin(entry);
        self.call("write", TRANSFER, move |object| object.write(&entry, ReaderObject::new(payload)))
    }

    fn remove(&self, name: &str, version: &str) -> Result<bool> {
        let (name, version) = (name.to_owned(), version.to_owned());
        self.call("remove", SHORT, move |object| object.remove(&name, &version))
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let object = self.object.take();
        detach(move || drop(object));
    }
}

fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

fn from_plugin(entry: StoredEntry) -> StoreEntry {
    let StoredEntry { name, version, platform, sha256, size, media_type, metadata } = entry;
    StoreEntry {
        name: name.into_string(),
        version: version.into_string(),
        platform: Some(platform.into_string()).filter(|tag| !tag.is_empty()),
        sha256: sha256.into_string(),
        size,
        media_type: media_type.into_string(),
        metadata: metadata.into_string(),
    }
}

fn to_plugin(entry: &StoreEntry) -> StoredEntry {
    let StoreEntry { name, version, platform, sha256, size, media_type, metadata } = entry;
    StoredEntry {
        name: name.as_str().into(),
        version: version.as_str().into(),
        platform: platform.as_deref().unwrap_or_default().into(),
        sha256: sha256.as_str().into(),
        size: *size,
        media_type: media_type.as_str().into(),
        metadata: metadata.as_str().into(),
    }
}
