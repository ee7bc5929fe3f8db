//! Reading a `.mur.zip`: every guard before any byte is inflated, and a ceiling on what one entry may inflate to.
//!
//! Nothing here writes to a file system; entries are read into memory by name. One archive has exactly one reading: an
//! entry listed twice, hidden between others, or described differently by its local header is refused, so that what
//! was checked is what any other reader would see.

use std::fmt;
use std::io::{Cursor, Read};

use bytes::Bytes;
use zip::ZipArchive;

use crate::diagnostics::{Diagnostic, codes};
use crate::manifest::Execution;

/// Most entries of one archive; the zip format's own bound without its 64-bit extension is 65535.
pub const MAX_ENTRIES: usize = 16_384;

/// Most bytes of one entry's name.
pub const MAX_ENTRY_NAME: usize = 1024;

/// What one entry may inflate to unless the operator says otherwise.
pub const DEFAULT_CEILING: u64 = 524_288_000;

/// Most bytes of `murmur.yaml`: the bound of the manifest reader.
pub const MAX_MANIFEST: u64 = 1 << 20;

/// The variable that sets the ceiling.
pub const CEILING_VARIABLE: &str = "MURMUR_MAX_ARTIFACT_DECOMPRESSED_BYTES";

/// The manifest's entry.
pub const MANIFEST: &str = "murmur.yaml";

/// The entry `mur build` leaves its level in.
pub const BUILD_LABEL: &str = "murmur-build.json";

/// The preferred payload of a wasm artifact.
pub const CAPSULE_WASM: &str = "capsule.wasm";

/// The payload of a skill.
pub const SKILL: &str = "skill.md";

/// Why an archive or a part of it cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiveError(String);

impl ArchiveError {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The fault at launch: `E-IO-003` naming the artifact.
    pub fn diagnostic(&self, artifact: &str) -> Diagnostic {
        Diagnostic::new(codes::E_IO_003, format!("failed to read artifact archive for {artifact}: {self}"))
    }
}

impl fmt::Display for ArchiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ArchiveError {}

type Result<T> = std::result::Result<T, ArchiveError>;

/// The selected payload of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// The component.
    Wasm {
        /// The entry it came from.
        entry: String,
        /// Its bytes.
        bytes: Bytes,
    },
    /// The binary.
    Native(Bytes),
    /// `skill.md` of a skill; nothing for an agent capsule.
    Static(Option<String>),
}

/// One entry, as listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its path inside the archive: relative, plain components only.
    pub name: String,
    /// What it says it inflates to.
    pub size: u64,
    index: usize,
}

/// An archive whose structure passed every guard.
#[derive(Clone)]
pub struct Archive {
    zip: ZipArchive<Cursor<Bytes>>,
    entries: Vec<Entry>,
    ceiling: u64,
}

impl fmt::Debug for Archive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Archive").field("entries", &self.entries).finish_non_exhaustive()
    }
}

/// The ceiling in force: the operator's, or the default when theirs is no number.
pub fn ceiling() -> u64 {
    std::env::var(CEILING_VARIABLE).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(DEFAULT_CEILING)
}

impl Archive {
    /// Checks an archive's structure under the ceiling in force. Inflates nothing.
    pub fn open(bytes: impl Into<Bytes>) -> Result<Self> {
        Self::open_with(bytes.into(), ceiling())
    }

    /// Checks an archive's structure under a given ceiling.
    pub fn open_with(bytes: Bytes, ceiling: u64) -> Result<Self> {
        let listed = check_end(&bytes)?;
        let config = zip::read::Config { archive_offset: zip::read::ArchiveOffset::Known(0) };
        let mut zip = ZipArchive::with_config(config, Cursor::new(bytes)).map_err(|error| broken(&error))?;
        if zip.central_directory_start() != listed.start || zip.len() > listed.entries {
            return Err(ArchiveError::new("not a sound zip archive: its end record does not describe its directory"));
        }
        if zip.has_duplicate_names() || zip.len() != listed.entries {
            return Err(ArchiveError::new("the archive lists an entry twice"));
        }
        zip.validate_header_consistency().map_err(|error| broken(&error))?;
        let mut entries = Vec::with_capacity(zip.len());
        for index in 0..zip.len() {
            entries.extend(check_entry(&zip, index)?);
        }
        Ok(Self { zip, entries, ceiling })
    }

    /// The files of the archive, in its order; directories are left out.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Inflates one entry, `None` when there is no such file.
    pub fn read(&self, name: &str) -> Result<Option<Bytes>> {
        let Some(entry) = self.entries.iter().find(|entry| entry.name == name) else { return Ok(None) };
        self.inflate(entry, self.ceiling).map(Some)
    }

