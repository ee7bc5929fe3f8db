//! `mur list`.

use serde_json::Value;

use crate::artifacts::{Found, Place, Stores, project};
use crate::cli::Outcome;
use crate::config::Config;
use crate::diagnostics::{Result, output};
use crate::paths::MurmurHome;
use crate::plugins::Registry;

/// Flags of `mur list`.
#[derive(clap::Args)]
pub struct Args {
    /// The global store, also inside a project
    #[arg(short, long, conflicts_with = "all")]
    global: bool,
    /// Every store: the project's, the global one, those configured, and what mur brings along
    #[arg(long)]
    all: bool,
    /// Only artifacts that import or export an interface whose name starts with this
    #[arg(long, value_name = "PREFIX")]
    contract: Option<String>,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let home = MurmurHome::from_env()?;
    let project = project::current()?;
    let cwd = std::env::current_dir().unwrap_or_default();
    let config = Config::load(&home, project.as_deref().unwrap_or(&cwd))?;
    let mut registry = Registry::new(&home, &config.plugins);
    let stores = Stores::open(&home, project.as_deref(), &config, &mut registry)?;
    let places = match (args.all, args.global || project.is_none()) {
        (true, _) => stores.places().cloned().collect(),
        (false, true) => vec![Place::Global],
        (false, false) => vec![Place::Project],
    };
    let mut rows = Vec::new();
    for place in &places {
        rows.extend(rows_of(&stores, place, args.contract.as_deref())?);
    }
    if rows.is_empty() {
        output::stdout_line("No artifacts found.");
        return Ok(0);
    }
    let mut columns = vec!["STORE", "NAME", "VERSION", "RUNTIME", "PLATFORMS", "CONTRACTS"];
    if args.contract.is_none() {
        columns.pop();
    }
    let skipped = usize::from(!args.all);
    let header = columns.iter().map(|text| (*text).to_owned()).collect();
    let table: Vec<Vec<String>> = std::iter::once(header).chain(rows).map(|row| row[skipped..].to_vec()).collect();
    for line in aligned(&table) {
        output::stdout_line(&line);
    }
    Ok(0)
}

/// One row a name and version; platforms joined.
fn rows_of(stores: &Stores, place: &Place, contract: Option<&str>) -> Result<Vec<Vec<String>>> {
    let all = stores.list(place)?;
    let mut rows = Vec::new();
    for group in all.chunk_by(|a, b| a.name == b.name && a.version == b.version) {
        let first = &group[0];
        let mut row = vec![
            place.as_str().to_owned(),
            first.name.to_string(),
            first.version.to_string(),
            role(stores, first),
            platforms(group),
        ];
        if let Some(prefix) = contract {
            let matching = contracts(first, prefix);
            if matching.is_empty() {
                continue;
            }
            row.push(matching.join(", "));
        }
        rows.push(row);
    }
    Ok(rows)
}

/// The role its sidecar says; without a readable one, what its packed manifest says.
fn role(stores: &Stores, found: &Found) -> String {
    match found.metadata().get("artifact_runtime").and_then(Value::as_str) {
        Some(role) => role.to_owned(),
        None => stores.read(found).map_or_else(|_| "?".to_owned(), |artifact| artifact.manifest.runtime),
    }
}

fn platforms(group: &[Found]) -> String {
    let tags: Vec<&str> = group.iter().filter_map(|found| found.platform).map(|platform| platform.tag()).collect();
    if tags.is_empty() { "—".to_owned() } else { tags.join(", ") }
}

fn contracts(found: &Found, prefix: &str) -> Vec<String> {
    let meta = found.metadata();
    let names = |key: &str| {
        let list = meta.get("wit_contracts").and_then(|contracts| contracts.get(key)).and_then(Value::as_array);
        list.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>()
    };
    let mut all = names("exports");
    all.extend(names("imports"));
    all.retain(|name| name.starts_with(prefix));
    all.sort();
    all.dedup();
    all
}

/// Columns padded to their widest cell, two spaces apart, nothing after the last.
fn aligned(table: &[Vec<String>]) -> Vec<String> {
    let columns = table.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| table.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    table
        .iter()
        .map(|row| {
            let cells: Vec<String> =
                row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}", width = *width)).collect();
            cells.join("  ").trim_end().to_owned()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_two_spaces_apart_and_padded_to_the_widest_cell() {
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let table = [row(["NAME", "PLATFORMS"]), row(["local/long", "—"]), row(["é/x", "linux-x86_64"])];
        assert_eq!(aligned(&table), ["NAME        PLATFORMS", "local/long  —", "é/x         linux-x86_64"]);
    }
}
