//! `mur build`: a directory into a `.mur.zip`. Packs `murmur.yaml` and exactly what it requires; compiles nothing.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Cursor, Read, Write};
use std::path::{Component, Path, PathBuf};

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::archive::{self, BUILD_LABEL, CAPSULE_WASM, MANIFEST, SKILL, is_root_wasm, select_wasm};
use super::level::{self, Interfaces};
use super::name::{Version, check_part};
use crate::diagnostics::{Code, Diagnostic, Result, codes, nearest};
use crate::manifest::keys::RUNTIMES;
use crate::manifest::{self, ArtifactManifest, Execution, read_artifact, read_capsule};
use crate::paths::write_atomic;
use crate::yaml::{self, Kind, Node};

/// The role of what `mur run` launches.
const CAPSULE: &str = "capsule";

/// What was built.
#[derive(Debug)]
pub struct Built {
    /// Where the archive is.
    pub path: PathBuf,
    /// The newest WIT level its payload fits.
    pub level: Option<u32>,
    /// What is worth saying about it.
    pub warnings: Vec<Diagnostic>,
}

impl Built {
    /// The line that says so.
    pub fn line(&self) -> String {
        match self.level {
            Some(level) => format!("Built artifact: {} (WIT level {level})", self.path.display()),
            None => format!("Built artifact: {} (fits no WIT level this mur knows)", self.path.display()),
        }
    }
}

/// One file to pack.
#[derive(Debug)]
pub(super) struct Packed {
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
}

/// Builds the artifact of a directory. On an error no archive is written.
pub fn build(source: &Path, output: Option<&Path>) -> Result<Built> {
    let text = text_of(source)?;
    let manifest = read_artifact(&text, MANIFEST)?;
    check_manifest(&manifest)?;
    if manifest.runtime == CAPSULE {
        // Whoever launches it reads the rest, and would refuse there what is wrong here.
        read_capsule(&text, MANIFEST)?;
    }
    let target = target(source, output, &manifest)?;
    let mut warnings = literal_secrets(&text);
    warnings.extend(unknown_kind(&manifest));
    let mut files = vec![Packed { name: MANIFEST.into(), bytes: text }];
    for entry in required(&manifest, &mut warnings)? {
        files.push(read_required(source, &entry, &target)?);
    }
    let level = check_payload(&manifest, &files, &mut warnings)?;
    write(&target, files, level)?;
    Ok(Built { path: target, level, warnings })
}

fn text_of(source: &Path) -> Result<Vec<u8>> {
    let path = source.join(MANIFEST);
    yaml::read_file(&path, archive::MAX_MANIFEST).map_err(|fault| match fault {
        yaml::ReadFault::Missing => Diagnostic::new(codes::E_IO_001, format!("no murmur.yaml in {}", source.display()))
            .hint("name the directory that holds the artifact's murmur.yaml"),
        yaml::ReadFault::Other(cause) => io(format!("{}: {cause}", path.display())),
    })
}

/// The files that building a directory would pack, without the label.
///
/// # Errors
/// Those of [`build`] that keep it from packing anything.
pub(super) fn contents(source: &Path) -> Result<Vec<Packed>> {
    let text = text_of(source)?;
    let manifest = read_artifact(&text, MANIFEST)?;
    check_manifest(&manifest)?;
    let target = target(source, None, &manifest)?;
    let mut files = vec![Packed { name: MANIFEST.into(), bytes: text }];
    for entry in required(&manifest, &mut Vec::new())? {
        files.push(read_required(source, &entry, &target)?);
    }
    Ok(files)
}

/// What packing a capsule's manifest would be refused or warned of, as far as the text tells; a manifest that does not say
/// what it is packed as is none of its business.
///
/// # Errors
/// As [`build`].
pub fn check_packing(text: &[u8]) -> Result<Vec<Diagnostic>> {
    let says = |doc: yaml::Doc| doc.root().get("runtime").is_some_and(|runtime| !runtime.is_null());
    if !yaml::parse(MANIFEST, text, manifest::MAX_BYTES).is_ok_and(says) {
        return Ok(Vec::new());
    }
    let manifest = read_artifact(text, MANIFEST)?;
    check_manifest(&manifest)?;
    Ok(unknown_kind(&manifest).into_iter().collect())
}