    fn inflate(&self, entry: &Entry, ceiling: u64) -> Result<Bytes> {
        // Room is made for what is said only up to here; beyond it the buffer grows with what really comes.
        const TRUSTED_SIZE: u64 = 16 << 20;
        let name = &entry.name;
        let above =
            || ArchiveError::new(format!("zip entry '{name}' exceeds the {ceiling}-byte decompression ceiling"));
        if entry.size > ceiling {
            return Err(above());
        }
        let broken = |what: &dyn fmt::Display| ArchiveError::new(format!("zip entry '{name}' cannot be read: {what}"));
        let mut zip = self.zip.clone();
        let file = zip.by_index(entry.index).map_err(|error| broken(&error))?;
        let mut bytes = Vec::with_capacity(usize::try_from(entry.size.min(TRUSTED_SIZE)).unwrap_or(0));
        file.take(ceiling.saturating_add(1)).read_to_end(&mut bytes).map_err(|error| broken(&error))?;
        if bytes.len() as u64 > ceiling {
            return Err(above());
        }
        if bytes.len() as u64 != entry.size {
            return Err(broken(&"its size is not what the archive says"));
        }
        Ok(bytes.into())
    }

    fn text(&self, name: &str, ceiling: u64) -> Result<Option<String>> {
        let Some(entry) = self.entries.iter().find(|entry| entry.name == name) else { return Ok(None) };
        let bytes = self.inflate(entry, ceiling.min(self.ceiling))?;
        match String::from_utf8(bytes.into()) {
            Ok(text) => Ok(Some(text)),
            Err(_) => Err(ArchiveError::new(format!("zip entry '{name}' is not UTF-8"))),
        }
    }

    /// The text of `murmur.yaml`.
    pub fn manifest_text(&self) -> Result<String> {
        self.text(MANIFEST, MAX_MANIFEST)?.ok_or_else(|| ArchiveError::new("missing murmur.yaml at the root"))
    }

    /// The payload of an artifact of this packaging, role and bare name.
    pub fn payload(&self, packaging: Execution, runtime: &str, bare: &str) -> Result<Payload> {
        match packaging {
            Execution::Wasm => {
                let entry = select_wasm(self.entries.iter().map(|entry| entry.name.as_str()))?.to_owned();
                let bytes = self.read(&entry)?.ok_or_else(|| ArchiveError::new(MISSING_WASM))?;
                Ok(Payload::Wasm { entry, bytes })
            }
            Execution::Native => {
                let entry = format!("bin/{bare}");
                let bytes = self.read(&entry)?.ok_or_else(|| ArchiveError::new(format!("missing {entry}")))?;
                Ok(Payload::Native(bytes))
            }
            Execution::Static if runtime == "skill" => {
                let text = self.text(SKILL, self.ceiling)?;
                text.map(|text| Payload::Static(Some(text)))
                    .ok_or_else(|| ArchiveError::new("missing skill.md at the root"))
            }
            Execution::Static => Ok(Payload::Static(None)),
        }
    }

    /// The WIT level the archive says it was built at. A label only; nothing is decided by it.
    pub fn built_at_level(&self) -> Result<Option<u64>> {
        const MOST: u64 = 4096;
        let Some(text) = self.text(BUILD_LABEL, MOST)? else { return Ok(None) };
        let level = serde_json::from_str::<serde_json::Value>(&text)
            .ok()
            .and_then(|value| value.get("built_at_level").and_then(serde_json::Value::as_u64));
        match level {
            Some(level) => Ok(Some(level)),
            None => Err(ArchiveError::new("murmur-build.json has no 'built_at_level' number")),
        }
    }
}

const MISSING_WASM: &str = "missing root .wasm file (expected capsule.wasm or one root *.wasm)";

/// Which of these entries is the component: `capsule.wasm`, else the only `*.wasm` at the root.
pub fn select_wasm<'a>(names: impl Iterator<Item = &'a str>) -> Result<&'a str> {
    let mut roots: Vec<&str> = names.filter(|name| is_root_wasm(name)).collect();
    roots.sort_unstable();
    match roots.as_slice() {
        [] => Err(ArchiveError::new(MISSING_WASM)),
        [only] => Ok(only),
        several if several.contains(&CAPSULE_WASM) => Ok(CAPSULE_WASM),
        several => Err(ArchiveError::new(format!("multiple root .wasm files found: {}", several.join(", ")))),
    }
}

/// Whether an entry is a component candidate.
pub fn is_root_wasm(name: &str) -> bool {
    !name.contains('/') && name.len() > ".wasm".len() && name.ends_with(".wasm")
}

fn broken(error: &dyn fmt::Display) -> ArchiveError {
    ArchiveError::new(format!("not a sound zip archive: {error}"))
}

struct Listed {
    entries: usize,
    start: u64,
}

