//! What a confined process can no longer do, and that the same attempt works before. Each attempt runs in a process of its
//! own, which says what it got.

#![allow(unsafe_code, clippy::undocumented_unsafe_blocks, clippy::disallowed_methods)]

mod support;

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::symlink;

use mur_containment_kernel::Tier;
use support::{LIMITS, Place, errno, open, prepare, start};

/// What attempts need to know of the test.
struct Known {
    place: Place,
    tcp: u16,
    udp: u16,
    shared: i32,
    parent: i32,
}

type Outcome = Result<(), i32>;
type Attempt = (&'static str, fn(&Known) -> Outcome, [i32; 3]);

fn io<T>(outcome: std::io::Result<T>) -> Outcome {
    outcome.map(drop).map_err(|error| error.raw_os_error().unwrap_or(-1))
}

fn call(result: i64) -> Outcome {
    if result < 0 { Err(errno()) } else { Ok(()) }
}

fn raw(number: i64, arguments: [u64; 5]) -> Outcome {
    let [a, b, c, d, e] = arguments;
    call(unsafe { libc::syscall(number, a, b, c, d, e) })
}

const OK: i32 = 0;
/// For attempts that fail outside as well, but otherwise: what counts is who refuses.
const NO_CONTROL: &[&str] = &["io-uring", "bpf", "userfaultfd", "perf", "handle", "keyring", "clone3", "raise-limit"];

/// Name, attempt, and what it gives under `advisory`, `scoped` and `sealed`.
const ATTEMPTS: &[Attempt] = &[
    ("read-granted", |known| io(File::open(known.place.work.join("file"))), [OK, OK, OK]),
    ("write-granted", |known| io(std::fs::write(known.place.work.join("new"), "x")), [OK, OK, OK]),
    ("mkdir-granted", |known| io(std::fs::create_dir(known.place.work.join("dir"))), [OK, OK, OK]),
    (
        "rename-within",
        |known| io(std::fs::rename(known.place.work.join("file"), known.place.work.join("sub/file"))),
        [OK, OK, OK],
    ),
    (
        "link-within",
        |known| io(std::fs::hard_link(known.place.work.join("file"), known.place.work.join("sub/link"))),
        [OK, OK, OK],
    ),
    ("read-runtime", |known| io(std::fs::read(known.place.runtime.join("file"))), [OK, OK, OK]),
    (
        "write-runtime",
        |known| io(OpenOptions::new().write(true).open(known.place.runtime.join("file"))),
        [OK, libc::EACCES, libc::EROFS],
    ),
    ("read-other", |known| io(File::open(known.place.other.join("file"))), [OK, libc::EACCES, libc::ENOENT]),
    ("stat-other", |known| io(std::fs::metadata(known.place.other.join("file"))), [OK, OK, libc::ENOENT]),
    ("read-passwd", |_| io(File::open("/etc/passwd")), [OK, libc::EACCES, libc::EACCES]),
    ("read-shadow", |_| io(File::open("/etc/shadow")), [OK, libc::EACCES, libc::ENOENT]),
    ("list-root", |_| io(std::fs::read_dir("/")), [OK, libc::EACCES, libc::EACCES]),
    // The work folder's parents are there in a composed root, and nobody's to write.
    ("write-var-tmp", |_| io(tempfile::tempfile_in("/var/tmp")), [OK, libc::EACCES, libc::EROFS]),
    ("walk-out", |known| io(File::open(known.place.work.join("../other/file"))), [OK, libc::EACCES, libc::ENOENT]),
    (
        "link-out",
        |known| {
            let link = known.place.work.join("out");
            let _ = symlink(known.place.other.join("file"), &link);
            io(File::open(link))
        },
        [OK, libc::EACCES, libc::ENOENT],
    ),
    (
        "rename-out",
        |known| io(std::fs::rename(known.place.work.join("file"), known.place.other.join("moved"))),
        [OK, libc::EACCES, libc::ENOENT],
    ),
    (
        "read-parent-memory",
        |known| io(File::open(format!("/proc/{}/mem", known.parent))),
        [libc::EACCES, libc::EACCES, libc::ENOENT],
    ),
    (
        "core-pattern",
        |_| io(OpenOptions::new().write(true).open("/proc/sys/kernel/core_pattern")),
        [OK, libc::EACCES, libc::EROFS],
    ),
    (
        "exec",
        |_| {
            let path = c"/bin/true".as_ptr();
            let arguments = [path, std::ptr::null()];
            // It returns only when it fails; where it works the process ends as true does.
            call(i64::from(unsafe { libc::execv(path, arguments.as_ptr()) }))
        },
        [libc::EPERM, libc::EPERM, libc::EPERM],
    ),
    (
        "connect-host",
        |known| io(TcpStream::connect(("127.0.0.1", known.tcp))),
        [libc::ECONNREFUSED, libc::ECONNREFUSED, libc::ECONNREFUSED],
    ),
    ("unix-socket", |_| io(std::os::unix::net::UnixDatagram::unbound()), [libc::EACCES, libc::EACCES, libc::EACCES]),
    (
        "netlink",
        |_| call(i64::from(unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW, 0) })),
        [libc::EACCES, libc::EACCES, libc::EACCES],
    ),
    (
        "raw-socket",
        |_| call(i64::from(unsafe { libc::socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP) })),
        [libc::EPERM, libc::EPERM, libc::EPERM],
    ),
    (
        "signal-parent",
        |known| call(i64::from(unsafe { libc::kill(known.parent, 0) })),
        [libc::ESRCH, libc::ESRCH, libc::ESRCH],
    ),
    (
        "shared-memory",
        |known| call(i64::from(unsafe { libc::shmget(known.shared, 0, 0) })),
        [libc::ENOENT, libc::ENOENT, libc::ENOENT],
    ),
    (
        "trace",
        |_| raw(libc::SYS_ptrace, [u64::from(libc::PTRACE_TRACEME), 0, 0, 0, 0]),
        [libc::EPERM, libc::EPERM, libc::EPERM],
    ),
    (
        "device",
        |known| {
            let path = known.place.work.join("device");
            io(nix::sys::stat::mknod(
                &path,
                nix::sys::stat::SFlag::S_IFBLK,
                nix::sys::stat::Mode::S_IRWXU,
                nix::sys::stat::makedev(8, 0),
            )
            .map_err(std::io::Error::from))
        },
        [libc::EPERM, libc::EACCES, libc::EACCES],
    ),
    (
        "user-namespace",
        |_| raw(libc::SYS_unshare, [libc::CLONE_NEWUSER as u64, 0, 0, 0, 0]),
        [libc::EPERM, libc::EPERM, libc::EPERM],
    ),
    (
        "clone-namespace",
        |_| raw(libc::SYS_clone, [(libc::CLONE_NEWUSER | libc::SIGCHLD) as u64, 0, 0, 0, 0]),
        [libc::EPERM, libc::EPERM, libc::EPERM],
    ),
    (
        "mount",
        |known| {
            let target = std::ffi::CString::new(known.place.work.to_str().unwrap()).unwrap();
            let (kind, none) = (c"tmpfs".as_ptr(), std::ptr::null());
            let mounted = unsafe { libc::mount(kind, target.as_ptr(), kind, 0, none) };
            if mounted == 0 {
                // Outside the class it works, and nothing of it may stay.
                unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
                return Ok(());
            }
            call(i64::from(mounted))
        },
        [libc::EPERM, libc::EPERM, libc::EPERM],
    ),
    ("change-root", |_| io(std::os::unix::fs::chroot("/")), [libc::EPERM, libc::EPERM, libc::EPERM]),
    ("clone3", |_| raw(libc::SYS_clone3, [0; 5]), [libc::ENOSYS, libc::ENOSYS, libc::ENOSYS]),
    ("io-uring", |_| raw(libc::SYS_io_uring_setup, [1, 0, 0, 0, 0]), [libc::EPERM, libc::EPERM, libc::EPERM]),
    ("bpf", |_| raw(libc::SYS_bpf, [0; 5]), [libc::EPERM, libc::EPERM, libc::EPERM]),
    ("userfaultfd", |_| raw(libc::SYS_userfaultfd, [0; 5]), [libc::EPERM, libc::EPERM, libc::EPERM]),
    ("perf", |_| raw(libc::SYS_perf_event_open, [0; 5]), [libc::EPERM, libc::EPERM, libc::EPERM]),
    ("handle", |_| raw(libc::SYS_open_by_handle_at, [0; 5]), [libc::EPERM, libc::EPERM, libc::EPERM]),
    ("keyring", |_| raw(libc::SYS_keyctl, [0, u64::MAX - 2, 0, 0, 0]), [libc::EPERM, libc::EPERM, libc::EPERM]),
    (
        "raise-limit",
        |_| {
            let limit = libc::rlimit { rlim_cur: 65536, rlim_max: 65536 };
            call(i64::from(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }))
        },
        [libc::EPERM, libc::EPERM, libc::EPERM],
    ),
    (
        "large-file",
        |known| {
            let mut file = File::create(known.place.work.join("large")).map_err(|_| -1)?;
            io(file.write_all(&vec![0; LIMITS.file_size as usize + 1]))
        },
        [libc::EFBIG, libc::EFBIG, libc::EFBIG],
    ),
    (
        "many-files",
        |known| {
            let file = known.place.work.join("file");
            let all: std::io::Result<Vec<File>> = (0..600).map(|_| File::open(&file)).collect();
            io(all)
        },
        [libc::EMFILE, libc::EMFILE, libc::EMFILE],
    ),
    ("thread", |_| io(std::thread::Builder::new().spawn(|| ()).map(|thread| thread.join())), [OK, OK, OK]),
];

