//! `mur build --skill`: a folder or zip with a `skill.md` into a skill's `.mur.zip`.

use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::archive::{Archive, BUILD_LABEL, MANIFEST, SKILL, check_path};
use super::build::{Built, Packed, check_manifest, literal_secrets, read_bounded, write};
use super::level;
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::manifest::read_artifact;
use crate::yaml;

/// The version of a skill that names none.
const DEFAULT_VERSION: &str = "0.1.0";

/// Most files at the root of a skill.
const MAX_FILES: usize = 1000;

/// What the command line says about a skill.
#[derive(Clone, Debug, Default)]
pub struct SkillOptions {
    /// `--skill NAME`, empty when only `--skill` is given.
    pub name: String,
    /// `--version`.
    pub version: Option<String>,
    /// `--summary`.
    pub summary: Option<String>,
}

/// Builds a skill into the current directory.
pub fn build_skill(source: &Path, options: &SkillOptions, cwd: &Path) -> Result<Built> {
    // What looks like a path is one: `--skill ./notes` is the way to name an input without naming the skill.
    let is_path = options.name.contains(['/', '\\']) || options.name.starts_with('.');
    let (input, name) = match (is_path, options.name.is_empty()) {
        (true, _) => (PathBuf::from(&options.name), None),
        (false, true) => (source.to_owned(), None),
        (false, false) => (source.to_owned(), Some(options.name.clone())),
    };
    let mut files = if input.is_dir() { read_folder(&input)? } else { read_zip(&input)? };
    let texts: Vec<usize> = positions(&files, |name| name.eq_ignore_ascii_case(SKILL));
    match texts.as_slice() {
        [] => {
            return Err(Diagnostic::new(codes::E_IO_001, format!("no SKILL.md at the root of {}", input.display()))
                .hint("a skill is a folder or .zip with a SKILL.md"));
        }
        [one] => files[*one].name = SKILL.into(),
        _ => {
            return Err(Diagnostic::new(codes::E_BLD_002, "several files take the place of skill.md in the archive")
                .hint("keep one of them"));
        }
    }
    let packed = files.iter().position(|file| file.name == MANIFEST).map(|index| files.remove(index).bytes);
    let manifest_text = match packed {
        Some(text) => kept_manifest(text, name.as_deref(), options)?,
        None => generated_manifest(&name.unwrap_or_else(|| inferred_name(&input)), options).into_bytes(),
    };
    let manifest = read_artifact(&manifest_text, MANIFEST)?;
    if manifest.runtime != "skill" {
        return Err(Diagnostic::new(
            codes::E_MAN_003,
            format!("murmur.yaml: runtime is '{}', not skill", manifest.runtime),
        )
        .hint("a skill's manifest says runtime: skill"));
    }
    check_manifest(&manifest)?;
    let warnings = literal_secrets(&manifest_text);
    let target = cwd.join(format!("{}-{}.mur.zip", manifest.name, manifest.version));
    files.retain(|file| !file.name.ends_with(".mur.zip"));
    files.sort_by(|a, b| (a.name != SKILL, &a.name).cmp(&(b.name != SKILL, &b.name)));
    files.insert(0, Packed { name: MANIFEST.into(), bytes: manifest_text });
    write(&target, files, Some(level::SERVED))?;
    Ok(Built { path: target, level: Some(level::SERVED), warnings })
}

fn positions(files: &[Packed], wanted: impl Fn(&str) -> bool) -> Vec<usize> {
    files.iter().enumerate().filter(|(_, file)| wanted(&file.name)).map(|(index, _)| index).collect()
}

fn read_folder(folder: &Path) -> Result<Vec<Packed>> {
    let failed = |error: std::io::Error| Diagnostic::new(codes::E_IO_003, format!("{}: {error}", folder.display()));
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let kind = entry.file_type().map_err(failed)?;
        if kind.is_dir() {
            continue;
        }
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".mur.zip") {
            continue;
        }
        if !kind.is_file() {
            return Err(refused_entry(&name, "is a link or special file"));
        }
        if let Err(why) = check_path(&name) {
            return Err(refused_entry(&name, why));
        }
        check_reserved(&name, files.len())?;
        files.push(Packed { bytes: read_bounded(&entry.path())?, name });
    }
    Ok(files)
}

