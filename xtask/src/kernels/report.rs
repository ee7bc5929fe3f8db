//! What the machines said, read and put in one table.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

/// The classes, strongest first.
pub const CLASSES: [&str; 4] = ["sealed", "scoped", "advisory", "unconfined"];

/// Everything a machine said.
#[derive(Debug, Default)]
pub struct Machine {
    line: String,
    facts: BTreeMap<String, String>,
    /// What each class achieves there, by who asked and class.
    probes: BTreeMap<(String, String), String>,
    suites: Vec<Suite>,
    /// Whether it came to its end.
    pub whole: bool,
    /// Why it did not.
    pub broken: Option<String>,
}

#[derive(Debug, Default)]
struct Suite {
    who: String,
    name: String,
    passed: usize,
    failed: Vec<String>,
    /// Attempts that were refused, of the harness.
    refused: Option<usize>,
    /// Whether the harness ran some of its cases only.
    partial: bool,
    status: Option<i32>,
}

impl Machine {
    /// Reads what a machine wrote.
    pub fn read(line: &str, text: &str) -> Self {
        let mut machine = Self { line: line.to_owned(), ..Self::default() };
        let mut part: Option<Suite> = None;
        for line in text.lines().map(|line| line.trim_end_matches('\r')) {
            if let Some(fact) = line.strip_prefix("@@fact ") {
                let (name, value) = fact.split_once(' ').unwrap_or((fact, ""));
                machine.facts.insert(name.to_owned(), value.to_owned());
            } else if let Some(names) = line.strip_prefix("@@begin ") {
                let (who, name) = names.split_once(' ').unwrap_or(("", names));
                part = Some(Suite { who: who.to_owned(), name: name.to_owned(), ..Suite::default() });
            } else if let Some(status) = line.strip_prefix("@@end ") {
                if let Some(mut suite) = part.take().filter(|suite| suite.name != "probe") {
                    suite.status = status.parse().ok();
                    machine.suites.push(suite);
                }
            } else if line == "@@whole" {
                machine.whole = true;
            } else if let (Some(record), Some(suite)) = (line.strip_prefix("@@record "), &mut part) {
                suite.recorded(record);
            } else if let Some(suite) = &mut part {
                if suite.name == "probe" {
                    machine.probed(&suite.who, line);
                } else {
                    suite.tested(line);
                }
            }
        }
        // A suite that never ended is one.
        machine.suites.extend(part.filter(|suite| suite.name != "probe"));
        machine
    }

    /// A line of `mur doctor`.
    fn probed(&mut self, who: &str, line: &str) {
        let Some((what, answer)) = line.trim().split_once(": ") else { return };
        let known = CLASSES.contains(&what) || what.starts_with("session ") || what == "kernel ABI";
        if known {
            self.probes.insert((who.to_owned(), what.to_owned()), answer.to_owned());
        }
    }

    /// What did not go as it must.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if let Some(why) = &self.broken {
            faults.push(format!("{}: {why}", self.line));
        }
        for ((who, what), answer) in &self.probes {
            if what != "kernel ABI" && !answer.starts_with("yes") {
                faults.push(format!("{}: for {who}, {what}: {answer}", self.line));
            }
        }
        for suite in &self.suites {
            for test in &suite.failed {
                faults.push(format!("{}: {} as {}: {test}", self.line, suite.name, suite.who));
            }
            let said = match suite.status {
                Some(0) => continue,
                Some(124 | 137) => "did not end in time".to_owned(),
                Some(status) => format!("ended with status {status}"),
                None => "was not ended".to_owned(),
            };
            if suite.failed.is_empty() {
                faults.push(format!("{}: {} as {} {said}", self.line, suite.name, suite.who));
            }
        }
        if self.probes.is_empty() || self.suites.is_empty() {
            faults.push(format!("{}: nothing was tried", self.line));
        }
        faults
    }

    fn cell(&self, row: &Row) -> String {
        match row {
            Row::Fact(name) => self.facts.get(*name).cloned().unwrap_or_else(|| "-".to_owned()),
            Row::Probe(who, what) => {
                self.probes.get(&(who.clone(), what.clone())).map_or_else(|| "-".to_owned(), |answer| short(answer))
            }
            Row::Suite(who, name) => {
                let suite = self.suites.iter().find(|suite| suite.who == *who && suite.name == *name);
                suite.map_or_else(|| "-".to_owned(), Suite::cell)
            }
        }
    }
}

impl Suite {
    /// A line of a test program.
    fn tested(&mut self, line: &str) {
        let Some((name, outcome)) = line.strip_prefix("test ").and_then(|line| line.rsplit_once(" ... ")) else {
            return;
        };
        match outcome {
            "ok" => self.passed += 1,
            "FAILED" => self.failed.push(name.to_owned()),
            _ => {}
        }
    }

