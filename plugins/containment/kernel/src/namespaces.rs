//! The namespaces of one session, made by a short-lived child and handed back as descriptors.
//!
//! The child owns nothing of the maker's: it unshares, writes its id maps, sets up the network, starts the first process of
//! the process namespace as a sibling, sends everything over a socket and ends. The maker itself never enters a namespace.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg, sendmsg, socketpair,
};

use crate::step::{Done, Step, StepError, check, run};
use crate::{network, process, scope, watcher};

/// Most listeners of a session.
const MAX_LISTENERS: usize = 17;
/// User, network, ipc, process.
const NAMESPACES: usize = 4;

/// What is asked of a session's namespaces.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// TCP ports with a listener; 0 lets the kernel choose.
    pub ports: Vec<u16>,
    /// Whether there is a socket for name queries.
    pub names: bool,
}

/// The namespaces of one session. Dropping them ends everything in the process namespace.
#[derive(Debug)]
pub struct Namespaces {
    /// User, network, ipc and process namespace.
    pub fds: [OwnedFd; NAMESPACES],
    /// Sockets inside the network namespace: TCP in the order of the ports, then the one for names.
    pub listeners: Vec<OwnedFd>,
    init: libc::pid_t,
    /// Its end ends the namespace's first process.
    lifeline: Option<OwnedFd>,
}

/// The child at work.
struct Creating<'a> {
    scope: &'a [BorrowedFd<'a>],
    wanted: &'a Wanted,
    lifeline: &'a OwnedFd,
    to: &'a OwnedFd,
    listeners: Vec<OwnedFd>,
    namespaces: Vec<OwnedFd>,
    init: libc::pid_t,
}

/// How a session's namespaces are made, in order.
const CREATE: &[Step<Creating<'static>>] = &[
    Step {
        name: "joining the cgroup scope",
        effect: "the namespace's first process counts against the session's limits",
        run: |on| Ok(scope::join(on.scope)?),
    },
    Step {
        name: "unshare(CLONE_NEWUSER | CLONE_NEWNET)",
        effect: "a user namespace without rights outside, a network without any interface but lo",
        run: |_| unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET),
    },
    Step { name: "writing uid_map/gid_map", effect: "one user and group, the maker's own", run: |_| id_maps() },
    Step {
        name: "bringing lo up",
        effect: "processes of the session reach each other",
        run: |_| done(network::loopback_up()),
    },
    Step {
        name: "installing the local default route",
        effect: "every IPv4 address leads to a listener of mur's or is refused",
        run: |_| done(network::local_default_route()),
    },
    Step {
        name: "binding a TCP listener inside the namespace",
        effect: "what mur answers",
        run: |on| {
            for port in &on.wanted.ports {
                on.listeners.push(network::tcp_listener(*port)?);
            }
            Ok(Done::Enforced)
        },
    },
    Step {
        name: "binding UDP 53 inside the namespace",
        effect: "names mur resolves",
        run: |on| {
            if on.wanted.names {
                on.listeners.push(network::name_socket()?);
            }
            Ok(Done::Enforced)
        },
    },
    Step {
        name: "unshare(CLONE_NEWIPC)",
        effect: "shared memory and message queues of the session's own",
        run: |_| unshare(libc::CLONE_NEWIPC),
    },
    Step {
        name: "unshare(CLONE_NEWPID)",
        effect: "process numbers of the session's own",
        run: |_| unshare(libc::CLONE_NEWPID),
    },
    Step { name: "starting the first process of the namespace", effect: "its end ends all others", run: start_init },
    Step {
        name: "opening /proc/self/ns/user and /proc/self/ns/net",
        effect: "what others join by",
        run: |on| {
            for name in ["user", "net", "ipc", "pid_for_children"] {
                let file =
                    fs::File::open(format!("/proc/self/ns/{name}")).map_err(|error| StepError::new(name, error))?;
                on.namespaces.push(file.into());
            }
            Ok(Done::Enforced)
        },
    },
    Step { name: "handing the namespace to the runtime", effect: "", run: hand_over },
];

