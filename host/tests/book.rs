//! The book says what the binary does: every code and every command has its place in the reference.

use std::collections::BTreeSet;
use std::path::Path;

use mur::diagnostics::codes;

fn chapter(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/src").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|fault| panic!("{}: {fault}", path.display()))
}

#[test]
fn the_reference_has_every_code_with_its_meaning_and_no_other() {
    let chapter = chapter("reference/diagnostics.md");
    let written: Vec<&str> = chapter.lines().filter(|line| line.contains("<a id=")).collect();
    let wanted: Vec<String> = codes::TABLE
        .iter()
        .map(|code| format!("| <a id=\"{}\"></a>`{code}` | {} |", code.as_str().to_lowercase(), code.meaning()))
        .collect();
    let missing: Vec<_> = wanted.iter().filter(|line| !written.contains(&line.as_str())).collect();
    assert!(missing.is_empty(), "not in docs/src/reference/diagnostics.md: {missing:#?}");
    let extra: Vec<_> = written.iter().filter(|line| !wanted.iter().any(|wanted| wanted == *line)).collect();
    assert!(extra.is_empty(), "in docs/src/reference/diagnostics.md, and no code of the table: {extra:#?}");
    assert_eq!(written.len(), wanted.len(), "a code stands in docs/src/reference/diagnostics.md twice");
}

#[test]
fn no_chapter_names_a_code_that_is_not_in_the_table() {
    let summary = chapter("SUMMARY.md");
    let files = summary.split('(').skip(1).filter_map(|rest| rest.split(')').next());
    for file in files {
        let text = chapter(file);
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
        for word in words.filter(|word| is_code(word)) {
            assert!(codes::Code::find(word).is_some(), "{file} names {word}");
        }
    }
}

/// `E-XXX-nnn` or `W-XXX-nnn`.
fn is_code(word: &str) -> bool {
    let Some(rest) = word.strip_prefix("E-").or_else(|| word.strip_prefix("W-")) else { return false };
    rest.rsplit_once('-').is_some_and(|(_, number)| number.len() == 3 && number.bytes().all(|b| b.is_ascii_digit()))
}

#[test]
fn the_reference_has_a_section_for_every_command_that_names_every_flag() {
    let chapter = chapter("reference/commands.md");
    let mut wanted = BTreeSet::new();
    for command in mur::cli::command().get_subcommands() {
        section(&chapter, "mur", command, &mut wanted);
    }
    let written: BTreeSet<String> =
        chapter.lines().filter_map(|line| line.strip_prefix("## ")).map(str::to_owned).collect();
    assert_eq!(written, wanted, "the sections of docs/src/reference/commands.md and the commands differ");
}

/// Checks a command's section, or those of its subcommands.
fn section(chapter: &str, parent: &str, command: &clap::Command, wanted: &mut BTreeSet<String>) {
    let name = format!("{parent} {}", command.get_name());
    if command.has_subcommands() {
        for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
            section(chapter, &name, below, wanted);
        }
        return;
    }
    let heading = format!("\n## {name}\n");
    let (_, text) = chapter.split_once(&heading).unwrap_or_else(|| panic!("no section '## {name}'"));
    let text = text.split("\n## ").next().unwrap_or_default();
    for flag in command.get_arguments().filter(|arg| !arg.is_hide_set()).filter_map(clap::Arg::get_long) {
        assert!(text.contains(&format!("`--{flag}")), "the section of '{name}' does not name --{flag}");
    }
    wanted.insert(name);
}

#[test]
fn the_summary_lists_every_chapter() {
    let summary = chapter("SUMMARY.md");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/src");
    for part in ["", "guide", "concepts", "reference", "plugins"] {
        let entries = std::fs::read_dir(source.join(part)).unwrap().flatten();
        for file in entries.map(|entry| entry.file_name()).filter_map(|name| name.into_string().ok()) {
            let path = if part.is_empty() { file } else { format!("{part}/{file}") };
            let listed = !path.ends_with(".md") || path == "SUMMARY.md" || summary.contains(&format!("({path})"));
            assert!(listed, "docs/src/SUMMARY.md does not list {path}");
        }
    }
}
