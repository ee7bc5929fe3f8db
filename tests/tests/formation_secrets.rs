//! What must never be seen of a formation's credentials, and who holds what, looked at from outside.

use mur_tests::live::formation::{Launched, standard, worker};
use mur_tests::live::{Home, proc, trace};
use nix::sys::signal::Signal;
use serde_json::json;

/// What no file, environment, command line, stream or trace may hold.
const TOKEN: &[u8] = b"mft1.";

fn holds(bytes: &[u8]) -> bool {
    bytes.windows(TOKEN.len()).any(|window| window == TOKEN)
}

#[test]
fn no_formation_token_is_anywhere_but_in_memory() {
    let mut home = Home::new();
    home.set("RUST_LOG", "trace");
    standard(&home, &worker());
    let formation = Launched::with(&home, &["--verbose"]);
    let door = formation.door(&home);
    door.ended(&door.send("one"));
    for pid in proc::descendants(formation.launcher.pid()) {
        assert!(!holds(&proc::environment(pid)), "environment of {pid}");
        assert!(!proc::command_line(pid).contains("mft1."), "command line of {pid}");
    }
    let shown = home.mur(["trace", "show", &formation.id()]);
    let listed = home.mur(["ps", "--json"]);
    formation.launcher.signal(Signal::SIGTERM);
    let output = formation.launcher.finish();
    for text in [&output.stdout, &output.stderr, &shown.stdout, &listed.stdout] {
        assert!(!text.contains("mft1."), "{text}");
    }
    for dir in [home.home(), home.project()] {
        for (path, bytes) in trace::files(dir) {
            assert!(!holds(&bytes), "{}", path.display());
        }
    }
}

#[test]
fn the_launcher_keeps_no_token_once_it_has_handed_it_out() {
    let home = Home::new();
    standard(&home, &worker());
    let formation = Launched::open(&home);
    let door = formation.door(&home);
    door.ended(&door.send("one"));
    let launcher = formation.launcher.pid();
    // The attempt is real: a member that calls others holds its tokens, and its own operator token.
    let entry = formation.entry_pid();
    assert!(proc::memory_holds(entry, TOKEN) > 0, "the entry member holds its edges");
    assert!(proc::memory_holds(entry, door.token.as_bytes()) > 0, "and its operator token");
    assert!(proc::memory_holds(launcher, formation.id().as_bytes()) > 0, "what the launcher holds is found");
    let edges = proc::memory_holds(launcher, b"mft1.eyJ");
    assert_eq!(edges, 0, "the launcher's memory holds edge tokens");
    for peer in ["coder", "reviewer"] {
        let token = formation.peer_door(&home, peer).token;
        assert_eq!(proc::memory_holds(launcher, token.as_bytes()), 0, "the operator token of {peer}");
    }
    formation.launcher.signal(Signal::SIGTERM);
    formation.launcher.finish().expect(143);
}

#[test]
fn the_launcher_loads_no_plugin_and_each_lifeline_has_one_holder() {
    let home = Home::new();
    standard(&home, &worker());
    let formation = Launched::open(&home);
    let launcher = formation.launcher.pid();
    let maps = proc::maps(launcher);
    assert!(!maps.is_empty(), "the launcher's map can be read");
    assert!(!maps.contains("/plugins/") && !maps.contains("memfd:"), "{maps}");
    let everybody: Vec<i32> = proc::parents().into_iter().map(|(pid, _)| pid).collect();
    for member in formation.members() {
        let environment = String::from_utf8_lossy(&proc::environment(member)).into_owned();
        let number = environment
            .split('\0')
            .find_map(|pair| pair.strip_prefix("MURMUR_FORMATION_LIFELINE="))
            .unwrap()
            .to_owned();
        let descriptors = proc::descriptors(member);
        let pipe = descriptors.iter().find(|(fd, _)| fd.to_string() == number).map(|(_, what)| what.clone()).unwrap();
        assert!(pipe.starts_with("pipe:"), "{pipe}");
        let holders: Vec<i32> = everybody
            .iter()
            .copied()
            .filter(|pid| proc::descriptors(*pid).iter().any(|(fd, what)| *what == pipe && proc::writable(*pid, *fd)))
            .collect();
        assert_eq!(holders, [launcher], "holders of the write end of {member}'s lifeline");
    }
    formation.launcher.signal(Signal::SIGTERM);
    formation.launcher.finish();
}

