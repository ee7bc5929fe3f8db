//! The cases, and what each class claims about them.

pub use mur_escape_probe::Verdict;

/// A containment class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Holds nothing: the control.
    Unconfined,
    /// No claim on files.
    Advisory,
    /// Landlock over the host's file system.
    Scoped,
    /// The same inside a composed root.
    Sealed,
}

impl Class {
    /// All of them, weakest first.
    pub const ALL: [Self; 4] = [Self::Unconfined, Self::Advisory, Self::Scoped, Self::Sealed];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unconfined => "unconfined",
            Self::Advisory => "advisory",
            Self::Scoped => "scoped",
            Self::Sealed => "sealed",
        }
    }
}

/// What ran the probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Route {
    /// An interpreter in a shell command.
    Shell,
    /// A native tool.
    NativeTool,
    /// The tools worker.
    Tools,
    /// The driver worker.
    Driver,
    /// The hooks worker.
    Hooks,
}

impl Route {
    /// Its name in records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Shell => "shell",
            Self::NativeTool => "native-tool",
            Self::Tools => "wasm-guest/tools",
            Self::Driver => "wasm-guest/driver",
            Self::Hooks => "wasm-guest/hooks",
        }
    }

    /// The worker's kind, when a worker runs the probe.
    pub fn worker(self) -> Option<&'static str> {
        match self {
            Self::Shell | Self::NativeTool => None,
            Self::Tools => Some("tools"),
            Self::Driver => Some("driver"),
            Self::Hooks => Some("hooks"),
        }
    }
}

/// What a class claims of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Any other verdict fails.
    Graded(Verdict),
    /// Run and recorded; it cannot pass or fail.
    NotAsserted,
}

impl Expect {
    /// As records show it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Graded(verdict) => verdict.as_str(),
            Self::NotAsserted => "not-asserted",
        }
    }
}

/// Boundary or availability; the two are never added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Category {
    /// A way out.
    Boundary,
    /// A way to take more than a share.
    Resource,
}

impl Category {
    /// As records show it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Boundary => "boundary",
            Self::Resource => "resource_exhaustion",
        }
    }
}

/// How a case is run: what ends its process has a launch of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launch {
    /// With all others that leave the process as it was.
    Main,
    /// Alone, in a later call than the first.
    Second,
    /// Under tight limits, with the other resource cases.
    Limited,
    /// Under tight limits, alone.
    LimitedAlone,
    /// Alone.
    Alone,
    /// As a member of a formation, whose launcher is the harness.
    Member,
}

/// Which set a case belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    /// Never renamed, never removed.
    Minimum,
    /// What execution control does not hold, stated beside the minimum.
    Execution,
    /// Only a guest worker is put to it.
    Worker,
    /// On a member's credentials.
    Formation,
}

/// A case.
#[derive(Debug)]
pub struct Case {
    /// Its id.
    pub id: &'static str,
    /// Which set.
    pub set: Set,
    /// Boundary or availability.
    pub category: Category,
    /// How it is run.
    pub launch: Launch,
    /// What `advisory`, `scoped` and `sealed` claim for commands.
    commands: [Expect; 3],
    /// The same for guest workers.
    workers: [Expect; 3],
    /// Whether it is the class that refuses; otherwise `mur` does, at every class, and a run at `unconfined` is no control.
    pub by_class: bool,
    /// What is tried.
    pub attempt: &'static str,
    /// What a refusal is due to, and what else could cause one.
    pub attribution: &'static str,
}

impl Case {
    /// What a class claims of this case on a route; nothing where the route has no such case.
    pub fn expect(&self, class: Class, route: Route) -> Option<Expect> {
        if !self.on(route) {
            return None;
        }
        let claims = if route.worker().is_some() { &self.workers } else { &self.commands };
        Some(match class {
            Class::Unconfined => Expect::NotAsserted,
            Class::Advisory => claims[0],
            Class::Scoped => claims[1],
            Class::Sealed => claims[2],
        })
    }

