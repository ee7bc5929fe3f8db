//! Small pieces of the text that `mur trace` prints.

use serde_json::Value;

/// Columns a section's heading takes.
const HEADING: usize = 49;

/// `── <title> ───…`, to column 49.
pub fn heading(title: &str) -> String {
    let used = title.chars().count() + 4;
    format!("── {title} {}\n", "─".repeat(HEADING.saturating_sub(used)))
}

/// `<n>ms` below a second, else `<n.n>s`.
pub fn duration(ms: u64) -> String {
    if ms < 1000 { format!("{ms}ms") } else { format!("{:.1}s", ms as f64 / 1000.0) }
}

/// A count and its noun.
pub fn plural(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// A string member, or `-`.
pub fn string<'a>(record: &'a Value, key: &str) -> &'a str {
    record[key].as_str().unwrap_or("-")
}

/// A number member, or 0.
pub fn number(record: &Value, key: &str) -> u64 {
    record[key].as_u64().unwrap_or(0)
}

/// A list of strings, joined.
pub fn joined(value: &Value) -> String {
    let items: Vec<&str> = value.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    items.join(", ")
}

/// At most `limit` characters of one line.
pub fn brief(text: &str, limit: usize) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.chars().count() <= limit {
        return line;
    }
    line.chars().take(limit).chain(['…']).collect()
}

/// The rows with each column padded to its widest cell, two spaces between, nothing after the last.
pub fn columns(rows: &[Vec<String>], indent: &str) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count)
        .map(|column| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0))
        .collect();
    let line = |row: &Vec<String>| {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        format!("{indent}{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}
