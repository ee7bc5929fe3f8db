//! Enclosures from their making to their end, and what is left when somebody is killed on the way.

#![allow(unsafe_code, clippy::undocumented_unsafe_blocks, clippy::disallowed_methods)]

mod support;

use std::collections::BTreeMap;
use std::io::Write;
use std::time::{Duration, Instant};

use mur_containment_kernel::{KernelEnclosure, Tier, probe};
use mur_plugin_api::Enclosure;
use support::{Place, errno, open, prepare, request, scopes, start};

const TIERS: [Tier; 3] = [Tier::Advisory, Tier::Scoped, Tier::Sealed];

fn wait_until(what: &str, mut so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::yield_now();
    }
}

fn alive(pid: i32) -> bool {
    // A zombie has ended; whoever is to reap it may take its time.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !matches!(stat.rsplit(") ").next().and_then(|rest| rest.chars().next()), None | Some('Z' | 'X'))
}

/// `/proc/PID/status` as keys and values.
fn status(pid: i32) -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.map(|(key, value)| (key.to_owned(), value.trim().to_owned())).collect()
}

fn child_of(pid: i32) -> i32 {
    let mut found = None;
    wait_until("the relay has a child", || {
        let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        found = text.split_whitespace().next().and_then(|pid| pid.parse().ok());
        found.is_some()
    });
    found.unwrap()
}

fn link(pid: i32, name: &str) -> String {
    std::fs::read_link(format!("/proc/{pid}/ns/{name}"))
        .map_or_else(|error| error.to_string(), |link| link.display().to_string())
}

fn forever(out: &mut std::fs::File) {
    let _ = writeln!(out, "ready");
    loop {
        unsafe { libc::pause() };
    }
}

#[test]
fn a_worker_is_held_as_its_class_says_seen_from_outside() {
    let _turn = support::turn();
    let own = i32::try_from(std::process::id()).unwrap();
    for tier in TIERS {
        let place = Place::new();
        let mut enclosure = open(tier, "posture");
        let profile = prepare(&mut enclosure, &place.profile());
        let mut worker = start(Some((tier, &profile)), forever);
        assert_eq!(worker.line(), "ready");
        let pid = child_of(worker.pid);
        let held = status(pid);
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(held[set], "0000000000000000", "{tier:?} {set}");
        }
        assert_eq!((held["NoNewPrivs"].as_str(), held["Seccomp"].as_str()), ("1", "2"), "{tier:?}");
        assert_eq!(held["NSpid"].split_whitespace().count(), status(own)["NSpid"].split_whitespace().count() + 1);
        for name in ["user", "net", "ipc", "pid"] {
            assert_ne!(link(pid, name), link(own, name), "{tier:?} {name}");
        }
        assert_eq!(link(pid, "mnt") != link(own, "mnt"), tier == Tier::Sealed, "{tier:?}");
        let cgroups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
        assert!(cgroups.contains("/murmur-posture-"), "{cgroups}");
        // Its own group, and nobody's children but the relay's.
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
        assert_eq!((fields[1], fields[2]), (worker.pid.to_string().as_str(), pid.to_string().as_str()));
        // The relay keeps nothing: no right, no descriptor, hardly a system call.
        let relay = status(worker.pid);
        assert_eq!((relay["CapEff"].as_str(), relay["CapBnd"].as_str()), ("0000000000000000", "0000000000000000"));
        assert_eq!((relay["NoNewPrivs"].as_str(), relay["Seccomp"].as_str()), ("1", "2"));
        assert_eq!(std::fs::read_dir(format!("/proc/{}/fd", worker.pid)).unwrap().count(), 0);
        assert!(enclosure.usage().unwrap().pids >= 2);
        enclosure.close(Duration::from_secs(10)).unwrap();
        worker.wait();
    }
}