/// The warning of a `runtime` that no reader has a use for.
fn unknown_kind(manifest: &ArtifactManifest) -> Option<Diagnostic> {
    let (kind, known) = (&manifest.runtime, RUNTIMES);
    if known.contains(&kind.as_str()) {
        return None;
    }
    let message = format!("murmur.yaml: runtime '{kind}' is no kind of artifact: {}", known.join(", "));
    let hint = match nearest(kind, known.iter().copied()) {
        Some(near) => format!("did you mean '{near}'?"),
        None => format!("write runtime: {CAPSULE} for what mur run launches"),
    };
    Some(Diagnostic::new(codes::W_BLD_004, message).hint(hint))
}

/// Faults of the manifest that a build refuses.
pub(super) fn check_manifest(manifest: &ArtifactManifest) -> Result<()> {
    let name = &manifest.name;
    if let Err(reason) = check_part(name) {
        let refusal = Diagnostic::new(codes::E_BLD_001, format!("'{name}' cannot name an artifact: {reason}"));
        return Err(match name.rsplit_once('/') {
            Some((_, bare)) => refusal.hint(format!("an artifact packs its bare name: name: {bare}")),
            None => refusal.hint("use a-z, 0-9 and '-', at most 100 characters, no '-' at either end"),
        });
    }
    Version::parse(&manifest.version).map_err(|fault| fault.diagnostic())?;
    if manifest.inference_auth_declared {
        return Err(Diagnostic::new(codes::E_BLD_004, "murmur.yaml has an inference_auth: block, which is retired")
            .hint("rename it to upstream_auth:"));
    }
    if let Err(reason) = &manifest.models {
        return Err(Diagnostic::new(codes::E_BLD_005, format!("murmur.yaml: models: {reason}"))
            .hint("each model needs max_output_tokens and context_window, whole numbers from 1 to 4294967295"));
    }
    if manifest.models_declared && manifest.runtime != "driver" {
        return Err(Diagnostic::new(codes::E_BLD_005, format!("murmur.yaml: models: in a {}", manifest.runtime))
            .hint("only a driver lists models"));
    }
    Ok(())
}

/// Where the archive goes.
fn target(source: &Path, output: Option<&Path>, manifest: &ArtifactManifest) -> Result<PathBuf> {
    let file = format!("{}-{}.mur.zip", manifest.name, manifest.version);
    let Some(output) = output else { return Ok(source.join(file)) };
    if output.is_dir() {
        return Ok(output.join(file));
    }
    let named = output.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.ends_with(".mur.zip"));
    if !named {
        return Err(io(format!("output '{}' is no directory and does not end in .mur.zip", output.display()))
            .hint(format!("name a directory that is there, or a file such as {file}")));
    }
    Ok(output.to_owned())
}

/// The files to pack beside the manifest, checked as names and each once.
fn required(manifest: &ArtifactManifest, warnings: &mut Vec<Diagnostic>) -> Result<Vec<String>> {
    let refused = |entry: &str, why: &str| {
        Diagnostic::new(codes::E_BLD_002, format!("requires_files: '{entry}' {why}"))
            .hint("list files inside the artifact's directory by relative path")
    };
    let mut slots: HashMap<String, String> = HashMap::from([(MANIFEST.to_owned(), MANIFEST.to_owned())]);
    let mut entries = Vec::new();
    for entry in &manifest.requires_files {
        let slot = entry.replace('\\', "/");
        let slot = slot.trim_start_matches("./").to_owned();
        archive::check_path(&slot).map_err(|why| refused(entry, &format!("cannot be packed: {why}")))?;
        if slot.ends_with('/') {
            return Err(refused(entry, "is a directory"));
        }
        if slot == BUILD_LABEL {
            return Err(refused(entry, "is the name of the label that mur build writes itself"));
        }
        match slots.get(&slot) {
            None => {}
            Some(_) if slot == MANIFEST || slot == CAPSULE_WASM => {
                let message = format!("requires_files names '{slot}' although it is packed already");
                warnings.push(Diagnostic::new(codes::W_BLD_001, message).hint("remove the extra entry"));
                continue;
            }
            Some(first) => return Err(refused(entry, &format!("takes the same place in the archive as '{first}'"))),
        }
        slots.insert(slot, entry.clone());
        entries.push(entry.clone());
    }
    Ok(entries)
}

