//! The record of a run: a page to read, and JSON for programs.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use time::OffsetDateTime;

use super::cases::{CASES, Category, Class, Expect, Route};
use super::grade::{Graded, Result as Grade};
use super::host::Host;
use super::options::Options;

/// What a record is made of.
pub struct Record<'a> {
    /// When the run began.
    pub at: OffsetDateTime,
    /// The class graded.
    pub class: Class,
    /// The command line.
    pub options: &'a Options,
    /// The host.
    pub host: &'a Host,
    /// `mur run --explain-scope --json` of a capsule of the class.
    pub scope: &'a Value,
    /// The cases.
    pub graded: &'a [Graded],
}

/// Counts of a category.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Cases the class claims something of.
    pub asserted: usize,
    /// Of them as claimed.
    pub passed: usize,
    /// Of them not as claimed.
    pub failed: usize,
    /// Cases the class claims nothing of.
    pub recorded: usize,
    /// Refused, and not by the class.
    pub unattributed: usize,
}

/// Counts a category.
pub fn count(graded: &[Graded], category: Category) -> Counts {
    let mut counts = Counts::default();
    for one in graded.iter().filter(|one| one.category() == category) {
        counts.asserted += usize::from(one.result != Grade::NotAsserted);
        match one.result {
            Grade::Pass => counts.passed += 1,
            Grade::Fail => counts.failed += 1,
            Grade::NotAsserted => counts.recorded += 1,
            Grade::Unattributed => counts.unattributed += 1,
        }
    }
    counts
}

/// A moment as file names have it.
pub fn stamp(at: OffsetDateTime) -> String {
    let (date, time) = (at.date(), at.time());
    format!(
        "{:04}{:02}{:02}T{:02}{:02}{:02}Z",
        date.year(),
        u8::from(date.month()),
        date.day(),
        time.hour(),
        time.minute(),
        time.second()
    )
}

fn moment(at: OffsetDateTime) -> String {
    let (date, time) = (at.date(), at.time());
    format!(
        "{:04}-{:02}-{:02} {:02}:{:02}:{:02}",
        date.year(),
        u8::from(date.month()),
        date.day(),
        time.hour(),
        time.minute(),
        time.second()
    )
}

