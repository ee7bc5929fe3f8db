//! The capsule-wide `capabilities`.

use mur_plugin_api::Class;

use super::super::fields::{Block, Field, Stem};
use super::super::{
    Capabilities, EnvGrant, Filesystem, Install, InterpreterRuntime, Limits, NetworkGrant, Resources, RuntimeDir,
    Shell, StagedRuntime, keys,
};
use crate::artifacts::name::{ArtifactName, NameFault, check_part};
use crate::diagnostics::Result;

const STEM: Stem = Stem::Of("capability config");

/// Keys that belong to one artifact and would be read as more than they are if they stood here.
pub(super) fn refuse_misplaced(top: &Block<'_>) -> Result<()> {
    let block = top.key("capabilities").worded(STEM).block_or_empty()?;
    let records = block.key("filesystem").block_or_empty()?.key("records");
    if records.bool_or(false)? {
        return Err(records.fault("is for a hook's entry, not for the capsule as a whole"));
    }
    if block.key("task_io").value().is_some() {
        return Err(block.key("task_io").fault("is for a hook's entry, not for the capsule as a whole"));
    }
    Ok(())
}

pub(super) fn capabilities(top: &Block<'_>) -> Result<Capabilities> {
    let block = top.key("capabilities").worded(STEM).block_or_empty()?;
    let network = block.key("network").block_or_empty()?;
    let conversation = block.key("conversation").block()?;
    if let Some(conversation) = &conversation {
        conversation.key("read").required_bool()?;
    }
    Ok(Capabilities {
        network: NetworkGrant {
            allow: network.key("allow").texts()?,
            unix_sockets: network.key("unix_sockets").bool_or(false)?,
        },
        peer_fetch: peer_fetch(&block.key("peer_fetch"))?,
        filesystem: filesystem(&block.key("filesystem"))?,
        shell: shell(&block.key("shell"))?,
        env: EnvGrant { allow: block.key("env").block_or_empty()?.key("allow").texts()? },
        install: install(&block.key("install"))?,
        spawn_allow: spawn(&block.key("spawn"))?,
        limits: limits(&block.key("limits"))?,
        resources: resources(&block.key("resources"))?,
        containment: containment(&block.key("containment"))?,
        plan_submit: plan(&block.key("plan"))?,
        state_declared: block.key("state").block()?.is_some(),
        conversation_declared: conversation.is_some(),
    })
}

fn peer_fetch(field: &Field<'_>) -> Result<Vec<String>> {
    let Some(block) = field.block()? else { return Ok(Vec::new()) };
    let allow = block.key("allow").texts()?;
    if allow.is_empty() {
        return Err(block.key("allow").fault("must contain at least one entry"));
    }
    Ok(allow)
}

fn filesystem(field: &Field<'_>) -> Result<Filesystem> {
    let block = field.block_or_empty()?;
    let read_only = block.key("read_only").texts()?.into_iter().filter(|path| !path.trim().is_empty()).collect();
    Ok(Filesystem {
        scope: block.key("scope").nonblank()?,
        read_only,
        workdir_exec: block.key("workdir_exec").bool_or(false)?,
    })
}

fn shell(field: &Field<'_>) -> Result<Option<Shell>> {
    let Some(block) = field.block()? else { return Ok(None) };
    let list = block.key("allow").list()?.unwrap_or_default();
    if list.is_empty() {
        return Err(block.key("allow").fault("must contain at least one binary"));
    }
    let mut allow = Vec::with_capacity(list.len());
    for item in list {
        let binary = item.text()?.ok_or_else(|| item.type_fault("text"))?;
        if let Some(why) = no_binary(&binary) {
            return Err(item
                .fault(why)
                .hint("write the bare name of the binary; it is looked up on the PATH of mur run"));
        }
        allow.push(binary);
    }
    let interpreter_runtime = interpreter_runtime(&block.key("interpreter_runtime"), &allow)?;
    let staged_runtime = staged_runtime(&block.key("staged_runtime"), &allow, &interpreter_runtime)?;
    Ok(Some(Shell {
        strip_env: block.key("strip_env").texts()?,
        baseline_env: block.key("baseline_env").texts()?,
        allow,
        interpreter_runtime,
        staged_runtime,
    }))
}

