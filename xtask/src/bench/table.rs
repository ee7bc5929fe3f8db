//! The table.

/// One line of it.
pub struct Row {
    what: String,
    unit: &'static str,
    budget: f64,
    lower_is_better: bool,
    values: Vec<f64>,
    missing: Option<String>,
}

impl Row {
    /// A measurement that may be at most so much.
    pub fn new(what: &str, unit: &'static str, budget: f64, values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        Self { what: what.to_owned(), unit, budget, lower_is_better: true, values, missing: None }
    }

    /// A measurement that must be at least so much.
    pub fn at_least(what: &str, unit: &'static str, budget: f64, values: impl IntoIterator<Item = f64>) -> Self {
        Self { lower_is_better: false, ..Self::new(what, unit, budget, values) }
    }

    /// One that could not be made.
    pub fn missing(what: &str, unit: &'static str, budget: f64, why: &str) -> Self {
        Self { missing: Some(why.to_owned()), ..Self::new(what, unit, budget, []) }
    }

    fn median(&self) -> Option<f64> {
        let middle = self.values.len() / 2;
        match self.values.len() {
            0 => None,
            count if count % 2 == 1 => Some(self.values[middle]),
            _ => Some(self.values[middle - 1].midpoint(self.values[middle])),
        }
    }

    fn text(&self, width: usize) -> String {
        let Some(median) = self.median() else {
            let why = self.missing.as_deref().unwrap_or("nothing was measured");
            return format!("{:<width$}  not measured: {why}\n", self.what);
        };
        let (min, max) = (self.values[0], self.values[self.values.len() - 1]);
        let met = if self.lower_is_better { median <= self.budget } else { median >= self.budget };
        format!(
            "{:<width$}  {:>10} {:>10} {:>10}  {:>4}  {:>10} {:<4} {}\n",
            self.what,
            number(median),
            number(min),
            number(max),
            self.values.len(),
            number(self.budget),
            self.unit,
            if met { "met" } else { "MISSED" },
        )
    }
}

fn number(value: f64) -> String {
    if value.abs() >= 1000.0 {
        format!("{value:.0}")
    } else if value.abs() >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.3}")
    }
}

/// All rows.
#[derive(Default)]
pub struct Table(Vec<Row>);

impl Table {
    /// Adds a row.
    pub fn add(&mut self, row: Row) {
        self.0.push(row);
    }

    /// The table as text.
    pub fn text(&self) -> String {
        let width = self.0.iter().map(|row| row.what.chars().count()).max().unwrap_or(0);
        let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
        let mut text = format!(
            "\n{:<width$}  {:>10} {:>10} {:>10}  {:>4}  {:>10}\n",
            "", "median", "min", "max", "runs", "budget"
        );
        text.extend(self.0.iter().map(|row| row.text(width)));
        text.push_str(&format!("\n{cores} cores; class unconfined unless named; artifacts already compiled\n"));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_decides_in_the_direction_that_is_better() {
        assert!(Row::new("a", "ms", 2.0, [9.0, 1.0, 2.0]).text(1).contains("met"));
        assert!(Row::new("a", "ms", 2.0, [9.0, 1.0, 3.0]).text(1).contains("MISSED"));
        assert!(Row::at_least("a", "", 2.0, [3.0, 1.0]).text(1).contains("met"));
        assert!(Row::missing("a", "", 2.0, "later").text(1).contains("not measured: later"));
    }
}
