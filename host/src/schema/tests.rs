use std::path::{Path, PathBuf};

use boon::{Compiler, SchemaIndex, Schemas};
use proptest::prelude::*;

use super::*;
use crate::diagnostics::codes;
use crate::manifest::{read_artifact, read_capsule};
use crate::paths::MurmurHome;
use crate::yaml;

/// A compiled schema.
struct Validator {
    schemas: Schemas,
    index: SchemaIndex,
}

impl Validator {
    fn of(schema: Value) -> Self {
        let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
        compiler.add_resource("https://test/schema.json", schema).unwrap();
        let index = compiler.compile("https://test/schema.json", &mut schemas).unwrap();
        Self { schemas, index }
    }

    fn accepts(&self, value: &Value) -> bool {
        self.schemas.validate(value, self.index).is_ok()
    }
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A file's values as an editor sees them.
fn values(text: &[u8]) -> Option<Value> {
    yaml::parse("f", text, 1 << 20).ok().map(|doc| doc.root().to_json())
}

/// What a reader makes of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Accepted,
    /// A key it does not know, or a value of the wrong type.
    Misshapen,
    /// For another reason, which a schema need not know.
    Refused,
}

type Reader = fn(&str) -> Verdict;

fn by_roster(text: &str) -> Verdict {
    match crate::roster::parse(text.as_bytes()) {
        Ok(_) => Verdict::Accepted,
        // That no member calls itself is said of two keys at once.
        Err(fault) if fault.message().contains("is the rule's own from") => Verdict::Refused,
        Err(_) => Verdict::Misshapen,
    }
}

fn by_capsule(text: &str) -> Verdict {
    match read_capsule(text.as_bytes(), "murmur.yaml") {
        // It is packed by what the artifact reader says.
        Ok((_, warnings)) if warnings.is_empty() => by_artifact(text),
        Ok(_) => Verdict::Misshapen,
        Err(fault) if fault.code() == codes::E_MAN_002 => Verdict::Misshapen,
        Err(_) => Verdict::Refused,
    }
}

fn by_artifact(text: &str) -> Verdict {
    let artifact = match read_artifact(text.as_bytes(), "murmur.yaml") {
        Ok(artifact) => artifact,
        Err(fault) if fault.code() == codes::E_MAN_002 => return Verdict::Misshapen,
        Err(_) => return Verdict::Refused,
    };
    let schemas = [&artifact.input_schema, &artifact.output_schema];
    let faulty = artifact.models.is_err()
        || artifact.hook.is_err()
        || matches!(artifact.upstream_auth, Some(Err(_)))
        || schemas.iter().any(|schema| matches!(schema, Some(Err(_))));
    if faulty { Verdict::Refused } else { Verdict::Accepted }
}

fn by_config(text: &str) -> Verdict {
    let dir = tempfile::tempdir().unwrap();
    let home = MurmurHome::at(dir.path().to_owned());
    std::fs::create_dir_all(home.root()).unwrap();
    std::fs::write(home.config(), text).unwrap();
    match crate::config::Config::load_global(&home) {
        Ok(config) if config.unknown.is_empty() => Verdict::Accepted,
        Ok(_) => Verdict::Misshapen,
        Err(fault) if fault.message().contains("cannot be used") || fault.message().contains("overlaps") => {
            Verdict::Refused
        }
        Err(_) => Verdict::Misshapen,
    }
}

/// JSON as YAML, with null as a key without a value.
fn yaml_text(value: &Value, out: &mut String) {
    match value {
        Value::Null => {}
        Value::Array(items) => {
            out.push('[');
            for item in items {
                yaml_text(if item.is_null() { &Value::Bool(false) } else { item }, out);
                out.push_str(", ");
            }
            out.push(']');
        }
        Value::Object(entries) => {
            out.push('{');
            for (key, value) in entries {
                out.push_str(&Value::from(key.as_str()).to_string());
                out.push_str(": ");
                yaml_text(value, out);
                out.push_str(", ");
            }
            out.push('}');
        }
        scalar => out.push_str(&scalar.to_string()),
    }
}

/// Every place of a value, as the keys that lead to it.
fn places(value: &Value, path: &mut Vec<String>, found: &mut Vec<String>) {
    found.push(path.iter().map(|part| format!("/{part}")).collect());
    let below: Vec<(String, &Value)> = match value {
        Value::Object(entries) => entries.iter().map(|(key, value)| (key.clone(), value)).collect(),
        Value::Array(items) => items.iter().enumerate().map(|(index, value)| (index.to_string(), value)).collect(),
        _ => Vec::new(),
    };
    for (key, value) in below {
        path.push(key);
        places(value, path, found);
        path.pop();
    }
}