    fn on(&self, route: Route) -> bool {
        match (self.set, self.id) {
            (Set::Worker, "worker-records-hooks") => route == Route::Hooks,
            (Set::Worker, _) => route.worker().is_some(),
            _ => true,
        }
    }
}

const R: Expect = Expect::Graded(Verdict::Refused);
const A: Expect = Expect::Graded(Verdict::Allowed);
const S: Expect = Expect::Graded(Verdict::Success);
const C: Expect = Expect::Graded(Verdict::Contained);
const N: Expect = Expect::NotAsserted;

/// The usual claim: nothing at `advisory`, refused above it.
const HELD: [Expect; 3] = [N, R, R];

/// The case no list may ever lack.
pub const PERMANENT: &str = "exec-renamed-disallowed-binary";

/// Cases that need a right which an ordinary user lacks anyway: their refusal proves nothing of a run as such a user.
pub const ROOT_ONLY: [&str; 4] =
    ["mknod-block-device-in-workdir", "syscall-bpf", "syscall-open-by-handle-at", "token-in-other-processes"];

const fn boundary(id: &'static str, commands: [Expect; 3], attempt: &'static str, attribution: &'static str) -> Case {
    Case {
        id,
        set: Set::Minimum,
        category: Category::Boundary,
        launch: Launch::Main,
        commands,
        workers: commands,
        by_class: true,
        attempt,
        attribution,
    }
}

const fn execution(id: &'static str, commands: [Expect; 3], attempt: &'static str, attribution: &'static str) -> Case {
    Case { set: Set::Execution, workers: HELD, ..boundary(id, commands, attempt, attribution) }
}

/// Inside a composed root a command reads the root's own file; a worker opens none of it.
const fn own_file(id: &'static str, attempt: &'static str, attribution: &'static str) -> Case {
    Case { workers: HELD, ..boundary(id, [N, R, A], attempt, attribution) }
}

const fn worker(id: &'static str, by_class: bool, attempt: &'static str, attribution: &'static str) -> Case {
    Case { set: Set::Worker, by_class, ..boundary(id, HELD, attempt, attribution) }
}

const fn formation(id: &'static str, claims: [Expect; 3], attempt: &'static str, attribution: &'static str) -> Case {
    Case { set: Set::Formation, launch: Launch::Member, ..boundary(id, claims, attempt, attribution) }
}

const fn resource(
    id: &'static str,
    claims: [Expect; 3],
    launch: Launch,
    attempt: &'static str,
    attribution: &'static str,
) -> Case {
    Case { category: Category::Resource, launch, ..boundary(id, claims, attempt, attribution) }
}

