//! Our own WASM artifacts: one cargo call for all of them, then each core module made into a component.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use wit_component::{ComponentEncoder, DecodedWasm};

use crate::toolchain::{self, TARGET};
use crate::{Outcome, sh};

/// An artifact, built.
pub struct Guest {
    /// Its bare name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// What it is: `driver`, `tool`.
    pub role: String,
    /// Its manifest's text.
    pub manifest: String,
    /// The component.
    pub component: Vec<u8>,
    /// Interfaces it exports and imports, sorted.
    pub exports: Vec<String>,
    /// The same, imports.
    pub imports: Vec<String>,
}

/// Builds all of them.
pub fn build() -> Outcome<Vec<Guest>> {
    build_in(&sh::root().join("plugins/guest"), &sh::target().join("guest"))
}

/// Builds every artifact of a guest workspace: a package with a `murmur.yaml` beside its `Cargo.toml` is one.
pub fn build_in(workspace: &Path, target: &Path) -> Outcome<Vec<Guest>> {
    let toolchain = toolchain::find()?;
    sh::say(&format!("guests: building with {}", toolchain.describe()));
    let mut command = sh::cargo(workspace);
    command.args(["build", "--quiet"]);
    toolchain.apply(&mut command, &sh::root());
    command.env("CARGO_TARGET_DIR", target);
    sh::run(&mut command)?;
    let mut guests = Vec::new();
    for package in packages(workspace)? {
        let library = package.file_name().expect("a package's folder has a name").to_string_lossy().replace('-', "_");
        let module = target.join(TARGET).join("release").join(format!("{library}.wasm"));
        guests.push(guest(&package, &module).map_err(|fault| format!("{}: {fault}", package.display()))?);
    }
    guests.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(guests)
}

fn packages(workspace: &Path) -> Outcome<Vec<PathBuf>> {
    let entries = fs::read_dir(workspace).map_err(|fault| format!("{}: {fault}", workspace.display()))?;
    let mut packages: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.join("murmur.yaml").is_file() && path.join("Cargo.toml").is_file())
        .collect();
    packages.sort();
    Ok(packages)
}

fn guest(package: &Path, module: &Path) -> Outcome<Guest> {
    let manifest = fs::read_to_string(package.join("murmur.yaml")).map_err(|fault| format!("murmur.yaml: {fault}"))?;
    let module = fs::read(module).map_err(|fault| format!("{}: {fault}", module.display()))?;
    let component = ComponentEncoder::default()
        .validate(true)
        .module(&module)
        .and_then(|mut encoder| encoder.encode())
        .map_err(|fault| format!("it makes no component: {fault:#}"))?;
    let (exports, imports) = interfaces(&component)?;
    let key = |key: &str| {
        let line = manifest.lines().find_map(|line| line.strip_prefix(&format!("{key}:")));
        let value = line.map(|value| value.trim().trim_matches('"').to_owned());
        value.ok_or_else(|| format!("murmur.yaml has no '{key}' of one line"))
    };
    let (name, version, role) = (key("name")?, key("version")?, key("runtime")?);
    Ok(Guest { name, version, role, manifest, component, exports, imports })
}

fn interfaces(component: &[u8]) -> Outcome<(Vec<String>, Vec<String>)> {
    let decoded =
        wit_component::decode(component).map_err(|fault| format!("its component cannot be read: {fault:#}"))?;
    let DecodedWasm::Component(resolve, world) = decoded else { return Err("it is no component".to_owned()) };
    let world = &resolve.worlds[world];
    let sorted = |mut names: Vec<String>| {
        names.sort();
        names.dedup();
        names
    };
    let exports = world.exports.keys().map(|key| resolve.name_world_key(key)).collect();
    let imports = world.imports.keys().map(|key| resolve.name_world_key(key)).collect();
    Ok((sorted(exports), sorted(imports)))
}

impl Guest {
    /// Its interfaces of a namespace as JSON.
    pub fn contracts(&self) -> Value {
        serde_json::json!({"exports": self.exports, "imports": self.imports})
    }
}
