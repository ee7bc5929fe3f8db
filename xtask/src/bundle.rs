//! Archives and the store that comes with `mur`: scope `murmur`, laid out as every directory store is.

use std::io::{Cursor, Write as _};
use std::path::Path;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use crate::guests::Guest;
use crate::{Outcome, sh};

/// The WIT level all guests are built for.
const WIT_LEVEL: u64 = 1;

/// SHA-256 as hex.
pub fn sha256(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// An archive: the same bytes for the same content, whenever it is made.
pub fn archive(entries: &[(&str, &[u8])]) -> Outcome<Vec<u8>> {
    let say = |fault: String| format!("the archive cannot be written: {fault}");
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Deflated).unix_permissions(0o644);
    for (name, bytes) in entries {
        writer.start_file(*name, options).map_err(|fault| say(fault.to_string()))?;
        writer.write_all(bytes).map_err(|fault| say(fault.to_string()))?;
    }
    writer.finish().map(Cursor::into_inner).map_err(|fault| say(fault.to_string()))
}

/// An artifact's archive, as `mur build` packs it.
pub fn pack(guest: &Guest) -> Outcome<Vec<u8>> {
    let label = format!("{{\"built_at_level\":{WIT_LEVEL}}}\n");
    archive(&[
        ("murmur.yaml", guest.manifest.as_bytes()),
        ("capsule.wasm", &guest.component),
        ("murmur-build.json", label.as_bytes()),
    ])
}

/// What a store is told of a payload.
pub struct Entry<'a> {
    /// The scope.
    pub scope: &'a str,
    /// The bare name.
    pub name: &'a str,
    /// The version.
    pub version: &'a str,
    /// What it is: `driver`, `tool`, `capsule`.
    pub role: &'a str,
    /// How it is packaged: `wasm`, `static`.
    pub packaging: &'a str,
    /// Its interfaces.
    pub contracts: Value,
    /// The WIT level it was built at, where it has any.
    pub built_at_level: Option<u64>,
}

/// Files one of our artifacts.
pub fn store(root: &Path, scope: &str, guest: &Guest) -> Outcome<bool> {
    let entry = Entry {
        scope,
        name: &guest.name,
        version: &guest.version,
        role: &guest.role,
        packaging: "wasm",
        contracts: guest.contracts(),
        built_at_level: Some(WIT_LEVEL),
    };
    file(root, &entry, &pack(guest)?)
}

/// Files a payload in a store of the layout `<root>/<scope>/<name>/<version>/`.
pub fn file(root: &Path, entry: &Entry<'_>, archive: &[u8]) -> Outcome<bool> {
    let Entry { scope, name, version, .. } = entry;
    let place = root.join(scope).join(name).join(version);
    let file = |ending: &str| place.join(format!("{name}-{version}{ending}"));
    let mut meta = json!({"meta": {
        "name": format!("{scope}/{name}"),
        "version": version,
        "runtime": entry.packaging,
        "artifact_runtime": entry.role,
        "platforms": [],
        "description": null,
        "tags": [],
        "wit_contracts": entry.contracts,
    }});
    if let Some(level) = entry.built_at_level {
        meta["meta"]["built_at_level"] = level.into();
    }
    let meta = serde_json::to_string_pretty(&meta).map_err(|fault| fault.to_string())?;
    for folder in [root, &root.join(scope), &root.join(scope).join(name), &place] {
        sh::folder(folder)?;
    }
    let changed = sh::write(&file(".mur.zip"), archive, 0o644)?;
    sh::write(&file(".sha256"), sha256(archive).as_bytes(), 0o644)?;
    sh::write(&file(".meta.json"), meta.as_bytes(), 0o644)?;
    Ok(changed)
}
