//! `mur trace diff`: two ended sessions side by side, and where what they sent to the model parted.

use std::fmt::Write as _;

use serde_json::Value;

use super::Trace;
use super::measures::{Measures, Metric};
use super::text::{heading, number};
use crate::diagnostics::Result;

/// Compares two traces; each must have its `session_end` (`E-TRC-001`).
pub fn text(before: &Trace, after: &Trace) -> Result<String> {
    let (a, b) = (Measures::of(before)?, Measures::of(after)?);
    let mut text = heading("Diff");
    let _ = writeln!(text, "Run A: {}  {}\nRun B: {}  {}\n", a.session, a.capsule, b.session, b.capsule);
    row(&mut text, "Metric", "Run A", "Run B", "Delta");
    for ((metric, ours), (_, theirs)) in a.rows().zip(b.rows()) {
        let show = |value: Option<f64>| value.map_or_else(|| "—".to_owned(), |value| metric.show(value));
        row(&mut text, metric.name, &show(ours), &show(theirs), &delta(metric, ours, theirs));
    }
    let same = if a.exit_status == b.exit_status { "=" } else { "—" };
    row(&mut text, "exit status", &a.exit_status, &b.exit_status, same);
    let _ = write!(text, "\n{}{}\n", heading("Prefix divergence"), divergence(before, after));
    Ok(text)
}

fn row(text: &mut String, name: &str, a: &str, b: &str, delta: &str) {
    let _ = writeln!(text, "{}", format!("{name:<22}{a:<16}{b:<16}{delta}").trim_end());
}

fn delta(metric: &Metric, a: Option<f64>, b: Option<f64>) -> String {
    let (Some(a), Some(b)) = (a, b) else { return "—".to_owned() };
    // What is shown alike is alike.
    if metric.show(a) == metric.show(b) {
        return "=".to_owned();
    }
    let (sign, better) = if b > a { ("+", metric.more_is_better) } else { ("-", !metric.more_is_better) };
    format!("{sign}{} ({} better)", metric.show((b - a).abs()), if better { "B" } else { "A" })
}

/// The first difference between what the two runs sent, by the digests their traces keep.
fn divergence(a: &Trace, b: &Trace) -> String {
    let mut both = 0;
    for (ours, theirs) in a.of("inference").zip(b.of("inference")) {
        let turn = number(ours, "turn");
        for (key, what) in [("system_sha", "system prompt"), ("tools_sha", "tools")] {
            if let Some(difference) = differ(&ours[key], &theirs[key]) {
                return format!("turn {turn}: {what}  {difference}");
            }
        }
        let messages = |record: &'_ Value| record["message_shas"].as_array().cloned().unwrap_or_default();
        let (ours, theirs) = (messages(ours), messages(theirs));
        for index in 0..ours.len().max(theirs.len()) {
            let at = |list: &[Value]| list.get(index).cloned().unwrap_or(Value::Null);
            if let Some(difference) = differ(&at(&ours), &at(&theirs)) {
                return format!("turn {turn}: message:{index}  {difference}");
            }
        }
        both += 1;
    }
    match (a.of("inference").count(), b.of("inference").count()) {
        (0, _) | (_, 0) => "nothing to compare: a run called no model".to_owned(),
        (ours, theirs) if ours == theirs => format!("none: all {both} requests are alike"),
        (ours, theirs) => {
            let longer = if ours > theirs { "A" } else { "B" };
            format!("after request {both}: only run {longer} goes on")
        }
    }
}

fn differ(a: &Value, b: &Value) -> Option<String> {
    let short = |value: &Value| value.as_str().map_or("absent".to_owned(), |sha| sha.chars().take(12).collect());
    (a != b).then(|| format!("A {}, B {}", short(a), short(b)))
}
