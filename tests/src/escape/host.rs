//! What a record says about the host it was made on.

// The harness asks the host's own programs.
#![allow(clippy::disallowed_methods)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Facts about the host and the binary graded.
#[derive(Clone, Debug)]
pub struct Host {
    /// `uname -r`.
    pub release: String,
    /// `uname -sm`.
    pub system: String,
    /// Effective user id.
    pub euid: u32,
    /// Signals of a container, each with what it says.
    pub container: Vec<(String, bool)>,
    /// How cgroups are mounted.
    pub cgroup: String,
    /// The binary.
    pub mur: PathBuf,
    /// `mur version --json`.
    pub version: Value,
    /// Its SHA-256.
    pub sha256: String,
}

impl Host {
    /// Looks.
    ///
    /// # Errors
    /// When the binary cannot be read or does not say its version.
    pub fn look(mur: &Path) -> Result<Self, String> {
        let bytes = fs::read(mur).map_err(|fault| format!("{}: {fault}", mur.display()))?;
        let output = Command::new(mur)
            .args(["version", "--json"])
            .output()
            .map_err(|fault| format!("{}: {fault}", mur.display()))?;
        let version = serde_json::from_slice(&output.stdout)
            .map_err(|fault| format!("{} version --json: {fault}", mur.display()))?;
        Ok(Self {
            release: uname("-r"),
            system: uname("-sm"),
            euid: nix::unistd::geteuid().as_raw(),
            container: container(),
            cgroup: cgroup(),
            mur: mur.to_owned(),
            version,
            sha256: Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect(),
        })
    }

    /// Whether a container was detected.
    pub fn in_container(&self) -> bool {
        self.container.iter().any(|(_, found)| *found)
    }

    /// Whether the binary holds the probe.
    pub fn has_probe(&self) -> bool {
        self.version["features"].as_array().is_some_and(|features| features.contains(&"escape-probe".into()))
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        json!({
            "uname": self.release, "system": self.system, "euid": self.euid, "cgroup": self.cgroup,
            "container": self.container.iter().filter(|(_, found)| *found).map(|(name, _)| name).collect::<Vec<_>>(),
            "mur": self.mur.to_string_lossy(), "version": self.version["mur_version"],
            "features": self.version["features"], "sha256": self.sha256,
        })
    }
}

fn uname(flag: &str) -> String {
    let output = Command::new("uname").arg(flag).output();
    output.map_or_else(|_| "unknown".to_owned(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn container() -> Vec<(String, bool)> {
    let init = fs::read("/proc/1/environ").unwrap_or_default();
    let cgroup = fs::read_to_string("/proc/1/cgroup").unwrap_or_default();
    let named = ["docker", "kubepods", "containerd", "lxc", "libpod"];
    vec![
        ("/.dockerenv".to_owned(), Path::new("/.dockerenv").exists()),
        ("/run/.containerenv".to_owned(), Path::new("/run/.containerenv").exists()),
        (
            "container= in the environment of process 1".to_owned(),
            init.split(|byte| *byte == 0).any(|pair| pair.starts_with(b"container=")),
        ),
        ("the cgroup of process 1".to_owned(), named.iter().any(|name| cgroup.contains(name))),
    ]
}

fn cgroup() -> String {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let kinds: Vec<&str> = mounts.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    match (kinds.contains(&"cgroup2"), kinds.contains(&"cgroup")) {
        (true, false) => "v2",
        (true, true) => "hybrid",
        (false, true) => "v1",
        (false, false) => "none",
    }
    .to_owned()
}

/// A kernel setting, as it is read.
pub fn setting(path: &str) -> String {
    fs::read_to_string(path).map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

/// A program on a path.
pub fn which(name: &str, path: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Path::new(name).is_file().then(|| name.into());
    }
    std::env::split_paths(path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Whether the user's systemd runs and can give a scope.
pub fn has_user_systemd() -> bool {
    let runs = std::env::var_os("XDG_RUNTIME_DIR").is_some_and(|dir| Path::new(&dir).join("systemd/private").exists());
    runs && which("systemd-run", super::stage::PATH).is_some()
}
