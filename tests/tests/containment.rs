//! Classes as seen from outside: what a running worker is held by, what is refused before anything runs, and what is left
//! when somebody is killed.

#![allow(clippy::disallowed_methods, reason = "mur is started as other users and from other namespaces")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};

use mur_tests::live::proc;
use mur_tests::{Agent, Running, World, mur_binary, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

const SCOPED: &str = "landlock+seccomp";
const SEALED: &str = "mountns+pivot_root+landlock+seccomp";

fn slow() -> Agent {
    Agent::scripted("slow", json!({"rules": [{"turns": [[{"wait_ms": 60000}, {"say": "done"}]]}]})).tool("read-file")
}

/// A session whose driver takes its time.
fn start(world: &World, class: Option<&str>) -> Running {
    let agent = slow();
    let name = world.install(&agent);
    let work = world.project().join("work");
    fs::create_dir_all(&work).unwrap();
    let mut command = world
        .mur(["run", "--capsule", &name, "--capsule-version", agent.version(), "--task", "x", "--workdir"])
        .arg(&work);
    if let Some(class) = class {
        command = command.args(["--containment", class]);
    }
    command.start()
}

/// `/proc/PID/status` as keys and values.
fn status(pid: i32) -> BTreeMap<String, String> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.map(|(key, value)| (key.to_owned(), value.trim().to_owned())).collect()
}

/// A session's processes by what they are.
#[derive(Debug)]
struct Parts {
    session: i32,
    enclosure: i32,
    init: i32,
    /// Relay and worker of each kind.
    workers: BTreeMap<String, (i32, i32)>,
}

/// The processes of a session under a class with an enclosure, once its driver is called: by then all are ready.
fn parts(session: &Running, world: &World) -> Parts {
    let own = i32::try_from(session.pid()).unwrap();
    wait_until("the driver's worker runs its first call", || {
        world.traces().first().is_some_and(|trace| trace.kinds().contains(&"task_start"))
    });
    let parents = proc::parents();
    let children = |pid: i32| parents.iter().filter(move |(_, parent)| *parent == pid).map(|(child, _)| *child);
    let is = |pid: i32, word: &str| proc::command_line(pid).contains(word);
    let enclosure = children(own).find(|pid| is(*pid, "__enclosure")).expect("an enclosure");
    let name = |pid: i32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let init = children(enclosure).find(|pid| name(*pid).trim() == "mur-init").expect("the first process");
    let relays = children(own).filter(|pid| is(*pid, "__guest-worker"));
    let workers = relays
        .map(|relay| {
            let kind = proc::command_line(relay).rsplit(' ').next().unwrap().to_owned();
            let worker = children(relay).next().expect("a relay has its worker");
            (kind, (relay, worker))
        })
        .collect();
    Parts { session: own, enclosure, init, workers }
}

impl Parts {
    fn all(&self) -> Vec<i32> {
        let workers = self.workers.values().flat_map(|(relay, worker)| [*relay, *worker]);
        [self.session, self.enclosure, self.init].into_iter().chain(workers).collect()
    }
}

/// The soft limit of a resource, as `/proc/PID/limits` prints it.
fn limit(pid: i32, name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.split_whitespace().next().unwrap().to_owned()
}

fn namespace(pid: i32, name: &str) -> PathBuf {
    fs::read_link(format!("/proc/{pid}/ns/{name}")).unwrap()
}

/// The cgroup directories of a session that are there.
fn scopes(session: &str) -> Vec<PathBuf> {
    fn below(dir: &Path, name: &str, depth: u32, found: &mut Vec<PathBuf>) {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            if entry.file_name().to_string_lossy().starts_with(name) {
                found.push(entry.path());
            } else if depth > 0 {
                below(&entry.path(), name, depth - 1, found);
            }
        }
    }
    let mut found = Vec::new();
    below(Path::new("/sys/fs/cgroup"), &format!("murmur-{session}-"), 6, &mut found);
    found
}

/// Every process whose cgroup is of a session.
fn members(session: &str) -> Vec<i32> {
    let name = format!("murmur-{session}-");
    let all = proc::parents().into_iter().map(|(pid, _)| pid);
    all.filter(|pid| fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|text| text.contains(&name)))
        .filter(|pid| proc::runs(*pid))
        .collect()
}

