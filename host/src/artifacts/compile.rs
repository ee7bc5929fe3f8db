//! `mur __compile`: one component into machine code, confined.
//!
//! Compiling reads hostile bytes with a large program, so it is done by a process that can do nothing else: it may
//! open no file, reach no network and start nothing, and it is bounded in time and memory. The component comes on
//! descriptor 3, the machine code goes to descriptor 4, and an account of a failure to stderr.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::RawFd;

use mur_containment_kernel::deny_all;
use mur_plugin_api::ProcessLimits;

use crate::process::{fds, start};
use crate::worker::engine::{self, Reservation};

/// Where the component comes from.
pub(super) const COMPONENT_FD: RawFd = 3;

/// Where the machine code goes.
pub(super) const OUTPUT_FD: RawFd = 4;

/// Address space of the compiler. The largest component under the ceiling that makes sense compiles in well under it.
const MAX_MEMORY: u64 = 4 << 30;

/// Processor seconds of the compiler.
const MAX_SECONDS: u64 = 240;

/// Descriptors of the compiler: it has four and opens none.
const MAX_FILES: u64 = 16;

/// Largest machine code.
const MAX_FORM: u64 = 1 << 30;

/// Exit status when the machine code was made but its place would not take it: no fault of the component's.
pub(super) const UNWRITTEN: u8 = 3;

/// Entry of the hidden subcommand.
pub fn main(args: impl Iterator<Item = std::ffi::OsString>) -> u8 {
    let written = run(args).map(|(form, mut output)| output.write_all(&form).map_err(|error| error.to_string()));
    match written {
        Ok(Ok(())) => 0,
        Ok(Err(account)) => {
            crate::diagnostics::output::stderr_line(&account);
            UNWRITTEN
        }
        Err(account) => {
            crate::diagnostics::output::stderr_line(&account);
            1
        }
    }
}

/// The machine code, and where it goes.
fn run(mut args: impl Iterator<Item = std::ffi::OsString>) -> Result<(Vec<u8>, File), String> {
    start::die_with_parent();
    let word = args.next().and_then(|word| word.into_string().ok());
    let reservation = word.as_deref().and_then(Reservation::parse).ok_or("__compile is started by mur only")?;
    if std::env::vars_os().next().is_some() {
        return Err("__compile takes no environment".into());
    }
    let adopt = |number| fds::adopt(number).map_err(|error| format!("descriptor {number}: {error}"));
    let (mut input, output) = (File::from(adopt(COMPONENT_FD)?), File::from(adopt(OUTPUT_FD)?));
    // All that needs a file, a signal handler or the system's randomness is done before the doors close.
    let engine = engine::engine(reservation).map_err(|error| format!("{error:#}"))?;
    let mut component = Vec::new();
    input.read_to_end(&mut component).map_err(|error| format!("the component cannot be read: {error}"))?;
    drop(input);
    std::hint::black_box(std::collections::hash_map::RandomState::new());
    confine()?;
    let form = engine.precompile_component(&component).map_err(|error| format!("{error:#}"))?;
    Ok((form, output))
}

/// Deny-all Landlock, seccomp and limits, whatever the class of the session. The filter holds on every kernel, so what an
/// older kernel lacks of Landlock still leaves no path within reach.
fn confine() -> Result<(), String> {
    let settings = ProcessLimits {
        open_files: MAX_FILES,
        file_size: MAX_FORM,
        cpu_seconds: Some(MAX_SECONDS),
        address_space: Some(MAX_MEMORY),
    };
    deny_all(&settings).map(drop).map_err(|error| format!("the compiler cannot be confined: {error}"))
}