/// A document that every key of a file is set in, the reader it is for, and places whose inside is nobody's business.
fn whole() -> Vec<(File, Value, Reader, &'static [&'static str])> {
    let roster = json!({
        "roster_version": 1,
        "members": [
            {"name": "lead", "capsule": "local/lead", "version": "1.0", "entry": true},
            {"name": "worker", "capsule": "local/worker", "version": 2, "entry": false},
        ],
        "reachability": [{"from": "lead", "to": ["worker"]}],
    });
    let all = json!({"roster_version": 1, "members": roster["members"], "reachability": "all"});
    let config = json!({
        "credentials": {"A_KEY": "x"}, "containment": "scoped",
        "inference": {"provider": "openai", "model": "m", "endpoint": "https://x", "api_key": "k"},
        "spend": {"machine_tokens_per_day": 5}, "plugins": {"containment": {"sealed": "x"}},
        "stores": ["mine", {"plugin": "other", "config": {"a": 1}}], "sinks": ["s", {"plugin": "other", "config": {"a": 1}}],
        "host_paths": ["/usr", {"path": "/usr/bin", "write": true}], "registry": {"index_url": "x", "sources": [{"repo": "a/b", "token": "t"}]}, "beta": {"enabled": true},
    });
    let driver = json!({
        "name": "d", "version": "1.0.0", "runtime": "driver", "execution": "wasm", "description": "x", "tags": ["a"],
        "requires_files": ["capsule.wasm"], "input_schema": {"type": "object"}, "output_schema": {"type": "object"},
        "models": {"m": {"max_output_tokens": 1, "context_window": 3, "max_input_tokens": 2}},
        "upstream_auth": {"header": "x-api-key", "value": "{key}"},
    });
    let hook = json!({
        "name": "h", "version": "1.0.0", "runtime": "hook", "binding": "on-task-end", "execution_mode": "blocking",
        "commit_policy": "reopen-task",
    });
    vec![
        (File::Roster, roster, by_roster, &[]),
        (File::Roster, all, by_roster, &[]),
        (File::Config, config, by_config, &["/registry", "/beta", "/stores/1/config/", "/sinks/1/config/"]),
        (File::Manifest, capsule(), by_capsule, &FREE),
        (File::Manifest, prompted("system_prompt_file", "f"), by_capsule, &[]),
        (File::Manifest, prompted("system_prompt_artifact", "skill"), by_capsule, &[]),
        (File::Manifest, driver, by_artifact, &["/input_schema/", "/output_schema/"]),
        (File::Manifest, hook, by_artifact, &[]),
    ]
}

/// Where a capsule says what nobody checks, and a name that may look like a boolean.
const FREE: [&str; 6] = [
    "/observability/eval/",
    "/deploy/",
    "/artifacts/0/config",
    "/inference/driver/config/",
    "/capabilities/state/",
    "/inference/alternates/0/name",
];

/// A small capsule whose prompts stand elsewhere.
fn prompted(key: &str, value: &str) -> Value {
    let mut document = json!({
        "name": "c", "version": "1.0.0", "runtime": "capsule",
        "artifacts": [
            {"name": "a/d", "version": "1", "runtime": "driver", "gateway": {"endpoint": "https://x", "keyless": true}},
            {"name": "skill", "runtime": "skill", "source": "s", "prompt_payload": true},
        ],
        "inference": {"model": "m", "driver": {"artifact": "a/d"}, "compaction": {"system_prompt": "p"}},
    });
    document["inference"][key] = json!(value);
    document
}