/// Every case, in the order of the record.
pub const CASES: &[Case] = &[
    boundary(
        "read-etc-shadow",
        HELD,
        "open /etc/shadow",
        "Landlock (EACCES), or the composed root, in which it is absent (ENOENT). An ordinary user is refused by the file's \
         mode too",
    ),
    boundary(
        "write-outside-workdir",
        HELD,
        "create a file in /var/tmp",
        "Landlock, or the composed root. The folder is world-writable: of a worker nothing else refuses it; a command's mounts are \
         read only there too (EROFS)",
    ),
    boundary(
        "stat-outside-workdir",
        [S, S, R],
        "stat /etc/shadow",
        "the composed root alone. Landlock does not mediate metadata, so that a refusal at scoped would be a false claim",
    ),
    own_file(
        "symlink-escape",
        "a link in the work folder to /etc/passwd, read through",
        "Landlock follows the link to the file. In a composed root a command reads the root's own file; a host account in \
         it fails",
    ),
    boundary(
        "hardlink-escape",
        [N, R, N],
        "link /etc/passwd into the work folder",
        "Landlock: EXDEV on one device is its answer to a link out of a folder without Refer; on two devices EXDEV proves \
         nothing. A command's mounts refuse too, and fs.protected_hardlinks ordinary users",
    ),
    boundary(
        "rename-across-boundary",
        [N, R, N],
        "move a file of the work folder to /var/tmp",
        "Landlock; EXDEV on two devices, and always below Landlock's second version, proves nothing. A command's mounts refuse \
         too",
    ),
    own_file(
        "proc-self-cwd-reopen",
        "open /proc/self/cwd/../…/etc/passwd",
        "Landlock judges the file, not the way to it",
    ),
    own_file(
        "proc-pid-root-reopen",
        "open /proc/<pid>/root/etc/passwd",
        "Landlock, and the process's own root; ptrace access of a process that cannot be dumped could refuse too",
    ),
    boundary(
        "proc-self-fd-reopen",
        HELD,
        "re-open /dev/urandom, held read only, for writing through /proc/self/fd",
        "Landlock judges the device again. Root may write it by its mode",
    ),
    Case {
        by_class: false,
        ..boundary(
            "inherited-fd-after-exec",
            HELD,
            "use descriptor 7, which mur was started with",
            "mur hands on what it means to and nothing else, whatever the class; a worker closes the rest itself",
        )
    },
    boundary(
        "mknod-block-device-in-workdir",
        HELD,
        "make block device 8:0 in the work folder",
        "EACCES is Landlock's (MakeBlock), EPERM the missing capability. Not attributable as an ordinary user",
    ),
    boundary(
        PERMANENT,
        HELD,
        "execute a copy of an unlisted program as ./bash",
        "Landlock: the work folder has no Execute. In a worker the system call filter answers first (EPERM)",
    ),
    boundary(
        "connect-unlisted-tcp-host",
        HELD,
        "connect to 1.1.1.1:443 and to listeners of the harness on this host",
        "the session's network namespace: nobody listens there (ECONNREFUSED). A host without a route would time out, \
         which proves nothing",
    ),
    boundary(
        "udp-exfiltration",
        HELD,
        "send a datagram to 1.1.1.1:46053 and to the harness on this host",
        "the session's network namespace delivers it to itself; judged by where it arrives",
    ),
    boundary(
        "dns-exfiltration",
        HELD,
        "resolve a label, and ask the harness for it as if it were a name server",
        "the session's network namespace, in which only mur's resolver answers. A host without name servers answers \
         EAI_AGAIN too",
    ),
    boundary(
        "abstract-unix-socket-connect",
        HELD,
        "connect to an abstract Unix socket of the harness",
        "the system call filter refuses the socket itself (EACCES); behind it stand Landlock's scope and the network \
         namespace",
    ),
    boundary(
        "pathname-unix-socket-connect",
        HELD,
        "connect to a Unix socket of the harness and to docker's",
        "the system call filter refuses the socket itself (EACCES)",
    ),
    boundary(
        "syscall-io-uring-setup",
        HELD,
        "io_uring_setup",
        "the system call filter (EPERM); kernel.io_uring_disabled could refuse too",
    ),
    boundary(
        "syscall-userfaultfd",
        HELD,
        "userfaultfd",
        "the system call filter; vm.unprivileged_userfaultfd could refuse too",
    ),
    boundary("syscall-bpf", HELD, "bpf", "the system call filter; the missing capability could refuse too"),
    boundary(
        "syscall-open-by-handle-at",
        HELD,
        "open_by_handle_at",
        "the system call filter; the missing capability could refuse too",
    ),
    boundary(
        "syscall-perf-event-open",
        HELD,
        "perf_event_open",
        "the system call filter; kernel.perf_event_paranoid could refuse too",
    ),
    boundary("syscall-keyctl", HELD, "keyctl on the session keyring", "the system call filter, and nothing else"),
    execution(
        "exec-memfd",
        HELD,
        "execute a program from a memory file",
        "the system call filter: memory files only with MFD_NOEXEC_SEAL. Landlock does not judge memory files",
    ),
    execution(
        "exec-through-loader",
        [N, A, A],
        "hand ./bash to the dynamic loader",
        "nothing refuses a command this: the loader is executed, and reads what it runs. shell.allow names files, it is no \
         boundary on code. A worker executes nothing at all",
    ),
    worker(
        "worker-exec-any",
        true,
        "execute /bin/sh, the worker's own binary, and a file it wrote; at scoped also under workdir_exec",
        "the system call filter (EPERM); behind it Landlock, which grants a worker Execute nowhere",
    ),
    worker(
        "worker-read-records",
        true,
        "open the trace of this session and of another by their exact paths",
        "Landlock, or the composed root",
    ),
    worker(
        "worker-read-secrets",
        true,
        "open ~/.murmur/config.yaml, ~/.murmur/running and the project's .env by their exact paths",
        "Landlock, or the composed root",
    ),
    worker(
        "worker-read-other-store",
        true,
        "list the state store of an artifact of another kind",
        "Landlock, or the composed root: each kind is granted the folders of its own artifacts",
    ),
    worker(
        "worker-runtime-dir",
        true,
        "write task.md of the runtime folder, which tools may read; drivers and hooks may not read it either",
        "Landlock: read only for tools, nothing for others",
    ),
    worker(
        "worker-peek-mur",
        true,
        "trace, read, signal mur and the other workers",
        "the process namespace (ESRCH); behind it the system call filter, Landlock's signal scope, and processes that \
         cannot be dumped",
    ),
    worker(
        "worker-key-in-memory",
        false,
        "find the planted gateway key and the session's tokens in the worker's memory",
        "mur never sends them to a worker, whatever the class. Searched from outside, which sees all of it",
    ),
    Case {
        launch: Launch::Second,
        ..worker(
            "worker-call-outside-call",
            false,
            "send a request on the worker's connection in the name of a call that has ended",
            "mur answers requests of running calls only, whatever the class; any other breaks the protocol and costs the worker",
        )
    },
    worker(
        "worker-direct-http",
        false,
        "ask mur for an unlisted host, and without a gateway for the address that stands for one",
        "mur applies the network list, whatever the class; the listener counts what reached it",
    ),
    worker(
        "worker-records-hooks",
        true,
        "a hook with records: true writes beside hooks/",
        "Landlock, or the composed root: hooks/ is granted, its parent is not",
    ),
    Case {
        launch: Launch::Alone,
        ..worker(
            "worker-core-dump",
            false,
            "abort",
            "the core limit, and processes that cannot be dumped; mur ends the run with E-RUN-065 and writes the trace",
        )
    },
    Case {
        by_class: false,
        ..formation(
            "token-in-own-process",
            [R, R, R],
            "find a member's edge token or operator token in the environment, command line and open files it was given",
            "mur hands them to nothing it starts, whatever the class; a worker's memory is searched from outside too",
        )
    },
    formation(
        "token-in-files",
        HELD,
        "find one in files: those that hold one by their exact paths, and all that can be listed from the home down",
        "Landlock, or the composed root. An edge token is in no file; the operator token is in the running record",
    ),
    formation(
        "token-in-other-processes",
        HELD,
        "find one in environment or memory of mur, of the launcher and of every process that shows",
        "the process namespace (ENOENT); behind it processes that cannot be dumped, and Landlock. Those refuse an ordinary \
         user at every class",
    ),
    resource(
        "resource-fork-bomb",
        [N, C, C],
        Launch::Limited,
        "fork until refused",
        "pids.max of the session's scope: RLIMIT_NPROC is read back and is far above",
    ),
    resource(
        "resource-disk-filler-per-file",
        [C, C, C],
        Launch::Limited,
        "write one file without end",
        "RLIMIT_FSIZE (EFBIG)",
    ),
    resource(
        "resource-disk-filler-aggregate",
        [C, C, C],
        Launch::LimitedAlone,
        "fill the work folder file by file, then call again",
        "mur's walk over the folders, every 10 s: a later call is refused naming workdir_max_bytes",
    ),
    resource(
        "resource-memory-hog",
        [N, C, C],
        Launch::LimitedAlone,
        "write to memory without end",
        "memory.max of the session's scope kills it; a probe that lives to report was not contained",
    ),
    resource(
        "resource-fd-exhauster",
        [C, C, C],
        Launch::Limited,
        "duplicate a descriptor until refused",
        "RLIMIT_NOFILE (EMFILE)",
    ),
];

