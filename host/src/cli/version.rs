//! `mur version`.

use serde_json::{Map, Value, json};

use crate::artifacts::level::{PACKAGES, SERVED};
use crate::cli::Outcome;
use crate::diagnostics::output;

/// The commands whose JSON other programs read, each with the number of its schema.
const COMMANDS: [(&str, u32); 9] = [
    ("precompile --json", 1),
    ("ps --json", 1),
    ("run --explain-scope --json", 1),
    ("run --json", 1),
    ("run --roster --json", 1),
    ("token", 1),
    ("trace list --json", 1),
    ("trace rm --json", 1),
    ("version --json", 1),
];

/// The commit this binary was built from, when the build said so.
const COMMIT: Option<&str> = option_env!("MUR_BUILD_COMMIT");

/// What this build has that no released one has.
const FEATURES: &[&str] = if cfg!(feature = "escape-probe") { &["escape-probe"] } else { &[] };

/// Flags of `mur version`.
#[derive(clap::Args)]
pub struct Args {
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let text = if args.json { as_json() } else { as_text() };
    let _ = output::stdout_text(&text);
    Ok(0)
}

fn as_text() -> String {
    let width = PACKAGES.iter().map(|(package, _)| package.len()).max().unwrap_or(0) + 2;
    let mut lines = vec![
        format!("mur {}", env!("CARGO_PKG_VERSION")),
        format!("commit {}", COMMIT.unwrap_or("unknown")),
        format!("WIT level {SERVED}"),
        String::new(),
    ];
    if !FEATURES.is_empty() {
        lines.insert(1, format!("test build: {}", FEATURES.join(", ")));
    }
    for (package, version) in std::iter::once(("PACKAGE", "VERSION")).chain(PACKAGES) {
        lines.push(format!("{package:<width$}{version}"));
    }
    lines.join("\n") + "\n"
}

fn as_json() -> String {
    let packages: Vec<Value> =
        PACKAGES.iter().map(|(package, version)| json!({ "package": package, "version": version })).collect();
    let commands: Map<String, Value> = COMMANDS.iter().map(|(name, schema)| ((*name).to_owned(), (*schema).into())).collect();
    let all = json!({
        "mur_version": env!("CARGO_PKG_VERSION"),
        "commit": COMMIT,
        "wit_level": SERVED,
        "packages": packages,
        "commands": commands,
        "features": FEATURES,
    });
    format!("{all:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_names_the_level_and_aligns_the_table() {
        let text = as_text();
        assert!(text.contains("\nWIT level 1\n\nPACKAGE                  VERSION\n"), "{text}");
        assert!(text.contains("murmur:artifact-manager  0.1.0\n"), "{text}");
    }

    #[test]
    fn the_json_has_its_keys_in_order() {
        let value: Value = serde_json::from_str(&as_json()).unwrap();
        let keys: Vec<&String> = value.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["mur_version", "commit", "wit_level", "packages", "commands", "features"]);
    }
}
