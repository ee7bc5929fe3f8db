//! Reading the two files, and what of a project's counts.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use mur_plugin_api::Class;
use serde_json::{Map, Value};

use super::{Config, HostPath, InferenceDefaults, MAX_BYTES, PluginConfig, Secret, keys};
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::manifest::is_credential_name;
use crate::paths::{MurmurHome, resolve_through_existing};
use crate::yaml::known;
use crate::yaml::{self, Doc, Node, ReadFault};

/// What a project's file may not say, and why.
const OPERATORS_OWN: [&str; 5] = ["credentials", "plugins", "stores", "sinks", "host_paths"];

/// Where the keys are described.
const KEYS: &str = "the keys and what each may hold: https://docs.murmur.nexus/reference/config/";

/// A file under the reader's hand.
struct File<'a> {
    path: &'a Path,
    doc: Doc,
}

impl File<'_> {
    /// Reads and parses; `None` when there is no file.
    fn open(path: &Path) -> Result<Option<File<'_>>> {
        let refused = |why: String| {
            Diagnostic::new(codes::E_IO_003, format!("{}: {why}", path.display()))
                .hint("correct the file, or move it away")
        };
        let bytes = match yaml::read_file(path, MAX_BYTES) {
            Ok(bytes) => bytes,
            Err(ReadFault::Missing) => return Ok(None),
            Err(ReadFault::Other(why)) => return Err(refused(why)),
        };
        Self::parse(path, &bytes).map(Some)
    }

    fn parse<'p>(path: &'p Path, bytes: &[u8]) -> Result<File<'p>> {
        let shown = path.display().to_string();
        let doc = yaml::parse(&shown, bytes, MAX_BYTES).map_err(|fault| {
            let message = fault.message();
            // The line may hold a key: the place is named, its text is not shown.
            Diagnostic::new(codes::E_IO_003, format!("{shown}: {message}")).hint(fault.hint().unwrap_or(KEYS))
        })?;
        let file = File { path, doc };
        if !file.doc.root().is_null() && file.doc.root().map().is_none() {
            return Err(file.fault(file.doc.root(), "", "must be a mapping"));
        }
        Ok(file)
    }

    /// A wrong type or value. The file's text is never shown: it may hold keys.
    fn fault(&self, node: &Node, key: &str, why: &str) -> Diagnostic {
        let key = if key.is_empty() { "the file" } else { key };
        let message = format!("{}:{}: {key} {why}, found {}", self.path.display(), node.mark.line, node.found());
        Diagnostic::new(codes::E_IO_003, message).hint(KEYS)
    }

    /// Keys that nothing reads. A misspelt key may have been meant as a credential's, so only names are shown.
    fn unknown(&self) -> impl Iterator<Item = String> + '_ {
        let shown = self.path.display();
        known::unknown(self.doc.root(), keys::TOP)
            .into_iter()
            .map(move |key| format!("{shown}:{}: {key}", key.mark.line))
    }

    /// A key's value at the top level, unless null.
    fn key(&self, key: &str) -> Option<&Node> {
        self.doc.root().get(key).filter(|node| !node.is_null())
    }

    /// A block's value by key, unless null. The block must be a mapping.
    fn within(&self, block: &str, key: &str) -> Result<Option<&Node>> {
        let Some(node) = self.key(block) else { return Ok(None) };
        if node.map().is_none() {
            return Err(self.fault(node, block, "must be a mapping"));
        }
        Ok(node.get(key).filter(|node| !node.is_null()))
    }

    fn text(&self, block: &str, key: &str) -> Result<Option<String>> {
        match self.within(block, key)? {
            None => Ok(None),
            Some(node) => match node.text() {
                Some(text) => Ok(Some(text.to_owned()).filter(|text| !text.trim().is_empty())),
                None => Err(self.fault(node, &format!("{block}.{key}"), "must be text")),
            },
        }
    }

    fn list(&self, key: &str) -> Result<&[Node]> {
        match self.key(key) {
            None => Ok(&[]),
            Some(node) => node.list().ok_or_else(|| self.fault(node, key, "must be a list")),
        }
    }

    fn inference(&self) -> Result<InferenceDefaults> {
        Ok(InferenceDefaults {
            provider: self.text("inference", "provider")?,
            model: self.text("inference", "model")?,
            endpoint: self.text("inference", "endpoint")?,
        })
    }

    fn containment(&self) -> Result<Option<Class>> {
        let Some(node) = self.key("containment") else { return Ok(None) };
        let text = node.text().filter(|text| !text.trim().is_empty());
        match text {
            None if node.text().is_some() => Ok(None),
            None => Err(self.fault(node, "containment", "must be text")),
            Some(text) => text.parse().map(Some).map_err(|_| {
                let classes = Class::ALL.map(Class::as_str).join(", ");
                let message = format!("{}: containment must be one of: {classes}; got '{text}'", self.path.display());
                Diagnostic::new(codes::E_IO_003, message).hint(KEYS)
            }),
        }
    }

    fn tokens_per_day(&self) -> Result<Option<u64>> {
        let key = "machine_tokens_per_day";
        let Some(node) = self.within("spend", key)? else { return Ok(None) };
        let tokens = node.integer().and_then(|value| u64::try_from(value).ok()).filter(|value| *value > 0);
        tokens.map(Some).ok_or_else(|| self.fault(node, &format!("spend.{key}"), "must be a whole number above 0"))
    }

    fn credentials(&self) -> Result<BTreeMap<String, Secret>> {
        let Some(node) = self.key("credentials") else { return Ok(BTreeMap::new()) };
        let map = node.map().ok_or_else(|| self.fault(node, "credentials", "must be a mapping"))?;
        let mut credentials = BTreeMap::new();
        for entry in map.iter().filter(|entry| !entry.value.is_null()) {
            if !is_credential_name(&entry.key) {
                let line = entry.mark.line;
                let message = format!(
                    "{}:{line}: credentials: '{}' is no name: [A-Z_][A-Z0-9_]*",
                    self.path.display(),
                    entry.key
                );
                return Err(Diagnostic::new(codes::E_IO_003, message).hint("upper-case letters, digits and '_'"));
            }
            let key = format!("credentials.{}", entry.key);
            let text = entry.value.text().ok_or_else(|| self.fault(&entry.value, &key, "must be text"))?;
            if !text.is_empty() {
                credentials.insert(entry.key.to_string(), Secret::new(text.to_owned()));
            }
        }
        Ok(credentials)
    }

    fn containment_plugins(&self) -> Result<BTreeMap<Class, String>> {
        let Some(node) = self.within("plugins", "containment")? else { return Ok(BTreeMap::new()) };
        let key = "plugins.containment";
        let map = node.map().ok_or_else(|| self.fault(node, key, "must be a mapping"))?;
        let mut plugins = BTreeMap::new();
        for entry in map.iter().filter(|entry| !entry.value.is_null()) {
            let class = entry.key.parse::<Class>().map_err(|unknown| {
                let message = format!("{}: {key}: '{}' is {unknown}", self.path.display(), entry.key);
                Diagnostic::new(codes::E_IO_003, message)
            })?;
            let plugin = entry.value.text().filter(|text| !text.trim().is_empty());
            let plugin =
                plugin.ok_or_else(|| self.fault(&entry.value, &format!("{key}.{class}"), "must name a plugin"))?;
            plugins.insert(class, plugin.to_owned());
        }
        Ok(plugins)
    }

    /// `stores:` or `sinks:`: a plugin's name, or a mapping of `plugin` and what it is configured with.
    fn plugin_list(&self, key: &str) -> Result<Vec<PluginConfig>> {
        let items = self.list(key)?;
        items.iter().enumerate().map(|(index, node)| self.plugin(&format!("{key}[{index}]"), node)).collect()
    }

    fn plugin(&self, key: &str, node: &Node) -> Result<PluginConfig> {
        if let Some(name) = node.string().filter(|name| !name.is_empty()) {
            return Ok(PluginConfig { plugin: name.to_owned(), config: Value::Object(Map::new()) });
        }
        let name = node.get("plugin").and_then(Node::string).filter(|name| !name.is_empty());
        let Some(name) = name else {
            return Err(self.fault(node, key, "must be a plugin's name, or hold plugin: <name>"));
        };
        let config = match node.get("config").filter(|config| !config.is_null()) {
            None => Value::Object(Map::new()),
            Some(config) if config.map().is_some() => config.to_json(),
            Some(config) => return Err(self.fault(config, &format!("{key}.config"), "must be a mapping")),
        };
        Ok(PluginConfig { plugin: name.to_owned(), config })
    }

    fn host_paths(&self, home: &MurmurHome) -> Result<Vec<HostPath>> {
        let items = self.list("host_paths")?;
        items.iter().enumerate().map(|(index, node)| self.host_path(index, node, home)).collect()
    }

    fn host_path(&self, index: usize, node: &Node, home: &MurmurHome) -> Result<HostPath> {
        let key = format!("host_paths[{index}]");
        let text = node.text().or_else(|| node.get("path").and_then(Node::text));
        let Some(text) = text else { return Err(self.fault(node, &key, "must be a path, or hold path: <path>")) };
        let write = match node.get("write").filter(|write| !write.is_null()) {
            None => false,
            Some(value) => {
                value.boolean().ok_or_else(|| self.fault(value, &format!("{key}.write"), "must be true or false"))?
            }
        };
        let path = PathBuf::from(text);
        let refused = |why: &str| {
            Diagnostic::new(codes::E_IO_003, format!("{}: {key}: '{text}' {why}", self.path.display())).hint(KEYS)
        };
        if !path.is_absolute() || path.components().any(|part| part == Component::ParentDir) {
            return Err(refused("must be an absolute path without '..'"));
        }
        let real = std::fs::canonicalize(&path).map_err(|error| refused(&format!("cannot be used: {error}")))?;
        let own = resolve_through_existing(home.root());
        if real.starts_with(&own) || own.starts_with(&real) {
            return Err(refused("overlaps ~/.murmur, where keys and records are kept"));
        }
        Ok(HostPath { path, write })
    }
}

