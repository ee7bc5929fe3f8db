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
    // Three kinds of worker: the look from outside, 25 cases of every route, 3 of a member's tokens, 10 of workers and one of
    // hooks; five ceilings.
    assert_eq!((passed(&summary, Category::Boundary), passed(&summary, Category::Resource)), (118, 15));
}

#[test]
fn sealed_holds_whatever_runs_in_a_worker() {
    let summary = holds(Class::Sealed, Routes::WasmGuest);
    let open: Vec<&str> =
        summary.graded.iter().filter(|one| one.result == Grade::NotAsserted).map(|one| one.id).collect();
    // Inside a composed root these two have no meaning.
    assert_eq!(open, ["hardlink-escape", "rename-across-boundary"].repeat(3));
    assert_eq!((passed(&summary, Category::Boundary), passed(&summary, Category::Resource)), (112, 15));
}

#[test]
fn advisory_claims_ceilings_and_metadata_and_no_more() {
    let summary = holds(Class::Advisory, Routes::WasmGuest);
    // The look from outside, metadata, and what a member's worker is given.
    assert_eq!((passed(&summary, Category::Boundary), passed(&summary, Category::Resource)), (9, 9));
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
    for (class, boundary, resource) in [(Class::Advisory, 2, 3), (Class::Scoped, 28, 5), (Class::Sealed, 26, 5)] {
        let summary = holds(class, routes);
        let counts = (passed(&summary, Category::Boundary), passed(&summary, Category::Resource));
        assert_eq!(counts, (boundary, resource), "{}: {}", class.as_str(), summary.said);
    }
}

/// The file that names the steps to leave out, as the libraries which read it hold its name.
const LEFT_OUT: &[u8] = b"lib/mur/left-out";

/// A `mur` with the probe whose classes leave these steps out.
fn without(steps: &[&str], folder: &Path) -> PathBuf {
    let (whole, prefix) = (probe_mur(), folder.join("broken"));
    let whole = whole.parent().and_then(Path::parent).unwrap();
    let libraries = whole.with_file_name("broken");
    assert!(libraries.is_dir(), "{} is not there: run 'cargo xtask dist --escape-probe' first", libraries.display());
    for inner in ["bin", "lib/mur"] {
        fs::create_dir_all(prefix.join(inner)).unwrap();
    }
    // Copies: a plugin and the program it serves belong to one prefix.
    fs::copy(whole.join("bin/mur"), prefix.join("bin/mur")).unwrap();
    for part in ["artifacts", "probe"] {
        symlink(whole.join("lib/mur").join(part), prefix.join("lib/mur").join(part)).unwrap();
    }
    symlink(&libraries, prefix.join("lib/mur/plugins")).unwrap();
    fs::write(prefix.join("lib/mur/left-out"), steps.join("\n")).unwrap();
    prefix.join("bin/mur")
}

/// Runs cases with steps left out: each is graded so.
fn graded_without(class: Class, routes: Routes, steps: &[&str], cases: &[&str], expected: Grade) {
    let folder = folder();
    let options = Options {
        mur: Some(without(steps, folder.path())),
        only: cases.iter().map(|case| (*case).to_owned()).collect(),
        ..options(class, routes, folder.path())
    };
    let summary = run(&options);
    let asserted: Vec<_> = summary.graded.iter().filter(|one| one.case.is_some()).collect();
    let other = asserted.iter().filter(|one| one.result != expected);
    let other: Vec<_> = other.map(|one| format!("{} on {}: {}", one.id, one.route.as_str(), one.seen.detail)).collect();
    assert_eq!(other, [""; 0], "without {steps:?}: {}", summary.said);
    assert!(!asserted.is_empty(), "{}", summary.said);
    println!("{} without {steps:?}: {} attempts {}", class.as_str(), asserted.len(), expected.as_str());
}

/// Without these steps each of these cases goes through.
fn flips(class: Class, routes: Routes, steps: &[&str], cases: &[&str]) {
    graded_without(class, routes, steps, cases, Grade::Fail);
}

#[test]
fn with_no_step_left_out_the_same_libraries_hold() {
    let cases = [
        "read-etc-shadow",
        "syscall-keyctl",
        "connect-unlisted-tcp-host",
        "worker-peek-mur",
        "mknod-block-device-in-workdir",
        "resource-fd-exhauster",
    ];
    graded_without(Class::Scoped, Routes::WasmGuest, &[], &cases, Grade::Pass);
}

#[test]
fn nothing_that_is_graded_or_installed_can_leave_a_step_out() {
    let holds = |file: &Path| {
        let bytes = fs::read(file).unwrap_or_else(|fault| panic!("{}: {fault}", file.display()));
        bytes.windows(LEFT_OUT.len()).any(|window| window == LEFT_OUT)
    };
    let probe = probe_mur();
    let probe = probe.parent().and_then(Path::parent).unwrap();
    for prefix in [mur_tests::dist(), probe] {
        for file in
            ["bin/mur", "lib/mur/plugins/libmur_containment_scoped.so", "lib/mur/plugins/libmur_containment_sealed.so"]
        {
            assert!(!holds(&prefix.join(file)), "{}", prefix.join(file).display());
        }
    }
    assert!(holds(&probe.with_file_name("broken").join("libmur_containment_scoped.so")), "the look finds it");
}

