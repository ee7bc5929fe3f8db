//! The requirement indexes: every sentence of a schema beside the tests that show it. A sentence without a test, a test
//! that is not there, or an id that is given twice fails; only what needs a kind of capsule this version does not run may
//! wait.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// One requirement.
#[derive(Debug, Default)]
struct Row {
    line: usize,
    id: String,
    section: String,
    says: String,
    tests: Vec<String>,
    /// Where a later decision departs from the sentence.
    ruling: Option<String>,
    /// What has to be there before it can be shown.
    waits: Option<String>,
}

/// What a row may wait for in the place of a test.
const WAITS: [&str; 2] = ["script capsules", "process drivers"];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the workspace").to_owned()
}

/// Reads the part of TOML an index is written in: `[[row]]`, and keys whose values are texts or lists of texts on one
/// line, which JSON writes alike.
fn read(text: &str) -> Result<Vec<Row>, String> {
    let mut rows: Vec<Row> = Vec::new();
    for (at, line) in text.lines().enumerate().map(|(at, line)| (at + 1, line.trim())) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if line == "[[row]]" {
            rows.push(Row { line: at, ..Row::default() });
            continue;
        }
        let (key, value) = line.split_once(" = ").ok_or(format!("line {at}: neither a row nor a key: {line}"))?;
        let row = rows.last_mut().ok_or(format!("line {at}: a key before the first row"))?;
        let value: Value = serde_json::from_str(value).map_err(|fault| format!("line {at}: {key}: {fault}"))?;
        let text = || value.as_str().map(str::to_owned).ok_or(format!("line {at}: {key} is a text"));
        match key {
            "id" => row.id = text()?,
            "section" => row.section = text()?,
            "says" => row.says = text()?,
            "ruling" => row.ruling = Some(text()?),
            "waits" => row.waits = Some(text()?),
            "tests" => {
                let list = value.as_array().ok_or(format!("line {at}: tests is a list"))?;
                row.tests = list.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect();
            }
            _ => return Err(format!("line {at}: unknown key {key}")),
        }
    }
    Ok(rows)
}

/// Everything that is wrong with an index.
fn faults(text: &str) -> Vec<String> {
    let rows = match read(text) {
        Ok(rows) => rows,
        Err(fault) => return vec![fault],
    };
    let mut found = Vec::new();
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    let mut sources = Sources::default();
    for row in &rows {
        let mut wrong = |what: String| found.push(format!("line {}, '{}': {what}", row.line, row.id));
        if row.id.is_empty() || row.section.is_empty() || row.says.is_empty() {
            wrong("a row has an id, a section and a sentence".into());
        }
        if row.ruling.as_ref().is_some_and(String::is_empty) {
            wrong("an empty ruling".into());
        }
        if let Some(first) = seen.insert(&row.id, row.line) {
            wrong(format!("the id of line {first}"));
        }
        if row.waits.as_ref().is_some_and(|why| !WAITS.iter().any(|thing| why.contains(thing))) {
            wrong(format!("it waits for none of {WAITS:?}"));
        }
        if row.tests.is_empty() && row.waits.is_none() {
            wrong("no test".into());
        }
        for test in &row.tests {
            if let Err(why) = sources.test(test) {
                wrong(format!("{test}: {why}"));
            }
        }
    }
    found
}

/// Sources that were looked into.
#[derive(Default)]
struct Sources(BTreeMap<PathBuf, Option<String>>);

impl Sources {
    /// Whether a test is there, by its path: `suite::name` of an end-to-end suite, `mur::module::tests::name` of the
    /// library.
    fn test(&mut self, path: &str) -> Result<(), &'static str> {
        let (place, name) = path.rsplit_once("::").ok_or("a test is named by suite and name")?;
        let files = match place.strip_prefix("mur::") {
            Some(module) => {
                let file =
                    |module: &str| workspace().join("host/src").join(format!("{}.rs", module.replace("::", "/")));
                let inline = module.strip_suffix("::tests").map(file);
                [Some(file(module)), inline].into_iter().flatten().collect::<Vec<_>>()
            }
            None => ["tests/tests", "host/tests"].map(|dir| workspace().join(dir).join(format!("{place}.rs"))).to_vec(),
        };
        let mut there = false;
        for file in files {
            let text = self.0.entry(file.clone()).or_insert_with(|| std::fs::read_to_string(&file).ok());
            let Some(text) = text else { continue };
            there = true;
            match attributes(text, name) {
                Some(attributes) if attributes.contains("ignore") => return Err("it is ignored"),
                Some(attributes) if attributes.contains("test") => return Ok(()),
                _ => {}
            }
        }
        Err(if there { "there is no such test" } else { "there is no such suite" })
    }
}

/// The attributes of a function, when there is one of this name.
fn attributes(source: &str, name: &str) -> Option<String> {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let head = format!("fn {name}(");
    let at = lines.iter().position(|line| line.starts_with(&head) || line.starts_with(&format!("async {head}")))?;
    let above = lines[..at].iter().rev().take_while(|line| line.starts_with('#') || line.starts_with("//"));
    Some(above.copied().filter(|line| line.starts_with('#')).collect())
}

#[test]
fn every_sentence_that_is_indexed_has_tests_that_exist() {
    let mut indexes: Vec<PathBuf> = std::fs::read_dir(workspace().join("tests/seed"))
        .expect("the folder of indexes")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    indexes.sort();
    assert!(indexes.iter().any(|path| path.ends_with("roster.toml")), "{indexes:?}");
    for path in indexes {
        let text = std::fs::read_to_string(&path).expect("a text");
        let found = faults(&text);
        assert!(found.is_empty(), "{}:\n{}", path.display(), found.join("\n"));
        let rows = read(&text).expect("it was just read");
        let mut sections: Vec<&str> = rows.iter().map(|row| row.section.as_str()).collect();
        sections.dedup();
        let mut once = sections.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), sections.len(), "the rows of a section stand together: {sections:?}");
    }
}

#[test]
fn an_index_that_lies_is_caught() {
    let row = |id: &str, tests: &str| {
        format!("[[row]]\nid = \"{id}\"\nsection = \"Fields\"\nsays = \"It is so.\"\ntests = {tests}\n")
    };
    let own = r#"["seed::an_index_that_lies_is_caught"]"#;
    assert!(faults(&row("a", own)).is_empty(), "{:?}", faults(&row("a", own)));
    assert!(faults(&(row("a", "[]") + "waits = \"script capsules\"\n")).is_empty());
    assert!(faults(&row("a", r#"["mur::roster::tests::a_hint_says_what_would_help"]"#)).is_empty());
    for (text, wanted) in [
        (row("a", "[]"), "no test"),
        (row("a", r#"["seed::nothing"]"#), "there is no such test"),
        (row("a", r#"["nowhere::nothing"]"#), "there is no such suite"),
        // A function that is no test, and a word.
        (row("a", r#"["seed::faults"]"#), "there is no such test"),
        (row("a", r#"["faults"]"#), "named by suite and name"),
        (row("a", own) + &row("a", own), "the id of line 1"),
        (row("", own), "a row has an id"),
        (row("a", "[]") + "waits = \"better days\"\n", "it waits for none of"),
        (row("a", own) + "note = \"x\"\n", "unknown key note"),
        ("id = \"a\"\n".to_owned(), "before the first row"),
    ] {
        let found = faults(&text);
        assert!(found.iter().any(|fault| fault.contains(wanted)), "{wanted}: {found:?}");
    }
}
