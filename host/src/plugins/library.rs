//! Loading a library that was opened, hashed and judged, from the descriptor that was.

#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::path::{Path, PathBuf};

use abi_stable::library::{AbiHeaderRef, LibHeader, LibraryError, ROOT_MODULE_LOADER_NAME_WITH_NUL, RootModule};
use libloading::os::unix::{Library as RawLibrary, RTLD_LOCAL, RTLD_NOW};
use mur_plugin_api::HeaderInfo;

use super::trust::Opened;
use crate::diagnostics::{Diagnostic, codes, output};

/// A loaded library; it stays loaded, and its descriptor open, for the life of the process.
#[derive(Clone)]
pub(super) struct Library {
    pub(super) info: HeaderInfo,
    pub(super) path: PathBuf,
    root: &'static LibHeader,
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Library").field("info", &self.info).field("path", &self.path).finish_non_exhaustive()
    }
}

impl Library {
    /// Loads a library whose header was read from the same descriptor. Runs its constructors.
    pub(super) fn load(opened: Opened, info: HeaderInfo) -> crate::diagnostics::Result<Self> {
        let Opened { path, file, .. } = opened;
        let root = load_fd(file.as_raw_fd()).map_err(|fault| fault.about(&path, &info))?;
        keep_open(file);
        Ok(Self { info, path, root })
    }

    /// The root module, after its layout was compared with the host's. Runs the library's own initialisation.
    pub(super) fn module<M: RootModule>(&self) -> crate::diagnostics::Result<M> {
        module(self.root).map_err(|fault| fault.about(&self.path, &self.info))
    }
}

/// `dlopen` knows a library by the text of its path: were the descriptor closed and its number given to another library,
/// opening that one would silently return this one.
fn keep_open(file: File) {
    let _ = file.into_raw_fd();
}

/// Why a library could not be loaded or used.
pub(super) enum Fault {
    /// The loader refused it.
    Load(String),
    /// Another `abi_stable`, or another layout behind the same interface version: one line, and the whole account.
    Layout(String),
    /// Its own initialisation failed.
    Init(String),
}

impl Fault {
    fn about(self, path: &Path, info: &HeaderInfo) -> Diagnostic {
        let HeaderInfo { kind, name, version, interface, .. } = info;
        let what = format!("plugin library {} ({name} {version})", path.display());
        match self {
            Self::Load(why) => Diagnostic::new(codes::E_PLG_003, format!("{what} could not be loaded: {why}"))
                .hint("build or fetch the plugin again for this machine"),
            Self::Layout(account) => {
                output::log(&account);
                let accepted = kind.accepted();
                Diagnostic::new(
                    codes::E_PLG_004,
                    format!(
                        "{what} says it speaks {kind} interface {interface}, but its types are laid out otherwise than \
                         this mur's ({} to {})",
                        accepted.start(),
                        accepted.end()
                    ),
                )
                .hint("build the plugin with this mur's mur-plugin-api")
            }
            Self::Init(why) => Diagnostic::new(codes::E_PLG_005, format!("{what} failed while loading: {why}"))
                .hint("this is the plugin's own fault; report it to its author"),
        }
    }

    /// One line, for a worker to hand back.
    pub(super) fn line(self) -> String {
        match self {
            Self::Load(why) | Self::Init(why) => why,
            Self::Layout(_) => "its types are laid out otherwise than this mur's".to_owned(),
        }
    }
}

/// Loads from a descriptor, which stays open at least until this returns.
pub(super) fn load_fd(fd: RawFd) -> Result<&'static LibHeader, Fault> {
    let path = format!("/proc/self/fd/{fd}");
    // SAFETY: running the constructors of this library is what its pin allows; it is trusted as this program is.
    let library = unsafe { RawLibrary::open(Some(&path), RTLD_NOW | RTLD_LOCAL) }
        .map_err(|error| Fault::Load(one_line(&error.to_string()).replace(&path, "the library")))?;
    // SAFETY: the symbol is the address of the library's header, which begins with an AbiHeader in every version.
    let header =
        unsafe { library.get::<AbiHeaderRef>(ROOT_MODULE_LOADER_NAME_WITH_NUL.as_bytes()) }.map(|found| *found);
    // Never unloaded: what it handed out points into it.
    std::mem::forget(library);
    let header = header.map_err(|_| Fault::Load("it exports no root module".to_owned()))?;
    header.upgrade().map_err(|error| Fault::Layout(error.to_string()))
}

/// The root module behind a library's header.
pub(super) fn module<M: RootModule>(root: &'static LibHeader) -> Result<M, Fault> {
    root.init_root_module::<M>().map_err(|error| match error {
        LibraryError::AbiInstability(account) => Fault::Layout(format!("{account:#?}")),
        LibraryError::RootModule { err, .. } => Fault::Init(one_line(&err.to_string())),
        other => Fault::Layout(other.to_string()),
    })
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
