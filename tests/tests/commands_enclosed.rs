//! Commands under every class, through the host's own interface, seen from outside by `/proc` and from inside by what they
//! get.

#![allow(unsafe_code, clippy::undocumented_unsafe_blocks, reason = "system calls that no library would make")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use mur::containment::{Class, Command, CommandProfile, Commands, Ended, Helper, StartError};
use mur_plugin_api::{
    Access, CommandRequest, EnclosureRequest, Grant, IoHeld, IoLimit, ProcessKind, ProcessLimits, ProfileRequest,
    ScopeLimits,
};
use mur_tests::live::proc;
use mur_tests::{dist, mur_binary, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A class and the library that serves it.
#[derive(Clone, Copy, Debug)]
struct Kind {
    class: Class,
    library: &'static str,
}

impl Kind {
    /// Whether an installed program composes the root of each command and makes its process namespace.
    fn is_program(self) -> bool {
        self.library == BUBBLEWRAP.library
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.library)
    }
}

impl PartialEq<Class> for Kind {
    fn eq(&self, class: &Class) -> bool {
        self.class == *class
    }
}

impl From<Class> for Kind {
    fn from(class: Class) -> Self {
        Self { class, library: class.as_str() }
    }
}

const BUBBLEWRAP: Kind = Kind { class: Class::Sealed, library: "bubblewrap" };
const CLASSES: [Kind; 4] = [
    Kind { class: Class::Advisory, library: "advisory" },
    Kind { class: Class::Scoped, library: "scoped" },
    Kind { class: Class::Sealed, library: "sealed" },
    BUBBLEWRAP,
];
const LIMITS: ProcessLimits =
    ProcessLimits { open_files: 100, file_size: 1 << 20, cpu_seconds: Some(60), address_space: Some(1 << 30) };
const NO_SIGNAL: i32 = 0;

/// Folders of one session.
struct Place {
    dir: tempfile::TempDir,
    work: PathBuf,
    runtime: PathBuf,
    records: PathBuf,
    other: PathBuf,
}

impl Place {
    fn new() -> Self {
        Self::below("/var/tmp")
    }

    fn below(parent: &str) -> Self {
        let dir = tempfile::tempdir_in(parent).unwrap();
        let at = |name: &str| {
            let path = dir.path().join(name);
            fs::create_dir(&path).unwrap();
            fs::write(path.join("file"), name).unwrap();
            path
        };
        let (work, runtime, records, other) = (at("work"), at("runtime"), at("records"), at("other"));
        fs::create_dir(work.join("sub")).unwrap();
        fs::create_dir(records.join("tmp")).unwrap();
        fs::create_dir(records.join("home")).unwrap();
        Self { dir, work, runtime, records, other }
    }

    /// Every grant a shell needs, and the session's folders.
    fn request(&self) -> ProfileRequest {
        let system = ["/usr", "/bin", "/lib", "/lib64"].map(|path| Grant::optional(path, Access::ExecuteRead));
        let own = [
            Grant::required(&self.work, Access::Write),
            Grant::required(&self.runtime, Access::Read),
            Grant::required(&self.records, Access::Read),
        ];
        ProfileRequest {
            grants: system.into_iter().chain(own).collect(),
            tmp: Some(self.records.join("tmp")),
            home: Some(self.records.join("home")),
            ..ProfileRequest::new(ProcessKind::Command, LIMITS)
        }
    }
}

fn open(class: impl Into<Kind>, session: &str) -> Helper {
    open_with(class, EnclosureRequest::new(session, ScopeLimits { memory: 256 << 20, pids: 60, cpu_percent: 200 }))
}

fn open_with(class: impl Into<Kind>, request: EnclosureRequest) -> Helper {
    let Kind { class, library } = class.into();
    let library = dist().join(format!("lib/mur/plugins/libmur_containment_{library}.so"));
    let library = OwnedFd::from(fs::File::open(&library).unwrap_or_else(|error| panic!("{library:?}: {error}")));
    let helper = Helper::with_program(mur_binary()).unwrap();
    helper.load(class, &library).unwrap();
    helper.open(class, request).unwrap();
    helper
}

/// A shell's script in the work folder.
fn shell(place: &Place, script: &str) -> CommandRequest {
    command(place, "/bin/sh", &["sh", "-c", script])
}

