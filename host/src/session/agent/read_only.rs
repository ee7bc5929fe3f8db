//! `capabilities.filesystem.read_only`: a call that would write to a covered path is refused before it is made.
//!
//! What a tool will write is read off its input: by the names of its fields, and by what its schema says of them. The
//! check stops honest tools; a class that confines the worker is what holds the others.

mod command;

use std::path::{Component, Path, PathBuf};

use serde_json::{Map, Value};

use super::wire::cut;
use crate::paths::resolve_through_existing;

/// Fields that name what is written.
const DESTINATIONS: [&str; 9] = [
    "dest",
    "dest_path",
    "destination",
    "destination_path",
    "target_path",
    "output_path",
    "out_path",
    "new_path",
    "to",
];
/// Fields that name a file, which is written when the same object also carries content.
const FILES: [&str; 5] = ["path", "file_path", "filepath", "filename", "file"];
/// Fields that carry content.
const CONTENTS: [&str; 10] =
    ["content", "contents", "text", "data", "body", "new_str", "new_string", "replacement", "patch", "diff"];
/// A schema's word for a text that names what is written.
const DESTINATION_FORMAT: &str = "murmur-destination";
/// A schema's word for a part whose field names say nothing.
const OPAQUE_FORMAT: &str = "murmur-opaque";
/// A schema's list of paths derived from fields.
const DERIVED: &str = "murmur-destinations";
/// Destinations looked at in one input.
const DESTINATIONS_MAX: usize = 1000;

/// A refused write.
#[derive(Debug, PartialEq, Eq)]
pub struct Denied {
    /// The path as the model wrote it.
    pub path: String,
    /// The entry of `read_only` that covers it.
    pub rule: String,
    /// What made it a destination: `field` or `schema` of a tool's input, `redirection` or `argument` of a command.
    pub signal: &'static str,
}

/// The first destination of a tool's input that a `read_only` entry covers. `folder` is `.` of the tool, `work` the
/// work folder the entries are relative to.
pub fn denied(read_only: &[String], work: &Path, folder: &Path, schema: &Value, input: &Value) -> Option<Denied> {
    let mut found = Vec::new();
    by_field(input, Some(schema), &mut found);
    derived(schema, input, &mut found);
    covered(read_only, work, folder, found)
}

/// The same of a command's argument vector, which is run in the work folder.
pub fn denied_command(read_only: &[String], work: &Path, argv: &[String]) -> Option<Denied> {
    covered(read_only, work, work, command::written(argv))
}

