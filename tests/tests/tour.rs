//! The commands that README and first chapter tell a newcomer to paste, pasted.

// The tour is a user's shell session.
#![allow(clippy::disallowed_methods, reason = "a shell runs what a user pastes")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use mur_tests::dist;
use mur_tests::live::Home;

fn text_of(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|fault| panic!("{}: {fault}", path.display()))
}

/// Runs lines as one shell session would: every line has to succeed. `frm_…` is the newest formation.
fn pasted(home: &Home, cwd: &Path, lines: &[String]) -> String {
    let mut script = "set -eu\n".to_owned();
    for line in lines {
        script.push_str(&format!("echo {}\n", quoted(&format!("$ {line}"))));
        script.push_str(line);
        script.push('\n');
    }
    script.push_str("wait\n");
    let path = format!("{}:/usr/bin:/bin", dist().join("bin").display());
    let done = Command::new("/bin/sh")
        .args(["-c", &script])
        .env_clear()
        .env("HOME", home.home())
        .env("PATH", path)
        .current_dir(cwd)
        .output()
        .expect("a shell");
    let said = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{script}\n---\n{said}");
    said
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

const NEWEST: &str = "$(ls \"$HOME/.murmur/formations\" | tail -n 1)";

/// A folder for the tour whose path, unlike that of the text, is this test's own.
fn place(home: &Home) -> PathBuf {
    home.scratch("tour")
}

#[test]
fn the_tour_of_the_readme_works_as_pasted() {
    let home = Home::new();
    let folder = place(&home);
    let inner = folder.to_string_lossy().trim_start_matches('/').to_owned();
    let readme = text_of("README.md");
    let tour = readme.split_once("**1. ").expect("the tour").1.split_once("\n## ").expect("its end").0;
    let lines: Vec<String> = tour
        .lines()
        .filter_map(|line| line.strip_prefix("    "))
        .map(|line| line.replace("tmp/tour", &inner).replace("frm_…", NEWEST).replace("<your key>", "a-key"))
        .collect();
    assert!(lines.len() >= 12, "{lines:?}");
    let said = pasted(&home, &folder, &lines);
    assert!(said.contains("\nworker answered: "), "{said}");
    assert!(said.contains("[capsule-runtime] resuming ses_"), "{said}");
    assert!(said.contains("May lead call worker? yes"), "{said}");
}

#[test]
fn the_first_formation_of_the_guide_works_as_pasted() {
    let home = Home::new();
    let folder = place(&home);
    let inner = folder.to_string_lossy().trim_start_matches('/').to_owned();
    let chapter = text_of("docs/src/guide/first-formation.md");
    let lines: Vec<String> = chapter
        .lines()
        .filter_map(|line| line.strip_prefix("$ "))
        .map(|line| {
            let words = line.split(' ').map(|word| match word {
                formation if formation.starts_with("frm_") => NEWEST.to_owned(),
                // The id of a run differs from the one that is printed there.
                path if path.contains("/ses_") => {
                    let (before, after) = path.split_once("/ses_").expect("a session");
                    let after = after.split_once('/').map_or("", |(_, after)| after);
                    format!("{}/ses_*/{after}", before.replace("home/you", &inner))
                }
                word => word.to_owned(),
            });
            words.collect::<Vec<_>>().join(" ")
        })
        .collect();
    assert!(lines.len() >= 12, "{lines:?}");
    let said = pasted(&home, &folder, &lines);
    assert!(said.contains("\nworker answered: The scripted driver was given 5 words"), "{said}");
    assert!(said.contains("[capsule-runtime] resuming ses_"), "{said}");
    // What the chapter shows of the scaffold is what is printed.
    let shown =
        chapter.split_once("--provider scripted\n").expect("the scaffold").1.split_once("```").expect("its end").0;
    assert!(said.contains(shown), "{said}");
}