fn command(place: &Place, program: &str, args: &[&str]) -> CommandRequest {
    CommandRequest {
        program: program.into(),
        args: args.iter().map(Into::into).collect(),
        env: vec![("PATH".into(), "/usr/bin:/bin".into()), ("A".into(), "1 2".into())],
        cwd: place.work.clone(),
    }
}

/// A command that runs: what it says, and what it is told.
struct Running {
    command: Command,
    says: fs::File,
    told: fs::File,
}

fn start(profile: &CommandProfile, request: &CommandRequest) -> Result<Running, StartError> {
    let pipe = || nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).unwrap();
    let ((input, told), (says, output)) = (pipe(), pipe());
    let command = profile.start(request, [input, output.try_clone().unwrap(), output])?;
    Ok(Running { command, says: says.into(), told: told.into() })
}

fn ended(command: &Command) -> Ended {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(command.wait()).unwrap()
}

impl Running {
    /// Everything it and its descendants said, and how it ended.
    fn said(mut self) -> (String, Ended) {
        drop(self.told);
        let mut text = String::new();
        self.says.read_to_string(&mut text).unwrap();
        (text, ended(&self.command))
    }

    fn line(&mut self) -> String {
        let (mut line, mut byte) = (Vec::new(), [0]);
        while self.says.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
            line.push(byte[0]);
        }
        String::from_utf8(line).unwrap()
    }
}

fn said(profile: &CommandProfile, place: &Place, script: &str) -> (String, Ended) {
    start(profile, &shell(place, script)).unwrap_or_else(|error| panic!("{error}")).said()
}

fn status(pid: i32) -> BTreeMap<String, String> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.map(|(key, value)| (key.to_owned(), value.trim().to_owned())).collect()
}

fn namespace(pid: i32, name: &str) -> PathBuf {
    fs::read_link(format!("/proc/{pid}/ns/{name}")).unwrap()
}

/// Fields of `/proc/PID/stat` after the name: state, parent, group, session, …
fn stat(pid: i32) -> Vec<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    text.rsplit(") ").next().unwrap().split(' ').map(str::to_owned).collect()
}

/// Every process whose cgroup is of a session.
fn members(session: &str) -> Vec<i32> {
    let name = format!("/murmur-{session}-");
    let all = proc::parents().into_iter().map(|(pid, _)| pid);
    all.filter(|pid| fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|text| text.contains(&name)))
        .filter(|pid| proc::runs(*pid))
        .collect()
}

fn server_of(command: i32) -> i32 {
    stat(command)[1].parse().unwrap()
}

#[test]
fn a_command_is_held_as_its_class_says_seen_from_outside() {
    let own = std::process::id().cast_signed();
    // Descriptors that are inherited by whatever is started carelessly.
    let extra: Vec<i32> = (0..200).map(|_| unsafe { libc::dup(2) }).collect();
    for class in CLASSES {
        let place = Place::new();
        let session = format!("held-{class}");
        let helper = open(class, &session);
        let profile = helper.commands(place.request()).unwrap();
        assert!(profile.tmp_is_mapped(), "{class}");
        let mut running = start(&profile, &shell(&place, "echo ready; read -r line; exec sleep 1000")).unwrap();
        assert_eq!(running.line(), "ready");
        let pid = running.command.pid();
        let held = status(pid);
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(held[set], "0000000000000000", "{class} {set}");
        }
        assert_eq!((held["NoNewPrivs"].as_str(), held["Seccomp"].as_str()), ("1", "2"), "{class}");
        assert_eq!((held["SigIgn"].as_str(), held["SigBlk"].as_str()), ("0000000000000000", "0000000000000000"));
        let depth = |pid: i32| status(pid)["NSpid"].split_whitespace().count();
        assert_eq!(depth(pid), depth(own) + 1, "{class}");
        for name in ["user", "net", "ipc", "pid", "mnt"] {
            assert_ne!(namespace(pid, name), namespace(own, name), "{class} {name}");
        }
        let cgroup = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
        assert!(cgroup.contains(&format!("/murmur-{session}-")), "{cgroup}");
        let numbers: Vec<i32> = proc::descriptors(pid).iter().map(|(fd, _)| *fd).collect();
        assert_eq!(numbers, [0, 1, 2], "{class}");
        assert_eq!(proc::environment(pid), b"PATH=/usr/bin:/bin\0A=1 2\0", "{class}");
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        for (name, value) in [
            ("Max open files", "100"),
            ("Max file size", "1048576"),
            ("Max cpu time", "60"),
            ("Max address space", "1073741824"),
            ("Max core file size", "0"),
        ] {
            let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            assert_eq!(line.split_whitespace().next(), Some(value), "{class}: {name}");
        }
        // A group of its own, in a session without a terminal, whose leader no command can name.
        let fields = stat(pid);
        assert_eq!(fields[2], pid.to_string());
        assert_ne!(fields[3], stat(own)[3]);
        assert_eq!(fields[4], "0", "no terminal");
        let server = server_of(pid);
        assert_eq!(depth(server), if class.is_program() { depth(pid) } else { depth(own) }, "{class}");
        assert_eq!((status(server)["CapEff"].as_str(), status(server)["Seccomp"].as_str()), ("0000000000000000", "2"));
        // Standard streams, the connection, the ruleset, and for each command a pid descriptor and its connection.
        // What it has told of itself it closes a moment later.
        wait_until("it holds no more", || proc::descriptors(server).len() <= 7);
        running.told.write_all(b"\n").unwrap();
        running.command.signal_group(Signal::SIGTERM).unwrap();
        assert_eq!(ended(&running.command), Ended::Signalled(libc::SIGTERM));
        helper.close();
        assert_eq!(members(&session), Vec::<i32>::new());
    }
    for fd in extra {
        unsafe { libc::close(fd) };
    }
}