#[test]
fn a_worker_has_an_empty_environment_and_nothing_inherited() {
    let home = Home::new();
    standard(&home, &worker());
    let formation = Launched::open(&home);
    let door = formation.door(&home);
    door.ended(&door.send("one"));
    // A worker proper is the child of its relay, which keeps nothing at all.
    let parents = proc::parents();
    let of_relay = |pid: &i32| {
        let parent = parents.iter().find(|(child, _)| child == pid).map(|(_, parent)| *parent);
        parent.is_some_and(|parent| proc::command_line(parent).contains("__guest-worker"))
    };
    let workers: Vec<i32> = proc::descendants(formation.launcher.pid())
        .into_iter()
        .filter(|pid| proc::command_line(*pid).contains("__guest-worker"))
        .filter(of_relay)
        .collect();
    assert_eq!(workers.len(), 3, "a driver worker for each member");
    let mut libraries = 0;
    for worker in workers {
        assert!(proc::environment(worker).is_empty(), "environment of worker {worker}");
        let line = proc::command_line(worker);
        assert_eq!(line, "mur __guest-worker driver");
        assert_eq!(std::fs::read_link(format!("/proc/{worker}/cwd")).unwrap().to_str(), Some("/"));
        let status = std::fs::read_to_string(format!("/proc/{worker}/status")).unwrap();
        let group = nix::unistd::getpgid(Some(nix::unistd::Pid::from_raw(worker))).unwrap().as_raw();
        assert_eq!(group, worker, "a worker leads a group of its own");
        assert!(status.contains("NoNewPrivs:\t1"), "{status}");
        assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
        let descriptors = proc::descriptors(worker);
        let inherited: Vec<_> = descriptors
            .iter()
            .filter(|(fd, what)| *fd > 3 && !what.starts_with("anon_inode:") && !what.starts_with("socket:"))
            .collect();
        // Folders and compiled forms are granted over the connection; pipes and files of mur are not.
        assert!(
            inherited.iter().all(|(_, what)| !what.contains("trace.jsonl")
                && !what.contains("/running/")
                && !what.starts_with("pipe:")),
            "{inherited:?}"
        );
        libraries += usize::from(proc::maps(worker).contains("rwxp"));
    }
    assert_eq!(libraries, 0, "no page is writable and executable");
    formation.launcher.signal(Signal::SIGTERM);
    formation.launcher.finish();
}

#[test]
fn no_guest_code_is_mapped_in_a_session() {
    let home = Home::new();
    standard(&home, &worker());
    let formation = Launched::open(&home);
    let door = formation.door(&home);
    door.ended(&door.send("one"));
    for member in formation.members() {
        let maps = proc::maps(member);
        assert!(!maps.is_empty());
        let foreign: Vec<&str> = maps
            .lines()
            .filter(|line| line.split(' ').nth(1).is_some_and(|rights| rights.contains('x')))
            .filter(|line| !line.contains(".so") && !line.contains("/bin/mur") && !line.contains('['))
            .collect();
        assert!(foreign.is_empty(), "executable pages of no library in session {member}: {foreign:?}");
        assert!(!maps.contains("/compiled/"), "{maps}");
    }
    formation.launcher.signal(Signal::SIGTERM);
    formation.launcher.finish();
}

#[test]
fn a_token_of_an_earlier_launch_opens_no_door_of_a_later_one() {
    let home = Home::new();
    standard(&home, &worker());
    let first = Launched::open(&home);
    let door = first.door(&home);
    door.ended(&door.send("one"));
    let coder = |formation: &Launched, token: &str| {
        let door = mur_tests::live::Door { token: token.to_owned(), ..formation.peer_door(&home, "coder") };
        door.ask("GetTask", json!({"id": "tsk_x"}), &[])
    };
    // What nobody else can read: the tokens as the caller holds them. One of them opens the door it is for.
    let words = proc::memory_words(first.entry_pid(), b"mft1.ey");
    let token = words.iter().find(|word| coder(&first, word).status == 200).expect("the edge's token").clone();
    first.launcher.signal(Signal::SIGTERM);
    first.launcher.finish().expect(143);

    let second = Launched::open(&home);
    for name in ["coder", "reviewer"] {
        let door = mur_tests::live::Door { token: token.clone(), ..second.peer_door(&home, name) };
        let answer = door.ask("GetTask", json!({"id": "tsk_x"}), &[]);
        assert_eq!((answer.status, answer.json()["error"].clone()), (401, json!("invalid_token")), "{name}");
    }
    let entry = mur_tests::live::Door { token, ..second.door(&home) };
    assert_eq!(entry.ask("GetTask", json!({"id": "tsk_x"}), &[]).status, 401);
    second.launcher.signal(Signal::SIGTERM);
    second.launcher.finish().expect(143);
}
