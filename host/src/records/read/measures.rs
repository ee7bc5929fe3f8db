//! What one ended session took, as numbers that can be compared.

use serde_json::Value;

use super::Trace;
use super::text::{duration, number, string};
use crate::diagnostics::{Diagnostic, Result, codes};

/// The numbers of one session.
#[derive(Clone, Debug, PartialEq)]
pub struct Measures {
    /// `ses_…`.
    pub session: String,
    /// `<name> v<version>`.
    pub capsule: String,
    /// How it ended.
    pub exit_status: String,
    values: [Option<f64>; METRICS.len()],
}

/// How a number is written.
#[derive(Clone, Copy)]
enum Unit {
    Count,
    Mean,
    Millis,
    Percent,
}

/// One row of a comparison.
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    unit: Unit,
    /// Whether more of it is better.
    pub more_is_better: bool,
    of: fn(&Trace, &Value) -> Option<f64>,
}

const fn metric(name: &'static str, unit: Unit, of: fn(&Trace, &Value) -> Option<f64>) -> Metric {
    Metric { name, unit, more_is_better: false, of }
}

/// Every row, in the order shown.
pub const METRICS: [Metric; 13] = [
    metric("turns", Unit::Count, |_, end| Some(count(end, "total_turns"))),
    metric("duration", Unit::Millis, |_, end| Some(count(end, "duration_ms"))),
    metric("input tokens", Unit::Count, |_, end| Some(count(end, "total_input_tokens"))),
    metric("output tokens", Unit::Count, |_, end| Some(count(end, "total_output_tokens"))),
    metric("input/turn (avg)", Unit::Mean, |_, end| ratio(count(end, "total_input_tokens"), count(end, "total_turns"))),
    metric("output/turn (avg)", Unit::Mean, |_, end| {
        ratio(count(end, "total_output_tokens"), count(end, "total_turns"))
    }),
    metric("tool calls", Unit::Count, |trace, _| Some(events(trace, "tool_call"))),
    Metric {
        name: "tool success rate",
        unit: Unit::Percent,
        more_is_better: true,
        of: |trace, _| {
            let ok = trace.of("tool_call").filter(|call| call["status"] == "ok").count() as f64;
            ratio(ok * 100.0, events(trace, "tool_call"))
        },
    },
    metric("avg tool latency", Unit::Millis, |trace, _| latency(trace, "tool_call")),
    metric("skill calls", Unit::Count, |trace, _| Some(events(trace, "skill_call"))),
    metric("shell calls", Unit::Count, |_, end| Some(count(end, "total_shell_calls"))),
    metric("avg shell latency", Unit::Millis, |trace, _| latency(trace, "shell")),
    metric("compaction", Unit::Count, |trace, _| Some(events(trace, "compaction"))),
];

impl Metric {
    /// A number of this row's.
    pub fn show(&self, value: f64) -> String {
        match self.unit {
            Unit::Count => format!("{value:.0}"),
            Unit::Mean => format!("{value:.1}"),
            Unit::Millis => duration(value.max(0.0).round() as u64),
            Unit::Percent => format!("{value:.1}%"),
        }
    }

    /// A number of this row's where a mean of counts may be broken.
    pub fn show_mean(&self, value: f64) -> String {
        if matches!(self.unit, Unit::Count) { format!("{value:.1}") } else { self.show(value) }
    }
}

impl Measures {
    /// The numbers of a trace that has both ends (`E-TRC-001`).
    pub fn of(trace: &Trace) -> Result<Self> {
        let start = trace.start()?;
        let end = trace.first("session_end").ok_or_else(|| {
            let formation = start["formation_id"].as_str();
            let of = formation.map(|id| format!(", a member of formation {id}")).unwrap_or_default();
            let message = format!("{} has no session_end{of}", trace.path.display());
            Diagnostic::new(codes::E_TRC_001, message)
                .hint("only sessions that ended can be compared; mur trace show shows what there is of this one")
        })?;
        Ok(Self {
            session: string(start, "session_id").to_owned(),
            capsule: format!("{} v{}", string(start, "capsule_name"), string(start, "capsule_version")),
            exit_status: string(end, "exit_status").to_owned(),
            values: METRICS.map(|metric| (metric.of)(trace, end)),
        })
    }

    /// Each row with its number; none where there was nothing to measure.
    pub fn rows(&self) -> impl Iterator<Item = (&'static Metric, Option<f64>)> + '_ {
        const ROWS: &[Metric; METRICS.len()] = &METRICS;
        ROWS.iter().zip(self.values)
    }
}

fn count(record: &Value, key: &str) -> f64 {
    number(record, key) as f64
}

fn events(trace: &Trace, kind: &str) -> f64 {
    trace.of(kind).count() as f64
}

fn ratio(sum: f64, count: f64) -> Option<f64> {
    (count > 0.0).then(|| sum / count)
}

fn latency(trace: &Trace, kind: &str) -> Option<f64> {
    ratio(trace.of(kind).map(|call| number(call, "duration_ms") as f64).sum(), events(trace, kind))
}
