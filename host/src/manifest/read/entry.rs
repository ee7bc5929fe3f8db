//! `artifacts[]` and the blocks of an entry.

use super::super::fields::{Block, Field, Stem};
use super::super::{ArtifactEntry, EntryCapabilities, Role, State, gateway, keys};
use super::grants;
use crate::artifacts::name::{ArtifactName, check_part};
use crate::diagnostics::Result;

pub(super) fn artifacts(top: &Block<'_>, capsule: &str, notes: &mut Vec<String>) -> Result<Vec<ArtifactEntry>> {
    let list = top.key("artifacts").list()?.unwrap_or_default();
    list.into_iter()
        .enumerate()
        .map(|(index, field)| artifact(&field.worded(Stem::Entry(index)), capsule, notes))
        .collect()
}

fn artifact(field: &Field<'_>, capsule: &str, notes: &mut Vec<String>) -> Result<ArtifactEntry> {
    let Some(block) = field.block()? else { return Err(field.type_fault("a mapping")) };
    let name_field = block.key("name");
    let name = name_field.required()?;
    let runtime = role(&block.key("runtime"))?;
    let source = block.key("source").nonblank()?;
    let skill = runtime == Role::Skill;
    let local_source = block.key("local_source").bool_or(skill)?;
    if source.is_some() && !local_source {
        return Err(block.key("source").fault("needs local_source: true"));
    }
    check_name(&name_field, &name, source.is_some())?;
    let version_field = block.key("version");
    let version = match (&source, version_field.nonblank()?) {
        (Some(_), written) => {
            if written.is_some() {
                notes.push(format!(
                    "[murmur-artifact] warning: {} is ignored: '{name}' comes from its source",
                    version_field.path()
                ));
            }
            "local".to_owned()
        }
        (None, Some(version)) => version,
        (None, None) => return Err(version_field.fault("is required")),
    };
    for key in ["capabilities", "config", "gateway"] {
        if skill && block.key(key).is_written() {
            return Err(block.key(key).fault("is not for a skill, which runs no code"));
        }
    }
    let capabilities = block.key("capabilities");
    let gateway_field = block.key("gateway");
    Ok(ArtifactEntry {
        capabilities: capabilities.block()?.map(|grants| entry_capabilities(&grants, runtime, capsule)).transpose()?,
        config: config(&block.key("config")),
        gateway: gateway_field.is_written().then(|| gateway::read(&gateway_field)).transpose()?,
        on_overflow_block: on_overflow(&block.key("on_overflow"), runtime)?,
        prompt_payload: block.key("prompt_payload").bool_or(skill)?,
        name,
        version,
        runtime,
        source,
    })
}

fn role(field: &Field<'_>) -> Result<Role> {
    Ok(match field.one_of(keys::ROLES)?.as_deref() {
        Some("driver") => Role::Driver,
        Some("hook") => Role::Hook,
        Some("skill") => Role::Skill,
        _ => Role::Tool,
    })
}

fn check_name(field: &Field<'_>, text: &str, local: bool) -> Result<()> {
    if !local {
        return match ArtifactName::parse(text) {
            Ok(_) => Ok(()),
            Err(fault) => Err(field.name_fault(&fault.message(), fault.hint())),
        };
    }
    if text.contains('/') {
        let message = format!("'{text}' has a scope, and an entry with a source is named without one");
        return Err(field.name_fault(&message, None));
    }
    let invalid = |why: String| field.name_fault(&format!("'{text}' is not a valid artifact name: {why}"), None);
    check_part(text).map_err(invalid)
}

/// The block as JSON. What is no mapping with text keys is kept as a value that staging refuses.
fn config(field: &Field<'_>) -> Option<serde_json::Value> {
    if !field.is_written() {
        return None;
    }
    let node = field.value();
    let texts_only = node.and_then(|node| node.map()).is_some_and(|map| map.iter().all(|entry| entry.key_is_text));
    Some(if texts_only { node.map_or(serde_json::Value::Null, |node| node.to_json()) } else { serde_json::Value::Null })
}

fn on_overflow(field: &Field<'_>, role: Role) -> Result<bool> {
    if field.nonblank()?.is_some() && role != Role::Hook {
        return Err(field.fault("is for hooks only"));
    }
    Ok(field.one_of(keys::ON_OVERFLOW)?.as_deref() == Some("block"))
}

/// `shell.allow` of a tool or driver; the block's other keys narrow nothing.
fn shell_allow(field: &Field<'_>) -> Result<Option<Vec<String>>> {
    let Some(block) = field.block()? else { return Ok(None) };
    Ok(Some(block.key("allow").texts()?))
}

/// Sub-keys that narrow nothing on an entry; `shell` narrows what a tool or driver runs.
const INERT: [&str; 5] = ["shell", "spawn", "env", "resources", "containment"];

fn entry_capabilities(block: &Block<'_>, role: Role, capsule: &str) -> Result<EntryCapabilities> {
    let hook = role == Role::Hook;
    if block.key("install").is_written() {
        return Err(block.key("install").fault("is for the capsule as a whole, not for one artifact"));
    }
    let filesystem = block.key("filesystem").block_or_empty()?;
    let scope = filesystem.key("scope").nonblank()?;
    let records = filesystem.key("records").bool_or(false)?;
    if records && !hook {
        return Err(filesystem.key("records").fault("is for hooks only"));
    }
    if records && scope.is_some() {
        return Err(filesystem.key("records").fault("cannot stand beside filesystem.scope"));
    }
    let network = block.key("network").block()?;
    let network_allow = network.map(|network| network.key("allow").texts()).transpose()?;
    let limits = grants::limits(&block.key("limits"))?;
    Ok(EntryCapabilities {
        network_allow,
        filesystem_scope: scope,
        filesystem_records: records,
        state: state(&block.key("state"), capsule)?,
        task_io_read: hook_grant(&block.key("task_io"), hook)?,
        conversation_read: hook_grant(&block.key("conversation"), hook)?,
        deadline_seconds: limits.deadline_seconds.filter(|_| hook),
        shell_allow: if hook { None } else { shell_allow(&block.key("shell"))? },
        inert: inert(block, hook)?,
    })
}

/// `state: {}` is a grant, `state:` is none.
fn state(field: &Field<'_>, capsule: &str) -> Result<Option<State>> {
    let Some(block) = field.block()? else { return Ok(None) };
    let store = block.key("store").text()?.unwrap_or_else(|| capsule.to_owned());
    Ok(Some(State { store }))
}

fn hook_grant(field: &Field<'_>, hook: bool) -> Result<bool> {
    match field.block()? {
        None => Ok(false),
        Some(_) if !hook => Err(field.fault("is for hooks only")),
        Some(block) => block.key("read").required_bool(),
    }
}

/// What is written and does nothing on this role, in the order it is reported.
fn inert(block: &Block<'_>, hook: bool) -> Result<Vec<&'static str>> {
    let narrows =
        |key: &str| !hook && key == "shell" && block.key(key).value().is_some_and(|node| node.map().is_some());
    let written = INERT.into_iter().filter(|key| block.key(key).value().is_some() && !narrows(key));
    let mut found: Vec<&'static str> = written.collect();
    let limits = block.key("limits").block_or_empty()?;
    for (key, path) in [
        ("memory_bytes", "limits.memory_bytes"),
        ("table_elements", "limits.table_elements"),
        ("instances", "limits.instances"),
        ("deadline_seconds", "limits.deadline_seconds"),
    ] {
        if limits.key(key).value().is_some() && !(hook && key == "deadline_seconds") {
            found.push(path);
        }
    }
    Ok(found)
}