#[test]
fn the_end_of_a_command_is_told_truly_and_its_group_is_reached_until_it_is_let_go() {
    let place = Place::new();
    let helpers = CLASSES.map(|class| (Some(class.library), open(class, &format!("ends-{class}"))));
    let kinds = helpers.iter().map(|(class, helper)| (*class, Commands::within(helper)));
    for (class, commands) in kinds.chain([(None, Commands::unconfined())]) {
        let profile = commands.profile(place.request()).unwrap();
        assert_eq!(said(&profile, &place, "echo out; echo err >&2; exit 7"), ("out\nerr\n".into(), Ended::Exited(7)));
        for signal in [Signal::SIGKILL, Signal::SIGSEGV, Signal::SIGPIPE, Signal::SIGXFSZ] {
            let (_, how) = said(&profile, &place, &format!("kill -{} $$", signal as i32));
            assert_eq!(how, Ended::Signalled(signal as i32), "{class:?}");
        }
        // Its leader ends, and what it left behind holds the pipe: the end is told all the same, more than once.
        let mut running = start(&profile, &shell(&place, "sleep 1000 & echo $$; exit 3")).unwrap();
        running.line();
        assert_eq!(ended(&running.command), Ended::Exited(3), "{class:?}");
        assert_eq!((running.command.try_wait(), ended(&running.command)), (Some(Ended::Exited(3)), Ended::Exited(3)));
        running.command.signal_group(Signal::SIGKILL).unwrap();
        assert_eq!(running.said().0, "", "{class:?}: the group is gone, so the pipe is at its end");
        // Let go while it runs, it goes on.
        let left = start(&profile, &shell(&place, "echo x; read -r line; echo $line")).unwrap();
        let Running { command, mut says, mut told } = left;
        drop(command);
        told.write_all(b"still here\n").unwrap();
        let mut text = String::new();
        says.read_to_string(&mut text).unwrap();
        assert_eq!(text, "x\nstill here\n");
        // A program that cannot be executed starts nothing.
        let missing = start(&profile, &command_of(&place, "/usr/bin/no-such-program"));
        let Err(StartError::Program(error)) = missing else { panic!("{class:?}") };
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
        let mut nowhere = shell(&place, "true");
        nowhere.cwd = place.dir.path().join("absent");
        assert!(matches!(start(&profile, &nowhere), Err(StartError::Program(_))), "{class:?}");
    }
}

fn command_of(place: &Place, program: &str) -> CommandRequest {
    command(place, program, &[program])
}

