//! `--explain-scope`: what the capsule could reach, without running it.

use serde_json::Value;

use super::order::Joined;
use super::request::RunRequest;
use super::{grants, staging};
use crate::diagnostics::{Result, output};

/// Prints the report of a launch that could be made.
pub fn print(request: &RunRequest, joined: &Joined) -> Result<()> {
    let loaded = staging::load(request, joined)?;
    staging::say(&loaded.warnings);
    let object = grants::effective(&loaded.capsule, &loaded.in_force, &joined.home, loaded.place.root());
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
    let word = |key: &str| show(&object[key]);
    let mut lines = vec![
        "Containment".to_owned(),
        format!("  declared:  {}", word("declared_containment")),
        format!("  achieved:  {}", word("achieved_containment")),
        format!("  host can back: {}", word("host_containment")),
        format!("  floor met: {}", if object["floor_met"] == true { "yes" } else { "no" }),
        format!("  mechanism: {}", word("enforcement_tier")),
        "  covers:    shell commands, plan shell steps, native tools".to_owned(),
        format!("  userns grant: {}", word("userns_grant")),
        format!("  landlock ABI: {}", word("landlock_abi")),
        String::new(),
        "Routes".to_owned(),
    ];
    for route in object["routes"].as_array().into_iter().flatten() {
        lines.push(format!("  {}: {}", show(&route["route"]), show(&route["mechanism"])));
    }
    for (title, key) in [("Runtime directory", "runtime_dir"), ("Records directory", "records_dir")] {
        let commands = match object[key]["not_protected_because"].as_str() {
            Some(why) => format!("can change it — {why}"),
            None => format!("read only ({})", show(&object[key]["enforced_by"])),
        };
        lines.extend([
            String::new(),
            title.to_owned(),
            format!("  path:      {}", show(&object[key]["path"])),
            format!("  commands:  {commands}"),
        ]);
    }
    lines.extend([
        String::new(),
        "Temporary folder".to_owned(),
        format!("  path:      {}", show(&object["temp_dir"]["path"])),
        format!("  TMPDIR:    {}", show(&object["temp_dir"]["tmpdir"])),
        format!("  /tmp:      not mapped — {}", show(&object["temp_dir"]["not_mapped_because"])),
    ]);
    let unprotected = object["filesystem_boundary"]["not_protected"].as_array();
    if let Some(all) = unprotected.filter(|all| !all.is_empty()) {
        lines.extend([String::new(), "Not protected here".to_owned()]);
        lines.extend(all.iter().map(|one| format!("  - {}", show(one))));
    }
    lines.extend([String::new(), "Effective grants".to_owned()]);
    for (label, key) in [
        ("filesystem scope:", "filesystem_scope"),
        ("workdir exec:    ", "workdir_exec"),
        ("unix sockets:    ", "unix_sockets"),
        ("plan submit:     ", "plan_submit"),
    ] {
        lines.push(format!("  {label} {}", word(key)));
    }
    for (label, key) in [
        ("read_only", "read_only_paths"),
        ("preopens", "preopens"),
        ("network allow", "network_allow"),
        ("shell allow", "shell_allow"),
        ("spawn allow", "spawn_allow"),
        ("env allow", "env_allow"),
        ("install skill", "install_skill"),
        ("install tool", "install_tool"),
        ("install from", "install_from"),
        ("state stores", "state_stores"),
        ("artifact config", "configured_artifacts"),
    ] {
        list(&mut lines, label, &object[key]);
    }
    lines.extend([String::new(), "Runtime writes".to_owned(), "  paths are relative to the work folder".to_owned()]);
    list(&mut lines, "runtime writes", &object["runtime_writes"]);
    lines
}

fn list(lines: &mut Vec<String>, label: &str, items: &Value) {
    match items.as_array().filter(|items| !items.is_empty()) {
        None => lines.push(format!("  {label}: <none>")),
        Some(items) => {
            lines.push(format!("  {label}:"));
            lines.extend(items.iter().map(|item| format!("    - {}", show(item))));
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