fn capsule() -> Value {
    let grants = json!({
        "network": {"allow": ["localhost"], "unix_sockets": true}, "peer_fetch": {"allow": ["x"]},
        "filesystem": {"scope": "a", "read_only": ["b"], "workdir_exec": false, "records": false},
        "shell": {
            "allow": ["sh", "python3"], "strip_env": ["X"], "baseline_env": ["Y"],
            "interpreter_runtime": [{"binary": "sh", "dirs": [{"path": "/usr", "list_dir": true}]}],
            "staged_runtime": [{"binary": "python3", "source_path": "/opt", "pin": "p"}],
        },
        "env": {"allow": ["E"]}, "install": {"tool": ["a/b*"], "skill": ["*"], "from": ["stores"]},
        "spawn": {"allow": []},
        "limits": {"memory_bytes": 1, "table_elements": 1, "instances": 1, "deadline_seconds": 1},
        "resources": {
            "max_processes": 1, "max_open_files": 1, "max_file_size_bytes": 1, "cpu_seconds": 1, "memory_bytes": 1,
            "cgroup_memory_bytes": 1, "cgroup_pids_max": 1, "cgroup_cpu_percent": 1, "cgroup_io_bytes_per_sec": 1,
            "workdir_max_bytes": 1,
        },
        "containment": "scoped", "plan": {"submit": true}, "state": {"store": "s"}, "conversation": {"read": true},
    });
    let hook_grants = json!({
        "network": {"allow": []}, "filesystem": {"records": true}, "state": {"store": "s"},
        "conversation": {"read": true}, "task_io": {"read": true}, "limits": {"deadline_seconds": 3},
    });
    json!({
        "name": "c", "version": "1.0.0", "runtime": "capsule", "execution": "static", "implementation": "x",
        "requires_files": [],
        "artifacts": [
            {
                "name": "a/driver", "version": "1", "runtime": "driver", "config": {"a": 1},
                "gateway": {"endpoint": "https://x", "api_key": "k"},
            },
            {"name": "a/second", "version": "1", "runtime": "driver", "gateway": {"endpoint": "https://x", "keyless": true}},
            {"name": "a/hook", "version": "1", "runtime": "hook", "on_overflow": "block", "capabilities": hook_grants},
            {"name": "skill", "runtime": "skill", "source": "s", "local_source": true, "prompt_payload": true},
        ],
        "capabilities": grants,
        "inference": {
            "transport": "http", "model": "m", "driver": {"artifact": "a/driver", "config": {"a": 1}}, "max_turns": 1,
            "max_tokens": 1, "max_session_tokens": 1, "system_prompt": "p",
            "retry": {"max_retries": 20, "initial_delay_ms": 1, "max_delay_ms": 2}, "tool_refresh": "immediate",
            "compaction": {
                "threshold": 0.5, "model": "m", "system_prompt_file": "f", "dump_summaries": true, "max_tokens": 1,
                "driver_config": {"a": 1},
            },
            "alternates": [{"name": "other", "model": "n", "driver": {"artifact": "a/second"}}], "command": "x",
        },
        "context": {
            "max_tokens": 1, "seed_budget": 0.1, "seed_overflow_margin": 1, "record": "off", "record_store": "s",
            "retain": {"max_messages": 1, "max_age": "3d"},
        },
        "observability": {"otel_endpoint": "x", "eval": {"a": 1}},
        "trace": {"capture": "content", "retain": {"max_sessions": 1, "max_age": 30}},
        "network": {
            "internal_port": 0,
            "authentication": {"scheme": "bearer", "credentials": {"ci": {"scopes": ["GetTask", "resources/files"]}}},
        },
        "lifecycle": {
            "task_acceptance": "queue", "after_task": "sleep", "queue_depth": 1, "input_timeout_secs": 0,
            "conversation": "threaded", "max_task_reopens": 0, "shell_grace_secs": 0, "delegation_deadline_secs": 0,
            "deadline_notice_secs": 0, "keep_working": {"message": "m", "limit": 1},
            "done_check": {"command": "sh -c x", "limit": 0, "timeout_secs": 1},
        },
        "exports": {
            "peer_tasks": {"accept": true}, "files": {"root": "out", "mode": "read-only", "max_bytes": "1Mi"},
            "peer_files": {"root": "out", "max_ttl": "1h", "max_bytes": 5},
        },
        "control": {
            "settings": ["inference.max_tokens"], "agent_settings": ["inference.driver"], "secrets": ["A_KEY"],
        },
        "deploy": {"x": 1},
    })
}

#[test]
fn the_schemas_of_the_book_are_the_ones_mur_prints() {
    for file in File::ALL {
        let path = repository().join(format!("docs/src/schemas/{}.json", file.name()));
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        let name = file.name();
        assert!(kept == file.text(), "stale: write it anew with mur schema {name} > docs/src/schemas/{name}.json");
    }
}

#[test]
fn a_whole_file_is_accepted_by_its_reader_and_its_schema() {
    for (file, document, reader, _) in whole() {
        let mut text = String::new();
        yaml_text(&document, &mut text);
        assert_eq!(reader(&text), Verdict::Accepted, "{:?} {:?}", read_capsule(text.as_bytes(), "f").err(), text);
        let validator = Validator::of(file.schema());
        let fault = validator.schemas.validate(&document, validator.index).err().map(|fault| format!("{fault:#}"));
        assert_eq!(fault, None);
    }
}

