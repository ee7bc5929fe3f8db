//! The worker's side: entering a class with the library `mur` handed over.

use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use mur_plugin_api::containment::ContainmentModuleRef;
use mur_plugin_api::{ErrorKind, Kind, elf};

use super::library::{load_fd, module};

/// In a worker: loads the containment library from the descriptor `mur` handed over and enters the class. The process is
/// single-threaded, and either confined completely afterwards or told why not in one line. Nothing is hashed again: the
/// descriptor came from `mur`. It may be closed afterwards, as this process loads no other library.
///
/// May return in a forked child.
pub fn enter_in_worker(library: BorrowedFd<'_>, request: &[u8], fds: &[RawFd]) -> Result<(), String> {
    let file = library.try_clone_to_owned().map(File::from).map_err(|error| format!("the library: {error}"))?;
    let size = file.metadata().map_err(|error| format!("the library: {error}"))?.len();
    let info = elf::read_header(&file, size).map_err(|error| format!("the library {error}"))?;
    drop(file);
    if info.kind != Kind::Containment || !info.is_accepted() {
        return Err(format!("{} plugin '{}' serves no containment class this mur can enter", info.kind, info.name));
    }
    let about = |why: String| format!("containment plugin '{}' {}: {why}", info.name, info.version);
    let root = load_fd(library.as_raw_fd()).map_err(|fault| about(fault.line()))?;
    let module: ContainmentModuleRef = module(root).map_err(|fault| about(fault.line()))?;
    module.enter()(request.into(), fds.into()).into_result().map_err(|error| {
        let panicked = if error.kind() == ErrorKind::Panicked { "it panicked: " } else { "" };
        about(format!("{panicked}{}", error.message().replace('\n', " ")))
    })
}
