//! `mur new --roster`: a two-member formation that admission accepts once its members are built and installed.
//!
//! Everything is decided and parsed by the readers that will read it before anything is written; what is written appears
//! under its name by one rename, or not at all.

mod index;
mod text;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub use index::Index;

use crate::artifacts::name::{ArtifactName, Version, check_part};
use crate::config::InferenceDefaults;
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::manifest::{check_endpoint, read_artifact, read_capsule};
use crate::paths::MurmurHome;

/// The scaffold's members: the entry member first.
pub const MEMBERS: [&str; 2] = ["lead", "worker"];

/// The version both member capsules begin with.
pub const MEMBER_VERSION: &str = "0.1.0";

/// Which model answers in the scaffold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    /// A script plays the model: no key, no network.
    Scripted,
    /// The Messages API.
    Anthropic,
    /// Chat Completions, of any server that speaks them.
    OpenAi,
}

impl Provider {
    /// Every provider with a driver of ours.
    const ALL: [Self; 3] = [Self::Scripted, Self::Anthropic, Self::OpenAi];

    /// The word of flag and configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Scripted => "scripted",
            Self::Anthropic => "anthropic",
            Self::OpenAi => "openai",
        }
    }

    /// The driver's bare name.
    fn driver(self) -> &'static str {
        match self {
            Self::Scripted => "driver-scripted",
            Self::Anthropic => "driver-anthropic",
            Self::OpenAi => "driver-openai",
        }
    }

    fn endpoint(self) -> &'static str {
        match self {
            // Nothing is sent there: the script asks nobody. Not `localhost`, which the lead's network grant names.
            Self::Scripted => "http://127.0.0.1",
            Self::Anthropic => "https://api.anthropic.com",
            Self::OpenAi => "https://api.openai.com/v1",
        }
    }

    fn model(self) -> &'static str {
        match self {
            Self::Scripted => "scripted",
            Self::Anthropic => "claude-haiku-4-5-20251001",
            Self::OpenAi => "gpt-5.6-luna",
        }
    }

    /// The credential its gateway names.
    pub fn key(self) -> Option<&'static str> {
        match self {
            Self::Scripted => None,
            Self::Anthropic => Some("ANTHROPIC_API_KEY"),
            Self::OpenAi => Some("OPENAI_API_KEY"),
        }
    }
}

/// What a scaffold is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scaffold {
    /// The formation's name: the directory, and what the capsules' names begin with.
    pub name: String,
    /// Which model answers.
    pub provider: Provider,
    /// The driver.
    pub driver: ArtifactName,
    /// Its version.
    pub version: Version,
    /// Where that version was found, in words.
    pub origin: Origin,
    endpoint: String,
    model: String,
}

/// Where the driver's version comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Beside the binary: nothing to install.
    Bundled,
    /// In the global store already.
    Installed,
    /// Listed by an index.
    Index(String),
}

/// What `mur new --roster` was asked for.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The formation's name.
    pub name: String,
    /// `--index`.
    pub index: Option<String>,
    /// `--provider`, ahead of the configuration's.
    pub provider: Option<String>,
}