#[test]
fn without_landlock_the_cases_on_files_go_through() {
    let read =
        ["read-etc-shadow", "symlink-escape", "proc-self-cwd-reopen", "proc-pid-root-reopen", "proc-self-fd-reopen"];
    let write = ["write-outside-workdir", "hardlink-escape", "rename-across-boundary"];
    let workers = [
        "worker-read-records",
        "worker-read-secrets",
        "worker-read-other-store",
        "worker-runtime-dir",
        "token-in-files",
    ];
    flips(Class::Scoped, Routes::WasmGuest, &["landlock"], &[&read[..], &write, &workers].concat());
    // A command has mounts of its own, which are read only outside its folders and which no link or move crosses.
    let commands = [&read[..], &write, &["exec-renamed-disallowed-binary"]].concat();
    flips(Class::Scoped, Routes::Shell, &["landlock", "private /tmp"], &commands);
}

#[test]
fn without_the_filter_the_cases_on_system_calls_go_through() {
    let calls =
        ["abstract-unix-socket-connect", "pathname-unix-socket-connect", "syscall-io-uring-setup", "syscall-keyctl"];
    flips(Class::Scoped, Routes::WasmGuest, &["system call filter"], &calls);
    flips(Class::Sealed, Routes::Shell, &["system call filter"], &[&calls[..], &["exec-memfd"]].concat());
}

#[test]
fn without_the_network_namespace_the_cases_on_the_network_go_through() {
    let network = ["connect-unlisted-tcp-host", "udp-exfiltration", "dns-exfiltration"];
    flips(Class::Sealed, Routes::WasmGuest, &["network namespace"], &network);
    flips(Class::Scoped, Routes::Shell, &["network namespace"], &network);
}

#[test]
fn without_limits_and_scope_the_ceilings_do_not_hold() {
    let own = ["resource-disk-filler-per-file", "resource-fd-exhauster"];
    flips(Class::Scoped, Routes::WasmGuest, &["resource limits"], &own);
    flips(Class::Scoped, Routes::WasmGuest, &["cgroup scope"], &["resource-fork-bomb"]);
}

#[test]
fn without_a_layer_and_the_one_behind_it_workers_reach_others_and_execute() {
    let filter = "system call filter";
    flips(
        Class::Scoped,
        Routes::WasmGuest,
        &["landlock", filter],
        &["worker-exec-any", "exec-renamed-disallowed-binary"],
    );
    let apart = ["user namespace", "process namespace", "parent-death signal", "capabilities", "landlock", filter];
    // What capabilities stand behind too.
    let rights = [
        "syscall-userfaultfd",
        "syscall-bpf",
        "syscall-open-by-handle-at",
        "syscall-perf-event-open",
        "mknod-block-device-in-workdir",
    ];
    let others = ["worker-peek-mur", "token-in-other-processes"];
    flips(Class::Scoped, Routes::WasmGuest, &apart, &[&rights[..], &others].concat());
}

/// What no class but `mur` itself refuses has no run with the class off: the same probe, started by hand with what it must
/// never be given, says so.
#[test]
fn a_probe_that_was_handed_a_file_and_a_token_finds_them() {
    use std::os::unix::fs::MetadataExt;
    let folder = folder();
    let plan = folder.path().join("plan");
    let about = fs::metadata("/etc/hostname").unwrap();
    let lines = format!(
        "case inherited-fd-after-exec\ncase token-in-own-process\nroute shell\nleaked {}:{}\ntoken edge nekot-a-si-siht\n",
        about.dev(),
        about.ino()
    );
    fs::write(&plan, lines).unwrap();
    let program = probe_mur().parent().and_then(Path::parent).unwrap().join("lib/mur/probe/escape-probe");
    for (redirect, env, handed) in [("7</etc/hostname", "this-is-a-token", true), ("7<&-", "nothing", false)] {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &format!("exec {redirect}; exec \"$@\""), "sh"]).arg(&program);
        command.arg(format!("ESCAPE-PLAN={};", plan.display())).env_clear().env("EC", env);
        let said = String::from_utf8_lossy(&command.output().unwrap().stdout).into_owned();
        assert_eq!(said.contains("descriptor 7 is the leaked file"), handed, "{said}");
        let verdict = if handed { "ALLOWED" } else { "REFUSED" };
        assert!(said.contains(&format!("token-in-own-process\t{verdict}\t")), "{said}");
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
    assert_eq!(summary.graded.len(), 3 * (1 + only.len()));
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
