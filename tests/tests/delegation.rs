//! A scope from systemd, over D-Bus: for a user who may make none. A real bus carries the question everywhere; who answers
//! it is a stand-in here, and systemd itself where `cargo xtask kernels` boots it.

#![allow(clippy::disallowed_methods, reason = "buses are started, and mur as another user")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use mur_tests::live::proc;
use mur_tests::ordinary::{self, NOBODY};
use mur_tests::{Agent, Invocation, World, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

/// A capsule that calls a tool once and takes its time before.
fn agent(wait_ms: u32) -> Agent {
    let turns = json!([[{"wait_ms": wait_ms}, {"call": "write-file", "input": {"path": "made.txt", "content": "x"}}],
        [{"say": "done"}]]);
    Agent::scripted("asker", json!({"rules": [{"turns": turns}]})).tool("write-file")
}

fn run(world: &World, agent: &Agent) -> Invocation {
    let work = world.project().join("work");
    fs::create_dir_all(&work).unwrap();
    let name = format!("local/{}", agent.name());
    let line = ["run", "--capsule", &name, "--capsule-version", agent.version(), "--task", "x", "--workdir"];
    world.mur(line).arg(&work)
}

/// A world that belongs to a user who may make no cgroup; only root can make one.
fn world_of_nobody(agent: &Agent) -> World {
    let world = World::new();
    world.install(agent);
    fs::create_dir_all(world.project().join("work")).unwrap();
    ordinary::own(&world);
    world
}

fn as_nobody(command: &mut Command) -> &mut Command {
    command.uid(NOBODY).gid(NOBODY)
}

fn refused_without_a_scope(done: &Output) {
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(said.contains("error[E-RUN-012]"), "{said}");
    assert!(said.contains("hint: run mur in a delegated scope: systemd-run --user --scope"), "{said}");
}

/// A bus of its own, of nobody, with systemd's name on it.
struct Bus {
    daemon: Child,
    folder: tempfile::TempDir,
}

impl Bus {
    fn start() -> Self {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        // The stand-in is another user than the bus; nothing is started because somebody calls its name.
        let config = folder.path().join("bus.conf");
        let listen = format!("unix:path={}", folder.path().join("bus").display());
        let policy = r#"<allow user="*"/><allow own="*"/><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/>"#;
        let text = format!(
            "<busconfig><type>session</type><listen>{listen}</listen><policy context=\"default\">{policy}</policy></busconfig>"
        );
        fs::write(&config, text).unwrap();
        let mut command = Command::new("dbus-daemon");
        command.args(["--nofork", "--nopidfile", "--print-address=1"]);
        command.arg(format!("--config-file={}", config.display()));
        command.env_clear().env("PATH", "/usr/bin:/bin").current_dir("/");
        let mut daemon =
            as_nobody(&mut command).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("dbus-daemon");
        let mut said = String::new();
        BufReader::new(daemon.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert!(said.starts_with("unix:path="), "dbus-daemon does not start: {said}");
        Self { daemon, folder }
    }

    fn address(&self) -> String {
        format!("unix:path={}", self.folder.path().join("bus").display())
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

/// What the stand-in was asked for.
#[derive(Clone, Debug, Default)]
struct Asked {
    unit: String,
    mode: String,
    description: String,
    pids: Vec<u32>,
    delegate: bool,
    collect: String,
}

/// Answers as systemd's manager does: `grant` does what starting the scope means.
struct Manager(Arc<Mutex<Vec<Asked>>>);

impl Manager {
    fn start(bus: &Bus, grant: impl Fn(&Asked) -> Result<(), String> + Send + 'static) -> Self {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let mut connection = Connection::open(&bus.folder.path().join("bus"));
        let heard = Arc::clone(&asked);
        std::thread::spawn(move || {
            while let Some(message) = connection.next() {
                if message.member != "StartTransientUnit" {
                    continue;
                }
                let question = message.question();
                heard.lock().unwrap().push(question.clone());
                connection.answer(&message, grant(&question));
            }
        });
        Self(asked)
    }

    fn asked(&self) -> Vec<Asked> {
        self.0.lock().unwrap().clone()
    }
}

/// A peer on the bus that owns `org.freedesktop.systemd1`, as far as one question needs it.
struct Connection(UnixStream);

#[derive(Default)]
struct Message {
    serial: u32,
    sender: String,
    member: String,
    body: Vec<u8>,
}

impl Connection {
    fn open(path: &Path) -> Self {
        let mut stream = UnixStream::connect(path).unwrap();
        let user: String = nix::unistd::geteuid().to_string().bytes().map(|byte| format!("{byte:02x}")).collect();
        stream.write_all(format!("\0AUTH EXTERNAL {user}\r\n").as_bytes()).unwrap();
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            line.push(byte[0]);
        }
        assert!(line.starts_with(b"OK"), "{}", String::from_utf8_lossy(&line));
        stream.write_all(b"BEGIN\r\n").unwrap();
        let mut connection = Self(stream);
        let bus = "org.freedesktop.DBus";
        let call = |member: &str| {
            vec![
                (1, "o", "/org/freedesktop/DBus".to_owned()),
                (2, "s", bus.to_owned()),
                (3, "s", member.to_owned()),
                (6, "s", bus.to_owned()),
            ]
        };
        connection.send(1, 1, &call("Hello"), &[]);
        let mut body = text("org.freedesktop.systemd1");
        body.resize(body.len().next_multiple_of(4), 0);
        body.extend(4_u32.to_le_bytes());
        let mut fields = call("RequestName");
        fields.push((8, "g", "su".to_owned()));
        connection.send(1, 2, &fields, &body);
        // The name is ours once the second call is answered; what is asked before comes after it.
        while connection.next().expect("the bus takes the stand-in").body != 1_u32.to_le_bytes() {}
        connection
    }

    fn send(&mut self, kind: u8, serial: u32, fields: &[(u8, &str, String)], body: &[u8]) {
        let mut all = Vec::new();
        for (code, sign, value) in fields {
            all.resize(all.len().next_multiple_of(8), 0);
            all.extend([*code, 1, sign.as_bytes()[0], 0]);
            match *sign {
                "g" => all.extend([&[value.len() as u8][..], value.as_bytes(), &[0]].concat()),
                "u" => all.extend(value.parse::<u32>().unwrap().to_le_bytes()),
                _ => all.extend(text(value)),
            }
        }
        let mut bytes = vec![b'l', kind, 0, 1];
        bytes.extend((body.len() as u32).to_le_bytes());
        bytes.extend(serial.to_le_bytes());
        bytes.extend((all.len() as u32).to_le_bytes());
        bytes.extend(&all);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes.extend(body);
        self.0.write_all(&bytes).unwrap();
    }

    fn next(&mut self) -> Option<Message> {
        let mut head = [0; 16];
        self.0.read_exact(&mut head).ok()?;
        assert_eq!(head[0], b'l');
        let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap()) as usize;
        let mut fields = vec![0; word(12).next_multiple_of(8)];
        self.0.read_exact(&mut fields).ok()?;
        let mut body = vec![0; word(4)];
        self.0.read_exact(&mut body).ok()?;
        let mut message = Message { serial: word(8) as u32, body, ..Message::default() };
        let mut reader = Reader { bytes: &fields, at: 0 };
        while reader.at < word(12) {
            reader.align(8);
            let code = reader.byte();
            let sign = reader.signature();
            match sign.as_str() {
                "u" => drop(reader.word()),
                "g" => drop(reader.signature()),
                _ => {
                    let value = reader.text();
                    match code {
                        3 => message.member = value,
                        7 => message.sender = value,
                        _ => {}
                    }
                }
            }
        }
        Some(message)
    }

    fn answer(&mut self, message: &Message, granted: Result<(), String>) {
        let mut fields = vec![(5, "u", message.serial.to_string()), (6, "s", message.sender.clone())];
        match granted {
            Ok(()) => {
                fields.push((8, "g", "o".to_owned()));
                self.send(2, 9, &fields, &text("/org/freedesktop/systemd1/job/1"));
            }
            Err(name) => {
                fields.push((4, "s", name));
                self.send(3, 9, &fields, &[]);
            }
        }
    }
}

fn text(value: &str) -> Vec<u8> {
    [&(value.len() as u32).to_le_bytes()[..], value.as_bytes(), &[0]].concat()
}

impl Message {
    /// Arguments of the form `ssa(sv)a(sa(sv))`.
    fn question(&self) -> Asked {
        let mut reader = Reader { bytes: &self.body, at: 0 };
        let mut asked = Asked { unit: reader.text(), mode: reader.text(), ..Asked::default() };
        let size = reader.word() as usize;
        reader.align(8);
        let end = reader.at + size;
        while reader.at < end {
            reader.align(8);
            let name = reader.text();
            match (name.as_str(), reader.signature().as_str()) {
                ("Description", "s") => asked.description = reader.text(),
                ("CollectMode", "s") => asked.collect = reader.text(),
                ("Delegate", "b") => asked.delegate = reader.word() == 1,
                ("PIDs", "au") => {
                    let count = reader.word() / 4;
                    asked.pids = (0..count).map(|_| reader.word()).collect();
                }
                other => panic!("nobody knows the property {other:?}"),
            }
        }
        assert_eq!((reader.word(), reader.at), (0, self.body.len().next_multiple_of(8)), "no further units");
        asked
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn align(&mut self, to: usize) {
        self.at = self.at.next_multiple_of(to);
    }

    fn byte(&mut self) -> u8 {
        self.at += 1;
        self.bytes[self.at - 1]
    }

    fn word(&mut self) -> u32 {
        self.align(4);
        self.at += 4;
        u32::from_le_bytes(self.bytes[self.at - 4..self.at].try_into().unwrap())
    }

    fn take(&mut self, length: usize) -> String {
        let text = String::from_utf8(self.bytes[self.at..self.at + length].to_vec()).unwrap();
        self.at += length + 1;
        text
    }

    fn text(&mut self) -> String {
        let length = self.word() as usize;
        self.take(length)
    }

    fn signature(&mut self) -> String {
        let length = usize::from(self.byte());
        self.take(length)
    }
}

/// Does what starting a delegated scope means.
fn give(asked: &Asked) -> Result<(), String> {
    ordinary::delegate(&asked.unit, &asked.pids).map_err(|fault| format!("org.example.Failed: {fault}"))
}

#[test]
fn a_user_is_given_a_scope_over_the_session_bus_and_works_in_it() {
    let agent = agent(0);
    let world = world_of_nobody(&agent);
    let bus = Bus::start();
    let manager = Manager::start(&bus, give);
    let invocation = run(&world, &agent).env("DBUS_SESSION_BUS_ADDRESS", bus.address());
    let mut command = invocation.command();
    let child = as_nobody(&mut command).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let session = child.id();
    let done = child.wait_with_output().unwrap();
    let asked = manager.asked();
    asked.iter().for_each(|asked| ordinary::collect(&asked.unit));
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(0), "{said}\n{asked:?}");
    assert_eq!(fs::read_to_string(world.project().join("work/made.txt")).unwrap(), "x");
    assert_eq!(asked.len(), 1, "once a session: {asked:?}");
    let asked = &asked[0];
    // For the process that makes the session's enclosure, and for the session.
    assert_eq!(asked.pids.len(), 2, "{asked:?}");
    assert_eq!(asked.pids[1], session, "{asked:?}");
    assert_eq!(asked.unit, format!("murmur-{}-0.scope", asked.pids[0]));
    assert_eq!((asked.mode.as_str(), asked.collect.as_str(), asked.delegate), ("fail", "inactive-or-failed", true));
    assert_eq!(asked.description, "a murmur session");
}

#[test]
fn a_bus_that_refuses_or_knows_no_systemd_leaves_the_session_where_it_stands() {
    let agent = agent(0);
    let world = world_of_nobody(&agent);
    let bus = Bus::start();
    let invocation = run(&world, &agent).env("DBUS_SESSION_BUS_ADDRESS", bus.address());
    refused_without_a_scope(&as_nobody(&mut invocation.command()).output().unwrap());
    let manager = Manager::start(&bus, |_| Err("org.freedesktop.systemd1.Refused".to_owned()));
    refused_without_a_scope(&as_nobody(&mut invocation.command()).output().unwrap());
    assert_eq!(manager.asked().len(), 1);
    // Granted, and never done.
    let bus = Bus::start();
    let manager = Manager::start(&bus, |_| Ok(()));
    let invocation = invocation.env("DBUS_SESSION_BUS_ADDRESS", bus.address());
    refused_without_a_scope(&as_nobody(&mut invocation.command()).output().unwrap());
    assert_eq!(manager.asked().len(), 1);
    assert!(world.traces().is_empty());
    // Root makes its scope itself, whatever a bus says.
    let world = World::new();
    world.install(&agent);
    run(&world, &agent).env("DBUS_SESSION_BUS_ADDRESS", bus.address()).ok();
}

#[test]
fn what_is_no_bus_is_no_hindrance_and_no_wait() {
    let agent = agent(0);
    let world = world_of_nobody(&agent);
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let at = |name: &str| folder.path().join(name);
    // One that accepts and says nothing, one that nobody accepts from, one that hangs up, one that speaks something else.
    let silent = UnixListener::bind(at("silent")).unwrap();
    let speaking = UnixListener::bind(at("speaking")).unwrap();
    for name in ["silent", "speaking"] {
        chown(at(name), Some(NOBODY), Some(NOBODY)).unwrap();
        fs::set_permissions(at(name), fs::Permissions::from_mode(0o777)).unwrap();
    }
    std::thread::spawn(move || {
        for stream in speaking.incoming() {
            let _ = stream.unwrap().write_all(&[b'x'; 4096]);
        }
    });
    fs::write(at("file"), "").unwrap();
    for address in [
        format!("unix:path={}", at("silent").display()),
        format!("unix:path={}", at("speaking").display()),
        format!("unix:path={}", at("file").display()),
        format!("unix:path={}", at("absent").display()),
        "unix:abstract=nobody-listens-here".to_owned(),
        "tcp:host=127.0.0.1,port=1".to_owned(),
        "unix:path=%zz".to_owned(),
        "nonsense".to_owned(),
        String::new(),
    ] {
        let invocation = run(&world, &agent).env("DBUS_SESSION_BUS_ADDRESS", &address).env("XDG_RUNTIME_DIR", at(""));
        let done = as_nobody(&mut invocation.command()).output().unwrap();
        refused_without_a_scope(&done);
    }
    drop(silent);
    assert!(world.traces().is_empty());
}

/// The cgroup of a process in the v2 tree.
fn cgroup(pid: i32) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default().to_owned()
}

/// A session under systemd's manager of whoever runs this, with its driver at work: the session, and the worker's cgroup.
fn under_systemd(world: &World, agent: &Agent) -> (mur_tests::Running, PathBuf) {
    let mut invocation = run(world, agent);
    for name in ["DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR"] {
        if let Some(value) = std::env::var_os(name) {
            invocation = invocation.env(name, value);
        }
    }
    let session = invocation.start();
    wait_until("the driver is called", || {
        world.traces().first().is_some_and(|trace| trace.kinds().contains(&"task_start"))
    });
    let own = session.pid().cast_signed();
    let workers = proc::descendants(own);
    let id = world.traces()[0].session().to_owned();
    let name = format!("/murmur-{id}-");
    let place =
        workers.iter().map(|pid| cgroup(*pid)).find(|path| path.contains(&name)).expect("a worker in its scope");
    // Below a transient unit, of which the session is a part too.
    let unit = place.split('/').find(|part| part.starts_with("murmur-") && part.ends_with(".scope"));
    let unit = unit.unwrap_or_else(|| panic!("systemd gave no scope: {place}")).to_owned();
    assert!(cgroup(own).contains(&unit), "{} is not in {unit}", cgroup(own));
    (session, Path::new("/sys/fs/cgroup").join(place.trim_start_matches('/')))
}

#[test]
#[ignore = "needs systemd as the manager of whoever runs it; cargo xtask kernels boots one"]
fn systemd_gives_a_scope_whose_limits_hold_and_which_ends_with_the_session() {
    let agent = agent(60_000);
    let world = World::new();
    world.install(&agent);
    let (session, scope) = under_systemd(&world, &agent);
    let read = |name: &str| fs::read_to_string(scope.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(read("memory.max").trim(), "4294967296");
    assert_eq!(read("pids.max").trim(), "256");
    assert!(read("cgroup.procs").lines().count() >= 2);
    kill(Pid::from_raw(session.pid().cast_signed()), Signal::SIGTERM).unwrap();
    session.wait();
    let unit = scope.parent().unwrap().to_owned();
    wait_until("the scope and its unit are gone", || !scope.exists() && !unit.exists());
}

#[test]
#[ignore = "needs systemd as the manager of whoever runs it; cargo xtask kernels boots one"]
fn a_session_killed_under_systemd_leaves_no_scope() {
    let agent = agent(60_000);
    let world = World::new();
    world.install(&agent);
    let (session, scope) = under_systemd(&world, &agent);
    kill(Pid::from_raw(session.pid().cast_signed()), Signal::SIGKILL).unwrap();
    session.wait();
    let unit = scope.parent().unwrap().to_owned();
    wait_until("the scope and its unit are gone", || !scope.exists() && !unit.exists());
}

#[test]
#[ignore = "needs systemd as the manager of whoever runs it; cargo xtask kernels boots one"]
fn every_class_works_in_a_scope_of_systemd() {
    let agent = agent(0);
    for class in ["unconfined", "advisory", "scoped", "sealed"] {
        let world = World::new();
        world.install(&agent);
        run(&world, &agent).args(["--containment", class]).ok();
        assert_eq!(fs::read_to_string(world.project().join("work/made.txt")).unwrap(), "x", "{class}");
    }
}
