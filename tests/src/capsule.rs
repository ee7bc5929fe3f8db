//! Sources of capsules and rosters, written as an operator would write them. JSON is YAML, so that is what they are.

use serde_json::{Map, Value, json};

use crate::bundled_version;

/// An agent capsule's source.
#[derive(Debug, Clone)]
pub struct Agent {
    manifest: Map<String, Value>,
}

impl Agent {
    /// An agent on the scripted driver; see the book for what a script can say.
    pub fn scripted(name: &str, script: Value) -> Self {
        let mut agent = Self::on(name, "driver-scripted", "http://127.0.0.1:9", None, "scripted");
        if !script.is_null() {
            agent.at(&["inference", "driver", "config"], script);
        }
        agent
    }

    /// An agent on the Anthropic driver, at a provider of the test's own.
    pub fn anthropic(name: &str, endpoint: &str, key: &str) -> Self {
        Self::on(name, "driver-anthropic", endpoint, Some(key), "claude-haiku-4-5")
    }

    /// An agent on the OpenAI driver, at a provider of the test's own.
    pub fn openai(name: &str, endpoint: &str, key: &str) -> Self {
        Self::on(name, "driver-openai", endpoint, Some(key), "gpt-5-mini")
    }

    fn on(name: &str, driver: &str, endpoint: &str, key: Option<&str>, model: &str) -> Self {
        let gateway = match key {
            Some(key) => json!({"endpoint": endpoint, "api_key": key}),
            None => json!({"endpoint": endpoint, "keyless": true}),
        };
        let full = format!("murmur/{driver}");
        let manifest = json!({
            "name": name,
            "version": "0.1.0",
            "runtime": "capsule",
            "execution": "static",
            "artifacts": [{
                "name": full, "version": bundled_version(driver), "runtime": "driver", "gateway": gateway,
            }],
            "inference": {"transport": "http", "model": model, "driver": {"artifact": full}},
        });
        let Value::Object(manifest) = manifest else { unreachable!("it is written as an object") };
        Self { manifest }
    }

    /// Any manifest.
    ///
    /// # Panics
    /// When it is no object.
    pub fn of(manifest: Value) -> Self {
        let Value::Object(manifest) = manifest else { panic!("a manifest is a mapping") };
        Self { manifest }
    }

    /// Gives it a bundled tool.
    pub fn tool(mut self, name: &str) -> Self {
        let entry = json!({"name": format!("murmur/{name}"), "version": bundled_version(name), "runtime": "tool"});
        if let Some(Value::Array(artifacts)) = self.manifest.get_mut("artifacts") {
            artifacts.push(entry);
        }
        self
    }

    /// Adds an entry to its artifacts.
    pub fn artifact(mut self, entry: Value) -> Self {
        if let Some(Value::Array(artifacts)) = self.manifest.get_mut("artifacts") {
            artifacts.push(entry);
        }
        self
    }

    /// Gives an artifact of its own capabilities, by its bare name.
    ///
    /// # Panics
    /// When it has no such artifact.
    pub fn artifact_capability(mut self, name: &str, capabilities: Value) -> Self {
        let named = |entry: &&mut Value| entry["name"].as_str().is_some_and(|full| full.ends_with(&format!("/{name}")));
        let artifacts = self.manifest["artifacts"].as_array_mut().expect("a list");
        artifacts.iter_mut().find(named).expect("an artifact of that name")["capabilities"] = capabilities;
        self
    }

    /// Changes the entry of its driver.
    pub fn driver_entry(mut self, change: impl FnOnce(&mut Value)) -> Self {
        if let Some(Value::Array(artifacts)) = self.manifest.get_mut("artifacts") {
            change(&mut artifacts[0]);
        }
        self
    }

    /// Declares its door authenticated.
    pub fn authenticated(self) -> Self {
        self.with(&["network", "authentication", "scheme"], "bearer")
    }

    /// Serves peers: takes tasks from them one after another, behind an authenticated door.
    pub fn peer(self) -> Self {
        self.authenticated()
            .with(&["exports", "peer_tasks", "accept"], true)
            .with(&["lifecycle", "task_acceptance"], "queue")
            .with(&["lifecycle", "after_task"], "sleep")
    }

    /// Allows destinations of the network.
    pub fn network(self, allow: &[&str]) -> Self {
        self.with(&["capabilities", "network", "allow"], json!(allow))
    }

    /// Another version.
    pub fn at_version(self, version: &str) -> Self {
        self.with(&["version"], version)
    }

    /// Sets a value of the manifest, by the keys that lead to it.
    pub fn with(mut self, path: &[&str], value: impl Into<Value>) -> Self {
        self.at(path, value.into());
        self
    }

    fn at(&mut self, path: &[&str], value: Value) {
        let (last, blocks) = path.split_last().expect("a path has a key");
        let mut block = &mut self.manifest;
        for key in blocks {
            let next = block.entry(*key).or_insert_with(|| json!({}));
            if !next.is_object() {
                *next = json!({});
            }
            block = next.as_object_mut().expect("it was made one");
        }
        block.insert((*last).to_owned(), value);
    }

    /// Its bare name.
    pub fn name(&self) -> &str {
        self.manifest["name"].as_str().unwrap_or_default()
    }

    /// Its version.
    pub fn version(&self) -> &str {
        self.manifest["version"].as_str().unwrap_or_default()
    }

    /// Its `murmur.yaml`.
    pub fn manifest(&self) -> String {
        serde_json::to_string_pretty(&self.manifest).expect("JSON is always writable")
    }
}

/// A roster, and the capsules its members run.
#[derive(Debug, Clone, Default)]
pub struct Roster {
    members: Vec<(String, Agent, bool)>,
    reachability: Value,
}

impl Roster {
    /// A roster whose entry member is the first one added.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a member; the first is the entry member.
    pub fn member(mut self, name: &str, agent: Agent) -> Self {
        let entry = self.members.is_empty();
        self.members.push((name.to_owned(), agent, entry));
        self
    }

    /// Adds a rule: `from` may call each of `to`.
    pub fn rule(mut self, from: &str, to: &[&str]) -> Self {
        if !self.reachability.is_array() {
            self.reachability = json!([]);
        }
        if let Value::Array(rules) = &mut self.reachability {
            rules.push(json!({"from": from, "to": to}));
        }
        self
    }

    /// Every member that serves peers may call every other one.
    pub fn all(mut self) -> Self {
        self.reachability = json!("all");
        self
    }

    /// Its members' capsules.
    pub fn agents(&self) -> impl Iterator<Item = &Agent> {
        self.members.iter().map(|(_, agent, _)| agent)
    }

    /// Its text.
    pub fn text(&self) -> String {
        let members: Vec<Value> = self
            .members
            .iter()
            .map(|(name, agent, entry)| {
                let mut member = json!({
                    "name": name, "capsule": format!("local/{}", agent.name()), "version": agent.version(),
                });
                if *entry {
                    member["entry"] = true.into();
                }
                member
            })
            .collect();
        let mut roster = json!({"roster_version": 1, "members": members});
        if !self.reachability.is_null() {
            roster["reachability"] = self.reachability.clone();
        }
        serde_json::to_string_pretty(&roster).expect("JSON is always writable")
    }
}
