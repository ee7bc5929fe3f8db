//! The escape-conformance harness, run for every class on this host: what each class claims holds, or this suite fails.
//! It needs root, Landlock and a cgroup scope, and a `mur` built with the probe (`cargo xtask dist --escape-probe`).

#![allow(clippy::disallowed_methods, reason = "the harness is also run as a program")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use mur_tests::escape::options::Routes;
use mur_tests::escape::{Category, Class, Options, Result as Grade, Summary, Verdict, run};
use serde_json::Value;

/// A `mur` with the probe in it.
fn probe_mur() -> PathBuf {
    let beside = mur_tests::dist().parent().expect("a prefix lies in a folder").join("probe");
    let prefix = std::env::var_os("MUR_PROBE_DIST").map_or(beside, PathBuf::from);
    let mur = prefix.join("bin/mur");
    assert!(mur.is_file(), "no mur in {}: run 'cargo xtask dist --escape-probe' first", prefix.display());
    mur
}

/// A folder that the harness's scratch shares a device with `/etc` and `/var/tmp` in.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::Builder::new().prefix("mur-escape-").tempdir_in("/var/tmp").expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).expect("it is ours");
    folder
}

fn options(class: Class, routes: Routes, folder: &Path) -> Options {
    Options {
        class: Some(class),
        routes,
        record_dir: folder.to_owned(),
        mur: Some(probe_mur()),
        systemd_scope: Some(false),
        ..Options::default()
    }
}

/// The JSON of the only record in a folder.
fn record(summary: &Summary) -> Value {
    let page = summary.record.as_ref().expect("a record");
    serde_json::from_str(&fs::read_to_string(page.with_extension("json")).expect("beside the page")).expect("JSON")
}

/// Runs a class and fails with the harness's own words when it does not hold what it claims.
fn holds(class: Class, routes: Routes) -> Summary {
    let folder = folder();
    let summary = run(&options(class, routes, folder.path()));
    if summary.status != 0 {
        let kept = folder.keep();
        panic!("exit {}: see {}\n{}", summary.status, kept.display(), summary.said);
    }
    let record = record(&summary);
    assert_eq!(
        (&record["schema"], &record["class"], &record["partial"]),
        (&1.into(), &class.as_str().into(), &false.into())
    );
    assert_eq!(record["cases"].as_array().unwrap().len(), summary.graded.len());
    println!("{}: {}", class.as_str(), summary.said);
    summary
}

/// How many cases of a category passed.
fn passed(summary: &Summary, category: Category) -> usize {
    summary.graded.iter().filter(|one| one.category() == category && one.result == Grade::Pass).count()
}

#[test]
fn scoped_holds_whatever_runs_in_a_worker() {
    let summary = holds(Class::Scoped, Routes::WasmGuest);
    assert!(summary.graded.iter().all(|one| one.result != Grade::NotAsserted), "{}", summary.said);
    // Two kinds of worker: the look from outside, 25 cases of every route, 10 of workers; five ceilings.
    assert_eq!((passed(&summary, Category::Boundary), passed(&summary, Category::Resource)), (72, 10));
}

#[test]
fn sealed_holds_whatever_runs_in_a_worker() {
    let summary = holds(Class::Sealed, Routes::WasmGuest);
    let open: Vec<&str> =
        summary.graded.iter().filter(|one| one.result == Grade::NotAsserted).map(|one| one.id).collect();
    // Inside a composed root these two have no meaning.
    assert_eq!(open, ["hardlink-escape", "rename-across-boundary", "hardlink-escape", "rename-across-boundary"]);
    assert_eq!((passed(&summary, Category::Boundary), passed(&summary, Category::Resource)), (68, 10));
}

#[test]
fn advisory_claims_ceilings_and_metadata_and_no_more() {
    let summary = holds(Class::Advisory, Routes::WasmGuest);
    assert_eq!((passed(&summary, Category::Boundary), passed(&summary, Category::Resource)), (4, 6));
}

/// At `unconfined` nothing is claimed, and every attempt goes through: so a refusal elsewhere means something.
fn goes_through(routes: Routes) {
    let summary = holds(Class::Unconfined, routes);
    assert!(summary.graded.iter().all(|one| one.result == Grade::NotAsserted));
    let refused: Vec<(&str, &str)> = summary
        .graded
        .iter()
        .filter(|one| one.case.is_some_and(|case| case.category == Category::Boundary && case.by_class))
        .filter(|one| !matches!(one.seen.verdict, Verdict::Allowed | Verdict::Success))
        .map(|one| (one.id, one.seen.detail.as_str()))
        .collect();
    assert_eq!(refused, []);
}

