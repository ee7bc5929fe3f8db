//! `--explain-scope`: what the capsule could reach, without running it.

use serde_json::Value;

use super::grants::{self, Facts};
use super::order::Joined;
use super::request::RunRequest;
use super::staging;
use crate::containment::{check_cgroup, check_floor, check_namespaces};
use crate::diagnostics::{Diagnostic, Result, output};

/// Prints the report of a launch. What the host alone would refuse it for is no failure of the report, but said beside it.
pub fn print(request: &RunRequest, joined: &Joined) -> Result<()> {
    let loaded = staging::load(request, joined)?;
    staging::say(&loaded.warnings);
    let closure = loaded.closure(&joined.home);
    let capsule = &loaded.capsule;
    let mut refusals: Vec<Diagnostic> = check_floor(&loaded.in_force).err().into_iter().collect();
    if capsule.starts_processes() {
        refusals.extend(check_namespaces(&loaded.in_force).err());
        refusals.extend(check_cgroup(&loaded.in_force).err());
    }
    for refusal in &refusals {
        output::stderr_line(&format!("[capsule-runtime] a launch would be refused: {}", refusal.warning_line()));
        if let Some(hint) = refusal.hint_text() {
            output::stderr_line(&format!("  hint: {hint}"));
        }
    }
    let object = grants::effective(&Facts {
        capsule,
        in_force: &loaded.in_force,
        home: &joined.home,
        work_root: loaded.place.root(),
        closure: closure.as_ref(),
        io: &loaded.io,
    });
    if request.json {
        output::stdout_line(&object.to_string());
        return Ok(());
    }
    for line in text(&object) {
        output::stdout_line(&line);
    }
    Ok(())
}

/// The report in blocks.
fn text(object: &Value) -> Vec<String> {
    let mut lines = containment(object);
    boundary(object, &mut lines);
    grants_block(object, &mut lines);
    planes(object, &mut lines);
    lines.extend(["", "Runtime writes", "  paths are relative to the work folder"].map(str::to_owned));
    list(&mut lines, "runtime writes", &object["runtime_writes"], |write| {
        format!("{} ({}, {})", show(&write["path"]), show(&write["kind"]), show(&write["condition"]))
    });
    if object["floor_met"] == false {
        let line = "This is a report only — `mur run` without --explain-scope would refuse to launch here.";
        lines.extend([String::new(), line.to_owned()]);
    }
    lines
}

fn containment(object: &Value) -> Vec<String> {
    let word = |key: &str| show(&object[key]);
    let mut lines = vec![
        "Containment".to_owned(),
        format!("  declared:  {}", word("declared_containment")),
        format!("  achieved:  {}", word("achieved_containment")),
        format!("  host can back: {}", word("host_containment")),
        format!("  floor met: {}", if object["floor_met"] == true { "yes" } else { "no" }),
    ];
    if let Some(reason) = object["shortfall_reason"].as_str() {
        lines.push(format!("  reason:    {reason}"));
    }
    lines.extend([
        format!("  mechanism: {}", word("enforcement_tier")),
        "  covers:    shell commands, plan shell steps, native tools".to_owned(),
        format!("  userns grant: {}", word("userns_grant")),
        format!("  landlock ABI: {}", word("landlock_abi")),
        String::new(),
        "Routes".to_owned(),
    ]);
    let routes = object["routes"].as_array().into_iter().flatten();
    lines.extend(routes.map(|route| format!("  {}: {}", show(&route["route"]), show(&route["mechanism"]))));
    lines
}

/// The blocks of the session's folders: heading and lines.
pub fn folders(object: &Value) -> Vec<(&'static str, Vec<String>)> {
    let mut blocks = Vec::new();
    for (title, key) in [("Runtime directory", "runtime_dir"), ("Records directory", "records_dir")] {
        let commands = match object[key]["not_protected_because"].as_str() {
            Some(why) => format!("can change it — {why}"),
            None => format!("read only ({})", show(&object[key]["enforced_by"])),
        };
        let path = format!("  path:      {}", show(&object[key]["path"]));
        blocks.push((title, vec![path, format!("  commands:  {commands}")]));
    }
    let temp = &object["temp_dir"];
    let mapped = match temp["tmp_mapped"] == true {
        true => format!("mapped ({})", show(&temp["mapped_by"])),
        false => format!("not mapped — {}", show(&temp["not_mapped_because"])),
    };
    let lines = vec![
        format!("  path:      {}", show(&temp["path"])),
        format!("  TMPDIR:    {}", show(&temp["tmpdir"])),
        format!("  /tmp:      {mapped}"),
    ];
    blocks.push(("Temporary folder", lines));
    blocks
}

