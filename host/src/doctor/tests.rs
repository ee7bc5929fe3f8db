use std::fs;

use super::report::Line;
use super::*;

struct Place {
    dir: tempfile::TempDir,
    home: MurmurHome,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let home = MurmurHome::at(dir.path().join("home"));
        fs::create_dir_all(home.root()).unwrap();
        fs::create_dir_all(dir.path().join("p/below")).unwrap();
        Self { dir, home }
    }

    fn project(&self) -> PathBuf {
        self.dir.path().join("p")
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.project().join(file), text).unwrap();
    }

    fn check(&self, bind: &str) -> (Result<()>, Report) {
        let mut report = Report::default();
        let result = check(&self.project().join("below"), bind, Ok(self.home.clone()), &mut report);
        (result, report)
    }
}

fn text(report: &Report) -> String {
    let line = |line: &Line| match line {
        Line::Out(text) => format!("{text}\n"),
        Line::Err(text) => format!("! {text}\n"),
    };
    report.lines().iter().map(line).collect()
}

#[test]
fn what_is_checked_follows_from_what_lies_there() {
    let place = Place::new();
    let dir = place.project();
    assert_eq!(subject(&dir).unwrap_err().code(), codes::E_IO_001);
    place.write("roster.yaml", "");
    assert_eq!(subject(&dir).unwrap(), Subject::Formation(dir.clone()));
    assert!(subject(&dir.join("below")).is_err(), "a roster is looked for in the directory itself only");
    place.write("murmur.yaml", "");
    assert_eq!(subject(&dir).unwrap(), Subject::Project { dir: dir.clone(), roster: true });
    assert_eq!(subject(&dir.join("below")).unwrap(), Subject::Project { dir, roster: true });
}

#[test]
fn a_full_check_goes_on_after_each_finding() {
    let place = Place::new();
    place.write(
        "murmur.yaml",
        "name: a\nversion: 1\nnmae: x\ncapabilities:\n  env: {allow: [OPENAI_API_KEY]}\n  filesystem: {scope: ../x}\n  \
         network: {allow: ['ftp://x']}\n",
    );
    let (result, mut report) = place.check("0.0.0.0");
    result.unwrap();
    let shown = text(&report);
    for expected in [
        "! [murmur-artifact] warning[W-SEC-019]: unrecognized key 'nmae' at the top level — did you mean 'name'?",
        "! [mur doctor] warning[E-CAP-016]: ",
        "! [mur doctor] warning[E-CAP-002]: capabilities.filesystem.scope: '../x'",
        "! [mur doctor] error[E-CAP-001]: ",
        "door: public (no network.authentication)\nwarning[W-SEC-032]: the door is bound to 0.0.0.0",
        "! [mur doctor] error[E-MAN-003]: ",
        "\nAppArmor / user namespaces\n  this binary: ",
        "\nMurmur home (",
        "  config.yaml: absent — ",
        "\nRuntime directory\n  path:      ",
    ] {
        assert!(shown.contains(expected), "{expected}\n{shown}");
    }
    let status = report.tally();
    assert!(text(&report).contains("\nFix: "), "{}", text(&report));
    assert!(fs::read_dir(place.home.root()).unwrap().next().is_none(), "nothing is created");
    assert_eq!(status, 1);
}

#[test]
fn a_manifest_that_cannot_be_read_ends_the_check_with_its_fault() {
    let place = Place::new();
    place.write("murmur.yaml", "name: a\n");
    assert_eq!(place.check("127.0.0.1").0.unwrap_err().code(), codes::E_MAN_001);
}

#[test]
fn a_home_that_cannot_be_used_is_said_and_ends_the_check() {
    let place = Place::new();
    place.write("murmur.yaml", "name: a\nversion: 1\n");
    fs::write(place.home.sessions(), "").unwrap();
    let (result, report) = place.check("127.0.0.1");
    assert_eq!(result.unwrap_err().code(), codes::E_IO_004);
    assert!(text(&report).contains("Records directory\n  path:      unavailable — "));
}

#[test]
fn what_a_dead_launch_left_is_named_and_an_ended_formation_is_not() {
    let place = Place::new();
    let formation = |marker: Option<&str>, member: Option<&str>| {
        let id = crate::ids::FormationId::mint();
        let dir = place.home.formations().join(id.as_str());
        fs::create_dir_all(&dir).unwrap();
        if let Some(marker) = marker {
            fs::write(dir.join("formation.json"), marker).unwrap();
        }
        if let Some(member) = member {
            fs::create_dir(dir.join(member)).unwrap();
            fs::create_dir_all(place.home.records_group(&dir.join(member))).unwrap();
        }
        id
    };
    let gone = r#"{"project_dir":"/p","launcher_pid":2147483600,"launcher_start":"1"}"#;
    let unmarked = formation(None, None);
    let unstarted = formation(Some(gone), None);
    let ended = formation(Some(gone), Some("worker"));
    let own = std::process::id().cast_signed();
    let start = crate::process::process_start(own).unwrap();
    let running =
        formation(Some(&format!(r#"{{"project_dir":"/p","launcher_pid":{own},"launcher_start":"{start}"}}"#)), None);
    let mut report = Report::default();
    leftovers::block(&place.home, &mut report);
    let shown = text(&report);
    assert!(shown.contains(unmarked.as_str()) && shown.contains(unstarted.as_str()), "{shown}");
    assert!(!shown.contains(ended.as_str()) && !shown.contains(running.as_str()), "{shown}");
}

#[test]
fn a_tally_counts_and_lists_fixes_errors_first() {
    let mut report = Report::default();
    assert_eq!(report.tally(), 0);
    assert_eq!(text(&report), "All checks passed.\n");
    let mut report = Report::default();
    report.pass();
    report.count_warning("w");
    report.count_error("e");
    assert_eq!(report.tally(), 1);
    assert_eq!(text(&report), "1 check passed, 1 error found, 1 warning.\n\nFix: e\nFix: w\n");
    let mut report = Report::default();
    report.count_warning("w");
    assert_eq!(report.tally(), 0);
    assert!(text(&report).starts_with("0 checks passed, 0 errors found, 1 warning.\n"));
}
