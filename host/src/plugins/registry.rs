//! The plugins of one process: what is pinned, and what is loaded.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use mur_plugin_api::conformance::Check;
use mur_plugin_api::{Class, HeaderInfo, Kind};

use super::approve::{Approved, Candidate, Grounds, Trusted};
use super::call::{self, Caller};
use super::catalog::{self, Pinned};
use super::library::Library;
use super::publishers::{self, Publisher};
use super::{Settings, Sink, Store, check, pin, sink, store, trust};
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::paths::{MurmurHome, install_dir};

/// Constructors and the library's own initialisation.
const LOAD: Duration = Duration::from_secs(10);
/// The whole conformance kit.
const CHECK: Duration = Duration::from_secs(120);

/// The plugins of this process: what is pinned, and what is loaded. Nothing is read before it is asked for.
#[derive(Debug)]
pub struct Registry {
    home: MurmurHome,
    settings: Settings,
    /// Where the first-party libraries and their lock lie.
    dir: Option<PathBuf>,
    first_party: OnceLock<Result<Vec<Pinned>>>,
    operator: OnceLock<Result<Vec<Pinned>>>,
    publishers: OnceLock<Result<Vec<Publisher>>>,
    loaded: BTreeMap<(Kind, String), Library>,
    containment: Mutex<BTreeMap<Class, OwnedFd>>,
}

/// One plugin as `mur plugin list` shows it.
#[derive(Clone, Debug)]
pub struct Listed {
    /// The library.
    pub path: PathBuf,
    /// What it is, as far as its file or its pin says.
    pub kind: Option<Kind>,
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The class it serves; empty for other kinds.
    pub class: String,
    /// Whether it is the host's own.
    pub first_party: bool,
    /// Why it is trusted, or why it would not be loaded.
    pub trusted: Result<Trusted>,
}

impl Registry {
    /// For an operator's home and the global configuration's `plugins:`. The first-party libraries are found relative to
    /// the running executable, never by environment or working directory.
    pub fn new(home: &MurmurHome, settings: &Settings) -> Self {
        Self::with_dir(home, settings, install_dir().ok().map(|dir| dir.join("plugins")))
    }

    pub(super) fn with_dir(home: &MurmurHome, settings: &Settings, dir: Option<PathBuf>) -> Self {
        Self {
            home: home.clone(),
            settings: settings.clone(),
            dir,
            first_party: OnceLock::new(),
            operator: OnceLock::new(),
            publishers: OnceLock::new(),
            loaded: BTreeMap::new(),
            containment: Mutex::default(),
        }
    }

    /// Opens an artifact store: the pinned store plugin of that name, or the pinned or signed library at that absolute
    /// path, with its configuration as a JSON object.
    pub fn store(&mut self, name: &str, config: serde_json::Value) -> Result<Arc<dyn Store>> {
        store::open(&self.library(Kind::Store, name)?, &config)
    }

    /// Makes a trace sink, named as a store is, with its configuration as a JSON object.
    pub fn sink(&mut self, name: &str, config: serde_json::Value) -> Result<Box<dyn Sink>> {
        sink::open(&self.library(Kind::Sink, name)?, &config)
    }

    /// Whether a class is served by the host's own library.
    pub fn serves_itself(&self, class: Class) -> bool {
        self.settings.containment.get(&class).is_none_or(|name| name == class.as_str())
    }

    /// A checked and hashed read-only descriptor of the library that serves a class, to be handed to a worker. The library
    /// is not loaded here, and checked once.
    pub fn containment_library(&self, class: Class) -> Result<OwnedFd> {
        let mut known = self.containment.lock().unwrap_or_else(PoisonError::into_inner);
        let copy = |fd: &OwnedFd| {
            fd.try_clone().map_err(|error| {
                Diagnostic::new(codes::E_IO_003, format!("no descriptor for the library of class {class}: {error}"))
            })
        };
        if let Some(fd) = known.get(&class) {
            return copy(fd);
        }
        let name = self.settings.containment.get(&class).map_or(class.as_str(), String::as_str);
        let Approved { opened, header, .. } = self.approved(Kind::Containment, name)?;
        if header.class != class.as_str() {
            return Err(Diagnostic::new(
                codes::E_PLG_006,
                format!(
                    "plugin library {} ({} {}) serves class '{}', not '{class}'",
                    opened.path.display(),
                    header.name,
                    header.version,
                    header.class
                ),
            )
            .hint(format!("correct plugins.containment.{class} in ~/.murmur/config.yaml")));
        }
        let fd = OwnedFd::from(opened.file);
        let handed = copy(&fd)?;
        known.insert(class, fd);
        Ok(handed)
    }

