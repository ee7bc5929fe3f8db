//! Many launches in a row, and one formation under a stream of tasks, watched from outside for what they leave or keep.
//! The suite does both in small, `cargo xtask soak` at length.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::live::capsule::{Capsule, roster};
use crate::live::door::{Door, message};
use crate::live::formation::{Launched, lead, worker};
use crate::live::home::Home;
use crate::live::{proc, run};

/// Formations that the roster of these launches keeps.
pub const KEPT: usize = 3;

/// A roster whose lead hands its task to two workers, and which keeps the last [`KEPT`] formations.
pub fn install(home: &Home) {
    let keep = json!({"trace": {"retain": {"max_sessions": KEPT}}});
    let (lead, worker): (Capsule, Capsule) = (lead().with(keep), worker());
    lead.install(home);
    worker.install(home);
    let members = [("lead", &lead), ("coder", &worker), ("reviewer", &worker)];
    home.write("roster.yaml", roster(&members, json!([{"from": "lead", "to": ["coder", "reviewer"]}])));
}

/// What a launch may leave behind: everything but the bytes of its records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Entries of the home, the project and the temporary folder; ids are counted, not named.
    pub entries: BTreeMap<String, usize>,
    /// Mounts that this process sees.
    pub mounts: usize,
}

impl Footprint {
    /// Of this moment.
    pub fn now(home: &Home) -> Self {
        let mut entries = BTreeMap::new();
        for (name, path) in [("home", home.home()), ("project", home.project()), ("tmp", home.scratch("tmp"))] {
            count(name, &path, &mut entries);
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default().lines().count();
        Self { entries, mounts }
    }

    /// What differs from an earlier one.
    pub fn against(&self, earlier: &Self) -> Vec<String> {
        let mut names: Vec<&String> = self.entries.keys().chain(earlier.entries.keys()).collect();
        names.sort();
        names.dedup();
        let number = |of: &Self, name: &str| of.entries.get(name).copied().unwrap_or(0);
        let mut found: Vec<String> = names
            .into_iter()
            .filter(|name| number(self, name) != number(earlier, name))
            .map(|name| format!("{name}: {} → {}", number(earlier, name), number(self, name)))
            .collect();
        if self.mounts != earlier.mounts {
            found.push(format!("mounts: {} → {}", earlier.mounts, self.mounts));
        }
        found
    }
}

/// Control groups named after one of these ids.
fn groups(below: &Path, ids: &[String]) -> Vec<String> {
    let entries = fs::read_dir(below).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let found = folders.flat_map(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        let own = ids.iter().any(|id| name.contains(id.as_str()));
        let mut all = groups(&entry.path(), ids);
        all.extend(own.then(|| entry.path().display().to_string()));
        all
    });
    found.collect()
}

/// Counts what lies below a folder; the parts of names that are minted are left out.
fn count(name: &str, path: &Path, entries: &mut BTreeMap<String, usize>) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        let own = entry.file_name().to_string_lossy().into_owned();
        let name = format!("{name}/{}", without_id(&own));
        // A conversation is the operator's to keep, however many there are.
        if name == "home/.murmur/conversations" {
            continue;
        }
        *entries.entry(name.clone()).or_default() += 1;
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            count(&name, &entry.path(), entries);
        }
    }
}

fn without_id(name: &str) -> String {
    for prefix in ["ses_", "frm_", "tsk_", "ctx_", "msg_", "mcl_"] {
        if let Some((before, id)) = name.split_once(prefix) {
            let rest = id.trim_start_matches(|c: char| c.is_ascii_hexdigit());
            return format!("{before}{prefix}*{rest}");
        }
    }
    name.to_owned()
}

/// Launches in a row.
pub struct Launches {
    home: Home,
    /// After the launches that fill what is kept.
    settled: Option<Footprint>,
    /// Launches in a row that ended by themselves.
    whole: usize,
}

impl Launches {
    /// Prepares them. From here on, whatever outlives its parent becomes a child of this process, which must have no
    /// other children.
    ///
    /// # Panics
    /// When the kernel refuses that.
    pub fn new() -> Self {
        prctl::set_child_subreaper(true).expect("the kernel knows it");
        let mut home = Home::new();
        let tmp = home.scratch("tmp");
        home.set("TMPDIR", &tmp.to_string_lossy());
        install(&home);
        Self { home, settled: None, whole: 0 }
    }