fn no_binary(binary: &str) -> Option<&'static str> {
    match binary {
        "" => Some("is empty"),
        _ if binary.contains('\0') => Some("holds a NUL byte"),
        _ if binary.contains('/') => Some("is a path"),
        "." | ".." => Some("is a directory"),
        _ if binary.contains(char::is_whitespace) => Some("holds white space"),
        _ => None,
    }
}

fn interpreter_runtime(field: &Field<'_>, allow: &[String]) -> Result<Vec<InterpreterRuntime>> {
    let mut found = Vec::new();
    for item in field.list()?.unwrap_or_default() {
        let block = item.block_or_empty()?;
        let binary = allowed_binary(&block.key("binary"), allow)?;
        let mut dirs = Vec::new();
        for dir in block.key("dirs").list()?.unwrap_or_default() {
            let dir = dir.block_or_empty()?;
            dirs.push(RuntimeDir { path: absolute(&dir.key("path"))?, list_dir: dir.key("list_dir").required_bool()? });
        }
        if dirs.is_empty() {
            return Err(block.key("dirs").fault("must contain at least one directory"));
        }
        found.push(InterpreterRuntime { binary, dirs });
    }
    Ok(found)
}

fn staged_runtime(
    field: &Field<'_>,
    allow: &[String],
    interpreters: &[InterpreterRuntime],
) -> Result<Vec<StagedRuntime>> {
    let mut found = Vec::new();
    for item in field.list()?.unwrap_or_default() {
        let block = item.block_or_empty()?;
        let binary = allowed_binary(&block.key("binary"), allow)?;
        if interpreters.iter().any(|grant| grant.binary == binary) {
            return Err(block.key("binary").fault(&format!("'{binary}' has an interpreter_runtime grant already")));
        }
        found.push(StagedRuntime {
            binary,
            source_path: absolute(&block.key("source_path"))?,
            pin: block.key("pin").required()?,
        });
    }
    Ok(found)
}

fn allowed_binary(field: &Field<'_>, allow: &[String]) -> Result<String> {
    let binary = field.required()?;
    if allow.contains(&binary) {
        Ok(binary)
    } else {
        Err(field.fault(&format!("'{binary}' is not in capabilities.shell.allow")))
    }
}

fn absolute(field: &Field<'_>) -> Result<String> {
    let path = field.required()?;
    if path.starts_with('/') && !path.contains('\0') {
        Ok(path)
    } else {
        Err(field.fault(&format!("'{path}' must be an absolute path")))
    }
}

fn install(field: &Field<'_>) -> Result<Option<Install>> {
    let Some(block) = field.block()? else { return Ok(None) };
    let lists = ["skill", "tool"].map(|key| block.key(key));
    for list in &lists {
        for item in list.list()?.unwrap_or_default() {
            check_pattern(&item)?;
        }
    }
    let [skill, tool] = lists;
    let (skill, tool) = (skill.texts()?, tool.texts()?);
    if skill.is_empty() && tool.is_empty() {
        return Err(field.fault("must list at least one tool or skill"));
    }
    Ok(Some(Install { tool, skill, from_sources: install_from(&block.key("from"))? }))
}

fn check_pattern(item: &Field<'_>) -> Result<()> {
    let pattern = item.text()?.ok_or_else(|| item.type_fault("text"))?;
    if pattern == "*" {
        return Ok(());
    }
    let Some((scope, rest)) = pattern.split_once('/') else {
        let fault = NameFault::Bare(pattern.clone());
        return Err(item.name_fault(&fault.message(), fault.hint()));
    };
    let bad = |why: String| item.name_fault(&format!("'{pattern}' is not a valid pattern: {why}"), None);
    check_part(scope).map_err(|why| bad(format!("scope '{scope}': {why}")))?;
    match rest.strip_suffix('*') {
        Some("") => Ok(()),
        Some(prefix) if prefix.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-')) => Ok(()),
        Some(prefix) => Err(bad(format!("'{prefix}' begins no name"))),
        None => check_part(rest).map_err(|why| bad(format!("name '{rest}': {why}"))),
    }
}