/// Every key of a table, as the places of a schema, so that a whole document leaves none out.
fn keys_of(schema: &Value, path: &str, found: &mut Vec<String>) {
    if !schema.is_object() {
        return;
    }
    for (name, below) in schema["properties"].as_object().into_iter().flatten() {
        found.push(format!("{path}/{name}"));
        keys_of(below, &format!("{path}/{name}"), found);
    }
    for one in schema["anyOf"].as_array().into_iter().flatten() {
        keys_of(one, path, found);
    }
    for below in [&schema["items"], &schema["additionalProperties"]] {
        keys_of(below, &format!("{path}/*"), found);
    }
}

#[test]
fn the_whole_documents_hold_every_key_of_the_tables() {
    for file in File::ALL {
        let mut written = Vec::new();
        for (_, document, ..) in whole().iter().filter(|(of, ..)| *of == file) {
            places(document, &mut Vec::new(), &mut written);
        }
        let loose = |place: &str| {
            let part = |part: &str| {
                if !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()) {
                    "*".to_owned()
                } else {
                    part.to_owned()
                }
            };
            place.split('/').map(part).collect::<Vec<_>>().join("/")
        };
        let mut written: Vec<String> = written.iter().map(|place| loose(place)).collect();
        // Names are anybody's.
        for (name, any) in [("credentials/ci", "credentials/*"), ("models/m/", "models/*/")] {
            written.extend(written.clone().iter().map(|place| place.replace(name, any)));
        }
        let mut keys = Vec::new();
        keys_of(&file.schema(), "", &mut keys);
        // One table serves the capsule and its entries; what only one of them may have is set there.
        let capabilities = |place: &str| place.replace("/artifacts/*/capabilities", "/capabilities");
        let written: Vec<String> = written.iter().map(|place| capabilities(place)).collect();
        let missing: Vec<&String> = keys.iter().filter(|key| !written.contains(&capabilities(key))).collect();
        // An alternate's driver has no config of its own; the table is the primary's.
        let missing: Vec<_> = missing.into_iter().filter(|key| !key.ends_with("alternates/*/driver/config")).collect();
        assert!(missing.is_empty(), "no document sets {missing:?}");
    }
}

