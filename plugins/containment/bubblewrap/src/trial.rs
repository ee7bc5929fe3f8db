//! A trial: `bwrap` composes an empty session's root and executes `mur` in it.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use mur_containment_kernel::KernelEnclosure;
use mur_containment_kernel::root::accounts_of;
use mur_containment_kernel::wrapped::{Program, Side, given_to, said, text, words_of};
use mur_plugin_api::{EnclosureRequest, ProcessKind, ProcessLimits, ProfileRequest, ScopeLimits};
use std::os::fd::AsRawFd;

const LIMITS: ProcessLimits =
    ProcessLimits { open_files: 64, file_size: 1 << 20, cpu_seconds: None, address_space: None };

/// An enclosure for the trial alone.
pub(crate) fn request() -> Vec<u8> {
    let limits = ScopeLimits { memory: 64 << 20, pids: 16, cpu_percent: 100 };
    serde_json::to_vec(&EnclosureRequest::new("trial", limits)).unwrap_or_default()
}

/// Tries it in an enclosure; says why it does not work.
pub(crate) fn of(kernel: &KernelEnclosure, program: &Path) -> Result<(), String> {
    let in_words = |error: io::Error| error.to_string();
    let asked = ProfileRequest::new(ProcessKind::Command, LIMITS);
    let (entry, fds) = kernel.prepare_wrapped(&asked).map_err(|error| error.message().to_owned())?;
    let plan = entry.root.clone().unwrap_or_default();
    let (passwd, group) = accounts_of(Some(&plan)).map_err(in_words)?;
    let texts = [text(&passwd).map_err(in_words)?, text(group.as_bytes()).map_err(in_words)?];
    let prefix = super::arguments::of(program, &plan, [texts[0].as_raw_fd(), texts[1].as_raw_fd()]);
    let (says, output) = pipe().map_err(in_words)?;
    // Nothing is said over it in a trial.
    let null = OwnedFd::from(File::open("/dev/null").map_err(in_words)?);
    let mur = OwnedFd::from(File::open("/proc/self/exe").map_err(in_words)?);
    let enter = || Side::Outside(entry).enter(&given_to(&fds)).map_err(|error| error.message().to_owned());
    let started = Program::start(&words_of(prefix, &["--trial"]), enter, mur, null, output).map_err(in_words)?;
    if started.succeeds() { Ok(()) } else { Err(said(says)) }
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (reads, writes) = std::io::pipe()?;
    Ok((reads.into(), writes.into()))
}
