//! What every artifact store must do.

use std::io::{self, Read};

use super::{Report, refused, same, worked};
use crate::error::{ErrorKind, PluginError};
use crate::store::{ReaderObject, StoreObject, StoredEntry};

const NAME: &str = "conformance/sample";
const DIGEST: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
const OTHER_DIGEST: &str = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae";
/// More than one chunk of any reader.
const LARGE: usize = 3 << 20;

fn sample(version: &str, sha256: &str) -> StoredEntry {
    StoredEntry {
        name: NAME.into(),
        version: version.into(),
        platform: "".into(),
        sha256: sha256.into(),
        size: 0,
        media_type: "application/zip".into(),
        metadata: r#"{"name":"conformance/sample","tags":["a"]}"#.into(),
    }
}

struct Broken(bool);

impl Read for Broken {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if std::mem::replace(&mut self.0, true) { Err(io::Error::other("broken on purpose")) } else { Ok(buffer.len()) }
    }
}

fn payload(bytes: impl AsRef<[u8]> + Send + 'static) -> ReaderObject {
    ReaderObject::new(Box::new(io::Cursor::new(bytes)))
}

fn write(store: &StoreObject, version: &str, digest: &str, bytes: Vec<u8>) -> Result<(), String> {
    worked("a write", store.write(&sample(version, digest), payload(bytes)))
}

fn read_back(store: &StoreObject, version: &str) -> Result<(StoredEntry, Vec<u8>), String> {
    let found = worked("find", store.find(NAME, version, ""))?.ok_or("what was written is not found")?;
    let mut bytes = Vec::new();
    let read = worked("read", store.read(&found))?.read_to_end(&mut bytes);
    read.map_err(|error| format!("reading failed: {error}"))?;
    Ok((found, bytes))
}

/// Runs the checks; `open` opens the store anew over one scratch place, which starts empty.
pub fn store(report: &mut Report, open: &dyn Fn() -> Result<StoreObject, PluginError>) {
    let info = worked("open", open()).and_then(|store| worked("info", store.info()));
    report.check("it opens and says where it is", || {
        let info = info.clone()?;
        if info.location.is_empty() { Err("its location is empty".to_owned()) } else { Ok(()) }
    });
    if info.is_err() {
        return;
    }
    let opened = || worked("open", open());
    report.check("what is not there is not found, and no error", || {
        let store = opened()?;
        same("find", &worked("find", store.find(NAME, "0", "linux-x86_64"))?, &None)?;
        same("the listing's length", &worked("list", store.list("conformance"))?.len(), &0)
    });
    report.check("names that are no names reach nothing and make no panic", || {
        let store = opened()?;
        for (name, version) in [("", ""), ("..", ".."), ("a/../../b", "1"), ("a/b", "../../c"), ("\u{0}/b", "1")] {
            match store.find(name, version, "../x") {
                Ok(None) => {}
                Err(error) if error.kind() != ErrorKind::Panicked => {}
                other => return Err(format!("find of {name:?} {version:?} gave {other:?}")),
            }
        }
        Ok(())
    });
    if info.is_ok_and(|info| info.writable) {
        writable(report, &opened);
    }
}

fn writable(report: &mut Report, opened: &dyn Fn() -> Result<StoreObject, String>) {
    report.check("a payload reads back as written, through another handle too", || {
        let bytes: Vec<u8> = (0..LARGE).map(|n| (n % 251) as u8).collect();
        write(&opened()?, "1.0.0", DIGEST, bytes.clone())?;
        let (found, read) = read_back(&opened()?, "1.0.0")?;
        if read != bytes {
            return Err(format!("{} bytes came back for {LARGE}", read.len()));
        }
        same("the digest", &found.sha256.as_str(), &DIGEST)?;
        same("the size", &found.size, &(LARGE as u64))?;
        let metadata: Result<serde_json::Value, _> = serde_json::from_str(&found.metadata);
        same("a tag", &metadata.ok().as_ref().and_then(|meta| meta["tags"][0].as_str()), &Some("a"))
    });
    report.check("a listing has what was written, by its scope and without it", || {
        let store = opened()?;
        write(&store, "1.20", DIGEST, b"x".to_vec())?;
        for scope in ["conformance", ""] {
            let listed = worked("list", store.list(scope))?;
            let versions: Vec<&str> = listed.iter().map(|entry| entry.version.as_str()).collect();
            if !versions.contains(&"1.0.0") || !versions.contains(&"1.20") {
                return Err(format!("the listing of {scope:?} has the versions {versions:?}"));
            }
        }
        same("another scope's length", &worked("list", store.list("conformance-x"))?.len(), &0)
    });
    report.check("a second write replaces the first", || {
        let store = opened()?;
        write(&store, "2", DIGEST, b"old".to_vec())?;
        write(&store, "2", OTHER_DIGEST, b"new".to_vec())?;
        let (found, bytes) = read_back(&store, "2")?;
        same("the payload", &bytes, &b"new".to_vec())?;
        same("the digest", &found.sha256.as_str(), &OTHER_DIGEST)
    });
    report.check("a payload that fails to arrive changes nothing", || {
        let store = opened()?;
        write(&store, "3", DIGEST, b"old".to_vec())?;
        refused("it", store.write(&sample("3", OTHER_DIGEST), ReaderObject::new(Box::new(Broken(false)))))?;
        same("the payload", &read_back(&store, "3")?.1, &b"old".to_vec())?;
        refused("it", store.write(&sample("4", DIGEST), ReaderObject::new(Box::new(Broken(false)))))?;
        same("a version that never arrived", &worked("find", store.find(NAME, "4", ""))?, &None)
    });
    report.check("a removed version is gone, and removing it again finds nothing", || {
        let store = opened()?;
        write(&store, "5", DIGEST, b"x".to_vec())?;
        let found = worked("find", store.find(NAME, "5", ""))?.ok_or("what was written is not found")?;
        same("the first removal", &worked("remove", store.remove(NAME, "5"))?, &true)?;
        same("the second removal", &worked("remove", store.remove(NAME, "5"))?, &false)?;
        refused("reading what was removed", store.read(&found))
    });
}