#[test]
fn the_relay_ends_as_its_worker_does() {
    let _turn = support::turn();
    let place = Place::new();
    for tier in TIERS {
        let mut enclosure = open(tier, "mirror");
        let profile = prepare(&mut enclosure, &place.profile());
        let (_, status) = start(Some((tier, &profile)), |_| unsafe { libc::_exit(77) }).said();
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 77, "{tier:?}: {status:#x}");
        for signal in [libc::SIGKILL, libc::SIGSEGV, libc::SIGABRT, libc::SIGTERM] {
            let (_, status) = start(Some((tier, &profile)), move |_| unsafe {
                libc::signal(signal, libc::SIG_DFL);
                libc::raise(signal);
            })
            .said();
            assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == signal, "{tier:?} {signal}: {status:#x}");
            assert!(!libc::WCOREDUMP(status));
        }
    }
}

#[test]
fn a_worker_ends_with_its_relay() {
    let _turn = support::turn();
    let place = Place::new();
    for signal in [libc::SIGKILL, libc::SIGTERM] {
        let mut enclosure = open(Tier::Scoped, "relay");
        let profile = prepare(&mut enclosure, &place.profile());
        let mut worker = start(Some((Tier::Scoped, &profile)), forever);
        worker.line();
        let pid = child_of(worker.pid);
        unsafe { libc::kill(worker.pid, signal) };
        let status = worker.wait();
        assert_eq!(libc::WTERMSIG(status), signal);
        wait_until("the worker is gone", || !alive(pid));
    }
}

#[test]
fn closing_ends_what_was_left_behind_and_removes_the_scope() {
    let _turn = support::turn();
    for tier in TIERS {
        let place = Place::new();
        let session = format!("daemon{tier:?}");
        let mut enclosure = open(tier, &session);
        let profile = prepare(&mut enclosure, &place.profile());
        // Daemons: a new session each, and their starter gone.
        let (said, _) = start(Some((tier, &profile)), |out| {
            for _ in 0..10 {
                if unsafe { libc::fork() } == 0 {
                    unsafe { libc::setsid() };
                    if unsafe { libc::fork() } != 0 {
                        unsafe { libc::_exit(0) };
                    }
                    unsafe { libc::close(1) };
                    loop {
                        unsafe { libc::pause() };
                    }
                }
            }
            let _ = writeln!(out, "started");
        })
        .line_and_end();
        assert_eq!(said, "started");
        assert!(!scopes(&session).is_empty(), "{tier:?}: a scope is somewhere");
        let inside: Vec<i32> = scopes(&session)
            .iter()
            .filter_map(|dir| std::fs::read_to_string(dir.join("cgroup.procs")).ok())
            .flat_map(|text| text.lines().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
            .collect();
        assert!(inside.len() > 5, "{inside:?}");
        enclosure.close(Duration::from_secs(10)).unwrap();
        assert!(inside.iter().all(|pid| !alive(*pid)), "{tier:?}");
        assert_eq!(scopes(&session), Vec::<std::path::PathBuf>::new());
        enclosure.close(Duration::from_secs(10)).unwrap();
        assert!(enclosure.usage().is_err() && enclosure.prepare(b"{}").is_err());
    }
}

#[test]
fn whoever_made_the_enclosure_may_be_killed_and_nothing_is_left() {
    let _turn = support::turn();
    let place = Place::new();
    for round in 0..10 {
        let session = format!("killed{round}");
        let maker = start(None, |out| {
            let mut enclosure = open(Tier::Scoped, &session);
            let profile = prepare(&mut enclosure, &place.profile());
            let mut worker = start(Some((Tier::Scoped, &profile)), forever);
            worker.line();
            let _ = writeln!(out, "{} {}", worker.pid, child_of(worker.pid));
            loop {
                unsafe { libc::pause() };
            }
        });
        let mut maker = maker;
        let line = maker.line();
        let pids: Vec<i32> = line.split(' ').map(|pid| pid.parse().unwrap()).collect();
        assert!(!scopes(&session).is_empty());
        unsafe { libc::kill(maker.pid, libc::SIGKILL) };
        maker.wait();
        wait_until("relay and worker are gone", || pids.iter().all(|pid| !alive(*pid)));
        wait_until("the scope is gone", || scopes(&session).is_empty());
    }
}

#[test]
fn the_scope_bounds_processes_and_memory() {
    let _turn = support::turn();
    let place = Place::new();
    let mut enclosure = open(Tier::Scoped, "bounds");
    let profile = prepare(&mut enclosure, &place.profile());
    let (said, _) = start(Some((Tier::Scoped, &profile)), |out| {
        let mut started = 0;
        while started < 500 {
            match unsafe { libc::fork() } {
                0 => loop {
                    unsafe { libc::pause() };
                },
                pid if pid < 0 => break,
                _ => started += 1,
            }
        }
        let _ = writeln!(out, "{started} {}", errno());
    })
    .line_and_end();
    let (started, number) = said.split_once(' ').unwrap();
    assert!(started.parse::<u32>().unwrap() < 40, "{said}");
    assert_eq!(number.parse::<i32>().unwrap(), libc::EAGAIN);
    enclosure.close(Duration::from_secs(10)).unwrap();

    let mut enclosure = open(Tier::Scoped, "memory");
    let profile = prepare(&mut enclosure, &place.profile());
    let (_, status) = start(Some((Tier::Scoped, &profile)), |_| {
        let mut held: Vec<Vec<u8>> = Vec::new();
        for _ in 0..64 {
            held.push(vec![1; 16 << 20]);
        }
        std::hint::black_box(&held);
    })
    .said();
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL, "{status:#x}");
}