fn install_from(field: &Field<'_>) -> Result<bool> {
    let from = field.texts()?;
    let mut seen: Vec<&str> = from.iter().map(String::as_str).collect();
    seen.sort_unstable();
    match seen.as_slice() {
        [] | ["stores"] => Ok(false),
        ["sources", "stores"] => Ok(true),
        _ => Err(field.fault("must be [stores] or [stores, sources]")),
    }
}

fn spawn(field: &Field<'_>) -> Result<Vec<String>> {
    let mut allow: Vec<String> = Vec::new();
    for item in field.block_or_empty()?.key("allow").list()?.unwrap_or_default() {
        let capsule = item.text()?.ok_or_else(|| item.type_fault("text"))?;
        ArtifactName::parse(&capsule).map_err(|fault| item.name_fault(&fault.message(), fault.hint()))?;
        let bare = capsule.rsplit('/').next();
        if let Some(other) = allow.iter().find(|other| other.rsplit('/').next() == bare) {
            return Err(item.fault(&format!("'{capsule}' and '{other}' would answer to one name")));
        }
        allow.push(capsule);
    }
    Ok(allow)
}

/// `limits`, here and on an entry.
pub(super) fn limits(field: &Field<'_>) -> Result<Limits> {
    let block = field.block_or_empty()?;
    let default = Limits::default();
    Ok(Limits {
        memory_bytes: block.key("memory_bytes").positive()?.unwrap_or(default.memory_bytes),
        table_elements: block.key("table_elements").positive()?.unwrap_or(default.table_elements),
        instances: block.key("instances").positive()?.unwrap_or(default.instances),
        deadline_seconds: block.key("deadline_seconds").positive()?,
    })
}

fn resources(field: &Field<'_>) -> Result<Resources> {
    let block = field.block_or_empty()?;
    let or = |key: &str, default: u64| -> Result<u64> { Ok(block.key(key).positive()?.unwrap_or(default)) };
    let default = Resources::default();
    Ok(Resources {
        max_processes: or("max_processes", default.max_processes)?,
        max_open_files: or("max_open_files", default.max_open_files)?,
        max_file_size_bytes: or("max_file_size_bytes", default.max_file_size_bytes)?,
        cpu_seconds: or("cpu_seconds", default.cpu_seconds)?,
        memory_bytes: or("memory_bytes", default.memory_bytes)?,
        cgroup_memory_bytes: or("cgroup_memory_bytes", default.cgroup_memory_bytes)?,
        cgroup_pids_max: or("cgroup_pids_max", default.cgroup_pids_max)?,
        cgroup_cpu_percent: or("cgroup_cpu_percent", default.cgroup_cpu_percent)?,
        cgroup_io_bytes_per_sec: or("cgroup_io_bytes_per_sec", default.cgroup_io_bytes_per_sec)?,
        workdir_max_bytes: or("workdir_max_bytes", default.workdir_max_bytes)?,
    })
}

/// The floor; `unconfined` is not a capsule's to ask for.
fn containment(field: &Field<'_>) -> Result<Option<Class>> {
    let Some(text) = field.nonblank()? else { return Ok(None) };
    match text.parse::<Class>() {
        Ok(class) if class > Class::Unconfined => Ok(Some(class)),
        _ => Err(field.not_one_of(keys::FLOORS, &text)),
    }
}

fn plan(field: &Field<'_>) -> Result<bool> {
    match field.block()? {
        None => Ok(false),
        Some(block) => block.key("submit").required_bool(),
    }
}
