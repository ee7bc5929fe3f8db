//! The effective grants: one object that `--explain-scope --json` prints and `session_start` carries, byte for byte.

mod commands;
mod places;

use std::path::Path;

use mur_plugin_api::IoStatus;
use serde_json::{Map, Value, json};

use crate::containment::closure::Closure;
use crate::containment::host::userns_grant;
use crate::containment::{Class, InForce};
use crate::manifest::{Capsule, Role};
use crate::paths::MurmurHome;

pub use places::{Mapping, folders};

/// The routes by which code reaches the host, in the order they are shown.
const ROUTES: [&str; 6] = ["shell", "plan-shell-steps", "native-tools", "wasm-tools", "drivers", "hooks"];

/// What the object is made from: what was declared, and what the session has of the host for it.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The manifest as launched.
    pub capsule: &'a Capsule,
    /// The class in force.
    pub in_force: &'a InForce,
    /// The operator's `~/.murmur`.
    pub home: &'a MurmurHome,
    /// The work folder, or the parent of the one to be made.
    pub work_root: &'a Path,
    /// What commands use of the host; none without a grant of commands.
    pub closure: Option<&'a Closure>,
    /// What became of the bound of reading and writing.
    pub io: &'a IoStatus,
}

/// The object, its keys in their order.
pub fn effective(facts: &Facts<'_>) -> Value {
    let mut object = Map::new();
    let capsule = facts.capsule;
    for part in
        [containment(facts.in_force), capabilities(capsule), exports(capsule, facts.home), places::places(facts)]
    {
        if let Value::Object(part) = part {
            object.extend(part);
        }
    }
    let object = Value::Object(object);
    match facts.closure {
        Some(closure) => commands::with_commands(object, capsule, closure),
        None => object,
    }
}

fn containment(in_force: &InForce) -> Value {
    let tier = in_force.enforcement_tier();
    let routes: Vec<Value> = ROUTES.iter().map(|route| json!({ "route": route, "mechanism": tier })).collect();
    let mut shown = Map::new();
    let mut show = |key: &str, value: Value| drop(shown.insert(key.to_owned(), value));
    show("declared_containment", json!(in_force.declared.as_str()));
    show("achieved_containment", json!(in_force.achieved.as_str()));
    show("host_containment", json!(in_force.host.map_or("not-probed", Class::as_str)));
    show("floor_met", json!(in_force.unmet.is_none()));
    if let Some(unmet) = &in_force.unmet {
        show("shortfall_reason", json!(unmet.reason));
    }
    show("enforcement_tier", json!(tier));
    show("mechanism_covers", json!(["shell", "plan-shell-steps", "native-tools"]));
    show("routes", json!(routes));
    show("userns_grant", json!(userns_grant()));
    show("landlock_abi", json!(in_force.report.as_ref().and_then(|report| report.landlock_abi)));
    Value::Object(shown)
}

fn capabilities(capsule: &Capsule) -> Value {
    let capabilities = &capsule.capabilities;
    json!({
        "filesystem_scope": capabilities.filesystem.scope,
        "workdir_exec": capabilities.filesystem.workdir_exec,
        "read_only_paths": capabilities.filesystem.read_only,
        "read_only_advisory_for": [],
        "preopens": preopens(capsule),
        "network_allow": capabilities.network.allow,
        "unix_sockets": capabilities.network.unix_sockets,
        "shell_allow": capabilities.shell.as_ref().map(|shell| shell.allow.clone()).unwrap_or_default(),
        "spawn_allow": capabilities.spawn_allow,
        "env_allow": capabilities.env.allow,
        "plan_submit": capabilities.plan_submit,
        "install_skill": capabilities.install.as_ref().map(|install| install.skill.clone()).unwrap_or_default(),
        "install_tool": capabilities.install.as_ref().map(|install| install.tool.clone()).unwrap_or_default(),
        "install_from": install_from(capsule),
        "interpreter_runtime_grants": [],
        "derived_interpreter_runtime": [],
        "trust_store": [],
    })
}

fn exports(capsule: &Capsule, home: &MurmurHome) -> Value {
    json!({
        "exports_files": capsule.exports.files.as_ref().map(|files| {
            json!({ "root": files.root, "mode": "read-only", "max_bytes": files.max_bytes })
        }),
        "peer_files": capsule.exports.peer_files.as_ref().map(|files| {
            json!({ "root": files.root, "max_ttl_secs": files.max_ttl.map(|ttl| ttl.as_secs()), "max_bytes": files.max_bytes })
        }),
        "peer_tasks": capsule.exports.peer_tasks,
        "peer_fetch_allow": capsule.capabilities.peer_fetch,
        "state_stores": state_stores(capsule, home),
        "configured_artifacts": configured(capsule),
        "staged_runtime_grants": [],
        "runtime_writes": runtime_writes(capsule),
    })
}