fn done(outcome: io::Result<()>) -> Result<Done, StepError> {
    outcome?;
    Ok(Done::Enforced)
}

pub(crate) fn unshare(flags: i32) -> Result<Done, StepError> {
    // SAFETY: plain integers; the process is single-threaded.
    check(unsafe { libc::unshare(flags) })?;
    Ok(Done::Enforced)
}

/// One id each, as outside. The kernel lets only a dumpable process open its own maps.
fn id_maps() -> Result<Done, StepError> {
    // SAFETY: no arguments. Within the new namespace these are unmapped, so they were read before.
    let (uid, gid) = OUTER.with(std::cell::Cell::get);
    process::set_dumpable(true)?;
    let written = (|| {
        fs::write("/proc/self/setgroups", "deny").map_err(|error| StepError::new("setgroups", error))?;
        fs::write("/proc/self/uid_map", format!("{uid} {uid} 1")).map_err(|error| StepError::new("uid_map", error))?;
        fs::write("/proc/self/gid_map", format!("{gid} {gid} 1")).map_err(|error| StepError::new("gid_map", error))
    })();
    process::set_dumpable(false)?;
    written.map(|()| Done::Enforced)
}

thread_local! {
    /// User and group before the user namespace was entered.
    static OUTER: std::cell::Cell<(u32, u32)> = const { std::cell::Cell::new((0, 0)) };
}

/// Forks the first process of the process namespace as a child of the maker, not of this one, which is about to end.
fn start_init(on: &mut Creating<'_>) -> Result<Done, StepError> {
    let (waits, ready) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
    let flags = libc::CLONE_PARENT as libc::c_long | libc::SIGCHLD as libc::c_long;
    // SAFETY: like fork: no shared memory, no new stack; the process is single-threaded, so the child may run any code.
    let pid = check(unsafe { libc::syscall(libc::SYS_clone, flags, 0_u64, 0_u64, 0_u64, 0_u64) })?;
    if pid == 0 {
        watcher::init(on.lifeline, &ready);
    }
    drop(ready);
    if nix::unistd::read(&waits, &mut [0]) != Ok(1) {
        return Err(io::Error::from_raw_os_error(libc::ECHILD).into());
    }
    on.init = i32::try_from(pid).unwrap_or_default();
    Ok(Done::Enforced)
}

fn hand_over(on: &mut Creating<'_>) -> Result<Done, StepError> {
    let fds: Vec<RawFd> = on.namespaces.iter().chain(&on.listeners).map(AsRawFd::as_raw_fd).collect();
    let bytes = on.init.to_le_bytes();
    let slice = [io::IoSlice::new(&bytes)];
    sendmsg::<()>(on.to.as_raw_fd(), &slice, &[ControlMessage::ScmRights(&fds)], MsgFlags::MSG_NOSIGNAL, None)?;
    Ok(Done::Enforced)
}

/// Makes the namespaces of a session. The first process in them joins the scope: what there is of it in the v2 tree, whose
/// joining file comes first, by being born of a process that was.
pub fn create(
    scope: &[BorrowedFd<'_>],
    tree: Option<BorrowedFd<'_>>,
    wanted: &Wanted,
) -> Result<Namespaces, StepError> {
    let start = |error: nix::errno::Errno| StepError::new("starting the creator of the namespaces", error);
    if wanted.ports.len() + usize::from(wanted.names) > MAX_LISTENERS {
        return Err(StepError::new("binding a TCP listener inside the namespace", nix::errno::Errno::E2BIG));
    }
    let pair = || socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC);
    let (ours, theirs) = pair().map_err(start)?;
    let (lifeline, held) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).map_err(start)?;
    let born = tree.zip(scope.split_first()).and_then(|(tree, (_, rest))| Some((process::fork_into(tree).ok()?, rest)));
    let (creator, scope) = match born {
        Some(born) => born,
        None => {
            (process::fork().map_err(|error| StepError::new("starting the creator of the namespaces", error))?, scope)
        }
    };
    if creator == 0 {
        drop((ours, held));
        create_in_child(scope, wanted, &lifeline, &theirs);
    }
    drop((theirs, lifeline));
    let received = receive(&ours);
    let _ = process::reap(creator);
    let (init, mut fds) = received?;
    let listeners = fds.split_off(NAMESPACES);
    let fds = <[OwnedFd; NAMESPACES]>::try_from(fds)
        .map_err(|_| StepError::new("handing the namespace to the runtime", nix::errno::Errno::EPROTO))?;
    Ok(Namespaces { fds, listeners, init, lifeline: Some(held) })
}

