//! "Removing formation directories" of the roster seed, row by row, on directories of launches that ended and of ones
//! made up for the purpose.

use std::fs;
use std::path::{Path, PathBuf};

use mur_tests::live::capsule::{Capsule, roster};
use mur_tests::live::formation::{Launched, lead, worker};
use mur_tests::live::stops::Traced;
use mur_tests::live::{Home, Output, run, trace};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

/// A formation of `lead` and `coder` whose entry member retains so much.
fn retaining(home: &Home, retain: Value) {
    let (lead, worker) = (lead().with(json!({"trace": {"retain": retain}})), worker());
    lead.install(home);
    worker.install(home);
    home.write(
        "roster.yaml",
        roster(&[("lead", &lead), ("coder", &worker)], json!([{"from": "lead", "to": ["coder"]}])),
    );
}

/// An id minted so many seconds ago.
fn minted(seconds_ago: u64) -> String {
    let ms = (trace::now() - seconds_ago) * 1000;
    format!("frm_{ms:012x}{seconds_ago:020x}")
}

/// The marker of a formation of this project whose launcher has ended.
fn ended(home: &Home) -> Value {
    json!({"project_dir": home.project(), "launcher_pid": 2_000_000_000, "launcher_start": "1"})
}

/// A formation's directory with a peer's folder, the peer's records, and this marker.
fn made(home: &Home, id: &str, marker: Option<&str>) -> PathBuf {
    let dir = home.murmur().join("formations").join(id);
    fs::create_dir_all(dir.join("coder")).unwrap();
    fs::write(dir.join("coder/work.txt"), "work").unwrap();
    fs::create_dir_all(records_of(home, &dir).join("coder/ses_x")).unwrap();
    if let Some(marker) = marker {
        fs::write(dir.join("formation.json"), marker).unwrap();
    }
    dir
}

fn records_of(home: &Home, dir: &Path) -> PathBuf {
    home.murmur().join("records").join(dir.strip_prefix("/").unwrap())
}

/// What the pass said, line by line: id and reason.
fn removed(output: &Output) -> Vec<(String, String)> {
    let lines = output.stderr.lines().filter_map(|line| line.strip_prefix("[mur run] retention: removed formation "));
    let parts = lines.filter_map(|line| line.strip_suffix(')')?.split_once(" ("));
    parts.map(|(id, reason)| (id.to_owned(), reason.to_owned())).collect()
}

fn launch(home: &Home) -> Output {
    home.mur(["run", "--roster", "--task", "x"]).expect(0)
}

fn line(id: &str, reason: &str) -> (String, String) {
    (id.to_owned(), reason.to_owned())
}

#[test]
fn without_trace_retain_no_formation_directory_is_ever_removed() {
    let home = Home::new();
    let (lead, worker) = (lead(), worker());
    lead.install(&home);
    worker.install(&home);
    home.write("roster.yaml", roster(&[("lead", &lead), ("coder", &worker)], json!([])));
    let old = made(&home, &minted(900_000_000), Some(&ended(&home).to_string()));
    let output = launch(&home);
    assert!(removed(&output).is_empty() && old.exists(), "{}", output.stderr);
}

#[test]
fn max_sessions_keeps_so_many_newest_first_the_current_one_included() {
    let home = Home::new();
    retaining(&home, json!({"max_sessions": 2}));
    let ids = [minted(10), minted(20), minted(30)];
    let dirs: Vec<PathBuf> = ids.iter().map(|id| made(&home, id, Some(&ended(&home).to_string()))).collect();
    let output = launch(&home);
    assert_eq!(removed(&output), [line(&ids[1], "max_sessions"), line(&ids[2], "max_sessions")]);
    assert!(!output.stdout.contains("retention"), "{}", output.stdout);
    assert!(dirs[0].exists() && records_of(&home, &dirs[0]).exists());
    for gone in &dirs[1..] {
        assert!(!gone.exists() && !records_of(&home, gone).exists(), "the directory goes whole, with its records");
    }
    assert_eq!(home.formations().len(), 2, "the current one and the newest before it");
}

#[test]
fn max_age_is_measured_from_the_time_in_the_id_and_is_the_reason_of_one_over_both() {
    let home = Home::new();
    retaining(&home, json!({"max_sessions": 2, "max_age": "1h"}));
    let ids = [minted(100), minted(200), minted(4000), minted(8000)];
    for id in &ids {
        made(&home, id, Some(&ended(&home).to_string()));
    }
    let output = launch(&home);
    let expected = [line(&ids[1], "max_sessions"), line(&ids[2], "max_age"), line(&ids[3], "max_age")];
    assert_eq!(removed(&output), expected);
    let home = Home::new();
    retaining(&home, json!({"max_age": "1h"}));
    let (young, old) = (minted(3000), minted(4000));
    made(&home, &young, Some(&ended(&home).to_string()));
    made(&home, &old, Some(&ended(&home).to_string()));
    assert_eq!(removed(&launch(&home)), [line(&old, "max_age")]);
}