#[test]
fn two_hundred_commands_leave_no_zombie() {
    let place = Place::new();
    let helper = open(Class::Scoped, "many");
    for profile in [helper.commands(place.request()).unwrap(), CommandProfile::unconfined()] {
        let mut server = std::process::id().cast_signed();
        for round in 0..200 {
            let running = start(&profile, &command(&place, "/bin/sh", &["sh", "-c", "exit 4"])).unwrap();
            if profile.tmp_is_mapped() {
                server = server_of(running.command.pid());
            }
            if round % 2 == 0 {
                assert_eq!(ended(&running.command), Ended::Exited(4));
            }
        }
        // One that was let go of is reaped with the next, under `unconfined`.
        wait_until("no child is left", || {
            drop(start(&profile, &command_of(&place, "/bin/true")));
            proc::parents()
                .iter()
                .filter(|(_, parent)| *parent == server)
                .all(|(pid, _)| proc::command_line(*pid).contains("__enclosure") || proc::runs(*pid))
        });
    }
}

#[test]
fn a_command_reaches_what_it_was_granted_in_the_way_it_was() {
    for class in CLASSES {
        let place = Place::new();
        let helper = open(class, &format!("rights-{class}"));
        let more = |name: &str| {
            let path = place.dir.path().join(name);
            fs::create_dir(&path).unwrap();
            fs::write(path.join("file"), name).unwrap();
            fs::copy("/bin/true", path.join("true")).unwrap();
            path
        };
        let (files, runs, built) = (more("files"), more("runs"), more("built"));
        fs::copy("/bin/true", place.work.join("true")).unwrap();
        let mut request = place.request();
        request.grants.extend([
            Grant::required(&files, Access::ReadFiles),
            Grant::required(&runs, Access::Execute),
            Grant::required(&built, Access::WriteExecute),
            Grant::optional(place.dir.path().join("absent"), Access::Read),
        ]);
        let profile = helper.commands(request).unwrap();
        let held = class != Class::Advisory;
        let works = |script: &str| {
            let script = format!("cd {} && {{ {script}; }} >/dev/null 2>&1", place.work.display());
            said(&profile, &place, &script).1 == Ended::Exited(0)
        };
        let path = |folder: &Path, name: &str| folder.join(name).display().to_string();
        // The work folder: everything but devices, sockets and execution.
        for script in [
            "cat file",
            "echo x > new",
            "mkdir d && ls d",
            "mv new sub/new && mv sub/new d/new",
            "ln d/new sub/hard && ln -s d soft",
            "mkfifo pipe",
            "rm d/new && rmdir d",
            ": > sub/hard",
        ] {
            assert!(works(script), "{class}: {script}");
        }
        assert_eq!(works("./true"), !held, "{class}: what was written does not run");
        let copied = start(&profile, &command_of(&place, &path(&place.work, "true")));
        match copied {
            Err(StartError::Program(error)) if held => assert_eq!(error.raw_os_error(), Some(libc::EACCES)),
            other => assert!(!held && other.is_ok(), "{class}"),
        }
        assert!(works(&format!("cat {}; ls {}", path(&place.runtime, "file"), place.runtime.display())));
        assert!(works(&format!("cat {}", path(&place.records, "file"))));
        for folder in [&place.runtime, &place.records] {
            assert_eq!(works(&format!("echo x > {}", path(folder, "new"))), !held, "{class}");
        }
        assert!(works(&format!("cat {}", path(&files, "file"))));
        assert_eq!(
            works(&format!("ls {}", files.display())),
            !held,
            "{class}: files are read, the folder is not listed"
        );
        assert_eq!(works(&path(&files, "true")), !held, "{class}");
        assert!(works(&path(&runs, "true")) && works(&path(&built, "true")), "{class}");
        assert!(works(&format!("cp /bin/true {0} && {0}", path(&built, "made"))), "{class}");
        assert_eq!(works(&format!("cat {}", path(&place.other, "file"))), !held, "{class}");
        assert_eq!(works(&format!("test -e {}", place.other.display())), class != Class::Sealed, "{class}");
        assert_eq!(works("cat /etc/shadow"), !held && nix::unistd::geteuid().is_root(), "{class}");
        // Temporary folder and home.
        assert!(works("echo x > /tmp/t && cat /tmp/t"), "{class}");
        assert_eq!(fs::read_to_string(place.records.join("tmp/t")).unwrap(), "x\n", "{class}");
        assert!(works(&format!("echo x > {}/home/h", place.records.display())), "{class}");
        assert!(works("echo x > /dev/null && head -c 1 /dev/zero && head -c 1 /dev/urandom"), "{class}");
        if class == Class::Sealed {
            let (text, _) = said(&profile, &place, "cat /etc/passwd; ls /tmp; echo /home/*");
            assert!(text.contains(&place.records.join("home").display().to_string()), "{text}");
            assert!(works("ls /usr/bin && cat /etc/nsswitch.conf"), "{class}");
        }
        // A program is the file that was meant, or the profile is refused.
        let file = place.runtime.join("file");
        let meta = fs::metadata(&file).unwrap();
        let pinned = |inode| {
            let mut request = place.request();
            let identity = Some((meta.dev(), inode));
            request.grants.push(Grant { identity, ..Grant::required(&file, Access::Execute) });
            helper.commands(request).map(drop)
        };
        assert_eq!(pinned(meta.ino()), Ok(()));
        if held {
            assert!(pinned(meta.ino() + 1).unwrap_err().contains("file"), "{class}");
        }
    }
}

