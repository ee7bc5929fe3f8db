//! A home and a project that belong to one test.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use tempfile::TempDir;

use crate::{Agent, Invocation, Roster, Trace};

/// One test's own world; removed when the test ends, unless `MUR_KEEP_WORLDS` is set.
pub struct World {
    home: PathBuf,
    project: PathBuf,
    sources: PathBuf,
    folder: Option<TempDir>,
}

impl Default for World {
    fn default() -> Self {
        Self::new()
    }
}

impl World {
    /// A new world: an empty home and an empty project.
    ///
    /// # Panics
    /// When the folders cannot be made.
    pub fn new() -> Self {
        Self::named("project")
    }

    /// The same with a name for the project's folder, for names that are hard to handle.
    ///
    /// # Panics
    /// When the folders cannot be made.
    pub fn named(project: &str) -> Self {
        let folder = tempfile::Builder::new().prefix("mur-").tempdir().expect("a temporary folder");
        let root = folder.path().canonicalize().expect("it is there");
        let world = Self {
            home: root.join("home"),
            project: root.join(project),
            sources: root.join("sources"),
            folder: Some(folder),
        };
        for path in [&world.home, &world.project, &world.sources] {
            fs::create_dir(path).expect("a new folder");
            fs::set_permissions(path, fs::Permissions::from_mode(0o700)).expect("it is ours");
        }
        world
    }

    /// The home.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// `~/.murmur`.
    pub fn murmur(&self) -> PathBuf {
        self.home.join(".murmur")
    }

    /// The project's folder, where commands run.
    pub fn project(&self) -> &Path {
        &self.project
    }

    /// A command line of `mur`, run in the project.
    pub fn mur(&self, args: impl IntoIterator<Item = impl AsRef<std::ffi::OsStr>>) -> Invocation {
        Invocation::new(&self.home, &self.project).args(args)
    }

