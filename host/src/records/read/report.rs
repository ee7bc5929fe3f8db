//! `mur trace report`: several ended sessions, each by itself and all together.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::measures::{METRICS, Measures};
use super::text::{columns, heading};

/// A block for each session, then mean, deviation, least and most of each number, and how the sessions ended.
pub fn text(sessions: &[Measures]) -> String {
    let mut text = String::new();
    for one in sessions {
        let _ = write!(text, "{}capsule:  {}\nstatus:   {}\n", heading(&one.session), one.capsule, one.exit_status);
        let rows = one.rows().filter_map(|(metric, value)| Some(vec![metric.name.to_owned(), metric.show(value?)]));
        let _ = writeln!(text, "{}", columns(&rows.collect::<Vec<_>>(), ""));
    }
    let noun = if sessions.len() == 1 { "session" } else { "sessions" };
    text.push_str(&heading(&format!("{} {noun}", sessions.len())));
    let mut table = vec![["Metric", "Mean", "StdDev", "Min", "Max"].map(str::to_owned).to_vec()];
    for (index, metric) in METRICS.iter().enumerate() {
        let values: Vec<f64> = sessions.iter().filter_map(|one| one.rows().nth(index)?.1).collect();
        let mut row = vec![metric.name.to_owned()];
        row.extend(match spread(&values) {
            None => ["—"; 4].map(str::to_owned),
            Some(Spread { mean, deviation, least, most }) => [
                metric.show_mean(mean),
                deviation.map_or_else(|| "—".to_owned(), |deviation| metric.show_mean(deviation)),
                metric.show(least),
                metric.show(most),
            ],
        });
        table.push(row);
    }
    text.push_str(&columns(&table, ""));
    let mut ends: BTreeMap<&str, usize> = BTreeMap::new();
    for one in sessions {
        *ends.entry(&one.exit_status).or_default() += 1;
    }
    let rows: Vec<Vec<String>> = ends
        .into_iter()
        .map(|(status, count)| vec![status.to_owned(), count.to_string(), format!("{}%", count * 100 / sessions.len())])
        .collect();
    let _ = write!(text, "\n{}{}", heading("Exit status"), columns(&rows, ""));
    text
}

struct Spread {
    mean: f64,
    /// Of the sample; none of a single value.
    deviation: Option<f64>,
    least: f64,
    most: f64,
}

fn spread(values: &[f64]) -> Option<Spread> {
    if values.is_empty() {
        return None;
    }
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let deviation = (values.len() > 1).then(|| (squares / (count - 1.0)).sqrt());
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    Some(Spread { mean, deviation, least, most })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deviation_is_that_of_a_sample_and_none_of_one_value() {
        let of = |values: &[f64]| spread(values).map(|s| (s.mean, s.deviation, s.least, s.most));
        assert_eq!(of(&[2.0, 4.0, 6.0]), Some((4.0, Some(2.0), 2.0, 6.0)));
        assert_eq!(of(&[3.0]), Some((3.0, None, 3.0, 3.0)));
        assert_eq!(of(&[]), None);
    }
}