#[test]
fn workers_are_held_by_what_their_class_says_seen_from_outside() {
    for (class, achieved, tier) in [(None, "scoped", SCOPED), (Some("sealed"), "sealed", SEALED)] {
        let world = World::new();
        let session = start(&world, class);
        let parts = parts(&session, &world);
        let trace = world.traces().remove(0);
        let begun = trace.one("session_start");
        assert_eq!(begun["containment_achieved"], achieved);
        let grants = &begun["effective_grants"];
        assert_eq!((&grants["enforcement_tier"], &grants["host_containment"]), (&json!(tier), &json!("sealed")));
        assert_eq!(parts.workers.keys().map(String::as_str).collect::<Vec<_>>(), ["driver", "tools"]);
        let depth = |pid: i32| status(pid)["NSpid"].split_whitespace().count();
        for (kind, (relay, worker)) in &parts.workers {
            let held = status(*worker);
            for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
                assert_eq!(held[set], "0000000000000000", "{kind}: {set}");
                assert_eq!(status(*relay)[set], "0000000000000000", "{kind}'s relay: {set}");
            }
            assert_eq!((held["NoNewPrivs"].as_str(), held["Seccomp"].as_str()), ("1", "2"), "{kind}");
            assert_eq!(depth(*worker), depth(parts.session) + 1, "{kind}");
            for name in ["user", "net", "ipc", "pid"] {
                assert_ne!(namespace(*worker, name), namespace(parts.session, name), "{kind}: {name}");
                assert_eq!(namespace(*worker, name), namespace(parts.init, name), "{kind}: {name}");
            }
            let mounts = namespace(*worker, "mnt") != namespace(parts.session, "mnt");
            assert_eq!(mounts, achieved == "sealed", "{kind}");
            let cgroup = fs::read_to_string(format!("/proc/{worker}/cgroup")).unwrap();
            assert!(cgroup.contains(&format!("/murmur-{}-", trace.session())), "{cgroup}");
            assert!(proc::environment(*worker).is_empty());
            assert_eq!(limit(*worker, "Max open files"), "1024");
            assert_eq!(limit(*worker, "Max file size"), "4294967296");
            assert_eq!(limit(*worker, "Max core file size"), "0");
            // Its own folders and compiled forms are granted; nothing of mur's is held.
            for (fd, what) in proc::descriptors(*worker).iter().filter(|(fd, _)| *fd > 3) {
                let granted = what.starts_with("anon_inode:") || what.starts_with("socket:") || what.starts_with('/');
                let own = ["trace.jsonl", "/running", "/sys/", "cgroup", ".so"];
                assert!(granted && !own.iter().any(|name| what.contains(name)), "{kind}: {fd} is {what}");
            }
            assert_eq!(proc::descriptors(*relay), []);
        }
        // The session itself enters nothing.
        assert_eq!(namespace(parts.session, "user"), namespace(std::process::id().cast_signed(), "user"));
        assert_eq!(status(parts.session)["Seccomp"], "0");
    }
}

#[test]
fn unconfined_holds_nothing_and_says_so() {
    let world = World::new();
    let session = start(&world, Some("unconfined"));
    session.stderr_line(|line| line.contains("warning[W-SEC-034]"));
    wait_until("the driver's worker runs its first call", || {
        world.traces().first().is_some_and(|trace| trace.kinds().contains(&"task_start"))
    });
    let own = i32::try_from(session.pid()).unwrap();
    let children: Vec<i32> =
        proc::parents().into_iter().filter(|(_, parent)| *parent == own).map(|(pid, _)| pid).collect();
    assert!(!children.iter().any(|pid| proc::command_line(*pid).contains("__enclosure")), "no helper is needed");
    let worker = children.iter().find(|pid| proc::command_line(**pid).contains("__guest-worker driver")).unwrap();
    let (held, mine) = (status(*worker), status(std::process::id().cast_signed()));
    assert_eq!((held["Seccomp"].as_str(), &held["CapEff"]), ("0", &mine["CapEff"]));
    assert_eq!(namespace(*worker, "net"), namespace(own, "net"));
}