fn read_required(source: &Path, entry: &str, target: &Path) -> Result<Packed> {
    let name = entry.replace('\\', "/").trim_start_matches("./").to_owned();
    let missing = || io(format!("missing required file '{entry}' in {}", source.display()));
    // The name as written when there is such a file, else with its separators as they are packed.
    let path =
        [entry, name.as_str()].into_iter().map(|name| source.join(name)).find(|path| path.symlink_metadata().is_ok());
    let path = path.ok_or_else(missing)?;
    let mut below = source.to_owned();
    for part in path.strip_prefix(source).unwrap_or(&path).components() {
        if let Component::Normal(part) = part {
            below.push(part);
        }
        if below.symlink_metadata().is_ok_and(|meta| meta.is_symlink()) {
            return Err(Diagnostic::new(
                codes::E_BLD_002,
                format!("requires_files: '{entry}' goes through a symbolic link"),
            )
            .hint("pack the file itself"));
        }
    }
    if same_file(&path, target) {
        return Err(Diagnostic::new(
            codes::E_BLD_002,
            format!("requires_files: '{entry}' is the archive being written"),
        ));
    }
    if !path.is_file() {
        return Err(missing());
    }
    Ok(Packed { name, bytes: read_bounded(&path)? })
}

fn same_file(a: &Path, b: &Path) -> bool {
    match (std::fs::canonicalize(a), std::fs::canonicalize(b)) {
        (Ok(a), Ok(b)) => a == b,
        _ => false,
    }
}

/// A whole file, up to what an archive's entry may be.
pub(super) fn read_bounded(path: &Path) -> Result<Vec<u8>> {
    let ceiling = archive::ceiling();
    let failed = |error: std::io::Error| io(format!("{}: {error}", path.display()));
    let mut bytes = Vec::new();
    File::open(path).map_err(failed)?.take(ceiling.saturating_add(1)).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > ceiling {
        return Err(io(format!("{} is larger than the {ceiling}-byte ceiling of an archive entry", path.display())));
    }
    Ok(bytes)
}

/// Whether what is packed can be launched, and which level its component fits.
fn check_payload(manifest: &ArtifactManifest, files: &[Packed], warnings: &mut Vec<Diagnostic>) -> Result<Option<u32>> {
    let names = || files.iter().map(|file| file.name.as_str());
    if manifest.execution != Execution::Static {
        let inputs: Vec<&str> = names().filter(|name| is_build_input(name)).collect();
        if !inputs.is_empty() {
            let message = format!("the archive packs build inputs: {}", inputs.join(", "));
            warnings.push(Diagnostic::new(codes::W_BLD_003, message).hint("list only what the artifact needs to run"));
        }
    }
    match manifest.execution {
        Execution::Wasm => {}
        Execution::Native => {
            let binary = format!("bin/{}", manifest.name);
            return match names().any(|name| name == binary) {
                true => Ok(Some(level::SERVED)),
                false => Err(io(format!("missing required file '{binary}': a native artifact packs its binary there"))),
            };
        }
        Execution::Static if manifest.runtime == "skill" && !names().any(|name| name == SKILL) => {
            return Err(io(format!("missing required file '{SKILL}': a skill is that text")));
        }
        Execution::Static => return Ok(Some(level::SERVED)),
    }
    let component = select_wasm(names()).map_err(|error| {
        Diagnostic::new(codes::E_BLD_003, error.to_string()).hint("declare exactly one component in requires_files")
    })?;
    if component == CAPSULE_WASM && names().filter(|name| is_root_wasm(name)).count() > 1 {
        let message = "capsule.wasm is the payload; the other .wasm files at the root are never loaded";
        warnings.push(Diagnostic::new(codes::W_BLD_002, message).hint("pack one component"));
    }
    let bytes = files.iter().find(|file| file.name == component).map(|file| file.bytes.as_slice());
    Ok(Interfaces::of(bytes.unwrap_or_default()).level())
}

fn is_build_input(name: &str) -> bool {
    let last = name.rsplit('/').next().unwrap_or(name);
    matches!(last, "Cargo.toml" | "Cargo.lock")
        || last.ends_with(".rs")
        || name.split('/').rev().skip(1).any(|p| p == "target")
}

/// Packs files in order, then the label, and puts the archive in its place whole.
pub(super) fn write(target: &Path, files: Vec<Packed>, level: Option<u32>) -> Result<()> {
    let mut files = files;
    if let Some(level) = level {
        files
            .push(Packed { name: BUILD_LABEL.into(), bytes: format!("{{\"built_at_level\":{level}}}\n").into_bytes() });
    }
    let bytes = pack(&files).map_err(|error| io(format!("{} cannot be packed: {error}", target.display())))?;
    write_atomic(target, &bytes, 0o666).map_err(|error| io(format!("{} cannot be written: {error}", target.display())))
}