fn read_zip(path: &Path) -> Result<Vec<Packed>> {
    if !path.exists() {
        return Err(Diagnostic::new(codes::E_IO_001, format!("'{}' is not there", path.display())));
    }
    let failed = |error: super::ArchiveError| Diagnostic::new(codes::E_IO_003, format!("{}: {error}", path.display()));
    let archive = Archive::open(Bytes::from(read_bounded(path)?)).map_err(failed)?;
    let mut files = Vec::new();
    for entry in archive.entries().iter().filter(|entry| !entry.name.contains('/')) {
        check_reserved(&entry.name, files.len())?;
        let bytes = archive.read(&entry.name).map_err(failed)?.unwrap_or_default();
        files.push(Packed { name: entry.name.clone(), bytes: bytes.to_vec() });
    }
    Ok(files)
}

fn check_reserved(name: &str, files: usize) -> Result<()> {
    if name == BUILD_LABEL {
        return Err(refused_entry(name, "is the name of the label that mur build writes itself"));
    }
    if files >= MAX_FILES {
        return Err(Diagnostic::new(codes::E_IO_003, format!("a skill has at most {MAX_FILES} files")));
    }
    Ok(())
}

fn refused_entry(name: &str, why: &str) -> Diagnostic {
    Diagnostic::new(codes::E_BLD_002, format!("'{name}' cannot be packed: {why}"))
        .hint("remove it from the skill's folder")
}

/// The manifest found, byte for byte unless a summary replaces its description.
fn kept_manifest(text: Vec<u8>, name: Option<&str>, options: &SkillOptions) -> Result<Vec<u8>> {
    let manifest = read_artifact(&text, MANIFEST)?;
    let differs = |what: &str, asked: Option<&str>, found: &str| match asked {
        Some(asked) if asked != found => Err(Diagnostic::new(
            codes::E_MAN_003,
            format!("murmur.yaml: {what} is '{found}', but '{asked}' was asked for"),
        )
        .hint("change it in that murmur.yaml")),
        _ => Ok(()),
    };
    differs("name", name, &manifest.name)?;
    differs("version", options.version.as_deref(), &manifest.version)?;
    match &options.summary {
        None => Ok(text),
        Some(summary) => with_description(&text, summary),
    }
}

/// Replaces the lines of the top-level `description`, or adds it at the end; everything else stays as it was.
fn with_description(text: &[u8], summary: &str) -> Result<Vec<u8>> {
    let doc = yaml::parse(MANIFEST, text, super::archive::MAX_MANIFEST)
        .map_err(|fault| fault.into_diagnostic(codes::E_MAN_002, MANIFEST))?;
    let text = String::from_utf8_lossy(text).into_owned();
    let entries = doc.root().map().unwrap_or_default();
    if text.trim_start().starts_with('{') {
        return Err(Diagnostic::new(codes::E_MAN_003, "murmur.yaml: --summary cannot be set in a manifest in braces")
            .hint("write the manifest with one key a line"));
    }
    let line = format!("description: {}\n", serde_json::Value::from(summary));
    let at = entries.iter().position(|entry| &*entry.key == "description");
    let Some(at) = at else {
        let end = if text.ends_with('\n') { "" } else { "\n" };
        return Ok(format!("{text}{end}{line}").into_bytes());
    };
    let first = entries[at].mark.line as usize;
    let next = entries.get(at + 1).map_or(usize::MAX, |entry| entry.mark.line as usize);
    let mut result = String::with_capacity(text.len() + line.len());
    for (number, old) in (1..).zip(text.split_inclusive('\n')) {
        if number == first {
            result.push_str(&line);
        } else if number < first || number >= next {
            result.push_str(old);
        }
    }
    Ok(result.into_bytes())
}