/// Kills one process of a running session and says how the session ended; nothing of it may be left.
fn killed(class: Option<&str>, which: impl Fn(&Parts) -> i32) -> (String, Option<i32>) {
    let world = World::new();
    let session = start(&world, class);
    let parts = parts(&session, &world);
    let id = world.traces().remove(0).session().to_owned();
    assert!(!scopes(&id).is_empty() && members(&id).len() >= 5, "{:?}", members(&id));
    let victim = which(&parts);
    kill(Pid::from_raw(victim), Signal::SIGKILL).unwrap();
    let done = session.wait();
    wait_until("every process of the session is gone", || {
        parts.all().iter().all(|pid| !proc::runs(*pid)) && members(&id).is_empty()
    });
    wait_until("the session's cgroup directories are gone", || scopes(&id).is_empty());
    if victim != parts.session {
        let trace = world.traces().remove(0);
        assert_eq!(trace.one("session_end")["exit_status"], "failed");
        assert!(trace.one("task_failed")["reason"].as_str().unwrap().contains("E-RUN-065"));
        trace.one("task_end");
    }
    (done.stderr.clone(), done.code())
}

#[test]
fn whoever_is_killed_nothing_is_left() {
    for class in [None, Some("sealed")] {
        killed(class, |parts| parts.session);
        let (said, code) = killed(class, |parts| parts.enclosure);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("error[E-RUN-065]"), "{said}");
        killed(class, |parts| parts.init);
        killed(class, |parts| parts.workers["driver"].0);
        let worker = std::cell::Cell::new(0);
        let (said, _) = killed(class, |parts| {
            worker.set(parts.workers["driver"].1);
            worker.get()
        });
        assert!(said.contains(&format!("the driver worker (pid {}) was lost", worker.get())), "{said}");
    }
}

#[test]
fn fifty_sessions_half_of_them_killed_leave_nothing() {
    let world = World::new();
    let agent = Agent::scripted("quick", json!({"rules": [{"turns": [[{"say": "done"}]]}]}));
    let name = world.install(&agent);
    let sessions = |kill_at: Option<u32>| {
        let work = world.project().join("work");
        fs::create_dir_all(&work).unwrap();
        let running = world
            .mur(["run", "--capsule", &name, "--capsule-version", agent.version(), "--task", "x", "--workdir"])
            .arg(&work)
            .start();
        let pid = i32::try_from(running.pid()).unwrap();
        if let Some(turns) = kill_at {
            // At another moment each: while staging, starting, running, ending.
            for _ in 0..turns {
                std::thread::yield_now();
                let _ = fs::read_dir("/proc").map(Iterator::count);
            }
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        running.wait()
    };
    for round in 0..25 {
        sessions(Some(round * 2));
        assert_eq!(sessions(None).code(), Some(0));
    }
    let home = world.home().display().to_string();
    wait_until("no process of these sessions runs", || {
        let enclosures = proc::parents().into_iter().map(|(pid, _)| pid);
        let ours = |pid: &i32| {
            world.traces().iter().any(|trace| {
                let name = format!("murmur-{}-", trace.session());
                fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|text| text.contains(&name))
            })
        };
        let mut left = enclosures
            .filter(|pid| proc::runs(*pid))
            .filter(|pid| ours(pid) || proc::command_line(*pid).contains(&home));
        left.next().is_none()
    });
    for trace in world.traces() {
        wait_until("no cgroup directory is left", || scopes(trace.session()).is_empty());
    }
    assert!(world.traces().len() >= 25);
}

/// `mur run` inside a user namespace in which no further one can be made.
fn without_namespaces(world: &World, class: Option<&str>) -> std::process::Output {
    let agent = slow();
    let name = world.install(&agent);
    let flag = class.map(|class| format!("--containment {class}")).unwrap_or_default();
    let script = format!(
        "echo 0 > /proc/sys/user/max_user_namespaces && exec {} run --capsule {name} --capsule-version {} --task x {flag}",
        mur_binary().display(),
        agent.version()
    );
    let mut command = world.mur(["x"]).command();
    let program = std::mem::replace(&mut command, std::process::Command::new("unshare"));
    command.args(["--user", "--map-root-user", "/bin/sh", "-c", &script]);
    let inherited: Vec<_> =
        program.get_envs().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned()))).collect();
    command.env_clear().envs(inherited).current_dir(world.project());
    command.output().unwrap()
}