/// A case by its id.
pub fn find(id: &str) -> Option<&'static Case> {
    CASES.iter().find(|case| case.id == id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(keep: impl Fn(&Case) -> bool) -> Vec<&'static str> {
        CASES.iter().filter(|case| keep(case)).map(|case| case.id).collect()
    }

    #[test]
    fn the_minimum_set_is_whole_and_named_as_ever() {
        let boundary = ids(|case| case.set == Set::Minimum && case.category == Category::Boundary);
        let resource = ids(|case| case.category == Category::Resource);
        assert_eq!((boundary.len(), resource.len()), (23, 5));
        assert!(boundary.contains(&PERMANENT) && PERMANENT == "exec-renamed-disallowed-binary");
        let named = "read-etc-shadow write-outside-workdir stat-outside-workdir symlink-escape hardlink-escape \
            rename-across-boundary proc-self-cwd-reopen proc-pid-root-reopen proc-self-fd-reopen \
            inherited-fd-after-exec mknod-block-device-in-workdir exec-renamed-disallowed-binary \
            connect-unlisted-tcp-host udp-exfiltration dns-exfiltration abstract-unix-socket-connect \
            pathname-unix-socket-connect syscall-io-uring-setup syscall-userfaultfd syscall-bpf \
            syscall-open-by-handle-at syscall-perf-event-open syscall-keyctl";
        assert_eq!(boundary, named.split_whitespace().collect::<Vec<_>>());
        let named = "resource-fork-bomb resource-disk-filler-per-file resource-disk-filler-aggregate \
            resource-memory-hog resource-fd-exhauster";
        assert_eq!(resource, named.split_whitespace().collect::<Vec<_>>());
        assert_eq!(ids(|case| case.set == Set::Worker).len(), 11);
        assert_eq!(ids(|case| case.set == Set::Execution), ["exec-memfd", "exec-through-loader"]);
        let formation = ["token-in-own-process", "token-in-files", "token-in-other-processes"];
        assert_eq!(ids(|case| case.set == Set::Formation), formation);
    }

    #[test]
    fn a_class_claims_what_the_weaker_claims_unless_its_root_answers_instead() {
        for case in CASES {
            assert_eq!(case.expect(Class::Unconfined, Route::Hooks), Some(N), "{}", case.id);
            for route in [Route::Shell, Route::NativeTool, Route::Tools, Route::Driver, Route::Hooks] {
                let (Some(scoped), Some(sealed)) =
                    (case.expect(Class::Scoped, route), case.expect(Class::Sealed, route))
                else {
                    continue;
                };
                let answered = ["symlink-escape", "proc-self-cwd-reopen", "proc-pid-root-reopen"].contains(&case.id);
                let elsewhere = ["hardlink-escape", "rename-across-boundary"].contains(&case.id);
                if scoped == R && !elsewhere && !(answered && route.worker().is_none()) {
                    assert_eq!(sealed, R, "{} on {}", case.id, route.as_str());
                }
            }
        }
        let stat = find("stat-outside-workdir").unwrap();
        assert_eq!(stat.expect(Class::Scoped, Route::Shell), Some(S));
        let loader = find("exec-through-loader").unwrap();
        let at = |route| loader.expect(Class::Sealed, route);
        assert_eq!((at(Route::Shell), at(Route::Tools)), (Some(A), Some(R)));
        assert_eq!(find("worker-exec-any").unwrap().expect(Class::Scoped, Route::Shell), None);
        assert_eq!(find("worker-records-hooks").unwrap().expect(Class::Scoped, Route::Driver), None);
    }
}
