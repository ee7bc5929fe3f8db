//! `mur install`: artifacts into the project's or the global store, and their pins into `murmur.lock`.
//!
//! Sources on the network are not read by this version: what only they could serve is refused by code, and a name that
//! a store already holds never needs one.

use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::compiled::Forms;
use super::level;
use super::lock::Lock;
use super::name::{ArtifactName, LOCAL_SCOPE, MURMUR_SCOPE, Platform, Version};
use super::store::{Place, Stores, Verified};
use super::{archive, project};
use crate::diagnostics::{Diagnostic, Result, codes, output};
use crate::manifest::Execution;
use crate::paths::MurmurHome;

/// What the command line names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reference {
    /// A `.mur.zip` file.
    File(PathBuf),
    /// One artifact, exactly.
    Exact(ArtifactName, Version),
    /// The newest fitting version of an artifact.
    Newest(ArtifactName),
    /// Every artifact of a GitHub release.
    Release {
        /// `<owner>/<repo>`.
        repo: String,
        /// The release's tag.
        tag: String,
    },
}

impl Reference {
    /// Reads a reference; nothing but the text is looked at.
    pub fn parse(text: &str) -> Result<Self> {
        let refused = |what: &str| {
            Diagnostic::new(codes::E_IO_003, format!("'{text}' is not something to install: {what}"))
                .hint("name a .mur.zip file by path, or <scope>/<name>@<version>")
        };
        let is_path = ["./", "../", "/"].iter().any(|start| text.starts_with(start));
        if is_path || (text.contains('/') && text.ends_with(".mur.zip")) {
            return Ok(Self::File(PathBuf::from(text)));
        }
        if let Some(rest) = text.strip_prefix("github:") {
            return parse_release(rest).ok_or_else(|| refused("a release is github:<owner>/<repo>@<tag>"))?;
        }
        if text.split('@').next().unwrap_or(text).contains(':') {
            return Err(refused("only github: references have a prefix"));
        }
        if text.ends_with(".mur.zip") {
            let name = ArtifactName::parse_argument(text).map(Self::Newest);
            return name.map_err(|refusal| refusal.hint(format!("a file is named by a path: ./{text}")));
        }
        match text.split_once('@') {
            None => ArtifactName::parse_argument(text).map(Self::Newest),
            Some((_, "")) => Err(refused("it has an empty version")),
            Some((_, version)) if version.contains('@') => Err(refused("it has two '@'")),
            Some((name, version)) => {
                let name = ArtifactName::parse_argument(name)?;
                Ok(Self::Exact(name, Version::parse(version).map_err(|fault| fault.diagnostic())?))
            }
        }
    }
}

/// `<owner>/<repo>@<tag>`; the inner result is the refusal of an owner that cannot be one.
fn parse_release(rest: &str) -> Option<Result<Reference>> {
    let (repo, tag) = rest.split_once('@')?;
    let (owner, name) = repo.split_once('/')?;
    if tag.is_empty() || tag.contains('@') || name.is_empty() || name.contains('/') {
        return None;
    }
    let lower = owner.to_lowercase();
    if super::name::check_part(&lower).is_err() || [LOCAL_SCOPE, MURMUR_SCOPE].contains(&lower.as_str()) {
        let message = format!("'{owner}' cannot be the GitHub owner of artifacts");
        return Some(Err(Diagnostic::new(codes::E_REG_007, message)));
    }
    Some(Ok(Reference::Release { repo: repo.to_owned(), tag: tag.to_owned() }))
}

/// Where an install goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The project's store and lock.
    Project(PathBuf),
    /// The global store; no lock is touched.
    Global,
}

impl Target {
    /// The project at or above the current directory, or the global store.
    pub fn of(global: bool) -> Result<Self> {
        if global { Ok(Self::Global) } else { project::require().map(Self::Project) }
    }

    fn place(&self) -> Place {
        match self {
            Self::Project(_) => Place::Project,
            Self::Global => Place::Global,
        }
    }

    /// The project's directory.
    pub fn project(&self) -> Option<&Path> {
        match self {
            Self::Project(dir) => Some(dir),
            Self::Global => None,
        }
    }
}