#[test]
fn unconfined_lets_every_attempt_of_a_worker_through() {
    goes_through(Routes::WasmGuest);
}

#[test]
fn unconfined_lets_every_attempt_of_a_command_through() {
    goes_through(Routes::Shell);
    goes_through(Routes::NativeTool);
}

#[test]
fn every_class_holds_of_shell_commands_what_it_claims() {
    commands(Routes::Shell);
}

#[test]
fn every_class_holds_of_native_tools_what_it_claims() {
    commands(Routes::NativeTool);
}

fn commands(routes: Routes) {
    for (class, boundary, resource) in [(Class::Advisory, 1, 3), (Class::Scoped, 25, 5), (Class::Sealed, 23, 5)] {
        let summary = holds(class, routes);
        let counts = (passed(&summary, Category::Boundary), passed(&summary, Category::Resource));
        assert_eq!(counts, (boundary, resource), "{}: {}", class.as_str(), summary.said);
    }
}

/// A prefix whose `mur` takes the class out of every capsule and runs it unconfined.
fn liar(folder: &Path) -> PathBuf {
    let real = probe_mur();
    let prefix = folder.join("liar");
    fs::create_dir_all(prefix.join("bin")).unwrap();
    symlink(real.parent().and_then(Path::parent).unwrap().join("lib"), prefix.join("lib")).unwrap();
    let script = format!(
        "#!/bin/sh\ncase \"$1\" in\nbuild) sed -i '/\"containment\"/d' \"$2/murmur.yaml\" ;;\nrun) case \"$*\" in *explain-scope*) ;; \
         *) set -- \"$@\" --containment unconfined ;; esac ;;\nesac\nexec {} \"$@\"\n",
        real.display()
    );
    let mur = prefix.join("bin/mur");
    fs::write(&mur, script).unwrap();
    fs::set_permissions(&mur, fs::Permissions::from_mode(0o755)).unwrap();
    mur
}

#[test]
fn a_mur_that_holds_nothing_of_what_it_declares_is_caught_by_every_case() {
    let folder = folder();
    let only = ["read-etc-shadow", "syscall-keyctl", "worker-exec-any", "connect-unlisted-tcp-host"];
    let options = Options {
        mur: Some(liar(folder.path())),
        only: only.map(str::to_owned).to_vec(),
        ..options(Class::Scoped, Routes::WasmGuest, folder.path())
    };
    let summary = run(&options);
    assert_eq!(summary.status, 3, "{}", summary.said);
    for one in &summary.graded {
        assert_eq!(one.result, Grade::Fail, "{} on {}: {:?}", one.id, one.route.as_str(), one.seen);
    }
    assert_eq!(summary.graded.len(), 2 * (1 + only.len()));
    let record = record(&summary);
    assert_eq!((&record["partial"], &record["citable"]), (&true.into(), &false.into()));
    let page = fs::read_to_string(summary.record.unwrap()).unwrap();
    assert!(page.contains("**THIS RECORD IS NOT EVIDENCE**") && page.contains("the run is partial"), "{page}");
}

#[test]
fn a_mur_without_the_probe_is_refused_before_the_first_case_and_leaves_no_record() {
    let folder = folder();
    let summary = run(&Options {
        mur: Some(mur_tests::mur_binary()),
        ..options(Class::Scoped, Routes::WasmGuest, folder.path())
    });
    assert_eq!(summary.status, 2);
    assert!(summary.said.contains("built without the feature escape-probe"), "{}", summary.said);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn the_program_lists_its_cases_and_refuses_what_makes_no_sense() {
    let harness = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_escape-conformance")).args(args).output().unwrap();
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr),
        )
    };
    let (code, said) = harness(&["--list-cases"]);
    assert_eq!(code, Some(0));
    assert!(
        said.contains("| `worker-core-dump` | wasm-guest | not-asserted | not-asserted | REFUSED | REFUSED |"),
        "{said}"
    );
    let (code, said) = harness(&["--class", "scoped", "--only", "no-such"]);
    assert_eq!(code, Some(1));
    assert!(said.contains("'no-such' is no case"), "{said}");
    let (code, said) = harness(&["--class", "scoped", "--mur", "/nowhere/mur"]);
    assert_eq!(code, Some(2), "{said}");
}