#[test]
fn a_private_tmp_keeps_what_was_granted_below_the_hosts() {
    let seen = tempfile::NamedTempFile::new_in("/tmp").unwrap();
    let name = format!("{}.made", seen.path().file_name().unwrap().display());
    for class in CLASSES {
        let place = Place::below("/tmp");
        let helper = open(class, &format!("tmp-{class}"));
        let profile = helper.commands(place.request()).unwrap();
        let script = format!(
            "test ! -e {seen} && cat file && echo x > new && cat {runtime}/file && echo x > {records}/home/h \
             && echo y > /tmp/{name} && ! echo z > {runtime}/new",
            seen = seen.path().display(),
            runtime = place.runtime.display(),
            records = place.records.display(),
        );
        let (text, how) = said(&profile, &place, &script);
        assert_eq!(how, Ended::Exited(0), "{class}: {text}");
        assert_eq!(fs::read_to_string(place.work.join("new")).unwrap(), "x\n", "{class}");
        assert_eq!(fs::read_to_string(place.records.join("tmp").join(&name)).unwrap(), "y\n", "{class}");
        assert!(!Path::new("/tmp").join(&name).exists());
        if class != Class::Sealed {
            // A work folder that is /tmp itself stays the host's.
            let mut whole = place.request();
            whole.grants[4].path = "/tmp".into();
            let profile = helper.commands(whole).unwrap();
            assert!(!profile.tmp_is_mapped());
            let (_, how) = said(&profile, &place, &format!("test -e {}", seen.path().display()));
            assert_eq!(how, Ended::Exited(0), "{class}");
        }
    }
}

/// Runs inside a command; says one attempt a line.
#[test]
#[ignore = "what commands of the other tests run"]
fn inside() {
    let attempt = |name: &str, result: i64| {
        let number = if result < 0 { std::io::Error::last_os_error().raw_os_error().unwrap_or(-1) } else { 0 };
        println!("@ {name} {number}");
    };
    let call = |number: i64, a: i64, b: i64, c: i64| unsafe { libc::syscall(number, a, b, c, 0_i64, 0_i64) };
    let mur: i64 = std::env::var("MUR_PID").unwrap().parse().unwrap();
    let server: i64 = std::env::var("SERVER_PID").unwrap().parse().unwrap_or(mur);
    attempt("clone3", call(libc::SYS_clone3, 0, 0, 0));
    // A mode in memory, where no filter sees it.
    let how = [i64::from(libc::O_CREAT | libc::O_WRONLY), 0o4755, 0];
    let named = c"made-by-openat2".as_ptr() as i64;
    let opened = unsafe { libc::syscall(libc::SYS_openat2, i64::from(libc::AT_FDCWD), named, how.as_ptr(), 24_i64) };
    attempt("openat2", opened);
    attempt("clone-user", call(libc::SYS_clone, i64::from(libc::CLONE_NEWUSER | libc::SIGCHLD), 0, 0));
    attempt("unshare", call(libc::SYS_unshare, i64::from(libc::CLONE_NEWNS), 0, 0));
    attempt("memfd", call(libc::SYS_memfd_create, c"x".as_ptr() as i64, 0, 0));
    attempt("memfd-noexec", call(libc::SYS_memfd_create, c"x".as_ptr() as i64, 8, 0));
    attempt("unix", call(libc::SYS_socket, 1, 1, 0));
    attempt("inet", call(libc::SYS_socket, 2, 1, 0));
    attempt("netlink", call(libc::SYS_socket, 16, 3, 0));
    attempt("vsock", call(libc::SYS_socket, 40, 1, 0));
    attempt("ptrace", call(libc::SYS_ptrace, 16, mur, 0));
    attempt("mount", call(libc::SYS_mount, 0, 0, 0));
    attempt("keyctl", call(libc::SYS_keyctl, 0, 0, 0));
    for (name, pid) in [("mur", mur), ("server", server)] {
        attempt(&format!("kill-{name}"), call(libc::SYS_kill, pid, 0, 0));
        let memory = std::ffi::CString::new(format!("/proc/{pid}/mem")).unwrap();
        attempt(&format!("memory-{name}"), i64::from(unsafe { libc::open(memory.as_ptr(), libc::O_RDWR) }));
    }
    attempt("parent", i64::from(unsafe { libc::getppid() == 0 }) - 1);
}