    /// Launches once, and gives everything that is wrong afterwards.
    #[track_caller]
    pub fn launch(&mut self) -> Vec<String> {
        let output = self.home.mur(["run", "--roster", "--json", "--task", "x"]).expect(0);
        let lines = output.stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut wrong = self.left(&lines.collect::<Vec<_>>());
        self.whole += 1;
        // What is kept is full of whole launches after so many, and what is made once is made.
        if self.whole > KEPT {
            let now = Footprint::now(&self.home);
            match &self.settled {
                None => self.settled = Some(now),
                Some(settled) => wrong.extend(now.against(settled)),
            }
        }
        wrong
    }

    /// Launches once, kills the launcher when all members are up, and gives everything that is wrong afterwards.
    #[track_caller]
    pub fn kill(&mut self) -> Vec<String> {
        let mut formation = Launched::open(&self.home);
        formation.launcher.signal(nix::sys::signal::Signal::SIGKILL);
        formation.launcher.wait();
        self.whole = 0;
        self.left(&[formation.formation, formation.entry])
    }

    /// What runs, listens or is on record of a launch that announced this.
    fn left(&self, announced: &[Value]) -> Vec<String> {
        let mut wrong = orphans();
        wrong.extend(ports(announced).into_iter().map(|port| format!("port {port} still accepts")));
        for group in groups(Path::new("/sys/fs/cgroup"), &ids(announced)) {
            wrong.push(format!("control group {group}"));
        }
        if !self.home.running().is_empty() {
            wrong.push(format!("running records: {:?}", self.home.running()));
        }
        wrong
    }
}

impl Default for Launches {
    fn default() -> Self {
        Self::new()
    }
}

/// Waits until nothing that a launch started is left; names what is.
fn orphans() -> Vec<String> {
    let until = std::time::Instant::now() + run::PATIENCE;
    loop {
        match waitpid(None::<Pid>, Some(WaitPidFlag::WNOHANG)) {
            Err(Errno::ECHILD) => return Vec::new(),
            Ok(WaitStatus::StillAlive) if std::time::Instant::now() > until => {
                let own = std::process::id().cast_signed();
                let left = proc::descendants(own).into_iter().filter(|pid| *pid != own);
                return left.map(|pid| format!("process {pid}: {}", proc::command_line(pid))).collect();
            }
            Ok(WaitStatus::StillAlive) => std::thread::park_timeout(std::time::Duration::from_millis(5)),
            _ => {}
        }
    }
}

/// What a launch announced: itself, its peers, its entry member.
fn parts(announced: &[Value]) -> impl Iterator<Item = &Value> {
    let peers = announced.iter().flat_map(|line| line["peers"].as_array().into_iter().flatten());
    announced.iter().chain(peers)
}

fn ids(announced: &[Value]) -> Vec<String> {
    let named = parts(announced).flat_map(|part| [&part["formation_id"], &part["session_id"]]);
    named.filter_map(|id| id.as_str().map(str::to_owned)).collect()
}

/// Announced ports that are still open.
fn ports(announced: &[Value]) -> Vec<u16> {
    let urls = parts(announced).filter_map(|part| part["url"].as_str());
    let ports = urls.filter_map(|url| url.rsplit(':').next()?.trim_end_matches('/').parse().ok());
    ports.filter(|port| TcpStream::connect(("127.0.0.1", *port)).is_ok()).collect()
}

/// What one process holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Memory of its own, in KiB: what no file backs.
    pub private: u64,
    /// Its share of all memory it maps, in KiB; 0 where the kernel does not tell.
    pub pss: u64,
    /// Open descriptors; 0 where the kernel does not tell.
    pub descriptors: usize,
    /// Threads.
    pub threads: u64,
}

impl Held {
    fn of(pid: i32) -> Self {
        let field = |file: &str, name: &str| {
            let text = fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
            let line = text.lines().find_map(|line| line.strip_prefix(name).map(str::to_owned));
            line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
        };
        Self {
            private: field("status", "RssAnon:") + field("status", "RssShmem:"),
            pss: field("smaps_rollup", "Pss:"),
            descriptors: proc::descriptors(pid).len(),
            threads: field("status", "Threads:"),
        }
    }
}

/// A formation that is held open and given tasks.
pub struct Stream {
    home: Home,
    formation: Launched,
    door: Door,
    /// Every process of it, by what it is.
    processes: Vec<(String, i32)>,
    /// Tasks given so far.
    pub given: usize,
}

