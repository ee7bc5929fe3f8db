//! The worker's side: what runs in `mur __guest-worker <kind>`.
//!
//! In order, and single-threaded until it says ready: refuse a wrong start; read the confinement request and its
//! descriptors from the connection; enter the confinement; close every descriptor but stdio and the connection. Then a
//! thread reads the connection, and artifacts are loaded and called.

#![allow(unsafe_code)]

mod board;
mod call;
mod code;
mod connection;
mod hook_call;
mod hook_imports;
mod http;
mod imports;
mod load;
mod open;
#[cfg(feature = "escape-probe")]
mod probe;
mod run;
mod state;
mod watch;

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd, RawFd};

use super::engine::Reservation;
use super::protocol::{self, Down, Up};
use super::types::Kind;
use crate::diagnostics::output;
use crate::process::fds;
use connection::Incoming;

/// Exit status of a worker that could not start or lost its connection.
const FAILED: u8 = 1;

/// Entry of the hidden subcommand.
pub fn main(args: impl Iterator<Item = OsString>) -> u8 {
    match start(args) {
        Ok(()) => 0,
        Err(why) => {
            output::stderr_line(&format!("[mur __guest-worker] {why}"));
            FAILED
        }
    }
}

fn start(args: impl Iterator<Item = OsString>) -> Result<(), String> {
    let kind = kind(args)?;
    if let Some((name, _)) = std::env::vars_os().next() {
        return Err(format!(
            "the environment is not empty ('{}' is set); a worker is started by mur itself",
            name.to_string_lossy()
        ));
    }
    let socket = connection_descriptor()?;
    std::env::set_current_dir("/").map_err(|error| format!("cannot enter /: {error}"))?;
    let mut incoming = Incoming::new(socket);
    let engine = match bootstrap(&mut incoming).and_then(|settings| run::prepare(&settings)) {
        Ok(engine) => engine,
        Err(why) => {
            // The parent learns the reason by the connection; the line on stderr is for its logs.
            incoming.outgoing().send(&Up::Refused { reason: protocol::reason(why.clone()) });
            return Err(why);
        }
    };
    incoming.outgoing().greet(&Up::Ready { version: protocol::VERSION, pid: std::process::id() });
    run::serve(kind, engine, incoming)
}

fn kind(mut args: impl Iterator<Item = OsString>) -> Result<Kind, String> {
    let word = args.next().ok_or("no kind is given: driver, tools or hooks")?;
    let kind = word.to_str().and_then(Kind::parse);
    let kind = kind.ok_or_else(|| format!("'{}' is no kind of worker", word.to_string_lossy()))?;
    match args.next() {
        None => Ok(kind),
        Some(more) => Err(format!("'{}' is one argument too many", more.to_string_lossy())),
    }
}

fn connection_descriptor() -> Result<OwnedFd, String> {
    let missing = || format!("descriptor {} is not the connection to mur", protocol::DESCRIPTOR);
    let socket = fds::adopt(protocol::DESCRIPTOR).map_err(|_| missing())?;
    let kind = nix::sys::socket::getsockopt(&socket, nix::sys::socket::sockopt::SockType).map_err(|_| missing())?;
    if kind != nix::sys::socket::SockType::Stream {
        return Err(missing());
    }
    Ok(socket)
}

/// How this worker is to live.
struct Settings {
    reservation: Reservation,
}

/// Reads the confinement request and enters it. Afterwards this process may be a child of the one that began, and holds
/// stdio and the connection.
fn bootstrap(incoming: &mut Incoming) -> Result<Settings, String> {
    let Some(Down::Hello { version, die_with_parent, small, confined, descriptors, request }) = incoming.next()? else {
        return Err("the first frame is not the greeting".to_owned());
    };
    if version != protocol::VERSION {
        return Err(format!("mur speaks version {version} of the worker protocol, this is {}", protocol::VERSION));
    }
    let mut received: Vec<OwnedFd> = Vec::new();
    while received.len() < descriptors as usize {
        let Some(Down::Descriptors { count }) = incoming.next()? else {
            return Err("descriptors were announced and did not come".to_owned());
        };
        received.extend(incoming.take_fds(count as usize)?);
    }
    if die_with_parent {
        crate::process::start::die_with_parent();
    }
    if confined {
        let (library, granted) = received.split_first().ok_or("the containment library did not come")?;
        let granted: Vec<RawFd> = granted.iter().map(AsRawFd::as_raw_fd).collect();
        crate::plugins::enter_in_worker(library.as_fd(), &request, &granted)?;
    }
    for fd in received {
        // Entering may have closed some of them itself: the sweep below closes whatever is left.
        let _ = fd.into_raw_fd();
    }
    close_all_but_connection();
    let reservation = if small { Reservation::Small } else { Reservation::Whole };
    Ok(Settings { reservation })
}

/// Closes every descriptor above the connection. Nothing in this process owns one yet.
fn close_all_but_connection() {
    let first = protocol::DESCRIPTOR.cast_unsigned() + 1;
    // SAFETY: the process is single-threaded and every owned descriptor above the connection has been given up.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) };
    if closed != 0 {
        // Kernels before 5.9: the limit is small by then, and a closed number answers EBADF.
        let limit = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE);
        let limit = limit.map_or(1024, |(soft, _)| i32::try_from(soft).unwrap_or(i32::MAX)).min(1 << 20);
        for number in protocol::DESCRIPTOR + 1..limit {
            // SAFETY: as above.
            unsafe { libc::close(number) };
        }
    }
}