#[test]
fn system_calls_outside_the_list_are_refused_and_nobody_outside_is_named() {
    let exe = std::env::current_exe().unwrap();
    for class in CLASSES {
        for unix_sockets in [false, true] {
            let place = Place::new();
            let helper = open(class, &format!("calls-{class}"));
            let mut request = place.request();
            request.unix_sockets = unix_sockets;
            request.grants.push(Grant::required(&exe, Access::Execute));
            let profile = helper.commands(request).unwrap();
            let first = start(&profile, &shell(&place, "read -r line")).unwrap();
            let server = server_of(first.command.pid());
            let mut asked = command(
                &place,
                exe.to_str().unwrap(),
                &["inside", "--exact", "inside", "--ignored", "--nocapture", "--test-threads", "1"],
            );
            asked.env.push(("MUR_PID".into(), std::process::id().to_string().into()));
            asked.env.push(("SERVER_PID".into(), server.to_string().into()));
            let (text, how) = start(&profile, &asked).unwrap().said();
            assert_eq!(how, Ended::Exited(0), "{class}: {text}");
            let got: BTreeMap<&str, i32> = text
                .lines()
                .filter_map(|line| line.split_once("@ ")?.1.split_once(' '))
                .map(|(name, number)| (name, number.parse().unwrap()))
                .collect();
            let expect = |name: &str, number: i32| assert_eq!(got.get(name), Some(&number), "{class} {name}: {text}");
            for name in ["clone3", "openat2"] {
                expect(name, libc::ENOSYS);
            }
            for name in ["clone-user", "unshare", "memfd", "vsock", "ptrace", "mount", "keyctl"] {
                expect(name, libc::EPERM);
            }
            expect("unix", if unix_sockets { NO_SIGNAL } else { libc::EACCES });
            expect("netlink", libc::EACCES);
            expect("inet", NO_SIGNAL);
            if !class.is_program() {
                expect("parent", NO_SIGNAL);
            }
            assert!([0, libc::EINVAL].contains(&got["memfd-noexec"]), "{text}");
            for name in ["kill-mur", "kill-server"] {
                // The number is nobody's, or a process's of the session.
                assert!([libc::ESRCH, 0].contains(&got[name]), "{class} {name}: {text}");
            }
            for name in ["memory-mur", "memory-server"] {
                assert!(
                    [libc::EACCES, libc::EPERM, libc::ENOENT, libc::EROFS].contains(&got[name]),
                    "{class} {name}: {text}"
                );
            }
        }
    }
}