    /// Every pinned library, every library found beside the first-party ones, and why any would not be loaded. Nothing is
    /// loaded.
    pub fn list(&self) -> Result<Vec<Listed>> {
        let mut listed: Vec<Listed> = Vec::new();
        for (first_party, pins) in [(true, self.first_party()?), (false, self.operator()?)] {
            listed.extend(pins.iter().map(|pinned| self.listed(Candidate::pinned(pinned, first_party))));
        }
        for path in self.found() {
            if listed.iter().all(|known| known.path != path) {
                listed.push(self.listed(Candidate { path, pin: None, first_party: false }));
            }
        }
        Ok(listed)
    }

    fn listed(&self, candidate: Candidate) -> Listed {
        let approved = self.approve(&candidate);
        let Candidate { path, pin, first_party } = candidate;
        let header = match &approved {
            Ok(approved) => Ok(approved.header.clone()),
            Err(_) => trust::open_library(&path).and_then(|opened| opened.header()),
        };
        // What is wrong with a file itself says more than that nobody trusts it.
        let fault = header.as_ref().err().filter(|_| pin.is_none()).cloned();
        let trusted = fault.map_or_else(|| approved.map(|approved| approved.by), Err);
        let (kind, name, version, class) = match (pin, header) {
            (Some(Pinned { pin, .. }), _) => (Some(pin.kind), pin.name, pin.version, pin.class),
            (None, Ok(info)) => (Some(info.kind), info.name, info.version, info.class),
            (None, Err(_)) => (None, String::new(), String::new(), String::new()),
        };
        Listed { path, kind, name, version, class, first_party, trusted }
    }

    /// Pins a library in the operator's lock.
    pub fn trust(&self, file: &Path) -> Result<Pinned> {
        pin::pin(&self.home, self.first_party()?, file)
    }

    /// The publishers the operator trusts.
    pub fn publishers(&self) -> Result<&[Publisher]> {
        self.publishers.get_or_init(|| publishers::read(&self.home)).as_deref().map_err(Clone::clone)
    }

    /// Trusts a publisher, by a name of the operator's choice and the text of a public key.
    pub fn trust_publisher(&self, name: &str, key: &str) -> Result<Publisher> {
        publishers::add(&self.home, name, key)
    }

    /// Trusts a publisher no longer.
    pub fn remove_publisher(&self, name: &str) -> Result<Publisher> {
        publishers::remove(&self.home, name)
    }

    /// Loads one library as a session would and runs the conformance kit against it; `scratch` is an empty directory.
    /// With `anyway` also one that nothing speaks for: this is the only place where that is possible.
    pub fn check(
        &self,
        file: &Path,
        scratch: &Path,
        config: Option<String>,
        anyway: bool,
    ) -> Result<(HeaderInfo, Vec<Check>)> {
        let path = std::fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
        // What is wrong with the file itself says more than that nobody trusts it.
        let opened = trust::open_library(&path)?;
        let header = opened.header()?;
        let (opened, info) = if anyway {
            (opened, header)
        } else {
            let Approved { opened, header, .. } = self.approve(&self.at(&path)?)?;
            (opened, header)
        };
        let caller = Caller::new(&info);
        let scratch = scratch.to_owned();
        let header = info.clone();
        let checks = caller.call_plain("check", CHECK, move || {
            check::run(&Library::load(opened, header)?, &scratch, config.as_deref())
        })??;
        Ok((info, checks))
    }

