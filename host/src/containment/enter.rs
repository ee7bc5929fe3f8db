//! `mur __enter`: the first process in a root that a program has composed. It is single-threaded, is told what to enter and
//! which command to start, enters, and waits until nothing of the command is left.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use mur_containment_kernel::wrapped::{self, CONNECTION};

use super::message::receive;
use super::wrapped::Entering;
use crate::diagnostics::output;
use crate::process::fds;

/// Entry of the hidden subcommand.
pub fn main(mut args: impl Iterator<Item = std::ffi::OsString>) -> u8 {
    // A program is tried by executing this: that it runs is the answer.
    if args.next().is_some_and(|word| word == "--trial") {
        return 0;
    }
    let Ok(connection) = fds::adopt(CONNECTION) else {
        output::stderr_line("mur __enter: it is started by mur itself, with a connection as descriptor 3");
        return 1;
    };
    let connection = UnixStream::from(connection);
    match receive::<Entering>(&connection) {
        Ok(Some((told, beside))) => enter(&told, beside, connection.into()),
        Ok(None) => 1,
        Err(error) => {
            wrapped::refuse(&connection.into(), "reading the request", &error.to_string());
            1
        }
    }
}

fn enter(told: &Entering, beside: Vec<OwnedFd>, connection: OwnedFd) -> u8 {
    let mut beside = beside.into_iter();
    let mut next = || beside.next();
    let (Some(library), Some(input), Some(out), Some(error), Some(control)) = (next(), next(), next(), next(), next())
    else {
        wrapped::refuse(&connection, "reading the request", "its descriptors did not come");
        return 1;
    };
    let profile: Vec<OwnedFd> = beside.collect();
    let numbers: Vec<i32> = profile.iter().map(AsRawFd::as_raw_fd).collect();
    if let Err(why) = crate::plugins::enter_in_root(library.as_fd(), &told.profile, &numbers) {
        wrapped::refuse_in_words(&connection, &why);
        return 1;
    }
    wrapped::run(&told.command, [input, out, error], control, connection)
}