#[test]
fn a_step_that_fails_is_named_and_nothing_is_entered() {
    let _turn = support::turn();
    let place = Place::new();
    let mut enclosure = open(Tier::Sealed, "stale");
    let profile = prepare(&mut enclosure, &place.profile());
    // Another folder under the same name: not the one that was granted.
    std::fs::rename(&place.work, place.dir.path().join("moved")).unwrap();
    std::fs::create_dir(&place.work).unwrap();
    let (said, _) = start(Some((Tier::Sealed, &profile)), |_| ()).said();
    assert!(said.contains("sealed-root: opening what the root is made of: "), "{said}");
    assert!(said.contains("ESTALE"), "{said}");

    let mut enclosure = open(Tier::Scoped, "ended");
    let place = Place::new();
    let profile = prepare(&mut enclosure, &place.profile());
    enclosure.close(Duration::from_secs(10)).unwrap();
    let (said, _) = start(Some((Tier::Scoped, &profile)), |_| ()).said();
    assert!(said.starts_with("not entered: cgroup scope failed with"), "{said}");

    let mut enclosure = open(Tier::Scoped, "wrong");
    let profile = prepare(&mut enclosure, &place.profile());
    let (said, _) = start(Some((Tier::Advisory, &profile)), |_| ()).said();
    assert!(said.contains("the profile is none of class 'advisory'"), "{said}");
    let mut missing = place.profile();
    missing.grants[0].path = place.dir.path().join("absent");
    let error = enclosure.prepare(&serde_json::to_vec(&missing).unwrap()).unwrap_err();
    assert!(error.message().contains("absent"), "{error}");
}

#[test]
fn a_scope_that_cannot_be_made_leaves_nothing() {
    let _turn = support::turn();
    let mut asked: serde_json::Value = serde_json::from_slice(&request("impossible")).unwrap();
    asked["ports"] = serde_json::json!((1..40).collect::<Vec<u16>>());
    let error = KernelEnclosure::open(Tier::Scoped, &serde_json::to_vec(&asked).unwrap()).unwrap_err();
    assert!(error.message().contains("binding a TCP listener"), "{error}");
    assert!(scopes("impossible").is_empty());
    asked["ports"] = serde_json::json!([0, 80]);
    asked["names"] = serde_json::json!(true);
    let mut enclosure = KernelEnclosure::open(Tier::Scoped, &serde_json::to_vec(&asked).unwrap()).unwrap();
    let sockets = enclosure.network().unwrap();
    assert_eq!(sockets.len(), 3);
    for fd in sockets {
        unsafe { libc::close(fd) };
    }
}