/// The same files give the same bytes: no times, no owners.
pub(super) fn pack(files: &[Packed]) -> zip::result::ZipResult<Vec<u8>> {
    let options = SimpleFileOptions::default()
        .compression_method(CompressionMethod::Deflated)
        .last_modified_time(zip::DateTime::default())
        .unix_permissions(0o644);
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for file in files {
        zip.start_file(file.name.as_str(), options)?;
        zip.write_all(&file.bytes)?;
    }
    Ok(zip.finish()?.into_inner())
}

/// Values that look like secrets written out: they would travel with every copy of the archive.
pub(super) fn literal_secrets(text: &[u8]) -> Vec<Diagnostic> {
    let mut warnings = Vec::new();
    if let Ok(doc) = yaml::parse(MANIFEST, text, archive::MAX_MANIFEST) {
        walk_secrets(doc.root(), "", &mut warnings);
    }
    warnings
}

fn walk_secrets(node: &Node, at: &str, warnings: &mut Vec<Diagnostic>) {
    /// More of the same helps nobody.
    const MOST: usize = 20;
    let below = |key: &str| if at.is_empty() { key.to_owned() } else { format!("{at}.{key}") };
    match &node.kind {
        Kind::Map(entries) => {
            for entry in entries {
                let literal = entry.value.text().is_some_and(|text| !text.trim().is_empty() && !text.contains("${"));
                if literal && is_credential(&entry.key) && warnings.len() < MOST {
                    let message =
                        format!("murmur.yaml: {} holds a literal value, which is packed as it is", below(&entry.key));
                    warnings.push(
                        Diagnostic::new(codes::W_SEC_004, message).hint("write ${NAME} and keep the value outside"),
                    );
                }
                walk_secrets(&entry.value, &below(&entry.key), warnings);
            }
        }
        Kind::List(items) => {
            for (index, item) in items.iter().enumerate() {
                walk_secrets(item, &format!("{at}[{index}]"), warnings);
            }
        }
        Kind::Scalar { .. } => {}
    }
}

fn is_credential(key: &str) -> bool {
    let key = key.to_ascii_lowercase().replace('-', "_");
    ["api_key", "token", "secret", "password"].iter().any(|word| key == *word || key.ends_with(&format!("_{word}")))
}

/// A warning as `mur build` prints it: hint and link on lines of their own.
pub fn warning_text(warning: &Diagnostic) -> String {
    let mut text = format!("warning[{}]: {}", warning.code(), warning.message());
    for line in warning.hint_text().map(str::to_owned).into_iter().chain([warning.link()]) {
        text.push_str("\n  → ");
        text.push_str(&line);
    }
    text
}