fn generated_manifest(name: &str, options: &SkillOptions) -> String {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let version = options.version.as_deref().unwrap_or(DEFAULT_VERSION);
    let mut text = format!("name: {}\nversion: {}\nruntime: skill\n", quoted(name), quoted(version));
    if let Some(summary) = &options.summary {
        text.push_str(&format!("description: {}\n", quoted(summary)));
    }
    text
}

/// A name from the input's last component; a `_` that remains is refused with the rule of names.
fn inferred_name(input: &Path) -> String {
    let resolved = std::fs::canonicalize(input).unwrap_or_else(|_| input.to_owned());
    let last = resolved.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
    let stem = last.strip_suffix(".zip").unwrap_or(&last);
    let mut name = String::new();
    for c in stem.chars() {
        match c {
            'a'..='z' | '0'..='9' | '-' => name.push(c),
            _ if name.ends_with('_') => {}
            _ => name.push('_'),
        }
    }
    let name = name.trim_matches(['_', '-']);
    if name.is_empty() { "skill".into() } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::Builder::new().prefix("notes").tempdir().unwrap();
        for (name, text) in files {
            fs::create_dir_all(dir.path().join(name).parent().unwrap()).unwrap();
            fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    fn options(name: &str) -> SkillOptions {
        SkillOptions { name: name.into(), ..SkillOptions::default() }
    }

    #[test]
    fn a_folder_becomes_a_skill_with_its_root_files() {
        let dir = folder(&[("SKILL.md", "# do"), ("extra.txt", "x"), ("sub/deep.txt", "y")]);
        let out = tempfile::tempdir().unwrap();
        let options = SkillOptions { name: "notes".into(), version: None, summary: Some("a \"b\"".into()) };
        let built = build_skill(dir.path(), &options, out.path()).unwrap();
        assert_eq!(built.path, out.path().join("notes-0.1.0.mur.zip"));
        let archive = Archive::open(fs::read(&built.path).unwrap()).unwrap();
        let names: Vec<&str> = archive.entries().iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names, ["murmur.yaml", "skill.md", "extra.txt", "murmur-build.json"]);
        let manifest = read_artifact(archive.manifest_text().unwrap().as_bytes(), MANIFEST).unwrap();
        assert_eq!((manifest.version.as_str(), manifest.description.as_deref()), ("0.1.0", Some("a \"b\"")));
    }

    #[test]
    fn faults_have_their_codes() {
        let out = tempfile::tempdir().unwrap();
        let code = |files: &[(&str, &str)], name: &str| {
            build_skill(folder(files).path(), &options(name), out.path()).unwrap_err().code()
        };
        assert_eq!(code(&[("readme.md", "")], "x"), codes::E_IO_001);
        assert_eq!(code(&[("skill.md", ""), ("SKILL.md", "")], "x"), codes::E_BLD_002);
        assert_eq!(code(&[("skill.md", ""), ("murmur-build.json", "")], "x"), codes::E_BLD_002);
        assert_eq!(code(&[("skill.md", "")], "A_b"), codes::E_BLD_001);
        let tool = "name: x\nversion: '1'\nruntime: tool\n";
        assert_eq!(code(&[("skill.md", ""), ("murmur.yaml", tool)], ""), codes::E_MAN_003);
        assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_name_is_inferred_and_a_remaining_underscore_refused_later() {
        for (input, name) in
            [("/nowhere/My Notes.zip", "my_notes"), ("/nowhere/__", "skill"), ("/nowhere/-a-b-", "a-b")]
        {
            assert_eq!(inferred_name(Path::new(input)), name);
        }
    }

    #[test]
    fn a_summary_replaces_only_the_description() {
        let text = "name: x # keep\ndescription: >\n  old\n  text\nversion: '1'\nruntime: skill\n";
        let new = String::from_utf8(with_description(text.as_bytes(), "new").unwrap()).unwrap();
        assert_eq!(new, "name: x # keep\ndescription: \"new\"\nversion: '1'\nruntime: skill\n");
        let new = String::from_utf8(with_description(b"name: x", "new").unwrap()).unwrap();
        assert_eq!(new, "name: x\ndescription: \"new\"\n");
    }
}