/// One install, everything it needs open.
pub struct Installer<'a> {
    /// The operator's home.
    pub home: &'a MurmurHome,
    /// The stores.
    pub stores: &'a Stores,
    /// Where to.
    pub target: &'a Target,
    /// Whether components are compiled after the install.
    pub precompile: bool,
}

/// How one artifact of the manifest fared.
#[derive(Debug)]
pub enum Fetched {
    /// It was in the project's store.
    Cached,
    /// So many bytes were copied.
    Copied(u64),
}

impl Installer<'_> {
    /// Files an artifact where the install goes. `~/.murmur` is made by whoever needs it first, and always owner-only.
    fn write(&self, artifact: &Verified, owner_id: Option<u64>) -> Result<()> {
        if *self.target == Target::Global {
            let root = self.home.root();
            crate::paths::make_private(root).map_err(|error| {
                Diagnostic::new(codes::E_IO_003, format!("{} cannot be made: {error}", root.display()))
            })?;
        }
        self.say_replaced(artifact);
        self.stores.write(&self.target.place(), artifact, owner_id)
    }

    /// Says that other bytes were installed under the name and version. The install goes on: a file is the operator's own
    /// word.
    fn say_replaced(&self, artifact: &Verified) {
        let there = self.stores.find_at(&self.target.place(), &artifact.name, &artifact.version);
        let Ok(Some(there)) = there.map(|found| found.map(|found| found.bound())) else { return };
        if there.platform != artifact.platform || there.sha256 == artifact.sha256 {
            return;
        }
        let pinned = self.check_lock(artifact).is_err();
        output::stderr_line(&format!(
            "note: {} was installed with other bytes (sha256 {}) and is replaced{}",
            artifact.reference(),
            there.sha256,
            if pinned { "; murmur.lock now pins the new ones" } else { "" }
        ));
    }

    /// Installs a file as `local/<packed name>`. Returns the lines to print.
    pub fn file(&self, path: &Path) -> Result<Vec<String>> {
        let shown = path.display().to_string();
        let mut lines = Vec::new();
        let mut artifact = Verified::of_file(read_file(path)?, LOCAL_SCOPE, &shown)?;
        if artifact.manifest.execution == Execution::Native {
            let tagged = path.file_name().and_then(|name| name.to_str()).and_then(Platform::of_file_name);
            artifact.platform = Some(tagged.unwrap_or(Platform::host()));
            if tagged.is_none() {
                lines.push(format!("Platform: {} (auto-detected)", Platform::host()));
            }
        }
        self.write(&artifact, None)?;
        lines.extend(self.pin(&artifact, None)?);
        lines.push(format!("Installed {} from {shown}", artifact.reference()));
        self.compile(&artifact);
        Ok(lines)
    }

    /// Installs one artifact by name from the stores that hold it.
    pub fn named(&self, name: &ArtifactName, version: Option<&Version>) -> Result<Vec<String>> {
        let version = match version {
            Some(version) => version.clone(),
            None => self.newest(name)?,
        };
        let (artifact, owner) = self
            .held(&[Place::Global, Place::Bundled], name, &version)?
            .ok_or_else(|| self.nowhere(name, Some(&version)))?;
        artifact.warn_untagged();
        self.check_fit(&artifact)?;
        self.check_lock(&artifact)?;
        if artifact.place != Some(self.target.place()) {
            self.write(&artifact, owner)?;
        }
        let mut lines: Vec<String> = self.pin(&artifact, owner)?.into_iter().collect();
        lines.push(format!("Installed {} → {}", artifact.reference(), self.stored_at(&artifact)));
        self.compile(&artifact);
        Ok(lines)
    }

    /// Installs one artifact of the project's manifest: project store, global store, what the binary brings.
    pub fn declared(&self, name: &ArtifactName, version: &Version) -> Result<(Fetched, Vec<String>)> {
        let (artifact, owner) = self
            .held(&[Place::Project, Place::Global, Place::Bundled], name, version)?
            .ok_or_else(|| self.nowhere(name, Some(version)))?;
        artifact.warn_untagged();
        self.check_fit(&artifact)?;
        self.check_lock(&artifact)?;
        let fetched = if artifact.place == Some(Place::Project) {
            Fetched::Cached
        } else {
            self.stores.write(&Place::Project, &artifact, owner)?;
            Fetched::Copied(artifact.bytes.len() as u64)
        };
        let lines = self.pin(&artifact, owner)?;
        self.compile(&artifact);
        Ok((fetched, lines.into_iter().collect()))
    }

    fn held(
        &self,
        places: &[Place],
        name: &ArtifactName,
        version: &Version,
    ) -> Result<Option<(Verified, Option<u64>)>> {
        for place in places {
            if let Some(found) = self.stores.find_at(place, name, version)? {
                let owner = found.bound().owner_id;
                return Ok(Some((self.stores.read(&found)?, owner)));
            }
        }
        Ok(None)
    }

    /// The newest version that the scope's source has; here only what the binary brings counts as one.
    fn newest(&self, name: &ArtifactName) -> Result<Version> {
        match self.stores.newest(&Place::Bundled, name)? {
            Some(found) => Ok(found.version),
            None => Err(self.nowhere(name, None)),
        }
    }

    /// Why an artifact that no store has cannot be had.
    fn nowhere(&self, name: &ArtifactName, version: Option<&Version>) -> Diagnostic {
        let reference = version.map_or_else(|| name.to_string(), |version| format!("{name}@{version}"));
        let searched = format!("{}{}", self.stores.searched(name), self.stores.others(name));
        if version.is_none()
            && let Some(newest) = self.stores.versions(name).last()
        {
            let message = format!(
                "'{name}' names no version, and no source says which is the newest{}",
                self.stores.others(name)
            );
            let code = if name.scope() == LOCAL_SCOPE { codes::E_REG_001 } else { codes::E_REG_008 };
            return Diagnostic::new(code, message).hint(format!("name a version: {name}@{newest}"));
        }
        match name.scope() {
            LOCAL_SCOPE => {
                Diagnostic::new(codes::E_REG_001, format!("'{reference}' is in no store: looked in {searched}"))
                    .hint("install it from its .mur.zip file: mur install <path>")
            }
            MURMUR_SCOPE => Diagnostic::new(
                codes::E_REG_006,
                format!("'{reference}' is in no store ({searched}), and this mur does not ask sources on the network"),
            )
            .hint("get its .mur.zip and install that, or use a version that `mur` brings along"),
            scope => Diagnostic::new(
                codes::E_REG_008,
                format!("'{reference}' is in no store ({searched}), and no source serves the scope '{scope}'"),
            )
            .hint("this mur installs from files and stores: get the artifact's .mur.zip and install that"),
        }
    }

    fn check_fit(&self, artifact: &Verified) -> Result<()> {
        let misfits = artifact.interfaces().map(|interfaces| interfaces.misfits()).unwrap_or_default();
        if misfits.is_empty() { Ok(()) } else { Err(level::does_not_fit(&artifact.name, &artifact.version, &misfits)) }
    }

    /// A stored payload must be what the lock pins.
    fn check_lock(&self, artifact: &Verified) -> Result<()> {
        match self.target.project().map(Lock::read).transpose()?.flatten() {
            Some(lock) => lock.agrees(&artifact.bound()),
            None => Ok(()),
        }
    }

    /// Pins an artifact in the project's lock. Returns the line of an adoption.
    fn pin(&self, artifact: &Verified, owner_id: Option<u64>) -> Result<Option<String>> {
        let Some(project) = self.target.project() else { return Ok(None) };
        let mut bound = artifact.bound();
        bound.owner_id = owner_id;
        let session = Lock::update(project, |lock| Ok(lock.upsert(bound)))?;
        Ok(session.map(|session| {
            format!(
                "Adopted {} as operator-declared (it was pulled at runtime by session {session})",
                artifact.reference()
            )
        }))
    }

    /// Compiles ahead of the first launch. A failure changes neither output nor exit: the launch will say it.
    fn compile(&self, artifact: &Verified) {
        if self.precompile && artifact.is_wasm() && artifact.manifest.runtime != "capsule" {
            let _ = Forms::open(self.home, None).of(artifact);
        }
    }

    /// The stored file's path, home as `~`.
    fn stored_at(&self, artifact: &Verified) -> String {
        let (name, version) = (&artifact.name, &artifact.version);
        let tag = artifact.platform.map(|platform| format!("-{platform}")).unwrap_or_default();
        let root = self.stores.location(&self.target.place()).unwrap_or_default();
        let path = Path::new(root).join(name.as_str()).join(version.as_str());
        let path = path.join(format!("{}-{version}{tag}.mur.zip", name.bare()));
        match path.strip_prefix(self.home.home()) {
            Ok(below) => format!("~/{}", below.display()),
            Err(_) => path.display().to_string(),
        }
    }
}

