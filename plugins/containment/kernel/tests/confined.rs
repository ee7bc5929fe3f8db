//! What a confined process can no longer do, and that the same attempt works before: each attempt runs in a process of its
//! own, which says what it got.

#![allow(unsafe_code, clippy::disallowed_methods, clippy::undocumented_unsafe_blocks)]

use std::io::Write;
use std::process::Command;

use mur_containment_kernel::{ADVISORY_WORKER, DENY_ALL, Settings, Step, enter};

const SETTINGS: Settings = Settings { open_files: 64, file_size: 4096, cpu_seconds: Some(60), address_space: None };
const ATTEMPT: &str = "MUR_TEST_ATTEMPT";

type Attempt = (&'static str, fn() -> Result<(), i32>);

fn errno(error: std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(-1)
}

fn call(result: i64) -> Result<(), i32> {
    if result < 0 { Err(errno(std::io::Error::last_os_error())) } else { Ok(()) }
}

const ATTEMPTS: &[Attempt] = &[
    ("open", || std::fs::File::open("/etc/passwd").map(|_| ()).map_err(errno)),
    ("exec", || Command::new("/bin/true").status().map(|_| ()).map_err(errno)),
    ("socket", || std::net::UdpSocket::bind("127.0.0.1:0").map(|_| ()).map_err(errno)),
    ("unix-socket", || std::os::unix::net::UnixDatagram::unbound().map(|_| ()).map_err(errno)),
    // SAFETY of these: plain integers, and results that are only looked at.
    ("namespace", || call(unsafe { libc::syscall(libc::SYS_unshare, libc::CLONE_FS) })),
    ("clone3", || call(unsafe { libc::syscall(libc::SYS_clone3, std::ptr::null::<u8>(), 0_usize) })),
    ("large-file", || {
        let mut file = tempfile::tempfile_in("/tmp").map_err(errno)?;
        file.write_all(&[0; 8192]).map_err(errno)
    }),
    ("many-files", || {
        (0..100).map(|_| std::fs::File::open("/dev/null").map_err(errno)).collect::<Result<Vec<_>, _>>().map(|_| ())
    }),
    ("raise-limit", || {
        let limit = libc::rlimit { rlim_cur: 65536, rlim_max: 65536 };
        call(i64::from(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }))
    }),
    ("thread", || std::thread::Builder::new().spawn(|| ()).map_err(errno)?.join().map_err(|_| -1)),
];

/// The attempts' own process: enters what it is told, tries, prints one word.
#[test]
fn attempt() {
    let Ok(text) = std::env::var(ATTEMPT) else { return };
    let (sequence, name) = text.split_once(' ').unwrap();
    let steps: &[Step] = match sequence {
        "advisory" => ADVISORY_WORKER,
        "deny-all" => DENY_ALL,
        // The filter comes last; without it Landlock must hold alone.
        "landlock" => &DENY_ALL[..DENY_ALL.len() - 1],
        _ => &[],
    };
    let (_, attempt) = ATTEMPTS.iter().find(|(known, _)| *known == name).unwrap();
    // Opened before, as the real ones are: afterwards only descriptors are left.
    let mut out = std::io::stderr();
    if let Err(error) = enter(steps, &SETTINGS) {
        let _ = writeln!(out, "RESULT {error}");
        return;
    }
    let result = match attempt() {
        Ok(()) => "RESULT ok".to_owned(),
        Err(number) => format!("RESULT {number}"),
    };
    let _ = writeln!(out, "{result}");
    std::process::exit(0);
}

fn run(sequence: &str, name: &str) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "attempt", "--nocapture"])
        .env(ATTEMPT, format!("{sequence} {name}"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix("RESULT "));
    line.unwrap_or_else(|| panic!("{sequence} {name}: {:?} {text}", output.status)).to_owned()
}

fn refused(sequence: &str, expected: &[(&str, i32)]) {
    let mut seen = 0;
    for (name, number) in expected {
        // clone3 without arguments is EINVAL, and a limit can be raised only where it may: the others must work.
        let before = run("none", name);
        assert!(before == "ok" || *name == "clone3" || *name == "raise-limit", "{name} before: {before}");
        assert_eq!(run(sequence, name), number.to_string(), "{sequence}: {name}");
        seen += 1;
    }
    println!("{sequence}: {seen} refusals seen");
}

#[test]
fn a_worker_under_advisory_is_refused_what_the_class_holds() {
    refused(
        "advisory",
        &[
            ("exec", libc::EPERM),
            ("unix-socket", libc::EACCES),
            ("namespace", libc::EPERM),
            ("clone3", libc::ENOSYS),
            ("large-file", libc::EFBIG),
            ("many-files", libc::EMFILE),
            ("raise-limit", libc::EPERM),
        ],
    );
    // No kernel claim on files, and threads as any program needs them.
    for allowed in ["open", "socket", "thread"] {
        assert_eq!(run("advisory", allowed), "ok", "{allowed}");
    }
}

#[test]
fn a_process_under_deny_all_is_refused_every_path_program_and_socket() {
    refused(
        "deny-all",
        &[
            ("open", libc::EPERM),
            ("exec", libc::EPERM),
            ("socket", libc::EPERM),
            ("unix-socket", libc::EPERM),
            ("namespace", libc::EPERM),
            ("clone3", libc::EPERM),
            ("raise-limit", libc::EPERM),
            ("thread", libc::EPERM),
        ],
    );
}

#[test]
fn landlock_alone_already_keeps_every_path_out_of_reach() {
    let abi = mur_containment_kernel::landlock::kernel_abi();
    assert!(abi.is_some(), "this kernel has no Landlock, so this cannot be shown here");
    refused("landlock", &[("open", libc::EACCES), ("exec", libc::EACCES)]);
}