fn io(message: String) -> Diagnostic {
    const IO: Code = codes::E_IO_003;
    Diagnostic::new(IO, message)
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;

    use super::super::archive::Archive;
    use super::*;

    /// An archive of these entries, as `mur build` would write it.
    pub(in super::super) fn archive_of(files: &[(&str, &[u8])]) -> Vec<u8> {
        let files: Vec<Packed> =
            files.iter().map(|(name, bytes)| Packed { name: (*name).to_owned(), bytes: bytes.to_vec() }).collect();
        pack(&files).unwrap()
    }

    fn dir(files: &[(&str, &[u8])]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        dir
    }

    fn refused(files: &[(&str, &[u8])]) -> Diagnostic {
        let dir = dir(files);
        let refusal = build(dir.path(), None).unwrap_err();
        let written =
            fs::read_dir(dir.path()).unwrap().any(|e| e.unwrap().file_name().to_string_lossy().contains(".mur.zip"));
        assert!(!written, "{refusal}");
        refusal
    }

    const CAPSULE: &str = "name: x\nversion: '1.0.0'\nruntime: capsule\nexecution: static\n";
    const TOOL: &str = "name: x\nversion: '1.0.0'\nruntime: tool\n";

    #[test]
    fn a_capsule_packs_its_manifest_and_the_label_and_builds_the_same_bytes_twice() {
        let dir = dir(&[("murmur.yaml", CAPSULE.as_bytes()), ("other.txt", b"not packed")]);
        let built = build(dir.path(), None).unwrap();
        assert_eq!(built.path, dir.path().join("x-1.0.0.mur.zip"));
        assert_eq!(built.line(), format!("Built artifact: {} (WIT level 1)", built.path.display()));
        let bytes = fs::read(&built.path).unwrap();
        let archive = Archive::open(bytes.clone()).unwrap();
        let names: Vec<&str> = archive.entries().iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names, ["murmur.yaml", "murmur-build.json"]);
        assert_eq!(archive.built_at_level().unwrap(), Some(1));
        build(dir.path(), None).unwrap();
        assert_eq!(fs::read(&built.path).unwrap(), bytes);
    }

    #[test]
    fn each_fault_has_its_code_and_writes_nothing() {
        let with = |rest: &str| format!("{TOOL}{rest}");
        let wasm: (&str, &[u8]) = ("a.wasm", b"\0asm");
        let two: [(&str, &[u8]); 2] = [wasm, ("b.wasm", b"")];
        let one = [wasm];
        let cases: Vec<(String, &[(&str, &[u8])], Code)> = vec![
            ("name: local/x\nversion: '1'\nruntime: tool\n".into(), &[], codes::E_BLD_001),
            ("name: X\nversion: '1'\nruntime: tool\n".into(), &[], codes::E_BLD_001),
            ("name: x\nversion: latest\nruntime: tool\n".into(), &[], codes::E_REG_004),
            (with("requires_files: [../a.wasm]\n"), &[], codes::E_BLD_002),
            (with("requires_files: [/etc/passwd]\n"), &[], codes::E_BLD_002),
            (with("requires_files: [murmur-build.json]\n"), &[], codes::E_BLD_002),
            (with("requires_files: [a/b, 'a\\b']\n"), &[("a/b", b"")], codes::E_BLD_002),
            (with("requires_files: [a.wasm]\n"), &[], codes::E_IO_003),
            (with(""), &one, codes::E_BLD_003),
            (with("requires_files: [a.wasm, b.wasm]\n"), &two, codes::E_BLD_003),
            (with("inference_auth: {}\n"), &[], codes::E_BLD_004),
            (with("models: {m: {max_output_tokens: 1, context_window: 2}}\n"), &[], codes::E_BLD_005),
        ];
        for (manifest, files, code) in cases {
            let mut all = vec![("murmur.yaml", manifest.as_bytes())];
            all.extend(files);
            assert_eq!(refused(&all).code(), code, "{manifest}");
        }
        assert_eq!(refused(&[]).code(), codes::E_IO_001);
    }

    #[test]
    fn a_link_is_not_packed() {
        let manifest = format!("{TOOL}requires_files: [a.wasm]\n");
        let dir = dir(&[("murmur.yaml", manifest.as_bytes())]);
        std::os::unix::fs::symlink("/etc/hostname", dir.path().join("a.wasm")).unwrap();
        assert_eq!(build(dir.path(), None).unwrap_err().code(), codes::E_BLD_002);
    }

    #[test]
    fn what_is_worth_saying_is_warned_and_built() {
        let manifest = format!(
            "{TOOL}requires_files: [murmur.yaml, capsule.wasm, other.wasm, src/lib.rs]\nconfig: {{api_key: abc, my-token: \
             '${{T}}'}}\n"
        );
        let dir = dir(&[
            ("murmur.yaml", manifest.as_bytes()),
            ("capsule.wasm", b"\0asm\x01\0\0\0"),
            ("other.wasm", b""),
            ("src/lib.rs", b""),
        ]);
        let built = build(dir.path(), None).unwrap();
        let codes: Vec<&str> = built.warnings.iter().map(|warning| warning.code().as_str()).collect();
        assert_eq!(codes, ["W-SEC-004", "W-BLD-001", "W-BLD-003", "W-BLD-002"]);
        assert!(warning_text(&built.warnings[0]).contains("config.api_key"));
        assert!(!warning_text(&built.warnings[0]).contains("abc"));
    }

    #[test]
    fn the_output_is_a_directory_or_ends_in_mur_zip() {
        let dir = dir(&[("murmur.yaml", CAPSULE.as_bytes()), ("out/keep", b"")]);
        assert_eq!(
            build(dir.path(), Some(&dir.path().join("out"))).unwrap().path,
            dir.path().join("out/x-1.0.0.mur.zip")
        );
        assert_eq!(build(dir.path(), Some(&dir.path().join("y.zip"))).unwrap_err().code(), codes::E_IO_003);
    }
}