impl Record<'_> {
    /// Writes both files and gives the page's path.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn write(&self, folder: &Path) -> std::io::Result<PathBuf> {
        std::fs::create_dir_all(folder)?;
        let base = format!("escape-conformance-{}-{}", self.class.as_str(), stamp(self.at));
        let page = folder.join(format!("{base}.md"));
        std::fs::write(folder.join(format!("{base}.json")), format!("{:#}\n", self.json()))?;
        std::fs::write(&page, self.page())?;
        Ok(page)
    }

    /// Why the record is no evidence.
    fn doubts(&self) -> Vec<String> {
        let mut doubts = Vec::new();
        if self.host.in_container() {
            doubts.push("a container was detected: what refused may be the container".to_owned());
        }
        if !self.options.only.is_empty() {
            doubts.push(format!("the run is partial: {}", self.options.only.join(", ")));
        }
        doubts
    }

    /// The JSON beside the page.
    pub fn json(&self) -> Value {
        let cases: Vec<Value> = self
            .graded
            .iter()
            .map(|one| {
                json!({
                    "id": one.id, "category": one.category().as_str(), "route": one.route.as_str(),
                    "expected": one.expected.as_str(), "verdict": one.seen.verdict.as_str(),
                    "control": one.control(), "result": one.result.as_str(), "detail": one.seen.detail,
                })
            })
            .collect();
        json!({
            "schema": 1, "class": self.class.as_str(), "achieved": self.scope["achieved_containment"],
            "citable": self.doubts().is_empty(), "partial": !self.options.only.is_empty(),
            "host": self.host.json(), "cases": cases,
        })
    }

    fn page(&self) -> String {
        let mut page = format!("# Escape-conformance record — {} — {} UTC\n\n", self.class.as_str(), moment(self.at));
        let doubts = self.doubts();
        if doubts.is_empty() {
            page.push_str("This record may be cited.\n");
        } else {
            page.push_str("**THIS RECORD IS NOT EVIDENCE**\n\n");
            doubts.iter().for_each(|doubt| line(&mut page, format_args!("- {doubt}")));
        }
        self.summary(&mut page);
        self.about_host(&mut page);
        self.tables(&mut page);
        self.each(&mut page);
        page.push_str("\n## What each class claims\n\n");
        page.push_str(&expectations());
        page
    }

    fn summary(&self, page: &mut String) {
        page.push_str(
            "\n## Summary\n\n| category | asserted | passed | failed | recorded but not asserted | unattributed |\n",
        );
        page.push_str("|---|---|---|---|---|---|\n");
        for category in [Category::Boundary, Category::Resource] {
            let Counts { asserted, passed, failed, recorded, unattributed } = count(self.graded, category);
            line(
                page,
                format_args!(
                    "| {} | {asserted} | {passed} | {failed} | {recorded} | {unattributed} |",
                    category.as_str()
                ),
            );
        }
    }

    fn about_host(&self, page: &mut String) {
        let host = self.host;
        let note = if host.euid == 0 {
            "0: every refusal is attributable, capabilities are dropped by the class"
        } else {
            "not root: mknod, bpf and open_by_handle_at are refused to this user anyway"
        };
        let signals: Vec<String> = host
            .container
            .iter()
            .map(|(name, found)| format!("{name}: {}", if *found { "yes" } else { "no" }))
            .collect();
        let text = |value: &Value| match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        page.push_str("\n## Host\n\n| what | value |\n|---|---|\n");
        for (what, value) in [
            ("date", format!("{} UTC", moment(self.at))),
            ("kernel", host.release.clone()),
            ("system", host.system.clone()),
            ("effective user", format!("{}, {note}", host.euid)),
            ("cgroups", host.cgroup.clone()),
            ("container", signals.join("; ")),
            ("declared class", self.class.as_str().to_owned()),
            ("achieved class", text(&self.scope["achieved_containment"])),
            ("mechanism", text(&self.scope["enforcement_tier"])),
            ("Landlock version", text(&self.scope["landlock_abi"])),
            ("userns grant", text(&self.scope["userns_grant"])),
            ("mur", host.mur.display().to_string()),
            ("version", text(&host.version["mur_version"])),
            ("features", text(&host.version["features"])),
            ("SHA-256", host.sha256.clone()),
            ("invocation", format!("escape-conformance {}", self.options.invocation)),
        ] {
            line(page, format_args!("| {what} | {} |", cell(&value)));
        }
    }

    fn tables(&self, page: &mut String) {
        for category in [Category::Boundary, Category::Resource] {
            for route in routes(self.graded) {
                let rows: Vec<&Graded> =
                    self.graded.iter().filter(|one| one.route == route && one.category() == category).collect();
                if rows.is_empty() {
                    continue;
                }
                line(page, format_args!("\n## {} — {}\n", category.as_str(), route.as_str()));
                page.push_str("| case | expected | actual | control | result |\n|---|---|---|---|---|\n");
                for one in rows {
                    let (expected, actual) = (one.expected.as_str(), one.seen.verdict.as_str());
                    let (control, result) = (cell(&one.control()), one.result.as_str());
                    line(page, format_args!("| `{}` | {expected} | {actual} | {control} | {result} |", one.id));
                }
            }
        }
    }

    fn each(&self, page: &mut String) {
        page.push_str("\n## Case by case\n");
        for one in self.graded {
            line(page, format_args!("\n### `{}` on {}\n", one.id, one.route.as_str()));
            let (attempt, attribution) = match one.case {
                Some(case) => (case.attempt, case.attribution),
                None => ("the worker read from outside, by /proc", "what the class installs"),
            };
            line(page, format_args!("- category: {}", one.category().as_str()));
            line(page, format_args!("- attempt: {attempt}"));
            line(page, format_args!("- expected: {}", one.expected.as_str()));
            line(page, format_args!("- actual: {}", one.seen.verdict.as_str()));
            line(page, format_args!("- result: {}", one.result.as_str()));
            line(page, format_args!("- evidence: {}", one.seen.detail));
            line(page, format_args!("- control: {}", one.control()));
            if let Some(unconfined) = &one.unconfined {
                line(page, format_args!("- evidence at unconfined: {}", unconfined.detail));
            }
            line(page, format_args!("- attribution: {attribution}"));
            line(page, format_args!("- artifacts: {}", one.folder.display()));
        }
    }
}

fn routes(graded: &[Graded]) -> Vec<Route> {
    let mut routes: Vec<Route> = graded.iter().map(|one| one.route).collect();
    routes.dedup();
    routes
}

fn line(page: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = writeln!(page, "{text}");
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

/// Every case with every class's claim, for commands and for workers.
pub fn expectations() -> String {
    let mut table =
        "| case | route | unconfined | advisory | scoped | sealed |\n|---|---|---|---|---|---|\n".to_owned();
    for case in CASES {
        let claims = |route| {
            let all = Class::ALL.map(|class| case.expect(class, route).map_or("no such case", Expect::as_str));
            all.join(" | ")
        };
        // Of the workers the hooks worker has every case.
        let (commands, workers) = (claims(Route::Shell), claims(Route::Hooks));
        if commands == workers {
            line(&mut table, format_args!("| `{}` | all | {commands} |", case.id));
            continue;
        }
        if case.expect(Class::Scoped, Route::Shell).is_some() {
            line(&mut table, format_args!("| `{}` | shell, native-tool | {commands} |", case.id));
        }
        line(&mut table, format_args!("| `{}` | wasm-guest | {workers} |", case.id));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_claims_names_every_case_and_tells_routes_apart_where_they_differ() {
        let table = expectations();
        for case in CASES {
            assert!(table.contains(&format!("| `{}` |", case.id)), "{}", case.id);
        }
        assert!(table.contains(
            "| `exec-through-loader` | shell, native-tool | not-asserted | not-asserted | ALLOWED | ALLOWED |"
        ));
        assert!(
            table.contains("| `exec-through-loader` | wasm-guest | not-asserted | not-asserted | REFUSED | REFUSED |")
        );
        assert!(table.contains("| `stat-outside-workdir` | all | not-asserted | SUCCESS | SUCCESS | REFUSED |"));
    }

    #[test]
    fn a_moment_is_written_as_file_names_have_it() {
        let at = OffsetDateTime::from_unix_timestamp(1_700_000_000).unwrap();
        assert_eq!((stamp(at).as_str(), moment(at).as_str()), ("20231114T221320Z", "2023-11-14 22:13:20"));
    }
}