fn known() -> (Known, TcpListener, UdpSocket) {
    let (tcp, udp) = (TcpListener::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    udp.set_nonblocking(true).unwrap();
    let shared = 0x6d75_0000 | i32::try_from(std::process::id() & 0xffff).unwrap();
    let known = Known {
        place: Place::new(),
        tcp: tcp.local_addr().unwrap().port(),
        udp: udp.local_addr().unwrap().port(),
        shared,
        parent: i32::try_from(std::process::id()).unwrap(),
    };
    (known, tcp, udp)
}

/// What an attempt gives: its errno, or `None` when the process was gone before it could say (as one that has become
/// another program is).
fn outcome(entered: Option<(Tier, &support::Prepared)>, attempt: fn(&Known) -> Outcome, known: &Known) -> i32 {
    let (said, status) = start(entered, |out| {
        let _ = write!(out, "{}", attempt(known).err().unwrap_or(0));
    })
    .said();
    if said.is_empty() && status == 0 {
        return OK;
    }
    said.parse().unwrap_or_else(|_| panic!("{said:?} {status}"))
}

/// The attempts of one class, and how many were refused.
fn held_by(tier: Tier, column: usize) {
    let mut refusals = 0;
    for (name, attempt, expected) in ATTEMPTS {
        let (known, _tcp, _udp) = known();
        let segment = unsafe { libc::shmget(known.shared, 4096, libc::IPC_CREAT | 0o600) };
        let before = outcome(None, *attempt, &known);
        drop(known);
        assert!(segment >= 0);
        let (fresh, _tcp, _udp) = self::known();
        let mut enclosure = open(tier, &format!("test-{name}"));
        let profile = prepare(&mut enclosure, &fresh.place.profile());
        let after = outcome(Some((tier, &profile)), *attempt, &fresh);
        unsafe { libc::shmctl(segment, libc::IPC_RMID, std::ptr::null_mut()) };
        // The attempt is real: outside it works.
        let unheld = *name == "large-file" || *name == "many-files" || *name == "read-parent-memory";
        assert!(before == OK || NO_CONTROL.contains(name) || unheld, "{name} before: {before}");
        assert_eq!(after, expected[column], "{name} under {tier:?}; before it gave {before}");
        refusals += usize::from(after != OK);
    }
    println!("{tier:?}: {refusals} refusals seen in {} attempts", ATTEMPTS.len());
}

#[test]
fn a_worker_under_advisory_is_refused_what_the_class_holds() {
    let _turn = support::turn();
    held_by(Tier::Advisory, 0);
}

#[test]
fn a_worker_under_scoped_reaches_its_folders_and_nothing_else() {
    let _turn = support::turn();
    held_by(Tier::Scoped, 1);
}

#[test]
fn a_worker_under_sealed_sees_nothing_but_its_folders() {
    let _turn = support::turn();
    held_by(Tier::Sealed, 2);
}

#[test]
fn no_datagram_leaves_a_session() {
    let _turn = support::turn();
    let (known, _tcp, udp) = known();
    let send = |known: &Known| {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        let _ = socket.send_to(b"out", ("127.0.0.1", known.udp));
    };
    let mut buffer = [0; 8];
    start(None, |_| send(&known)).said();
    assert_eq!(udp.recv(&mut buffer).unwrap(), 3, "without a class it arrives");
    for tier in [Tier::Advisory, Tier::Scoped, Tier::Sealed] {
        let mut enclosure = open(tier, "test-udp");
        let profile = prepare(&mut enclosure, &known.place.profile());
        let (said, status) = start(Some((tier, &profile)), |_| send(&known)).said();
        assert_eq!((said.as_str(), status), ("", 0));
        assert_eq!(udp.recv(&mut buffer).unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "{tier:?}");
    }
}