#[test]
fn a_host_without_namespaces_is_refused_by_step_and_remedy_before_anything_is_made() {
    let world = World::new();
    let sealed = without_namespaces(&world, Some("sealed"));
    let said = String::from_utf8_lossy(&sealed.stderr);
    assert_eq!(sealed.status.code(), Some(1), "{said}");
    assert!(said.contains("error[E-CAP-003]: declared containment class 'sealed' is not achievable"), "{said}");
    assert!(said.contains("unshare(CLONE_NEWUSER | CLONE_NEWNET) failed with ENOSPC"), "{said}");
    assert!(said.contains("hint: raise user.max_user_namespaces"), "{said}");
    let usual = without_namespaces(&world, None);
    let said = String::from_utf8_lossy(&usual.stderr);
    assert!(said.contains("error[E-CAP-005]: this host cannot give the capsule's subprocess tree"), "{said}");
    assert!(said.contains("ENOSPC") && said.contains("hint: raise user.max_user_namespaces"), "{said}");
    assert!(world.traces().is_empty());
}

#[test]
fn a_user_without_a_cgroup_of_its_own_is_refused_before_any_worker() {
    let world = World::new();
    let agent = slow();
    let name = world.install(&agent);
    fn hand_over(path: &Path) {
        chown(path, Some(65534), Some(65534)).unwrap();
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            hand_over(&entry.path());
        }
    }
    hand_over(world.home());
    hand_over(world.project());
    fs::set_permissions(world.home().parent().unwrap(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let run = |class: Option<&str>| {
        let mut line = vec!["run", "--capsule", &name, "--capsule-version", agent.version(), "--task", "x"];
        line.extend(class.into_iter().flat_map(|class| ["--containment", class]));
        let invocation = world.mur(line);
        let mut command = invocation.command();
        std::os::unix::process::CommandExt::uid(&mut command, 65534);
        std::os::unix::process::CommandExt::gid(&mut command, 65534);
        command.output().unwrap()
    };
    let done = run(None);
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(
        said.contains("error[E-RUN-012]: this capsule can spawn native subprocesses but no cgroup scope"),
        "{said}"
    );
    assert!(said.contains("EACCES") && said.contains("hint: run mur in a delegated scope: systemd-run"), "{said}");
    assert!(world.traces().is_empty());
}

#[test]
fn tools_do_their_work_under_every_class() {
    let script = json!({"rules": [{"turns": [
        [{"call": "write-file", "input": {"path": "made.txt", "content": "by a tool"}}],
        [{"call": "read-file", "input": {"path": "made.txt"}}],
        [{"say": "done"}],
    ]}]});
    let agent = Agent::scripted("writer", script)
        .tool("read-file")
        .tool("write-file")
        .artifact_capability("write-file", json!({"state": {"store": "kept"}}));
    for class in ["unconfined", "advisory", "scoped", "sealed"] {
        let world = World::new();
        let name = world.install(&agent);
        let work = world.project().join("work");
        fs::create_dir_all(&work).unwrap();
        let line = ["run", "--capsule", &name, "--capsule-version", agent.version(), "--containment", class];
        world.mur(line).args(["--task", "x", "--workdir"]).arg(&work).ok();
        assert_eq!(fs::read_to_string(work.join("made.txt")).unwrap(), "by a tool", "{class}");
        let trace = world.traces().remove(0);
        let calls = trace.all("tool_call");
        assert_eq!(
            calls.iter().map(|call| call["status"].as_str().unwrap()).collect::<Vec<_>>(),
            ["ok", "ok"],
            "{class}"
        );
        assert!(scopes(trace.session()).is_empty());
    }
}

#[test]
fn an_unknown_class_is_refused() {
    let world = World::new();
    let done = start(&world, Some("Advisory")).wait();
    done.refused("E-IO-003");
    assert!(done.stderr.contains("--containment must be one of: unconfined, advisory, scoped, sealed; got 'Advisory'"));
    assert!(world.traces().is_empty());
}

#[test]
fn doctor_says_what_this_host_backs() {
    let world = World::new();
    world.write("murmur.yaml", slow().manifest());
    let said = world.mur(["doctor"]).run().stdout;
    for line in [
        "sealed: yes (mountns+pivot_root+landlock+seccomp)",
        "scoped: yes (landlock+seccomp)",
        "session cgroup scope: yes",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
}
