//! Containment libraries from the descriptors `mur` hands over: entering a class in a worker, and the backend that a
//! session's enclosure is made with.

#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

use mur_plugin_api::containment::ContainmentModuleRef;
use mur_plugin_api::{BackendObject, EnclosureObject, ErrorKind, Kind, PluginError, Profile, elf};

use super::library::{load_fd, module};

/// In a worker: loads the containment library from the descriptor `mur` handed over and enters the class. The process is
/// single-threaded, and either confined completely afterwards or told why not in one line. Nothing is hashed again: the
/// descriptor came from `mur`. It may be closed afterwards, as this process loads no other library.
///
/// May return in a forked child.
pub fn enter_in_worker(library: BorrowedFd<'_>, request: &[u8], fds: &[RawFd]) -> Result<(), String> {
    let (module, about) = load(library)?;
    module.enter()(request.into(), fds.into()).into_result().map_err(|error| about.fault(&error))
}

/// The same in the first process of a root that a program composed; an error begins with the name of the step.
pub fn enter_in_root(library: BorrowedFd<'_>, request: &[u8], fds: &[RawFd]) -> Result<(), String> {
    let (module, about) = load(library)?;
    module.enter()(request.into(), fds.into()).into_result().map_err(|error| match error.kind() {
        ErrorKind::Panicked => about.fault(&error),
        _ => error.message().replace('\n', " "),
    })
}

/// Copies of a profile's descriptors.
pub fn profile_copies(profile: &Profile) -> std::io::Result<Vec<OwnedFd>> {
    // SAFETY: by the interface a profile's descriptors belong to whoever asked for it, and they are open while it is held.
    profile.fds.iter().map(|fd| unsafe { BorrowedFd::borrow_raw(*fd) }.try_clone_to_owned()).collect()
}

/// In a session's enclosure: loads a library and makes its backend. The descriptor stays open, as a further library must
/// not be opened under its number.
pub fn load_backend(library: OwnedFd) -> Result<BackendObject, String> {
    let (module, about) = load(library.as_fd())?;
    let _ = library.into_raw_fd();
    module.open()("{}".into()).into_result().map_err(|error| about.fault(&error))
}

/// In a session's enclosure: makes a profile ready, its descriptors owned.
pub fn prepare_profile(
    enclosure: &mut EnclosureObject,
    request: &[u8],
) -> Result<(Vec<u8>, Vec<OwnedFd>), PluginError> {
    let profile = enclosure.prepare(request)?;
    // SAFETY: by the interface a profile's descriptors belong to whoever asked for it.
    let fds = profile.fds.iter().map(|fd| unsafe { OwnedFd::from_raw_fd(*fd) }).collect();
    Ok((profile.request.into_vec(), fds))
}

/// In a session's enclosure: the sockets inside its network, owned.
pub fn network_sockets(enclosure: &mut EnclosureObject) -> Result<Vec<OwnedFd>, PluginError> {
    // SAFETY: by the interface these descriptors belong to whoever asked for them.
    Ok(enclosure.network()?.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).collect())
}

/// How a library is named in what it is blamed for.
struct About(String);

impl About {
    fn fault(&self, error: &PluginError) -> String {
        let panicked = if error.kind() == ErrorKind::Panicked { "it panicked: " } else { "" };
        format!("{}: {panicked}{}", self.0, error.message().replace('\n', " "))
    }
}

fn load(library: BorrowedFd<'_>) -> Result<(ContainmentModuleRef, About), String> {
    let file = library.try_clone_to_owned().map(File::from).map_err(|error| format!("the library: {error}"))?;
    let size = file.metadata().map_err(|error| format!("the library: {error}"))?.len();
    let info = elf::read_header(&file, size).map_err(|error| format!("the library {error}"))?;
    drop(file);
    if info.kind != Kind::Containment || !info.is_accepted() {
        return Err(format!("{} plugin '{}' serves no containment class this mur can enter", info.kind, info.name));
    }
    let about = About(format!("containment plugin '{}' {}", info.name, info.version));
    let root = load_fd(library.as_raw_fd()).map_err(|fault| format!("{}: {}", about.0, fault.line()))?;
    let module: ContainmentModuleRef = module(root).map_err(|fault| format!("{}: {}", about.0, fault.line()))?;
    Ok((module, about))
}