/// Reads the end record strictly: at the very end of the file, right behind the directory it describes, without the
/// 64-bit extension. This bounds the directory before it is parsed and leaves no second place to find one.
fn check_end(bytes: &[u8]) -> Result<Listed> {
    const RECORD: usize = 22;
    const SIGNATURE: [u8; 4] = *b"PK\x05\x06";
    const MAX_COMMENT: usize = 65_535;
    let short = |at: usize| bytes.get(at..at + 2).map(|b| usize::from(u16::from_le_bytes([b[0], b[1]])));
    let long = |at: usize| {
        bytes.get(at..at + 4).and_then(|b| usize::try_from(u32::from_le_bytes([b[0], b[1], b[2], b[3]])).ok())
    };
    let last = bytes.len().checked_sub(RECORD).ok_or_else(|| ArchiveError::new("not a zip archive"))?;
    let first = last.saturating_sub(MAX_COMMENT);
    let at = (first..=last)
        .rev()
        .find(|at| bytes[*at..].starts_with(&SIGNATURE) && short(at + 20) == Some(last - at))
        .ok_or_else(|| ArchiveError::new("not a zip archive: its end record is missing"))?;
    let fields = (short(at + 4), short(at + 6), short(at + 8), short(at + 10), long(at + 12), long(at + 16));
    let (Some(0), Some(0), Some(here), Some(entries), Some(size), Some(start)) = fields else {
        return Err(ArchiveError::new("a zip archive in several parts is not supported"));
    };
    if here != entries || entries > MAX_ENTRIES {
        return Err(ArchiveError::new(format!("the archive has more than {MAX_ENTRIES} entries")));
    }
    if start.checked_add(size) != Some(at) {
        return Err(ArchiveError::new("not a sound zip archive: its directory is not where its end record says"));
    }
    Ok(Listed { entries, start: start as u64 })
}

/// The guards on one entry; a directory is checked and then left out.
fn check_entry(zip: &ZipArchive<Cursor<Bytes>>, index: usize) -> Result<Option<Entry>> {
    const TYPE_MASK: u32 = 0o170_000;
    const REGULAR: u32 = 0o100_000;
    const DIRECTORY: u32 = 0o040_000;
    let data = zip.by_index_data(index).map_err(|error| broken(&error))?;
    let raw = data.name_raw();
    let refused = |why: &str| {
        let shown: String = String::from_utf8_lossy(raw).chars().take(200).collect();
        ArchiveError::new(format!("zip entry {shown:?} is refused: {why}"))
    };
    let name = std::str::from_utf8(raw).map_err(|_| refused("its name is not UTF-8"))?;
    if raw.len() > MAX_ENTRY_NAME {
        return Err(refused("its name is too long"));
    }
    // A Unicode path field may give the entry another name than the one just checked.
    if data.name().map_err(|error| broken(&error))? != name {
        return Err(refused("it has two names"));
    }
    check_path(name).map_err(refused)?;
    if data.encrypted() {
        return Err(refused("it is encrypted"));
    }
    if !matches!(data.compression(), zip::CompressionMethod::Stored | zip::CompressionMethod::Deflated) {
        return Err(refused("its compression method is not supported"));
    }
    let kind = data.unix_mode().map_or(0, |mode| mode & TYPE_MASK);
    if data.is_symlink() || !matches!(kind, 0 | REGULAR | DIRECTORY) {
        return Err(refused("it is a link or special file"));
    }
    let is_directory = name.ends_with('/');
    if is_directory != (kind == DIRECTORY) && kind != 0 {
        return Err(refused("its name and its type disagree"));
    }
    if is_directory && data.size() != 0 {
        return Err(refused("a directory has content"));
    }
    Ok((!is_directory).then(|| Entry { name: name.to_owned(), size: data.size(), index }))
}

/// A path of plain components, so that no reader on any system can place it outside a folder.
pub fn check_path(name: &str) -> std::result::Result<(), &'static str> {
    if name.is_empty() {
        return Err("its name is empty");
    }
    if name.contains('\0') {
        return Err("its name has a NUL");
    }
    if name.contains('\\') {
        return Err("its name has a backslash");
    }
    if name.starts_with('/') {
        return Err("its name is absolute");
    }
    if name.as_bytes().get(1) == Some(&b':') && name.as_bytes()[0].is_ascii_alphabetic() {
        return Err("its name has a drive prefix");
    }
    for part in name.strip_suffix('/').unwrap_or(name).split('/') {
        match part {
            ".." => return Err("its name has '..'"),
            "" | "." => return Err("its name has an empty component"),
            _ => {}
        }
    }
    Ok(())
}

/// Entry point of the fuzz target: opens the bytes and reads everything a launch reads.
pub fn fuzz_zip(bytes: &[u8]) {
    const CEILING: u64 = 1 << 20;
    let Ok(archive) = Archive::open_with(Bytes::copy_from_slice(bytes), CEILING) else { return };
    let _ = archive.manifest_text();
    let _ = archive.built_at_level();
    for packaging in [Execution::Wasm, Execution::Native, Execution::Static] {
        let _ = archive.payload(packaging, "skill", "x");
    }
    for entry in archive.entries() {
        assert!(check_path(&entry.name).is_ok());
    }
}

#[cfg(test)]
mod tests;
