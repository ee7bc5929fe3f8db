//! The conformance kit: what every plugin of a kind must do, as checks that run against the exported objects.
//!
//! The same functions serve an author's own tests and `mur plugin check`. A check that fails says what was expected and
//! what happened; none of them stops the others.

mod containment;
mod sink;
mod store;

pub use containment::{Enter, containment};
pub use sink::sink;
pub use store::store;

use crate::error::{ErrorKind, PluginError};
use crate::header::HeaderInfo;
use crate::module::PluginDescription;

/// One check and how it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The rule, as a sentence without a full stop.
    pub rule: &'static str,
    /// What was expected and what happened, when it failed.
    pub outcome: Result<(), String>,
}

/// The checks made so far.
#[derive(Debug, Default)]
pub struct Report(Vec<Check>);

impl Report {
    /// Runs one check.
    pub fn check(&mut self, rule: &'static str, body: impl FnOnce() -> Result<(), String>) {
        self.0.push(Check { rule, outcome: body() });
    }

    /// All checks, in the order they ran.
    pub fn checks(&self) -> &[Check] {
        &self.0
    }

    /// The checks that failed.
    pub fn failures(&self) -> impl Iterator<Item = &Check> {
        self.0.iter().filter(|check| check.outcome.is_err())
    }
}

/// The call worked.
pub(crate) fn worked<T>(what: &str, outcome: Result<T, PluginError>) -> Result<T, String> {
    outcome.map_err(|error| format!("{what} failed: {error:?}"))
}

/// The call was refused, and in order: a panic is no refusal.
pub(crate) fn refused<T>(what: &str, outcome: Result<T, PluginError>) -> Result<(), String> {
    match outcome {
        Ok(_) => Err(format!("{what} was accepted")),
        Err(error) if error.kind() == ErrorKind::Panicked => Err(format!("{what} made it panic: {error}")),
        Err(error) if error.message().is_empty() => Err(format!("{what} was refused without a word")),
        Err(_) => Ok(()),
    }
}

pub(crate) fn same<T: PartialEq + std::fmt::Debug>(what: &str, got: &T, expected: &T) -> Result<(), String> {
    if got == expected { Ok(()) } else { Err(format!("{what} is {got:?}, not {expected:?}")) }
}

/// Checks what a plugin says of itself.
pub fn description(report: &mut Report, header: &HeaderInfo, described: Result<PluginDescription, PluginError>) {
    let described = worked("describe", described);
    report.check("the description names what the header names", || {
        let described = described.as_ref().map_err(Clone::clone)?;
        same("the name", &described.name.as_str(), &header.name.as_str())?;
        same("the version", &described.version.as_str(), &header.version.as_str())
    });
    report.check("summary and vendor are one line each", || {
        let described = described.as_ref().map_err(Clone::clone)?;
        for (what, text) in [("summary", &described.summary), ("vendor", &described.vendor)] {
            if text.trim().is_empty() || text.lines().count() != 1 {
                return Err(format!("the {what} is {text:?}"));
            }
        }
        Ok(())
    });
    report.check("the configuration's schema is a JSON object with an example", || {
        let described = described.as_ref().map_err(Clone::clone)?;
        example_config(described.config_schema.as_str(), "/nonexistent").map(|_| ())
    });
}

/// The first of a schema's `examples`, with `{scratch}` in its texts replaced: a configuration to try a plugin with.
pub fn example_config(schema: &str, scratch: &str) -> Result<String, String> {
    let schema: serde_json::Value =
        serde_json::from_str(schema).map_err(|error| format!("the schema is no JSON: {error}"))?;
    let mut example = schema
        .get("examples")
        .and_then(|examples| examples.get(0))
        .filter(|example| example.is_object())
        .cloned()
        .ok_or("the schema has no 'examples' with an object first")?;
    replace(&mut example, scratch);
    Ok(example.to_string())
}

fn replace(value: &mut serde_json::Value, scratch: &str) {
    match value {
        serde_json::Value::String(text) => *text = text.replace("{scratch}", scratch),
        serde_json::Value::Array(items) => items.iter_mut().for_each(|item| replace(item, scratch)),
        serde_json::Value::Object(fields) => fields.values_mut().for_each(|field| replace(field, scratch)),
        _ => {}
    }
}
