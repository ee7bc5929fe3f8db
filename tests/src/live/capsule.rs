//! Capsules for tests: a manifest on the scripted driver, built and installed as a user would.

use std::fs;

use serde_json::{Value, json};

use crate::live::home::Home;

/// Version of the bundled guests.
pub const BUNDLED: &str = "0.1.0-mur";

/// A capsule's manifest, as JSON (which is YAML).
#[derive(Clone, Debug)]
pub struct Capsule {
    /// Its bare name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The whole manifest.
    pub manifest: Value,
}

impl Capsule {
    /// A capsule whose model is a script (see the scripted driver's chapter in the book).
    pub fn scripted(name: &str, script: Value) -> Self {
        let manifest = json!({
            "name": name,
            "version": "1.0.0",
            "runtime": "capsule",
            "execution": "static",
            "artifacts": [{
                "name": "murmur/driver-scripted",
                "version": BUNDLED,
                "runtime": "driver",
                "gateway": {"endpoint": "http://127.0.0.1:1", "keyless": true},
            }],
            "inference": {
                "transport": "http",
                "model": "scripted",
                "driver": {"artifact": "murmur/driver-scripted", "config": script},
            },
        });
        Self { name: name.to_owned(), version: "1.0.0".to_owned(), manifest }
    }

    /// One that answers every task with this text (a template of the scripted driver).
    pub fn saying(name: &str, text: &str) -> Self {
        Self::scripted(name, json!({"rules": [{"turns": [[{"say": text}]], "repeat": true}]}))
    }

    /// Merges a value into the manifest: mappings are joined, lists are appended, anything else is replaced.
    #[must_use]
    pub fn with(mut self, more: Value) -> Self {
        merge(&mut self.manifest, more);
        self
    }

    /// A bundled tool added.
    #[must_use]
    pub fn tool(self, name: &str) -> Self {
        self.with(json!({"artifacts": [{"name": format!("murmur/{name}"), "version": BUNDLED, "runtime": "tool"}]}))
    }

    /// A member that serves peers behind an authenticated door and may reach other members' doors.
    #[must_use]
    pub fn member(self) -> Self {
        self.with(json!({
            "network": {"authentication": {"scheme": "bearer"}},
            "exports": {"peer_tasks": {"accept": true}},
            "capabilities": {"network": {"allow": ["localhost"]}},
            "lifecycle": {"task_acceptance": "queue", "after_task": "sleep", "queue_depth": 8},
        }))
    }

    /// Writes the manifest into the project as `<name>/murmur.yaml`, builds and installs it globally as `local/<name>`.
    #[track_caller]
    pub fn install(&self, home: &Home) -> &Self {
        let dir = home.scratch("sources").join(&self.name);
        fs::create_dir_all(&dir).expect("a source directory");
        fs::write(dir.join("murmur.yaml"), serde_json::to_string_pretty(&self.manifest).expect("JSON"))
            .expect("a file");
        home.mur(["build".as_ref(), dir.as_os_str()]).expect(0);
        let archive = dir.join(format!("{}-{}.mur.zip", self.name, self.version));
        home.mur(["install".as_ref(), archive.as_os_str(), "-g".as_ref()]).expect(0);
        self
    }

    /// `local/<name>`.
    pub fn full_name(&self) -> String {
        format!("local/{}", self.name)
    }

    /// The flags that run it.
    pub fn run_flags(&self) -> Vec<String> {
        ["run", "--capsule", &self.full_name(), "--capsule-version", &self.version].map(String::from).to_vec()
    }
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (Value::Array(into), Value::Array(from)) => into.extend(from),
        (into, from) => *into = from,
    }
}

/// A roster of members (`name`, capsule), the first being the entry member, and its rules as JSON.
pub fn roster(members: &[(&str, &Capsule)], reachability: Value) -> String {
    let members: Vec<Value> = members
        .iter()
        .enumerate()
        .map(|(index, (name, capsule))| {
            json!({"name": name, "capsule": capsule.full_name(), "version": capsule.version, "entry": index == 0})
        })
        .collect();
    json!({"roster_version": 1, "members": members, "reachability": reachability}).to_string()
}