/// Enters another user; only root can try what somebody else may.
fn as_nobody(then: impl FnOnce(&mut std::fs::File)) -> String {
    assert!(nix::unistd::geteuid().is_root(), "this test tries what another user may, so it must start as root");
    let (said, _) = start(None, |out| {
        let nobody = 65534;
        nix::unistd::setgroups(&[]).unwrap();
        nix::unistd::setresgid(nobody.into(), nobody.into(), nobody.into()).unwrap();
        nix::unistd::setresuid(nobody.into(), nobody.into(), nobody.into()).unwrap();
        then(out);
    })
    .said();
    said
}

#[test]
fn a_host_is_tried_and_every_user_hears_what_is_short() {
    let _turn = support::turn();
    for tier in TIERS {
        let report = probe(tier);
        assert_eq!(report.shortfalls().next(), None, "{tier:?}: root backs every class on this machine");
    }
    let said = as_nobody(|out| {
        for tier in TIERS {
            let report = probe(tier);
            let scope = report.scope.as_ref().into_option();
            let words = scope.map_or_else(String::new, |short| format!("{} {}", short.step, short.errno));
            let _ = writeln!(out, "{} {} {words}", report.class.is_none(), report.namespaces.is_none());
        }
    });
    for line in said.lines() {
        assert!(line.starts_with("true true creating the session's cgroup directory: /"), "{said}");
        assert!(line.ends_with(&format!(" {}", libc::EACCES)), "{said}");
    }
    assert_eq!(said.lines().count(), 3, "{said}");
}

#[test]
fn a_probe_leaves_this_process_as_it_was_and_nothing_behind() {
    let _turn = support::turn();
    let own = i32::try_from(std::process::id()).unwrap();
    let names = ["user", "net", "pid", "mnt"];
    let before: Vec<String> = names.iter().map(|name| link(own, name)).collect();
    for _ in 0..5 {
        probe(Tier::Sealed);
    }
    assert_eq!(names.iter().map(|name| link(own, name)).collect::<Vec<_>>(), before);
    assert!(std::fs::File::open("/etc/passwd").is_ok());
    assert!(scopes("probe").is_empty());
}

#[test]
fn scopes_of_dead_makers_go_with_the_next_one_and_those_of_living_ones_stay() {
    let _turn = support::turn();
    let limits = mur_plugin_api::ScopeLimits { memory: 64 << 20, pids: 16, cpu_percent: 100 };
    let own = format!("murmur-living-{}-0", std::process::id());
    let living = mur_containment_kernel::scope::Scope::create(&own, &limits).unwrap();
    // Dropped, a scope stays: as if maker and watcher had been killed at once.
    let (said, _) = start(None, |out| {
        let name = format!("murmur-stale-{}-0", std::process::id());
        let made = mur_containment_kernel::scope::Scope::create(&name, &limits);
        let _ = writeln!(out, "{}", made.is_ok());
    })
    .said();
    assert_eq!((said.as_str(), scopes("stale").is_empty()), ("true\n", false));
    // It is old enough in a while.
    wait_until("the stale scope is gone", || {
        let name = format!("murmur-next-{}-0", std::process::id());
        let next = mur_containment_kernel::scope::Scope::create(&name, &limits).unwrap();
        assert!(next.directories().take_down(Duration::from_secs(5)));
        scopes("stale").is_empty()
    });
    assert!(!scopes("living").is_empty());
    assert!(living.directories().take_down(Duration::from_secs(5)));
}