fn preopens(capsule: &Capsule) -> Vec<Value> {
    let components = capsule.artifacts.iter().filter(|entry| entry.runtime != Role::Skill);
    components
        .map(|entry| {
            let own = entry.capabilities.as_ref();
            let scope = own
                .and_then(|own| own.filesystem_scope.clone())
                .or_else(|| capsule.capabilities.filesystem.scope.clone());
            let records = own.is_some_and(|own| own.filesystem_records);
            let surface = match (entry.runtime, &scope, records) {
                (Role::Hook, _, true) => "records-hooks",
                (Role::Hook, None, false) => "nothing",
                (_, Some(_), _) => "scoped-subtree",
                (_, None, _) => "whole-workdir",
            };
            let reach = (entry.runtime == Role::Tool && surface == "whole-workdir").then_some("murmur-runtime");
            json!({
                "artifact": entry.bare(),
                "role": entry.runtime.as_str(),
                "scope": scope,
                "surface": surface,
                "runtime_dir_reach": reach,
            })
        })
        .collect()
}

fn install_from(capsule: &Capsule) -> Vec<&'static str> {
    match &capsule.capabilities.install {
        Some(install) if install.from_sources => vec!["stores", "sources"],
        Some(_) => vec!["stores"],
        None => Vec::new(),
    }
}

fn state_stores(capsule: &Capsule, home: &MurmurHome) -> Vec<Value> {
    let granted = capsule.artifacts.iter().filter_map(|entry| {
        let state = entry.capabilities.as_ref()?.state.as_ref()?;
        Some((entry.bare(), &state.store))
    });
    granted
        .map(|(artifact, store)| {
            json!({ "artifact": artifact, "store": store, "host_path": home.state().join(store).to_string_lossy() })
        })
        .collect()
}

fn configured(capsule: &Capsule) -> Vec<&str> {
    capsule.artifacts.iter().filter(|entry| entry.config.is_some()).map(|entry| entry.bare()).collect()
}

fn runtime_writes(capsule: &Capsule) -> Vec<Value> {
    let mut writes = Vec::new();
    if !capsule.capabilities.peer_fetch.is_empty() {
        writes.push(json!({ "path": "peer-in", "kind": "directory", "condition": "peer-fetch" }));
    }
    let scopes = capsule.artifacts.iter().filter_map(|entry| entry.capabilities.as_ref()?.filesystem_scope.as_ref());
    for scope in scopes.chain(capsule.capabilities.filesystem.scope.as_ref()) {
        let write = json!({ "path": scope, "kind": "directory", "condition": "narrowed-scope" });
        if !writes.contains(&write) {
            writes.push(write);
        }
    }
    writes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::containment::{Floors, class_in_force};

    #[test]
    fn every_key_stands_in_its_order() {
        let mut probe = |_| Ok(crate::containment::Report::default());
        let in_force = class_in_force(&Floors::default(), &mut probe).unwrap();
        let capsule = Capsule {
            name: "c".into(),
            version: "1".into(),
            artifacts: Vec::new(),
            capabilities: crate::manifest::Capabilities::default(),
            inference: None,
            context: crate::manifest::Context::default(),
            trace: crate::manifest::TraceConfig::default(),
            network: crate::manifest::Network::default(),
            lifecycle: crate::manifest::Lifecycle::default(),
            exports: crate::manifest::Exports::default(),
            observability: crate::manifest::Observability::default(),
            control: None,
            notes: Vec::new(),
        };
        let home = MurmurHome::at("/home/x".into());
        let facts = Facts {
            capsule: &capsule,
            in_force: &in_force,
            home: &home,
            work_root: Path::new("/work"),
            closure: None,
            io: &IoStatus::default(),
        };
        let object = effective(&facts);
        let keys: Vec<&str> = object.as_object().unwrap().keys().map(String::as_str).collect();
        let expected = "declared_containment achieved_containment host_containment floor_met enforcement_tier \
            mechanism_covers routes userns_grant landlock_abi filesystem_scope workdir_exec read_only_paths \
            read_only_advisory_for preopens network_allow unix_sockets shell_allow spawn_allow env_allow plan_submit \
            install_skill install_tool install_from interpreter_runtime_grants derived_interpreter_runtime trust_store \
            exports_files peer_files peer_tasks peer_fetch_allow state_stores configured_artifacts \
            staged_runtime_grants runtime_writes io_max filesystem_boundary runtime_dir records_dir temp_dir";
        assert_eq!(keys, expected.split_whitespace().collect::<Vec<_>>());
        assert!(object["records_dir"]["path"].as_str().unwrap().ends_with("/work/<session-id>"));
    }
}