#[test]
fn whoever_is_killed_nothing_of_the_commands_is_left() {
    for class in CLASSES {
        for victim in ["server", "enclosure", "init"] {
            // Each command's process namespace is one of its own.
            if class.is_program() && victim == "init" {
                continue;
            }
            let place = Place::new();
            let session = format!("killed-{class}-{victim}");
            let helper = open(class, &session);
            let profile = helper.commands(place.request()).unwrap();
            // One in the foreground, and a daemon that left group and session.
            let script = "setsid sh -c 'exec >/dev/null 2>&1; sleep 1000' & sleep 1000 & echo ready; wait";
            let mut running = start(&profile, &shell(&place, script)).unwrap();
            running.line();
            wait_until("the daemon is there", || members(&session).len() >= if class.is_program() { 7 } else { 5 });
            let pid = match victim {
                "server" => server_of(running.command.pid()),
                "enclosure" => helper.pidfd().pid(),
                _ => *members(&session)
                    .iter()
                    .find(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default() == "mur-init\n")
                    .unwrap(),
            };
            kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
            let how = ended(&running.command);
            assert!(matches!(how, Ended::Lost(_) | Ended::Signalled(libc::SIGKILL)), "{class} {victim}: {how:?}");
            if class.is_program() && victim == "server" {
                // Each command has its own: what is left is ended with the session, and the next one is not harmed.
                assert_eq!(said(&profile, &place, "echo ok").0, "ok\n");
                helper.close();
                assert_eq!(members(&session), Vec::<i32>::new(), "{class} {victim}");
                continue;
            }
            if victim != "init" {
                wait_until("nothing is left", || members(&session).is_empty());
            }
            let refused = start(&profile, &shell(&place, "true")).err();
            match (victim, refused) {
                ("init", Some(StartError::SetUp(why))) => assert!(why.contains("namespace is gone"), "{why}"),
                ("server" | "enclosure", Some(StartError::Gone(why))) => assert!(why.contains("enclosure"), "{why}"),
                (_, other) => panic!("{class} {victim}: {other:?}"),
            }
            helper.close();
            assert_eq!(members(&session), Vec::<i32>::new(), "{class} {victim}");
        }
    }
}

#[test]
fn a_step_that_fails_is_named_and_nothing_runs() {
    for kind in [Class::Sealed.into(), BUBBLEWRAP] {
        a_failed_step(kind);
    }
}

fn a_failed_step(kind: Kind) {
    let place = Place::new();
    let helper = open(kind, "stale");
    let profile = helper.commands(place.request()).unwrap();
    // Another folder under the same name: not the one that was granted.
    fs::rename(&place.work, place.dir.path().join("moved")).unwrap();
    fs::create_dir(&place.work).unwrap();
    let Err(StartError::SetUp(why)) = start(&profile, &shell(&place, "true")) else { panic!("it ran") };
    let step = if kind.is_program() { "sealed-root: " } else { "sealed-root: opening what the root is made of: " };
    assert!(why.starts_with(step), "{why}");
    assert!(why.contains("ESTALE"), "{why}");
    let place = Place::new();
    let profile = helper.commands(place.request()).unwrap();
    assert_eq!(said(&profile, &place, "echo ok").0, "ok\n", "another kind is not harmed");
    let mut absent = place.request();
    absent.grants.push(Grant::required(place.dir.path().join("absent"), Access::Read));
    assert!(helper.commands(absent).unwrap_err().contains("absent"));
    helper.close();
    let Err(StartError::Gone(why)) = start(&profile, &shell(&place, "true")) else { panic!("it ran") };
    assert!(why.contains("closed"), "{why}");
}

#[test]
fn what_met_a_bound_of_the_scope_is_counted() {
    let place = Place::new();
    let mut request = EnclosureRequest::new("counted", ScopeLimits { memory: 64 << 20, pids: 30, cpu_percent: 200 });
    request.io = Some(IoLimit { bytes_per_second: 100 << 20, path: place.work.clone() });
    let helper = open_with(Class::Scoped, request);
    let io = helper.io_status().unwrap();
    assert!(
        io.status == IoHeld::Enforced || io.status == IoHeld::Unavailable && io.reason.is_some(),
        "it was tried: {io:?}"
    );
    let profile = helper.commands(place.request()).unwrap();
    assert_eq!(helper.events().unwrap(), mur_plugin_api::ScopeEvents::default());
    // `tail` keeps the last line, which never ends.
    let (_, how) = said(&profile, &place, "exec tail -n 1 /dev/zero");
    assert_eq!(how, Ended::Signalled(libc::SIGKILL));
    assert!(helper.events().unwrap().oom_kills > 0, "the command was killed, and the server lives");
    said(&profile, &place, "i=0; while [ $i -lt 60 ]; do sleep 1000 >/dev/null 2>&1 & i=$((i+1)); done");
    assert!(helper.events().unwrap().pids_refused > 0);
    assert_eq!(open(Class::Scoped, "unasked").io_status().unwrap().status, IoHeld::NotRequired);
}