/// The global file.
pub(super) fn global(home: &MurmurHome) -> Result<Config> {
    let path = home.config();
    let Some(file) = File::open(&path)? else { return Ok(Config::default()) };
    let mut config = from_global(&file, home)?;
    if !config.credentials.is_empty() {
        config.readable_by_others = readable_by_others(&path);
    }
    Ok(config)
}

fn from_global(file: &File<'_>, home: &MurmurHome) -> Result<Config> {
    let mut config = Config {
        credentials: file.credentials()?,
        containment: file.containment()?,
        stores: file.plugin_list("stores")?,
        sinks: file.plugin_list("sinks")?,
        host_paths: file.host_paths(home)?,
        machine_tokens_per_day: file.tokens_per_day()?,
        inference: file.inference()?,
        unknown: file.unknown().collect(),
        ..Config::default()
    };
    config.plugins.containment = file.containment_plugins()?;
    let by_path = config.stores.iter().chain(&config.sinks).filter(|one| one.plugin.starts_with('/'));
    config.plugins.named = by_path.map(|one| PathBuf::from(&one.plugin)).collect();
    Ok(config)
}

fn readable_by_others(path: &Path) -> Option<Diagnostic> {
    let mode = std::fs::metadata(path).ok()?.permissions().mode() & 0o7777;
    (mode & 0o077 != 0).then(|| {
        let shown = path.display();
        Diagnostic::new(
            codes::W_SEC_028,
            format!("{shown} holds credentials and has mode {mode:04o}; keep it to yourself: chmod 600 {shown}"),
        )
    })
}