/// The bytes of an archive file, at most what the ceiling allows.
pub fn read_file(path: &Path) -> Result<Bytes> {
    use std::io::Read;
    let shown = path.display();
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => Diagnostic::new(codes::E_IO_001, format!("'{shown}' is not there"))
            .hint("mur build packs an artifact's directory into a .mur.zip, and says where it is"),
        std::io::ErrorKind::PermissionDenied => Diagnostic::new(codes::E_IO_002, format!("'{shown}': {error}")),
        _ => Diagnostic::new(codes::E_IO_003, format!("'{shown}': {error}")),
    };
    let meta = std::fs::metadata(path).map_err(failed)?;
    if meta.is_dir() {
        return Err(Diagnostic::new(codes::E_IO_003, format!("'{shown}' is a directory, not a .mur.zip file"))
            .hint(format!("build it first: mur build {shown}")));
    }
    if !meta.is_file() {
        return Err(Diagnostic::new(codes::E_IO_003, format!("'{shown}' is not a regular file")));
    }
    let ceiling = archive::ceiling();
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(ceiling.saturating_add(1)).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > ceiling {
        return Err(Diagnostic::new(codes::E_IO_003, format!("'{shown}' is larger than the {ceiling}-byte ceiling")));
    }
    Ok(bytes.into())
}