    /// Writes a file, by a path relative to the project.
    ///
    /// # Panics
    /// When it cannot be written.
    #[track_caller]
    pub fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.project.join(path);
        fs::create_dir_all(path.parent().expect("a file lies in a folder")).expect("folders");
        fs::write(&path, content).unwrap_or_else(|fault| panic!("{}: {fault}", path.display()));
        path
    }

    /// Writes `~/.murmur/config.yaml`, owner only.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn config(&self, text: &str) {
        let folder = self.murmur();
        fs::create_dir_all(&folder).expect("a folder");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).expect("it is ours");
        let file = folder.join("config.yaml");
        fs::write(&file, text).expect("a file");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("it is ours");
    }

    /// Builds a capsule's source and installs it in the global store; gives its full name.
    #[track_caller]
    pub fn install(&self, agent: &Agent) -> String {
        self.warm();
        let archive = self.build(agent);
        self.mur(["install", "-g"]).arg(&archive).ok();
        format!("local/{}", agent.name())
    }

    /// Packs and installs a tool as `local/<name>`; gives its entry for a manifest.
    ///
    /// # Panics
    /// When its source cannot be written or is refused.
    #[track_caller]
    pub fn install_tool(&self, name: &str, component: &[u8]) -> serde_json::Value {
        self.install_artifact(name, &serde_json::json!({"runtime": "tool", "description": "A tool."}), component)
    }

    /// Packs and installs the bundled debug hook as `local/<name>` under another contract: `binding`, `execution_mode`,
    /// `commit_policy`. Gives its entry for a manifest.
    ///
    /// # Panics
    /// When its source cannot be written or is refused.
    #[track_caller]
    pub fn install_hook(&self, name: &str, contract: &serde_json::Value) -> serde_json::Value {
        let mut manifest = serde_json::json!({"runtime": "hook"});
        if let (Some(manifest), Some(contract)) = (manifest.as_object_mut(), contract.as_object()) {
            manifest.extend(contract.clone());
        }
        self.install_artifact(name, &manifest, &crate::bundled_component("hook-debug"))
    }

    /// Packs and installs a component as `local/<name>`, with these keys in its own manifest; gives its entry for a
    /// capsule's.
    ///
    /// # Panics
    /// When its source cannot be written or is refused.
    #[track_caller]
    pub fn install_artifact(&self, name: &str, keys: &serde_json::Value, component: &[u8]) -> serde_json::Value {
        self.warm();
        let source = self.sources.join(name);
        fs::create_dir_all(&source).expect("a folder");
        let mut manifest = serde_json::json!({"name": name, "version": "1.0.0", "requires_files": ["capsule.wasm"]});
        if let (Some(manifest), Some(keys)) = (manifest.as_object_mut(), keys.as_object()) {
            manifest.extend(keys.clone());
        }
        fs::write(source.join("murmur.yaml"), manifest.to_string()).expect("a manifest");
        fs::write(source.join("capsule.wasm"), component).expect("a component");
        self.mur(["build"]).arg(&source).ok();
        self.mur(["install", "-g"]).arg(source.join(format!("{name}-1.0.0.mur.zip"))).ok();
        serde_json::json!({"name": format!("local/{name}"), "version": "1.0.0", "runtime": keys["runtime"]})
    }

    /// Gives this home the compiled forms that earlier worlds left, so that not every test compiles the same drivers.
    /// They are checked by `mur` as any form is, and one of another engine is simply not used.
    fn warm(&self) {
        let compiled = self.murmur().join("compiled");
        if compiled.exists() {
            return;
        }
        for folder in [self.murmur(), compiled.clone()] {
            let _ = fs::create_dir(&folder);
            let _ = fs::set_permissions(&folder, fs::Permissions::from_mode(0o700));
        }
        copy_new(&shared_forms(), &compiled);
    }

    /// Builds a capsule's source; gives the archive's path.
    ///
    /// # Panics
    /// When the source cannot be written or is refused.
    #[track_caller]
    pub fn build(&self, agent: &Agent) -> PathBuf {
        let source = self.sources.join(format!("{}-{}", agent.name(), agent.version()));
        fs::create_dir_all(&source).expect("a folder");
        fs::write(source.join("murmur.yaml"), agent.manifest()).expect("a file");
        self.mur(["build"]).arg(&source).ok();
        source.join(format!("{}-{}.mur.zip", agent.name(), agent.version()))
    }

    /// Writes the project's roster and installs every member's capsule.
    #[track_caller]
    pub fn roster(&self, roster: &Roster) {
        for agent in roster.agents() {
            self.install(agent);
        }
        self.write("roster.yaml", roster.text());
    }

    /// Every trace under this home, oldest session first.
    pub fn traces(&self) -> Vec<Trace> {
        let mut found = Vec::new();
        let mut folders = vec![self.murmur().join("records")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                let path = entry.path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.file_name().is_some_and(|name| name == "trace.jsonl") {
                    found.push(Trace::read(&path));
                }
            }
        }
        found.sort_by_key(|trace| trace.session().to_owned());
        found
    }

    /// The trace of a formation's member, or of the only session of a capsule, by name.
    ///
    /// # Panics
    /// When there is not exactly one.
    #[track_caller]
    pub fn trace(&self, name: &str) -> Trace {
        let mut named: Vec<Trace> = self.traces();
        named.retain(|trace| {
            let Some(start) = trace.first("session_start") else { return false };
            start["formation_member"] == name || (start["formation_member"].is_null() && start["capsule_name"] == name)
        });
        assert_eq!(named.len(), 1, "there are {} traces of '{name}'", named.len());
        named.remove(0)
    }

    /// Paths of every file under this world, for a look at what was left.
    pub fn files(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut folders = vec![self.home.clone(), self.project.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                let kind = entry.file_type();
                if kind.is_ok_and(|kind| kind.is_dir()) { folders.push(entry.path()) } else { found.push(entry.path()) }
            }
        }
        found.sort();
        found
    }
}

/// Where compiled forms wait for the next world.
fn shared_forms() -> PathBuf {
    crate::dist().parent().expect("a prefix lies in a folder").join("compiled-for-tests")
}

/// Copies files that are not there yet; each appears whole. A failure only costs time later.
fn copy_new(from: &Path, to: &Path) {
    static COPIES: AtomicU64 = AtomicU64::new(0);
    for entry in fs::read_dir(from).into_iter().flatten().flatten() {
        let target = to.join(entry.file_name());
        let scratch = to.join(format!(".{}-{}", std::process::id(), COPIES.fetch_add(1, Ordering::Relaxed)));
        let name = entry.file_name();
        let form = [".cwasm", ".sha256"].iter().any(|ending| name.to_string_lossy().ends_with(ending));
        if form && !target.exists() && fs::copy(entry.path(), &scratch).is_ok() {
            let _ = fs::rename(&scratch, &target);
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let compiled = self.murmur().join("compiled");
        if compiled.exists() && fs::create_dir_all(shared_forms()).is_ok() {
            copy_new(&compiled, &shared_forms());
        }
        if std::env::var_os("MUR_KEEP_WORLDS").is_some()
            && let Some(folder) = self.folder.take()
        {
            // Left on purpose, for a look at what a failed test did.
            let _ = folder.keep();
        }
    }
}