/// Merges a project's file in.
pub(super) fn add_project(config: &mut Config, path: &Path) -> Result<()> {
    match File::open(path)? {
        Some(file) => add(config, &file),
        None => Ok(()),
    }
}

fn add(config: &mut Config, file: &File<'_>) -> Result<()> {
    let shown = file.path.display();
    config.unknown.extend(file.unknown());
    for key in OPERATORS_OWN {
        if file.key(key).is_some_and(holds_something) {
            config
                .warnings
                .push(format!("[mur] warning: {key} in {shown} is ignored: only ~/.murmur/config.yaml can set it"));
        }
    }
    match file.containment()? {
        Some(Class::Unconfined) => config.warnings.push(format!(
            "[mur] warning: containment: unconfined in {shown} is ignored: only --containment or ~/.murmur/config.yaml can \
             ask for it"
        )),
        class => config.containment = config.containment.max(class),
    }
    config.machine_tokens_per_day = match (config.machine_tokens_per_day, file.tokens_per_day()?) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
    if file.within("inference", "api_key")?.is_some() {
        config.warnings.push(format!(
            "[mur] warning: inference.api_key in {shown} is ignored, and a project's file is no place for a key: take it \
             out, and store it with 'mur config set -g credentials.<NAME> <key>'"
        ));
    }
    let project = file.inference()?;
    for (key, value) in [("provider", project.provider), ("model", project.model), ("endpoint", project.endpoint)] {
        if value.is_some() {
            config
                .unknown
                .push(format!("{shown}: inference.{key} is not read here: mur new takes ~/.murmur/config.yaml's"));
        }
    }
    Ok(())
}

fn holds_something(node: &Node) -> bool {
    !node.map().is_some_and(<[_]>::is_empty) && !node.list().is_some_and(<[_]>::is_empty)
}

pub(super) fn fuzz(bytes: &[u8]) {
    let path = Path::new("config.yaml");
    let home = MurmurHome::at("/nonexistent/home".into());
    if let Ok(file) = File::parse(path, bytes) {
        let _ = from_global(&file, &home);
        let _ = add(&mut Config::default(), &file);
    }
    let _ = super::set::edit(&String::from_utf8_lossy(bytes), &["a", "b"], "value");
}
