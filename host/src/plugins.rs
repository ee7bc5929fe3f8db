//! Plugins in the host: finding them, deciding whether they are trusted, loading them, and calling them safely.
//!
//! Containment classes, artifact stores and trace sinks are shared libraries behind the ABI of `mur-plugin-api`. A
//! library runs only when its SHA-256 is pinned or a publisher the operator trusts signed it, its file, directory and lock
//! are writable by nobody but root and the operator, and its interface version is one the host speaks. Calls are made on threads of their own and under a
//! deadline, so a plugin that hangs, fails or panics is named and the host goes on where it can.

mod approve;
mod call;
mod catalog;
mod check;
mod library;
mod pin;
mod publishers;
mod registry;
mod sign;
mod sink;
mod store;
mod trust;
mod worker;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use mur_plugin_api::Class;

use crate::diagnostics::Result;

pub use approve::Trusted;
pub use catalog::Pinned;
pub use mur_plugin_api::conformance::Check;
pub use publishers::Publisher;
pub use registry::{Listed, Registry};
pub use sign::sign;
pub use worker::{enter_in_root, enter_in_worker, load_backend, network_sockets, prepare_profile, profile_copies};

/// What the global configuration says about plugins (`plugins:` of `~/.murmur/config.yaml`; a project's is ignored).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// `plugins.containment.<class>`: the name of a pinned plugin, or the absolute path of a pinned or signed library. A
    /// class that is not listed is served by the first-party library.
    pub containment: BTreeMap<Class, String>,
    /// Libraries that `stores:` and `sinks:` name by path, for the listing.
    pub named: Vec<PathBuf>,
}

/// One stored artifact payload, as a store describes it. Nothing here is believed: the host hashes what it reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreEntry {
    /// Full name, `<scope>/<name>`.
    pub name: String,
    /// Version, exact text.
    pub version: String,
    /// Platform tag of a tagged payload.
    pub platform: Option<String>,
    /// SHA-256 of the payload, 64 lowercase hex digits, as recorded beside it.
    pub sha256: String,
    /// Size of the payload in bytes.
    pub size: u64,
    /// Media type of the payload.
    pub media_type: String,
    /// The store's metadata object as JSON text; empty when there is none.
    pub metadata: String,
}

/// What a store says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreDescription {
    /// The plugin's name.
    pub name: String,
    /// Where it keeps things, for messages.
    pub location: String,
    /// Whether `write` and `remove` can work.
    pub writable: bool,
}

/// An artifact store. Every call blocks, is made on a plugin thread and ends by its deadline; a fault is a diagnostic
/// that names the plugin (`E-PLG-005`), a failure of the place behind it `E-IO-002` or `E-IO-003`.
pub trait Store: Send + Sync {
    /// What the store said of itself when it was opened.
    fn description(&self) -> &StoreDescription;
    /// The payload of a name and version: with a platform the tagged one first, then the untagged one.
    fn find(&self, name: &str, version: &str, platform: Option<&str>) -> Result<Option<StoreEntry>>;
    /// Everything, or everything of one scope; every platform is an entry of its own.
    fn list(&self, scope: Option<&str>) -> Result<Vec<StoreEntry>>;
    /// The payload's bytes, at most `limit` of them (more is an error).
    fn read(&self, entry: &StoreEntry, limit: u64) -> Result<Vec<u8>>;
    /// Files a payload under the entry's name, version and platform, with its digest and metadata. Atomic: a reader sees
    /// the old state or the whole new one. An existing payload is replaced.
    fn write(&self, entry: &StoreEntry, payload: Box<dyn Read + Send>) -> Result<()>;
    /// Removes a name and version, all platforms; `false` when there was none.
    fn remove(&self, name: &str, version: &str) -> Result<bool>;
}

/// What a sink is told when a session begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionHeader {
    /// `ses_…`.
    pub session_id: String,
    /// Capsule name.
    pub capsule: String,
    /// Capsule version.
    pub version: String,
    /// `frm_…` of a formation member.
    pub formation_id: Option<String>,
    /// The session's records directory.
    pub records_dir: PathBuf,
}

/// A trace sink. Every call blocks, is made on a plugin thread and ends by its deadline. After a fault every further call
/// is refused at once.
pub trait Sink: Send {
    /// The plugin's name.
    fn name(&self) -> &str;
    /// Begins; called once, before any write.
    fn open(&mut self, session: &SessionHeader) -> Result<()>;
    /// Writes a batch of complete JSON records, one line each, without line ends.
    fn write(&mut self, records: &[Bytes]) -> Result<()>;
    /// Brings what was written to its place, within the time given.
    fn flush(&mut self, within: Duration) -> Result<()>;
    /// Ends; no call follows.
    fn close(&mut self) -> Result<()>;
}