impl Scaffold {
    /// Decides everything without writing. `parent` is the directory the formation's own will lie in; `bundled` is the
    /// store of artifacts beside the binary.
    ///
    /// # Errors
    /// `E-NEW-002` to `E-NEW-007`, `E-IDX-002`, `E-MAN-003`, in the order of the checks.
    pub fn plan(
        request: &Request,
        config: &InferenceDefaults,
        parent: &Path,
        home: &MurmurHome,
        bundled: Option<&Path>,
    ) -> Result<Self> {
        check_names(&request.name)?;
        if request.index.as_deref() == Some("local") {
            return Err(Diagnostic::new(codes::E_NEW_005, "--index local names no index")
                .hint("name an index file, or leave --index out to use the drivers that come with mur"));
        }
        let provider = provider(request, config)?;
        refuse_existing(parent, &request.name)?;
        let driver = ArtifactName::new("murmur", provider.driver())
            .map_err(|fault| fault.diagnostic(codes::E_NEW_007, "driver"))?;
        let (version, origin) = driver_version(&driver, request.index.as_deref(), home, bundled)?;
        // Endpoint and model of the configuration belong to the provider it names, not to one chosen for this call.
        let own = config.provider.as_deref().is_none_or(|configured| configured == provider.as_str());
        let configured = |value: &Option<String>| value.clone().filter(|_| own && provider != Provider::Scripted);
        let endpoint = configured(&config.endpoint).unwrap_or_else(|| provider.endpoint().to_owned());
        check_endpoint(&endpoint).map_err(|why| {
            Diagnostic::new(codes::E_MAN_003, format!("inference.endpoint of ~/.murmur/config.yaml: {why}"))
                .hint("set one with: mur config set -g inference.endpoint <https URL>")
        })?;
        let model = configured(&config.model).unwrap_or_else(|| provider.model().to_owned());
        Ok(Self { name: request.name.clone(), provider, driver, version, origin, endpoint, model })
    }

    /// The files by path below the formation's directory, parsed by their own readers.
    ///
    /// # Errors
    /// The reader's own fault; nothing is written then.
    pub fn files(&self) -> Result<Vec<(PathBuf, String)>> {
        let roster = text::roster(self);
        super::parse(roster.as_bytes())?.check()?;
        let mut files = vec![(PathBuf::from(super::FILE_NAME), roster)];
        for member in MEMBERS {
            let manifest = text::manifest(self, member);
            read_capsule(manifest.as_bytes(), crate::manifest::FILE_NAME)?;
            read_artifact(manifest.as_bytes(), crate::manifest::FILE_NAME)?;
            files.push((Path::new(member).join(crate::manifest::FILE_NAME), manifest));
        }
        Ok(files)
    }

    /// Writes everything below `parent`, whole or not at all.
    ///
    /// # Errors
    /// `E-NEW-003` when the name was taken meanwhile, `E-IO-003` when something cannot be written.
    pub fn write(&self, parent: &Path) -> Result<()> {
        let files = self.files()?;
        let target = parent.join(&self.name);
        let staged = parent.join(format!(".{}.tmp-{}", self.name, uuid::Uuid::now_v7()));
        let failed = |error: io::Error| {
            Diagnostic::new(codes::E_IO_003, format!("{} cannot be written: {error}", target.display()))
        };
        let written = write_all(&staged, &files).map_err(failed).and_then(|()| rename_new(&staged, &target));
        if written.is_err() {
            let _ = fs::remove_dir_all(&staged);
        }
        written
    }

    /// A member's capsule name.
    pub fn capsule(&self, member: &str) -> String {
        format!("{}-{member}", self.name)
    }
}

fn check_names(name: &str) -> Result<()> {
    let refused = |what: String| {
        Diagnostic::new(codes::E_NEW_002, what)
            .hint("a name has 1 to 100 of a-z, 0-9 and '-', no '-' at either end, with room for the members' names")
    };
    check_part(name).map_err(|why| refused(format!("'{name}' cannot name a formation: {why}")))?;
    for member in MEMBERS {
        let capsule = format!("{name}-{member}");
        check_part(&capsule).map_err(|why| {
            refused(format!("'{name}' cannot name a formation: member '{member}' would run '{capsule}': {why}"))
        })?;
    }
    Ok(())
}