    /// The record of the harness.
    fn recorded(&mut self, record: &str) {
        let record: Value = serde_json::from_str(record).unwrap_or_default();
        self.partial |= record["partial"] == true;
        for case in record["cases"].as_array().into_iter().flatten() {
            let word = |key: &str| case[key].as_str().unwrap_or_default();
            match word("result") {
                "PASS" => self.passed += 1,
                "FAIL" => self.failed.push(format!("{} on {}: {}", word("id"), word("route"), word("detail"))),
                _ => {}
            }
            *self.refused.get_or_insert(0) += usize::from(word("verdict") == "REFUSED");
        }
    }

    fn cell(&self) -> String {
        let refused = self.refused.map(|count| format!(", {count} refused")).unwrap_or_default();
        let part = if self.partial { " (some cases)" } else { "" };
        let counts = format!("{} passed, {} failed{refused}{part}", self.passed, self.failed.len());
        match self.status {
            Some(0 | 101) => counts,
            Some(3 | 4) if self.refused.is_some() => counts,
            Some(124 | 137) => format!("{counts}, out of time"),
            _ => format!("{counts}, broken off"),
        }
    }
}

enum Row {
    Fact(&'static str),
    Probe(String, String),
    Suite(String, String),
}

/// `yes (…)` as it stands, `no — …` to the first reason.
fn short(answer: &str) -> String {
    answer.split(" (").next().filter(|_| answer.starts_with("no")).unwrap_or(answer).to_owned()
}

/// The table: what is looked at × kernel.
pub fn table(machines: &[Machine]) -> String {
    let mut rows = vec![("kernel".to_owned(), Row::Fact("kernel"))];
    let abi = Row::Probe("root".to_owned(), "kernel ABI".to_owned());
    rows.push(("Landlock ABI".to_owned(), abi));
    for who in ["root", "user"] {
        for what in CLASSES.iter().copied().chain(["session namespaces", "session cgroup scope"]) {
            rows.push((format!("{what}, {who}"), Row::Probe(who.to_owned(), what.to_owned())));
        }
    }
    let mut suites: Vec<(String, String)> = Vec::new();
    for suite in machines.iter().flat_map(|machine| &machine.suites) {
        let pair = (suite.who.clone(), suite.name.clone());
        if !suites.contains(&pair) {
            suites.push(pair);
        }
    }
    rows.extend(suites.into_iter().map(|(who, name)| (format!("suite {name}, {who}"), Row::Suite(who, name))));
    let heads = machines.iter().map(|machine| machine.line.clone());
    let mut lines = vec![std::iter::once(String::new()).chain(heads).collect::<Vec<_>>()];
    for (label, row) in &rows {
        let cells = machines.iter().map(|machine| machine.cell(row));
        lines.push(std::iter::once(label.clone()).chain(cells).collect());
    }
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..=machines.len()).map(width).collect();
    let mut text = String::new();
    for line in &lines {
        let cells: Vec<String> =
            line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}", width = *width)).collect();
        let _ = writeln!(text, "{}", cells.join("  ").trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "@@fact kernel 6.1.0-1-amd64\r\n@@begin root probe\nLandlock\n  kernel ABI: 2\n  sealed: yes (a+b)\n\
        \x20 scoped: no — x failed with EPERM (y) (z)\n    do: that\n  session cgroup scope: yes\n@@end 0\n\
        @@begin root confined\nrunning 3 tests\ntest a ... ok\ntest b ... FAILED\ntest c ... ignored, why\n@@end 101\n\
        @@begin user delegation\ntest d ... ok\n@@end 124\n\
        @@begin root escape scoped\nsaid\n@@record {\"cases\": [{\"id\": \"a\", \"route\": \"r\", \"verdict\": \"REFUSED\", \
        \"result\": \"PASS\"}, {\"id\": \"b\", \"route\": \"r\", \"verdict\": \"ALLOWED\", \"result\": \"FAIL\", \
        \"detail\": \"it opened\"}]}\n@@end 3\n";

    #[test]
    fn what_a_machine_says_is_counted_and_what_it_lacks_is_a_fault() {
        let machine = Machine::read("6.1", SAID);
        assert_eq!(
            machine.faults(),
            [
                "6.1: for root, scoped: no — x failed with EPERM (y) (z)",
                "6.1: confined as root: b",
                "6.1: delegation as user did not end in time",
                "6.1: escape scoped as root: b on r: it opened",
            ]
        );
        let table = table(&[machine, Machine::read("6.12", "@@begin root lifecycle\ntest a ... ok\n")]);
        for line in [
            "kernel                      6.1.0-1-amd64",
            "Landlock ABI                2",
            "sealed, root                yes (a+b)",
            "scoped, root                no — x failed with EPERM",
            "suite confined, root        1 passed, 1 failed               -",
            "suite delegation, user      1 passed, 0 failed, out of time  -",
            "suite escape scoped, root   1 passed, 1 failed, 1 refused    -",
            "suite lifecycle, root       -                                1 passed, 0 failed, broken off",
        ] {
            assert!(table.lines().any(|found| found.starts_with(line)), "{line}\n{table}");
        }
    }

    #[test]
    fn a_machine_that_says_nothing_is_a_fault() {
        assert_eq!(Machine::read("6.1", "").faults(), ["6.1: nothing was tried"]);
    }
}