fn covered(read_only: &[String], work: &Path, folder: &Path, found: Vec<(String, &'static str)>) -> Option<Denied> {
    if read_only.is_empty() {
        return None;
    }
    let rules: Vec<(&String, PathBuf)> =
        read_only.iter().map(|rule| (rule, resolve_through_existing(&work.join(rule)))).collect();
    found.into_iter().take(DESTINATIONS_MAX).find_map(|(path, signal)| {
        let spellings = [folder.join(&path), work.join(&path)].map(|path| resolve_through_existing(&plain(&path)));
        let (rule, _) = rules.iter().find(|(_, covered)| spellings.iter().any(|path| path.starts_with(covered)))?;
        Some(Denied { path: cut(&path, 1024).to_owned(), rule: (*rule).clone(), signal })
    })
}

/// Without `.` components, which `starts_with` would otherwise be right about only after resolving.
fn plain(path: &Path) -> PathBuf {
    path.components().filter(|part| *part != Component::CurDir).collect()
}

fn by_field(value: &Value, schema: Option<&Value>, found: &mut Vec<(String, &'static str)>) {
    let format = schema.and_then(|schema| schema.get("format")).and_then(Value::as_str);
    match value {
        Value::String(path) if format == Some(DESTINATION_FORMAT) => found.push((path.clone(), "schema")),
        Value::Array(items) => {
            let schema = schema.and_then(|schema| schema.get("items"));
            items.iter().for_each(|item| by_field(item, schema, found));
        }
        Value::Object(fields) => {
            if format != Some(OPAQUE_FORMAT) {
                named(fields, found);
            }
            let properties = schema.and_then(|schema| schema.get("properties"));
            for (name, value) in fields {
                by_field(value, properties.and_then(|properties| properties.get(name)), found);
            }
        }
        _ => {}
    }
}

fn named(fields: &Map<String, Value>, found: &mut Vec<(String, &'static str)>) {
    let has_content = fields.keys().any(|name| CONTENTS.contains(&folded(name).as_str()));
    for (name, value) in fields {
        let name = folded(name);
        let written = DESTINATIONS.contains(&name.as_str()) || (has_content && FILES.contains(&name.as_str()));
        if let Value::String(path) = value
            && written
        {
            found.push((path.clone(), "field"));
        }
    }
}

fn folded(name: &str) -> String {
    name.to_lowercase().replace('-', "_")
}

/// Paths a schema derives from fields: `{field}/suffix`, a field given as `a.b`, `[]` for each element. One malformed
/// entry voids the list.
fn derived(schema: &Value, input: &Value, found: &mut Vec<(String, &'static str)>) {
    let Some(entries) = schema.get(DERIVED).and_then(Value::as_array) else { return };
    let templates: Option<Vec<(&str, &str, &str)>> = entries.iter().map(|entry| template(entry.as_str()?)).collect();
    for (before, field, after) in templates.unwrap_or_default() {
        let steps: Vec<&str> = field.split('.').collect();
        let mut texts = Vec::new();
        texts_at(input, &steps, &mut texts);
        found.extend(texts.into_iter().map(|text| (format!("{before}{text}{after}"), "schema")));
    }
}

fn template(entry: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = entry.split_once('{')?;
    let (field, after) = rest.split_once('}')?;
    let plain = !field.is_empty() && !after.contains(['{', '}']) && field.split('.').all(|step| !step.is_empty());
    plain.then_some((before, field, after))
}

fn texts_at<'a>(value: &'a Value, steps: &[&str], texts: &mut Vec<&'a str>) {
    let Some((step, rest)) = steps.split_first() else {
        texts.extend(value.as_str());
        return;
    };
    let (name, each) = match step.strip_suffix("[]") {
        Some(name) => (name, true),
        None => (*step, false),
    };
    let Some(value) = value.get(name) else { return };
    match (each, value) {
        (true, Value::Array(items)) => items.iter().for_each(|item| texts_at(item, rest, texts)),
        (true, _) => {}
        (false, value) => texts_at(value, rest, texts),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn check(schema: &Value, input: &Value) -> Option<(String, &'static str)> {
        let dir = tempfile::tempdir().unwrap();
        let work = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(work.join("tests/a")).unwrap();
        std::os::unix::fs::symlink("tests", work.join("link")).unwrap();
        let input: Value =
            serde_json::from_str(&input.to_string().replace("$WORK", &work.display().to_string())).unwrap();
        denied(&["tests".into(), "Cargo.lock".into()], &work, &work, schema, &input).map(|d| (d.rule, d.signal))
    }

    #[test]
    fn a_write_is_known_by_its_field_and_the_path_by_any_spelling() {
        for input in [
            json!({"dest": "tests/a/x"}),
            json!({"Output-Path": "./tests"}),
            json!({"to": "link/new"}),
            json!({"to": "$WORK/tests/x"}),
            json!({"to": "a/../tests/x"}),
            json!({"path": "tests/x", "content": "y"}),
            json!({"edits": [{"file": "tests/x", "new_str": "y"}]}),
        ] {
            assert_eq!(check(&json!({}), &input), Some(("tests".into(), "field")), "{input}");
        }
        for input in [
            json!({"path": "tests/x"}),
            json!({"dest": "tests2/x"}),
            json!({"path": "tests/x", "nested": {"content": "y"}}),
            json!({"query": "tests/x", "content": "y"}),
            json!({"dest": 7}),
            json!("tests"),
        ] {
            assert_eq!(check(&json!({}), &input), None, "{input}");
        }
    }

    #[test]
    fn a_schema_names_and_unnames_destinations() {
        let schema = json!({"properties": {
            "where": {"format": "murmur-destination"},
            "blob": {"type": "object", "format": "murmur-opaque"},
            "places": {"type": "array", "items": {"format": "murmur-destination"}},
        }, "murmur-destinations": ["{location}/out.txt", "{parts[].dir}/x"]});
        assert_eq!(check(&schema, &json!({"where": "tests"})), Some(("tests".into(), "schema")));
        assert_eq!(check(&schema, &json!({"places": ["a", "Cargo.lock"]})), Some(("Cargo.lock".into(), "schema")));
        assert_eq!(check(&schema, &json!({"blob": {"dest": "tests"}})), None);
        assert_eq!(check(&schema, &json!({"location": "tests"})), Some(("tests".into(), "schema")));
        assert_eq!(
            check(&schema, &json!({"parts": [{"dir": "a"}, {"dir": "tests"}]})),
            Some(("tests".into(), "schema"))
        );
        let void = json!({"murmur-destinations": ["{location}/out.txt", "no field"]});
        assert_eq!(check(&void, &json!({"location": "tests"})), None);
    }

    proptest! {
        #[test]
        fn no_template_panics(entry in ".*", field in "[a-z.\\[\\]{}]*") {
            let _ = template(&entry);
            let mut texts = Vec::new();
            texts_at(&json!({"a": [{"b": "c"}]}), &field.split('.').collect::<Vec<_>>(), &mut texts);
        }
    }
}