fn boundary(object: &Value, lines: &mut Vec<String>) {
    for (heading, block) in folders(object) {
        lines.extend([String::new(), heading.to_owned()]);
        lines.extend(block);
    }
    let unprotected = object["filesystem_boundary"]["not_protected"].as_array();
    if let Some(all) = unprotected.filter(|all| !all.is_empty()) {
        lines.extend([String::new(), "Not protected here".to_owned()]);
        lines.extend(all.iter().map(|one| format!("  - {}", show(one))));
    }
}

fn grants_block(object: &Value, lines: &mut Vec<String>) {
    let word = |key: &str| show(&object[key]);
    lines.extend([String::new(), "Effective grants".to_owned()]);
    lines.push(format!("  filesystem scope: {}", word("filesystem_scope")));
    lines.push(format!("  workdir exec:     {}", word("workdir_exec")));
    list(lines, "read_only", &object["read_only_paths"], show);
    lines.push(format!("  read_only enforcement: {}", read_only(object)));
    list(lines, "preopens", &object["preopens"], show);
    list(lines, "network allow", &object["network_allow"], show);
    lines.push(format!("  unix sockets:     {}", word("unix_sockets")));
    for (label, key) in [("shell allow", "shell_allow"), ("spawn allow", "spawn_allow"), ("env allow", "env_allow")] {
        list(lines, label, &object[key], show);
    }
    lines.push(format!("  plan submit:      {}", word("plan_submit")));
    list(lines, "install skill", &object["install_skill"], show);
    list(lines, "install tool", &object["install_tool"], show);
    let from: Vec<String> = object["install_from"].as_array().into_iter().flatten().map(show).collect();
    lines.push(format!("  install from:     {}", if from.is_empty() { "<none>".to_owned() } else { from.join(", ") }));
    for (label, key) in [
        ("interpreter runtime", "interpreter_runtime_grants"),
        ("derived interpreter runtime", "derived_interpreter_runtime"),
        ("trust store", "trust_store"),
        ("staged runtime", "staged_runtime_grants"),
    ] {
        list(lines, label, &object[key], show);
    }
    list(lines, "state stores", &object["state_stores"], |store| {
        format!("{}: {} -> {}", show(&store["artifact"]), show(&store["store"]), show(&store["host_path"]))
    });
    list(lines, "artifact config", &object["configured_artifacts"], show);
}

fn read_only(object: &Value) -> String {
    let of = |key: &str| object[key].as_array().into_iter().flatten().map(show).collect::<Vec<_>>();
    match of("read_only_advisory_for") {
        _ if of("read_only_paths").is_empty() => "<none>".to_owned(),
        none if none.is_empty() => "enforced on what a call says it writes".to_owned(),
        interpreters => format!("advisory against {}", interpreters.join(", ")),
    }
}

/// What others may fetch of the session, and what it may fetch of them.
fn planes(object: &Value, lines: &mut Vec<String>) {
    lines.extend([String::new(), "Resource plane".to_owned()]);
    match &object["exports_files"] {
        Value::Null => lines.push("  exports.files: <none>".to_owned()),
        files => lines.extend([
            format!("  exports.files root: {}", show(&files["root"])),
            format!("  mode:          {}", show(&files["mode"])),
            format!("  max bytes:     {} (per file)", show(&files["max_bytes"])),
        ]),
    }
    let io = &object["io_max"];
    let declared = match io["declared_bytes_per_sec"].as_u64() {
        Some(bytes) => format!(" ({bytes} bytes/s declared)"),
        None => String::new(),
    };
    lines.push(format!("  io.max:        {}{declared}", show(&io["status"])));
    lines.extend([String::new(), "Peer handoff".to_owned()]);
    match &object["peer_files"] {
        Value::Null => lines.push("  exports.peer_files: <none>".to_owned()),
        files => lines.extend([
            format!("  exports.peer_files root: {}", show(&files["root"])),
            format!("  max handle ttl: {}s", show(&files["max_ttl_secs"])),
            format!("  max bytes:     {}", show(&files["max_bytes"])),
        ]),
    }
    lines.push(format!("  exports.peer_tasks: {}", if object["peer_tasks"] == true { "accept" } else { "refuse" }));
    list(lines, "peer_fetch allow", &object["peer_fetch_allow"], show);
}

fn list(lines: &mut Vec<String>, label: &str, items: &Value, shown: impl Fn(&Value) -> String) {
    match items.as_array().filter(|items| !items.is_empty()) {
        None => lines.push(format!("  {label}: <none>")),
        Some(items) => {
            lines.push(format!("  {label}:"));
            lines.extend(items.iter().map(|item| format!("    - {}", shown(item))));
        }
    }
}

/// A value as a person reads it.
fn show(value: &Value) -> String {
    match value {
        Value::Null => "n/a".to_owned(),
        Value::String(text) => text.clone(),
        Value::Object(fields) => {
            let shown = fields.iter().filter(|(_, field)| !field.is_null());
            shown.map(|(key, field)| format!("{key} {}", show(field))).collect::<Vec<_>>().join(", ")
        }
        other => other.to_string(),
    }
}
