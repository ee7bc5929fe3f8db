//! "The formation channel" of the roster seed: every refusal with its own reason, before anything is staged.

#![allow(unsafe_code, reason = "descriptors are handed over between fork and exec")]

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;

use mur_tests::live::formation::worker;
use mur_tests::live::{Home, Running, trace};

const FORMATION: &str = "frm_0123456789abcdef0123456789abcdef";

/// Runs a member by hand whose channel is `fd`, and returns what it said.
fn with_channel(home: &Home, fd: Option<&OwnedFd>, channel: &str, formation: Option<&str>) -> String {
    let mut command = home.command(["run", "--capsule", "local/worker", "--capsule-version", "1.0.0", "--json"]);
    command.env("MURMUR_FORMATION_CHANNEL", channel);
    if let Some(formation) = formation {
        command.env("MURMUR_FORMATION_ID", formation);
    }
    if let Some(fd) = fd {
        let (from, to) = (fd.as_raw_fd(), 50);
        // SAFETY: dup2 between fork and exec, on descriptors this process holds open.
        unsafe {
            command
                .pre_exec(move || if libc::dup2(from, to) < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) });
        }
    }
    let output = Running::start(command).finish().refused("E-RUN-046");
    assert!(output.stdout.is_empty(), "{}", output.stdout);
    assert!(trace::sessions(home.murmur().join("records")).is_empty(), "something was staged");
    output.stderr
}

fn pipe_with(bytes: &[u8]) -> OwnedFd {
    let (read, write) = nix::unistd::pipe().unwrap();
    nix::unistd::write(&write, bytes).unwrap();
    read
}

#[test]
fn each_fault_of_the_channel_has_its_own_reason() {
    let home = Home::new();
    worker().install(&home);
    let good = format!(r#"{{"formation":"{FORMATION}","member":"a","key":"x","tokens":[]}}"#);
    let mut reasons = vec![
        with_channel(&home, None, "50", None),
        with_channel(&home, None, "fifty", Some(FORMATION)),
        with_channel(&home, None, "50", Some(FORMATION)),
    ];
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    reasons.push(with_channel(&home, Some(&null), "50", Some(FORMATION)));
    let of_socket = with_channel(&home, Some(&socket.into()), "50", Some(FORMATION));
    assert!(of_socket.contains("pipe"), "{of_socket}");
    for bytes in
        [&b"not json\n"[..], b"{}\n", b"\0\0\0\n", good.replace(FORMATION, &FORMATION.replace('0', "1")).as_bytes()]
    {
        let mut line = bytes.to_vec();
        if !line.ends_with(b"\n") {
            line.push(b'\n');
        }
        reasons.push(with_channel(&home, Some(&pipe_with(&line)), "50", Some(FORMATION)));
    }
    // A pipe that ends before its line does.
    reasons.push(with_channel(&home, Some(&pipe_with(b"{\"formation\"")), "50", Some(FORMATION)));
    let first: Vec<&str> = reasons.iter().map(|text| text.lines().next().unwrap_or_default()).collect();
    let mut distinct = first.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert!(distinct.len() >= 5, "reasons are told apart: {first:#?}");
}

#[test]
fn a_line_of_a_hundred_megabytes_is_refused_by_its_length_long_before_its_end() {
    use std::io::Write as _;
    let home = Home::new();
    worker().install(&home);
    let (read, write) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).unwrap();
    let sender = std::thread::spawn(move || {
        let mut pipe = std::fs::File::from(write);
        let chunk = vec![b'x'; 1 << 20];
        // Whoever refuses the line stops reading it.
        (0..100_usize).find(|_| pipe.write_all(&chunk).is_err())
    });
    let text = with_channel(&home, Some(&read), "50", Some(FORMATION));
    drop(read);
    let refused_at = sender.join().unwrap();
    assert!(refused_at.is_some_and(|megabyte| megabyte < 3), "it read on: {refused_at:?}");
    assert!(text.contains("1048576 bytes"), "{text}");
}

#[test]
fn a_line_that_does_not_come_is_waited_for_ten_seconds() {
    let home = Home::new();
    worker().install(&home);
    let (read, write) = nix::unistd::pipe().unwrap();
    nix::unistd::write(&write, b"half a line").unwrap();
    let started = std::time::Instant::now();
    let text = with_channel(&home, Some(&read), "50", Some(FORMATION));
    assert!(started.elapsed().as_secs() >= 9, "it did not wait");
    assert!(text.contains("10 seconds"), "{text}");
    drop(write);
}

#[test]
fn a_malformed_formation_id_is_refused_and_not_echoed() {
    let mut home = Home::new();
    worker().install(&home);
    home.set("MURMUR_FORMATION_ID", "frm_SECRETLOOKING");
    let output =
        home.mur(["run", "--capsule", "local/worker", "--capsule-version", "1.0.0", "--json"]).refused("E-RUN-044");
    assert!(!output.stderr.contains("SECRETLOOKING"), "{}", output.stderr);
}

#[test]
fn peers_in_the_environment_are_refused() {
    let mut home = Home::new();
    worker().install(&home);
    home.set("MURMUR_FORMATION_PEERS", "a=http://a.formation.invalid");
    home.mur(["run", "--capsule", "local/worker", "--capsule-version", "1.0.0"]).refused("E-RUN-046");
    home.write("roster.yaml", "x");
    home.mur(["run", "--roster"]).refused("E-RUN-046");
}