#[test]
fn what_is_never_removed() {
    let home = Home::new();
    retaining(&home, json!({"max_sessions": 1, "max_age": "1s"}));
    let own_pid = std::process::id();
    let own_start = fs::read_to_string("/proc/self/stat").unwrap();
    let own_start = own_start[own_start.rfind(')').unwrap() + 2..].split(' ').nth(19).unwrap().to_owned();
    let project = home.project();
    let marker = |project: &Path, pid: u32, start: &str| {
        json!({"project_dir": project, "launcher_pid": pid, "launcher_start": start}).to_string()
    };
    let spared = [
        ("its launcher is still running", made(&home, &minted(50), Some(&marker(&project, own_pid, &own_start)))),
        (
            "its launcher may still be running: when it started could not be read",
            made(&home, &minted(51), Some(&marker(&project, own_pid, ""))),
        ),
        ("it is another project's", made(&home, &minted(52), Some(&marker(Path::new("/other"), 2_000_000_000, "1")))),
        ("it has no marker", made(&home, &minted(53), None)),
        ("its marker does not parse", made(&home, &minted(54), Some("{"))),
        (
            "it was minted after the current one",
            made(&home, &format!("frm_{}", "f".repeat(32)), Some(&ended(&home).to_string())),
        ),
        ("its name is no formation's", made(&home, "frm_notes", Some(&ended(&home).to_string()))),
    ];
    // A running record names it, and that member is still running.
    let held = minted(55);
    let held_dir = made(&home, &held, Some(&ended(&home).to_string()));
    let mut by_hand = home.command(["run", "--capsule", "local/worker", "--capsule-version", "1.0.0", "--json"]);
    by_hand.env("MURMUR_FORMATION_ID", &held);
    let by_hand = mur_tests::live::Running::start(by_hand);
    by_hand.json_line("session_id");
    let pid = minted(56);
    let reused = made(&home, &pid, Some(&marker(&project, own_pid, "1")));
    let output = launch(&home);
    assert_eq!(removed(&output), [line(&pid, "max_age")], "a pid that belongs to another process now holds nothing");
    assert!(!reused.exists());
    for (why, dir) in &spared {
        assert!(dir.join("coder/work.txt").exists(), "{why}");
    }
    assert!(held_dir.exists(), "a member of it runs");
    by_hand.signal(Signal::SIGTERM);
    by_hand.finish();
    assert_eq!(removed(&launch(&home)).iter().filter(|(id, _)| *id == held).count(), 1, "it has ended");
}

#[test]
fn every_formation_counts_as_running_while_the_running_records_cannot_be_read() {
    let home = Home::new();
    retaining(&home, json!({"max_sessions": 1}));
    let old = made(&home, &minted(50), Some(&ended(&home).to_string()));
    let formation = Launched::open(&home);
    let running = home.murmur().join("running");
    fs::rename(&running, home.murmur().join("running-aside")).unwrap();
    fs::write(&running, "no directory").unwrap();
    formation.launcher.signal(Signal::SIGTERM);
    let output = formation.launcher.finish().expect(143);
    assert!(removed(&output).is_empty() && old.exists(), "{}", output.stderr);
    fs::remove_file(&running).unwrap();
    assert_eq!(removed(&launch(&home)).len(), 2, "the old one and the one before");
    assert!(!old.exists());
}

#[test]
fn the_pass_runs_after_a_signal_and_after_a_refusal_too() {
    let home = Home::new();
    retaining(&home, json!({"max_sessions": 1}));
    let first = minted(50);
    made(&home, &first, Some(&ended(&home).to_string()));
    let formation = Launched::open(&home);
    let second = formation.id();
    formation.launcher.signal(Signal::SIGTERM);
    let output = formation.launcher.finish().expect(143);
    assert_eq!(removed(&output), [line(&first, "max_sessions")]);
    let dir = home.murmur().join("formations").join(&second);
    assert!(dir.exists(), "a formation's directory outlives the launch that made it");
    // The peer's driver key is in neither configuration nor environment: it is refused when it is started.
    let mut bad = Capsule::saying("bad", "x").member();
    bad.manifest["artifacts"][0]["gateway"] = json!({"endpoint": "http://127.0.0.1:1", "api_key": "${NOT_THERE}"});
    bad.install(&home);
    let lead = lead().with(json!({"trace": {"retain": {"max_sessions": 1}}}));
    home.write("roster.yaml", roster(&[("lead", &lead), ("bad", &bad)], json!([])));
    let refused = home.mur(["run", "--roster", "--task", "x"]).refused("E-RUN-045");
    assert_eq!(removed(&refused), [line(&second, "max_sessions")]);
    let pass = refused.stderr.find("retention: removed").unwrap();
    assert!(pass < refused.stderr.find("error[E-RUN-045]").unwrap(), "the error is the last thing: {}", refused.stderr);
    assert!(!dir.exists());
}

#[test]
fn a_launcher_that_cannot_write_its_marker_launches_anyway_and_its_directory_is_never_removed() {
    let home = Home::new();
    retaining(&home, json!({"max_sessions": 1}));
    let stderr = home.scratch("out").join("stderr");
    let file = fs::File::create(&stderr).unwrap();
    let launcher = Traced::start_with(home.command(["run", "--roster", "--task", "x"]), file.into());
    let formation = |path: &str| path.split_once("/.murmur/formations/").is_some_and(|(_, rest)| !rest.contains('/'));
    assert!(launcher.until_call_on(formation));
    let [dir] = &home.formations()[..] else { panic!("one directory") };
    // Something is in the marker's place.
    fs::create_dir_all(dir.join("formation.json/in-the-way")).unwrap();
    assert!(launcher.let_go().success());
    let said = fs::read_to_string(&stderr).unwrap();
    let id = dir.file_name().unwrap().to_str().unwrap();
    let start = format!("[mur run] warning: formation {id} has no ownership marker (");
    let warning = said.lines().find(|line| line.starts_with(&start)).unwrap_or_else(|| panic!("{said}"));
    assert!(warning.ends_with("); its directory will never be removed automatically"), "{warning}");
    for _ in 0..2 {
        launch(&home);
    }
    assert!(dir.exists());
    run::until("nothing runs", || mur_tests::live::proc::of_home(&home.home()).is_empty());
}
