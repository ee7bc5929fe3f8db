//! The directories that a project's capsules are built from, and whether what is installed is what they would build. A
//! launch runs what is installed, so an edit that was not built and installed again changes nothing.

use std::fs;
use std::path::{Path, PathBuf};

use super::archive::{self, Archive, BUILD_LABEL, MANIFEST};
use super::build;
use super::name::{ArtifactName, LOCAL_SCOPE, Version};
use super::store::Place;
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::manifest::read_artifact;
use crate::paths::shell_word;
use crate::yaml;

/// Most directories of a project that are looked into: a launch looks too, and a project can be anything.
const MAX_LOOKED_INTO: usize = 1024;

/// A directory with a manifest.
#[derive(Clone, Debug)]
pub struct SourceDir {
    /// Where it is.
    pub dir: PathBuf,
    /// The manifest's bytes.
    pub manifest: Vec<u8>,
}

/// The project itself and the directories in it, those that hold a manifest, by name.
pub fn beside(project: &Path) -> Vec<SourceDir> {
    let entries = fs::read_dir(project).into_iter().flatten().flatten().take(MAX_LOOKED_INTO);
    let mut dirs: Vec<PathBuf> =
        entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect();
    dirs.push(project.to_owned());
    dirs.sort();
    dirs.into_iter().filter_map(SourceDir::at).collect()
}

impl SourceDir {
    /// The directory, when it holds a manifest that can be read.
    pub fn at(dir: PathBuf) -> Option<Self> {
        let manifest = yaml::read_file(&dir.join(MANIFEST), archive::MAX_MANIFEST).ok()?;
        Some(Self { dir, manifest })
    }

    /// Whether `mur build` and `mur install` would file it under this name and version.
    pub fn is_of(&self, name: &ArtifactName, version: &Version) -> bool {
        name.scope() == LOCAL_SCOPE
            && read_artifact(&self.manifest, MANIFEST)
                .is_ok_and(|manifest| manifest.name == name.bare() && manifest.version == version.as_str())
    }

    /// What of an installed archive is not as this directory would pack it; `None` when nothing is.
    ///
    /// # Errors
    /// As `mur build`: it would pack nothing.
    pub fn unlike(&self, installed: &Archive) -> Result<Option<String>> {
        let packed = build::contents(&self.dir)?;
        for file in &packed {
            match installed.read(&file.name) {
                Ok(Some(bytes)) if *bytes == *file.bytes => {}
                _ => return Ok(Some(file.name.clone())),
            }
        }
        let more = |name: &str| name != BUILD_LABEL && !packed.iter().any(|file| file.name == name);
        Ok(installed.entries().iter().map(|entry| &entry.name).find(|name| more(name)).cloned())
    }
}

/// `W-REG-004`: what is installed is not what its source is. The text ends with the commands that would make it so.
pub fn stale(name: &ArtifactName, version: &Version, place: &Place, dir: &Path, file: &str) -> Diagnostic {
    let archive = dir.join(format!("{}-{version}.mur.zip", name.bare()));
    let [source, archive] = [dir, archive.as_path()].map(|path| shell_word(&path.to_string_lossy()).into_owned());
    let global = if *place == Place::Project { "" } else { "-g " };
    let message = format!(
        "the installed {name}@{version} ({} store) is not what {} would build: {file} differs; a launch runs the installed one",
        place.as_str(),
        dir.display(),
    );
    let hint = format!("to run what is there: mur build {source} && mur install {global}{archive}");
    Diagnostic::new(codes::W_REG_004, message).hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_named_and_what_is_alike_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("a");
        fs::create_dir(&source).unwrap();
        let manifest = "name: a\nversion: '1'\nruntime: capsule\nexecution: static\nrequires_files: [prompt.txt]\n";
        fs::write(source.join("murmur.yaml"), manifest).unwrap();
        fs::write(source.join("prompt.txt"), "x").unwrap();
        let found = beside(dir.path());
        assert_eq!(found.len(), 1);
        let name = ArtifactName::parse("local/a").unwrap();
        let version = |text: &str| Version::parse(text).unwrap();
        assert!(found[0].is_of(&name, &version("1")) && !found[0].is_of(&name, &version("2")));
        assert!(!found[0].is_of(&ArtifactName::parse("murmur/a").unwrap(), &version("1")));
        let with = |files: &[(&str, &[u8])]| {
            let mut all = vec![("murmur.yaml", manifest.as_bytes())];
            all.extend(files);
            Archive::open(build::tests::archive_of(&all)).unwrap()
        };
        let unlike = |files: &[(&str, &[u8])]| found[0].unlike(&with(files)).unwrap();
        assert_eq!(unlike(&[("prompt.txt", b"x"), ("murmur-build.json", b"{}")]), None);
        assert_eq!(unlike(&[("prompt.txt", b"y")]).as_deref(), Some("prompt.txt"));
        assert_eq!(unlike(&[]).as_deref(), Some("prompt.txt"));
        assert_eq!(unlike(&[("prompt.txt", b"x"), ("old.txt", b"")]).as_deref(), Some("old.txt"));
        fs::remove_file(source.join("prompt.txt")).unwrap();
        assert_eq!(found[0].unlike(&with(&[])).unwrap_err().code(), codes::E_IO_003);
    }
}