    /// Loads a library once; asking again gives the same.
    fn library(&mut self, kind: Kind, name: &str) -> Result<Library> {
        let key = (kind, name.to_owned());
        if let Some(library) = self.loaded.get(&key) {
            return Ok(library.clone());
        }
        // A thread is made while the library is hashed.
        call::warm();
        let Approved { opened, header, .. } = self.approved(kind, name)?;
        // Loading runs the plugin's code, so it is a call like any other.
        let caller = Caller::new(&header);
        let library = caller.call_plain("load", LOAD, move || Library::load(opened, header))??;
        self.loaded.insert(key, library.clone());
        Ok(library)
    }

    /// The library of a kind that is configured by name or absolute path, judged.
    fn approved(&self, kind: Kind, name: &str) -> Result<Approved> {
        let candidate = if name.starts_with('/') {
            let path = Path::new(name);
            self.at(&std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()))?
        } else {
            self.named(kind, name)?
        };
        let approved = self.approve(&candidate)?;
        if approved.header.kind != kind {
            let HeaderInfo { kind: is, name, version, .. } = &approved.header;
            let path = candidate.path.display();
            let what = format!("plugin library {path} is {is} '{name}' {version}, not a {kind}");
            return Err(Diagnostic::new(codes::E_PLG_006, what)
                .hint("correct stores, sinks or plugins.containment in ~/.murmur/config.yaml"));
        }
        Ok(approved)
    }

    fn approve(&self, candidate: &Candidate) -> Result<Approved> {
        candidate.approve(&Grounds { first_party: self.first_party()?, publishers: &|| self.publishers() })
    }

    fn first_party(&self) -> Result<&[Pinned]> {
        let read = || self.dir.as_deref().map_or_else(|| Ok(Vec::new()), |dir| catalog::read(&catalog::lock_in(dir)));
        self.first_party.get_or_init(read).as_deref().map_err(Clone::clone)
    }

    fn operator(&self) -> Result<&[Pinned]> {
        let read = || catalog::read(&self.home.plugins_lock());
        self.operator.get_or_init(read).as_deref().map_err(Clone::clone)
    }

    /// The pin of a name: the host's own plugins first, whose names nobody can take.
    fn named(&self, kind: Kind, name: &str) -> Result<Candidate> {
        let named = |pins: &[Pinned]| pins.iter().find(|one| one.pin.kind == kind && one.pin.name == name).cloned();
        if let Some(own) = named(self.first_party()?) {
            return Ok(Candidate::pinned(&own, true));
        }
        let pinned = named(self.operator()?).ok_or_else(|| self.unknown(kind, name))?;
        Ok(Candidate::pinned(&pinned, false))
    }

    /// The library at a path, with its pin if it has one.
    fn at(&self, path: &Path) -> Result<Candidate> {
        let same =
            |one: &&Pinned| one.path == path || std::fs::canonicalize(&one.path).is_ok_and(|found| found == path);
        if let Some(own) = self.first_party()?.iter().find(same) {
            return Ok(Candidate::pinned(own, true));
        }
        let pin = self.operator()?.iter().find(same).cloned();
        Ok(Candidate { path: path.to_owned(), pin, first_party: false })
    }

    fn unknown(&self, kind: Kind, name: &str) -> Diagnostic {
        let nothing_installed = self.first_party().is_ok_and(<[Pinned]>::is_empty);
        match &self.dir {
            Some(dir) if nothing_installed => Diagnostic::new(
                codes::E_PLG_006,
                format!("no {kind} plugin '{name}' is known: this mur's own plugins are not in {}", dir.display()),
            )
            .hint("run mur from where it is installed, with lib/mur beside its bin directory"),
            _ => catalog::unknown(kind, name),
        }
    }

    /// Libraries beside the first-party ones, and those the configuration names by path.
    fn found(&self) -> Vec<PathBuf> {
        let entries = self.dir.as_deref().and_then(|dir| std::fs::read_dir(dir).ok());
        let mut found: Vec<PathBuf> = entries
            .into_iter()
            .flat_map(|entries| entries.flatten().map(|entry| entry.path()))
            .filter(|path| path.extension().is_some_and(|extension| extension == "so"))
            .collect();
        found.extend(self.settings.containment.values().filter(|text| text.starts_with('/')).map(PathBuf::from));
        found.extend_from_slice(&self.settings.named);
        found.sort();
        found.dedup();
        found
    }
}
