//! The stable ABI between `mur` and its plugins, and the conformance kit every plugin can be tested with.
//!
//! A plugin is a shared library that serves one containment class, one artifact store or one trace sink. It implements
//! [`ContainmentBackend`], [`ArtifactStore`] or [`TraceSink`] and exports itself with [`export_plugin!`]:
//!
//! - a plain static, [`PluginHeader`], that the host reads from the file before any code of the library runs: kind, the
//!   kind's interface version, name, version;
//! - a root module of its kind behind `abi_stable`, whose layout the host checks. Tables of functions are prefix types,
//!   so functions can be added at their end without breaking a library that was built before.
//!
//! Every exported function catches panics. Strings are UTF-8, paths are bytes, times are nanoseconds, sizes are bytes.
//! Calls block; the host makes them off its own threads and under a deadline.

#![allow(unsafe_code)]
// One comment above each table of thin wrappers states the invariant all of them rely on.
#![allow(clippy::undocumented_unsafe_blocks)]

pub mod class;
pub mod conformance;
pub mod containment;
pub mod elf;
pub mod error;
pub mod header;
pub mod lock;
pub mod module;
pub mod request;
pub mod signature;
pub mod sink;
pub mod store;

pub use class::Class;
pub use containment::{
    BackendInfo, BackendObject, ContainmentBackend, Enclosure, EnclosureObject, HostReport, NoEnclosure, Profile,
    Shortfall, Spawned, Usage,
};
pub use error::{ErrorKind, PluginError, initialise};
pub use header::{HeaderInfo, Kind, PluginHeader};
pub use module::{About, Named, PluginDescription};
pub use request::{
    Access, Bytes, CommandRequest, EnclosureBounds, EnclosureRequest, Grant, IoHeld, IoLimit, IoStatus, ProcessKind,
    ProcessLimits, ProfileRequest, ScopeEvents, ScopeLimits,
};
pub use sink::{SessionHeader, SinkObject, TraceSink};
pub use store::{ArtifactStore, ReaderObject, StoreInfo, StoreObject, StoredEntry};

/// The crate the ABI is built with; the export macro names it through here.
pub use abi_stable;