impl Stream {
    /// Launches it.
    #[track_caller]
    pub fn new() -> Self {
        let home = Home::new();
        install(&home);
        let formation = Launched::open(&home);
        let door = formation.door(&home);
        let mut stream = Self { home, formation, door, processes: Vec::new(), given: 0 };
        // A worker starts with the first task that needs it.
        stream.give();
        stream.processes = stream.all();
        stream
    }

    fn all(&self) -> Vec<(String, i32)> {
        let launcher = self.formation.launcher.pid();
        let parents: BTreeMap<i32, i32> = proc::parents().into_iter().collect();
        let mut members: BTreeMap<i32, String> = BTreeMap::from([(launcher, "launcher".to_owned())]);
        members.insert(self.formation.entry_pid(), "lead".to_owned());
        for name in ["coder", "reviewer"] {
            members.insert(self.formation.peer(name), name.to_owned());
        }
        let mut all = Vec::new();
        for pid in proc::descendants(launcher) {
            let label = members.get(&pid).cloned().unwrap_or_else(|| {
                let line = proc::command_line(pid);
                let words: Vec<&str> = line.split(' ').skip(1).take(2).collect();
                let mut above = pid;
                while let Some(parent) = parents.get(&above).filter(|_| !members.contains_key(&above)) {
                    above = *parent;
                }
                format!("{} {}", members.get(&above).map_or("?", String::as_str), words.join(" "))
            });
            all.push((label, pid));
        }
        all.sort();
        all
    }

    /// One more task: most are answered, some cancelled, some watched by somebody who leaves, some refused.
    #[track_caller]
    pub fn give(&mut self) {
        let text = format!("task {}", self.given);
        match self.given % 10 {
            6 => {
                let task = self.door.send(&text);
                self.door.call("CancelTask", json!({"id": task}));
                self.settled(&task);
            }
            7 => {
                let mut stream = self.door.stream("SendStreamingMessage", message(&text, false), &[]);
                let first = stream.next_event().expect("a first event").data;
                let task = first.pointer("/result/task/id").or(first.pointer("/result/statusUpdate/taskId"));
                let task = task.and_then(Value::as_str).unwrap_or_else(|| panic!("no task: {first}")).to_owned();
                drop(stream);
                self.settled(&task);
            }
            8 => {
                let stranger = Door::new(&self.door.address, "mft1.e30.AAAA");
                assert_eq!(stranger.ask("SendMessage", message(&text, false), &[]).status, 401);
                assert_eq!(self.door.call("GetTask", json!({"id": "tsk_none"}))["error"]["code"], -32001);
            }
            _ => {
                let task = self.door.call("SendMessage", message(&text, false))["result"]["task"].take();
                assert_eq!(task["status"]["state"], "TASK_STATE_COMPLETED", "{task}");
            }
        }
        self.given += 1;
    }

    /// The end of a task that is not answered here, told and recorded.
    fn settled(&self, task: &str) {
        self.door.ended(task);
        // The next one is taken only when this one is out of the way.
        run::until("the member is free", || {
            let list = self.door.call("ListTasks", json!({"status": "TASK_STATE_WORKING"}));
            list.pointer("/result/tasks").and_then(Value::as_array).is_some_and(Vec::is_empty)
        });
    }

    /// What each process holds. The processes are those it began with.
    #[track_caller]
    pub fn held(&self) -> Vec<(String, Held)> {
        assert_eq!(self.all(), self.processes, "a process was lost or has come");
        self.processes.iter().map(|(label, pid)| (label.clone(), Held::of(*pid))).collect()
    }

    /// Bytes of the records on disk.
    pub fn recorded(&self) -> u64 {
        size(&self.home.murmur())
    }

    /// Ends it.
    #[track_caller]
    pub fn close(self) {
        self.formation.launcher.signal(nix::sys::signal::Signal::SIGTERM);
        self.formation.launcher.finish().expect(143);
    }
}

impl Default for Stream {
    fn default() -> Self {
        Self::new()
    }
}

fn size(path: &Path) -> u64 {
    let entries: Vec<PathBuf> = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    let of = |path: &PathBuf| match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => size(path),
        Ok(meta) if meta.permissions().mode() != 0 => meta.len(),
        _ => 0,
    };
    entries.iter().map(of).sum()
}