/// Puts every kind of value in every place, and an unknown key in every block.
#[test]
fn reader_and_schema_agree_on_every_key_whatever_it_holds() {
    let probes = [
        json!(null),
        json!(true),
        json!(0),
        json!(1),
        json!(-1),
        json!(1.5),
        json!("1.5"),
        json!("@ x"),
        json!(""),
        json!([]),
        json!([1]),
        json!(["@"]),
        json!([[]]),
        json!({}),
        json!({"zzz": 1}),
        json!(18446744073709551615_u64),
    ];
    let (mut wrong, mut tried) = (Vec::new(), 0_u32);
    for (file, document, reader, free) in whole() {
        let validator = Validator::of(file.schema());
        let mut found = Vec::new();
        places(&document, &mut Vec::new(), &mut found);
        for place in found.iter().filter(|place| !free.iter().any(|free| place.starts_with(free))) {
            let inside = matches!(document.pointer(place), Some(Value::Object(_)));
            let unknown = inside.then(|| {
                let mut block = document.pointer(place).cloned().unwrap_or_default();
                block["zzz"] = json!(1);
                block
            });
            for probe in probes.iter().cloned().chain(unknown) {
                let mut changed = document.clone();
                *changed.pointer_mut(place).unwrap() = probe.clone();
                let mut text = String::new();
                yaml_text(&changed, &mut text);
                let (verdict, valid) = (reader(&text), validator.accepts(&values(text.as_bytes()).unwrap()));
                tried += 1;
                // A blank text is absent to the reader, and one to finish for an editor. The manifest of a tool or driver
                // may hold keys the reader ignores; an editor points at them all the same.
                let lenient = probe == json!("") || (document["runtime"] != "capsule" && text.contains("zzz"));
                if (verdict == Verdict::Misshapen && valid) || (verdict == Verdict::Accepted && !valid && !lenient) {
                    wrong.push(format!("{} {place} = {probe}: {verdict:?}, valid: {valid}", file.name()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {tried}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_word_of_a_schema_is_one_the_reader_takes() {
    // Words that other keys of the document decide on.
    let bound =
        ["/transport", "/on_overflow", "/runtime", "/binding", "/execution_mode", "/commit_policy", "/task_acceptance"];
    for (file, document, reader, _) in whole() {
        let mut found = Vec::new();
        words(&file.schema(), "", &mut found);
        for (place, word) in found.iter().filter(|(place, _)| !bound.iter().any(|bound| place.ends_with(bound))) {
            let Some(at) = document.pointer(place) else { continue };
            let mut changed = document.clone();
            *changed.pointer_mut(place).unwrap() = if at.is_array() { json!([word]) } else { json!(word) };
            let mut text = String::new();
            yaml_text(&changed, &mut text);
            assert_ne!(reader(&text), Verdict::Misshapen, "{place}: {word}");
        }
    }
}

/// Words by the place they stand in; of lists the first item's.
fn words(schema: &Value, path: &str, found: &mut Vec<(String, String)>) {
    for word in schema["enum"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        found.push((path.to_owned(), word.to_owned()));
    }
    for (name, below) in schema["properties"].as_object().into_iter().flatten() {
        words(below, &format!("{path}/{name}"), found);
    }
    if schema["items"].is_object() {
        words(&schema["items"], &format!("{path}/0"), found);
    }
}

#[test]
fn every_file_of_the_repository_that_its_reader_takes_keeps_to_its_schema() {
    let corpus = repository().join("tests/fuzz/corpus");
    let mut files: Vec<(File, PathBuf)> = Vec::new();
    for (file, folder) in [(File::Roster, "roster"), (File::Manifest, "manifest"), (File::Config, "config")] {
        let entries = std::fs::read_dir(corpus.join(folder)).unwrap().flatten();
        files.extend(entries.map(|entry| (file, entry.path())));
    }
    let mut folders =
        vec![repository().join("docs/examples"), repository().join("plugins"), repository().join("tests")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap().flatten() {
            let name = entry.file_name();
            if entry.file_type().unwrap().is_dir() {
                folders.extend((name != "target").then(|| entry.path()));
            } else if name == "roster.yaml" {
                files.push((File::Roster, entry.path()));
            } else if name == "murmur.yaml" {
                files.push((File::Manifest, entry.path()));
            }
        }
    }
    let validators = File::ALL.map(|file| Validator::of(file.schema()));
    let (mut accepted, mut refused) = (0, 0);
    for (file, path) in &files {
        let text = std::fs::read(path).unwrap();
        let shown = String::from_utf8_lossy(&text);
        let verdicts: Vec<Verdict> = match file {
            File::Roster => vec![by_roster(&shown)],
            File::Config => vec![by_config(&shown)],
            File::Manifest => vec![by_artifact(&shown), by_capsule(&shown)],
        };
        let Some(value) = values(&text) else { continue };
        let valid = validators[File::ALL.iter().position(|of| of == file).unwrap()].accepts(&value);
        if verdicts[0] == Verdict::Accepted {
            assert!(valid, "{} is taken by its reader and not by its schema", path.display());
            accepted += 1;
        } else if verdicts.iter().all(|verdict| *verdict == Verdict::Misshapen) {
            assert!(!valid, "{} is misshapen, and its schema takes it", path.display());
            refused += 1;
        }
    }
    assert!(accepted >= 15 && refused >= 3, "{accepted} accepted, {refused} refused");
}

fn matches(pattern: &str, text: &str) -> bool {
    // One validator a pattern would be slow; they are few and small.
    Validator::of(json!({"type": "string", "pattern": pattern})).accepts(&json!(text))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn patterns_say_what_the_checks_say(text in "[a-zA-Z0-9_/. \n-]{0,8}|[a-z][a-z0-9-]{28,36}|[a-z0-9-]{98,102}/[a-z]") {
        prop_assert_eq!(matches(crate::roster::keys::MEMBER_NAME, &text), crate::roster::is_member_name(&text));
        prop_assert_eq!(matches(crate::artifacts::name::FULL_NAME, &text), crate::artifacts::name::ArtifactName::parse(&text).is_ok());
        prop_assert_eq!(matches(crate::manifest::keys::CREDENTIAL_NAME, &text), crate::manifest::is_credential_name(&text));
    }

    #[test]
    fn versions_are_the_same_to_schema_and_reader(text in "[a-z0-9. /\\\\\t-]{0,6}|[lL][aA][tT][eE][sS][tT]|stable|Edge|[0-9]{62,66}") {
        let document = |version: &str| json!({
            "roster_version": 1, "members": [{"name": "a", "capsule": "a/b", "version": version, "entry": true}],
        });
        let valid = Validator::of(File::Roster.schema()).accepts(&document(&text));
        prop_assert_eq!(valid, crate::artifacts::name::Version::parse(&text).is_ok(), "{}", text);
    }
}
