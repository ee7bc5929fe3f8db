//! Hosts that lack something, each made for real around `mur`: what a launch is refused for, what `mur doctor` and
//! `mur run --explain-scope` say of it, and what still runs.

#![allow(clippy::disallowed_methods, reason = "mur is started as a container would start it")]

#[path = "host_shortfalls/filter.rs"]
mod filter;

use std::process::{Command, Output};

use filter::{Denied, denied, under};
use mur_tests::{Agent, World};
use serde_json::{Value, json};

/// A project with a capsule that says something.
fn project() -> World {
    let world = World::new();
    let script = json!({"rules": [{"turns": [[{"say": "done"}]]}]});
    world.write("murmur.yaml", Agent::scripted("plain", script).manifest());
    world
}

/// What became of a command line of `mur`.
struct Said {
    status: Option<i32>,
    out: String,
    err: String,
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Self { status: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

/// A host: how a command line is run on it.
type Host<'a> = &'a dyn Fn(&World, &[&str]) -> Said;

fn filtered(calls: &'static [Denied]) -> impl Fn(&World, &[&str]) -> Said {
    move |world, line| {
        let mut command = world.mur(line).command();
        under(&mut command, calls);
        command.output().unwrap().into()
    }
}

/// After a shell line, in namespaces of its own.
fn prepared(namespaces: &'static [&'static str], first: &'static str) -> impl Fn(&World, &[&str]) -> Said {
    move |world, line| {
        let mur = world.mur(line).command();
        let mut command = Command::new("unshare");
        command.args(namespaces).args(["/bin/sh", "-ec", &format!("{first}; exec \"$@\"")]).arg("sh");
        command.arg(mur.get_program()).args(mur.get_args());
        let variables = mur.get_envs().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())));
        command.env_clear().envs(variables).current_dir(world.project());
        command.output().unwrap().into()
    }
}