/// The refusal of a GitHub release.
pub fn no_releases(repo: &str, tag: &str) -> Diagnostic {
    Diagnostic::new(
        codes::E_REG_006,
        format!("github:{repo}@{tag} was not asked: this mur does not ask sources on the network"),
    )
    .hint("download the release's .mur.zip files and install each by path")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_told_apart_by_their_text() {
        let file = |text: &str| Reference::File(PathBuf::from(text));
        for text in ["./x", "../x.mur.zip", "/x", "a/b.mur.zip"] {
            assert_eq!(Reference::parse(text).unwrap(), file(text));
        }
        let name = || ArtifactName::parse("local/x").unwrap();
        assert_eq!(Reference::parse("local/x").unwrap(), Reference::Newest(name()));
        let exact = Reference::Exact(name(), Version::parse("1.0").unwrap());
        assert_eq!(Reference::parse("local/x@1.0").unwrap(), exact);
        let release = Reference::Release { repo: "Owner/repo".into(), tag: "v1".into() };
        assert_eq!(Reference::parse("github:Owner/repo@v1").unwrap(), release);
    }

    #[test]
    fn what_is_no_reference_has_its_code() {
        for (text, code) in [
            ("x", codes::E_REG_007),
            ("x.mur.zip", codes::E_REG_007),
            ("a/b/c", codes::E_REG_007),
            ("local/x@", codes::E_IO_003),
            ("local/x@1@2", codes::E_IO_003),
            ("oci:local/x@1", codes::E_IO_003),
            ("local/x@latest", codes::E_REG_004),
            ("github:local/x@1", codes::E_REG_007),
            ("github:owner/x", codes::E_IO_003),
        ] {
            assert_eq!(Reference::parse(text).unwrap_err().code(), code, "{text}");
        }
    }

    #[test]
    fn a_directory_is_not_a_file_and_says_to_build_first() {
        let dir = tempfile::tempdir().unwrap();
        let refusal = read_file(dir.path()).unwrap_err();
        assert_eq!(refusal.code(), codes::E_IO_003);
        assert!(refusal.hint_text().unwrap().starts_with("build it first"));
        assert_eq!(read_file(&dir.path().join("none")).unwrap_err().code(), codes::E_IO_001);
    }
}