fn provider(request: &Request, config: &InferenceDefaults) -> Result<Provider> {
    let (text, place) = match (&request.provider, &config.provider, &request.index) {
        (Some(flag), _, _) => (flag.as_str(), "--provider"),
        (None, Some(configured), _) => (configured.as_str(), "inference.provider of ~/.murmur/config.yaml"),
        // An index lists published drivers, and the scripted one is not among them.
        (None, None, Some(_)) => return Ok(Provider::Anthropic),
        (None, None, None) => return Ok(Provider::Scripted),
    };
    Provider::ALL.into_iter().find(|provider| provider.as_str() == text).ok_or_else(|| {
        Diagnostic::new(codes::E_NEW_004, format!("{place} is '{text}', which has no driver"))
            .hint("anthropic, openai, or scripted, which needs neither key nor network")
    })
}

fn exists(path: &Path) -> bool {
    // Of a link itself: a dangling one is in the way too.
    fs::symlink_metadata(path).is_ok()
}

fn refuse_existing(parent: &Path, name: &str) -> Result<()> {
    if exists(&parent.join(name)) {
        return Err(Diagnostic::new(codes::E_NEW_003, format!("./{name} exists; nothing was written"))
            .hint("choose another name, or move it away"));
    }
    Ok(())
}

fn driver_version(
    driver: &ArtifactName,
    index: Option<&str>,
    home: &MurmurHome,
    bundled: Option<&Path>,
) -> Result<(Version, Origin)> {
    if let Some(source) = index {
        let version = Index::open(source)?.newest_fitting(driver)?;
        return Ok((version, Origin::Index(source.to_owned())));
    }
    if let Some(version) = bundled.and_then(|root| newest_in(root, driver)) {
        return Ok((version, Origin::Bundled));
    }
    if let Some(version) = newest_in(&home.artifacts(), driver) {
        return Ok((version, Origin::Installed));
    }
    let beside = bundled.map_or("nothing is bundled".to_owned(), |root| format!("not in {}", root.display()));
    Err(Diagnostic::new(
        codes::E_NEW_007,
        format!("no version of {driver} is here: {beside}, nor in {}", home.artifacts().display()),
    )
    .hint("reinstall mur with its lib/mur directory, install the driver with mur install -g, or give --index FILE"))
}

/// The newest version of an artifact below a store's root, by its directories.
fn newest_in(root: &Path, artifact: &ArtifactName) -> Option<Version> {
    let entries = fs::read_dir(root.join(artifact.scope()).join(artifact.bare())).ok()?;
    let names = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    names.filter_map(|entry| Version::parse(entry.file_name().to_str()?).ok()).max()
}

fn write_all(dir: &Path, files: &[(PathBuf, String)]) -> io::Result<()> {
    fs::create_dir(dir)?;
    for (path, text) in files {
        let path = dir.join(path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let mut file = fs::File::options().write(true).create_new(true).open(&path)?;
        io::Write::write_all(&mut file, text.as_bytes())?;
        file.sync_all()?;
    }
    Ok(())
}

/// Renames onto a name that nothing has. An empty directory in its place would be replaced by a plain rename.
fn rename_new(from: &Path, to: &Path) -> Result<()> {
    use nix::errno::Errno;
    use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
    let taken = || {
        Diagnostic::new(codes::E_NEW_003, format!("{} exists; nothing was written", to.display()))
            .hint("choose another name, or move it away")
    };
    let failed = |why: String| Diagnostic::new(codes::E_IO_003, format!("{} cannot be written: {why}", to.display()));
    match renameat2(AT_FDCWD, from, AT_FDCWD, to, RenameFlags::RENAME_NOREPLACE) {
        Ok(()) => Ok(()),
        Err(Errno::EEXIST | Errno::ENOTEMPTY) => Err(taken()),
        // File systems and kernels without the flag.
        Err(Errno::EINVAL | Errno::ENOSYS | Errno::EOPNOTSUPP) if !exists(to) => {
            fs::rename(from, to).map_err(|error| failed(error.to_string()))
        }
        Err(Errno::EINVAL | Errno::ENOSYS | Errno::EOPNOTSUPP) => Err(taken()),
        Err(errno) => Err(failed(errno.desc().to_owned())),
    }
}

#[cfg(test)]
mod tests;