/// Asserts that a launch is refused with a code, step, error and remedy, that nothing was made, and that doctor and
/// explain say the same; explain is still a report.
fn refused(host: Host<'_>, class: Option<&str>, code: &str, failure: &str, remedy: &str) {
    let world = project();
    let flag = class.map(|class| ["--containment", class]);
    let line = |words: &[&'static str]| -> Vec<String> {
        words.iter().copied().chain(flag.into_iter().flatten()).map(str::to_owned).collect()
    };
    let run = |words: &[&'static str]| {
        let line = line(words);
        host(&world, &line.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let launched = run(&["run", "--task", "x"]);
    assert_eq!(launched.status, Some(1), "{}{}", launched.out, launched.err);
    assert!(launched.err.contains(&format!("error[{code}]: ")), "{}", launched.err);
    assert!(launched.err.contains(failure), "'{failure}' is not in: {}", launched.err);
    let hints: Vec<&str> = launched.err.lines().filter(|line| line.trim_start().starts_with("hint: ")).collect();
    assert!(hints.len() == 1 && hints[0].contains(remedy), "'{remedy}' is not in: {hints:?}");
    assert!(world.traces().is_empty() && !world.project().join("workdir").exists());

    let explained = run(&["run", "--explain-scope", "--json"]);
    assert_eq!(explained.status, Some(0), "{}", explained.err);
    let object: Value = serde_json::from_str(&explained.out).unwrap();
    assert_eq!(object["floor_met"], json!(code != "E-CAP-003"), "{object}");
    if code == "E-CAP-003" {
        let reason = object["shortfall_reason"].as_str().unwrap();
        assert!(reason.contains(&format!("The probe's {failure}")), "{reason}");
    }
    for part in [code, failure, remedy] {
        assert!(explained.err.contains(part), "'{part}' is not in: {}", explained.err);
    }
    let text = run(&["run", "--explain-scope"]);
    let last = text.out.lines().last().unwrap();
    assert_eq!(last.starts_with("This is a report only"), code == "E-CAP-003", "{last}");

    let checked = host(&world, &["doctor"]);
    assert!(checked.out.contains(failure) && checked.out.contains(&format!("do: {remedy}")), "{}", checked.out);
    assert!(world.traces().is_empty() && !world.project().join("workdir").exists());
}

/// Runs a capsule to its end; gives its effective grants, which `--explain-scope` must say word for word.
fn runs(host: Host<'_>, class: Option<&str>) -> Value {
    let world = project();
    let mut line = vec!["run"];
    line.extend(class.into_iter().flat_map(|class| ["--containment", class]));
    let explained = host(&world, &[&line[..], &["--explain-scope", "--json"]].concat());
    assert_eq!(explained.status, Some(0), "{}", explained.err);
    let done = host(&world, &[&line[..], &["--task", "x"]].concat());
    assert_eq!(done.status, Some(0), "{}{}", done.out, done.err);
    let trace = world.traces().remove(0);
    let begun = trace.one("session_start");
    assert_eq!(begun["effective_grants"].to_string(), explained.out.trim_end());
    begun["effective_grants"].clone()
}

#[test]
fn without_landlock_scoped_is_refused_and_advisory_runs_where_nobody_asks_for_more() {
    for (errno, name) in [(libc::ENOSYS, "ENOSYS"), (libc::EOPNOTSUPP, "EOPNOTSUPP")] {
        let calls: &'static [Denied] = Box::leak(Box::new([denied(libc::SYS_landlock_create_ruleset, errno)]));
        let host = filtered(calls);
        let failure = format!("landlock_create_ruleset failed with {name}");
        for class in ["scoped", "sealed"] {
            refused(&host, Some(class), "E-CAP-003", &failure, "use a kernel of 5.13 or later");
        }
        let grants = runs(&host, None);
        assert_eq!(
            (&grants["achieved_containment"], &grants["enforcement_tier"]),
            (&json!("advisory"), &json!("seccomp-only"))
        );
        assert_eq!((&grants["host_containment"], &grants["landlock_abi"]), (&json!("advisory"), &Value::Null));
        assert_eq!(grants["filesystem_boundary"]["restriction"], "advisory");
        assert_eq!(grants["records_dir"]["read_only_to_commands"], false);
    }
}

#[test]
fn where_pivot_root_is_refused_sealed_is_and_scoped_runs_and_says_so() {
    const CALLS: &[Denied] = &[Denied { call: libc::SYS_pivot_root, second: None, errno: libc::EPERM }];
    let host = filtered(CALLS);
    refused(
        &host,
        Some("sealed"),
        "E-CAP-003",
        "pivot_root(2) failed with EPERM",
        "reload the AppArmor profile mur-sealed",
    );
    let grants = runs(&host, None);
    assert_eq!((&grants["achieved_containment"], &grants["host_containment"]), (&json!("scoped"), &json!("scoped")));
}

#[test]
fn where_nothing_may_be_mounted_sealed_is_refused() {
    const CALLS: &[Denied] = &[Denied { call: libc::SYS_mount, second: None, errno: libc::EPERM }];
    let host = filtered(CALLS);
    let failure = "making / MS_REC|MS_PRIVATE failed with EPERM";
    refused(&host, Some("sealed"), "E-CAP-003", failure, "reload the AppArmor profile mur-sealed");
    assert_eq!(runs(&host, None)["host_containment"], "scoped");
}

#[test]
fn a_container_that_refuses_namespaces_runs_nothing_but_unconfined() {
    const CALLS: &[Denied] = &[Denied { call: libc::SYS_unshare, second: None, errno: libc::EPERM }];
    let host = filtered(CALLS);
    let failure = "unshare(CLONE_NEWUSER | CLONE_NEWNET) failed with EPERM";
    refused(&host, Some("sealed"), "E-CAP-003", failure, "start the container with --cap-add SYS_ADMIN");
    refused(&host, None, "E-CAP-005", failure, "start the container with --cap-add SYS_ADMIN");
    assert_eq!(runs(&host, Some("unconfined"))["enforcement_tier"], "none");
}

#[test]
fn namespaces_without_rights_in_them_are_refused_at_the_first_step_that_needs_one() {
    // As AppArmor does to a program without a profile: the namespace is made and holds no capability.
    const UP: u32 = libc::SIOCSIFFLAGS as u32;
    const CALLS: &[Denied] = &[Denied { call: libc::SYS_ioctl, second: Some(UP), errno: libc::EPERM }];
    let host = filtered(CALLS);
    refused(&host, None, "E-CAP-005", "bringing lo up failed with EPERM", "run mur on the host itself");
}

#[test]
fn a_kernel_without_user_namespaces_is_told_from_one_that_refuses_them() {
    const CALLS: &[Denied] = &[Denied { call: libc::SYS_unshare, second: None, errno: libc::ENOSYS }];
    let failure = "unshare(CLONE_NEWUSER | CLONE_NEWNET) failed with ENOSYS";
    refused(&filtered(CALLS), None, "E-CAP-005", failure, "raise user.max_user_namespaces, or use a kernel with");
}

#[test]
fn a_limit_on_namespaces_is_named_by_its_own_switch() {
    const PRIVATE: &[&str] = &["--user", "--map-root-user"];
    let host = |first| prepared(PRIVATE, first);
    let user = host("echo 0 > /proc/sys/user/max_user_namespaces");
    let failure = "unshare(CLONE_NEWUSER | CLONE_NEWNET) failed with ENOSPC";
    refused(&user, Some("sealed"), "E-CAP-003", failure, "raise user.max_user_namespaces");
    refused(&user, None, "E-CAP-005", failure, "raise user.max_user_namespaces");
    let net = host("echo 0 > /proc/sys/user/max_net_namespaces");
    refused(&net, None, "E-CAP-005", failure, "raise user.max_net_namespaces");
    let pid = host("echo 0 > /proc/sys/user/max_pid_namespaces");
    refused(&pid, None, "E-CAP-005", "unshare(CLONE_NEWPID) failed with ENOSPC", "raise user.max_pid_namespaces");
    let mnt = host("echo 0 > /proc/sys/user/max_mnt_namespaces");
    let failure = "unshare(CLONE_NEWNS) failed with ENOSPC";
    refused(&mnt, Some("sealed"), "E-CAP-003", failure, "raise user.max_mnt_namespaces");
}

#[test]
fn where_proc_is_masked_a_root_is_composed_with_the_host_s() {
    let host = prepared(&["--mount"], "mount -t tmpfs none /proc/tty");
    let grants = runs(&host, Some("sealed"));
    assert_eq!((&grants["achieved_containment"], &grants["host_containment"]), (&json!("sealed"), &json!("sealed")));
    assert_eq!(runs(&host, None)["host_containment"], "sealed");
}