fn create_in_child(scope: &[BorrowedFd<'_>], wanted: &Wanted, lifeline: &OwnedFd, to: &OwnedFd) -> ! {
    // SAFETY: no arguments.
    OUTER.with(|outer| outer.set(unsafe { (libc::geteuid(), libc::getegid()) }));
    let creating = Creating { scope, wanted, lifeline, to, listeners: Vec::new(), namespaces: Vec::new(), init: 0 };
    // SAFETY: the steps name a lifetime that this process, which ends below, never leaves.
    let mut creating: Creating<'static> = unsafe { std::mem::transmute(creating) };
    if let Err(error) = run(CREATE, &mut creating) {
        let account = [&error.errno().to_le_bytes()[..], error.step.as_bytes()].concat();
        let slice = [io::IoSlice::new(&account)];
        let _ = sendmsg::<()>(to.as_raw_fd(), &slice, &[], MsgFlags::MSG_NOSIGNAL, None);
        process::leave(1);
    }
    process::leave(0)
}

/// The creator's answer: the first process and the descriptors, or the step that failed.
fn receive(from: &OwnedFd) -> Result<(libc::pid_t, Vec<OwnedFd>), StepError> {
    let ended = || StepError::new("handing the namespace to the runtime", nix::errno::Errno::EPIPE);
    let mut buffer = [0_u8; 1024];
    let mut space = nix::cmsg_space!([RawFd; NAMESPACES + MAX_LISTENERS]);
    let mut slices = [io::IoSliceMut::new(&mut buffer)];
    let message = loop {
        match recvmsg::<()>(from.as_raw_fd(), &mut slices, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC) {
            Err(nix::errno::Errno::EINTR) => {}
            other => break other.map_err(|_| ended())?,
        }
    };
    let mut fds = Vec::new();
    for control in message.cmsgs().map_err(|_| ended())? {
        if let ControlMessageOwned::ScmRights(received) = control {
            // SAFETY: the kernel has just made these descriptors in this process.
            fds.extend(received.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    let count = message.bytes;
    let Some((number, name)) = buffer[..count].split_first_chunk::<4>() else { return Err(ended()) };
    let number = i32::from_le_bytes(*number);
    if fds.len() >= NAMESPACES {
        return Ok((number, fds));
    }
    Err(StepError::new(String::from_utf8_lossy(name).into_owned(), io::Error::from_raw_os_error(number)))
}

/// Joins a namespace by its descriptor.
pub(crate) fn join(namespace: Option<BorrowedFd<'_>>, kind: i32) -> io::Result<Done> {
    let fd = namespace.ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
    // SAFETY: a descriptor and a kind; the process is single-threaded.
    check(unsafe { libc::setns(fd.as_raw_fd(), kind) })?;
    Ok(Done::Enforced)
}

impl Namespaces {
    /// Joins all of them; what is started from then on is in the process namespace.
    pub(crate) fn join_all(&self) -> io::Result<()> {
        let kinds = [libc::CLONE_NEWUSER, libc::CLONE_NEWNET, libc::CLONE_NEWIPC, libc::CLONE_NEWPID];
        for (fd, kind) in self.fds.iter().zip(kinds) {
            join(Some(fd.as_fd()), kind)?;
        }
        Ok(())
    }

    /// The host's number of the namespace's first process.
    pub fn init(&self) -> libc::pid_t {
        self.init
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        drop(self.lifeline.take());
        // It ends once everything in its namespace has.
        process::kill(self.init);
    }
}
