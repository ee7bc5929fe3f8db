//! The credential gateway: an artifact's requests to `127.0.0.1:9` go to its provider with the key attached here.

use std::sync::Arc;

use super::Secret;

/// Reads a key again by its credential name; `None` when it cannot be read.
pub type ReadKey = Arc<dyn Fn(&str) -> Option<Secret> + Send + Sync>;

/// Where a gateway's key comes from.
#[derive(Clone)]
pub enum KeySource {
    /// The endpoint takes no key.
    Keyless,
    /// Read once: a literal, or an environment variable.
    Fixed(Secret),
    /// `credentials.<NAME>` of the global configuration: read again before each request and after a 401. `last` is what
    /// staging read, kept for as long as nothing newer can be read.
    Configured {
        /// The credential's name.
        name: String,
        /// What staging read.
        last: Secret,
        /// Reads it again.
        read: ReadKey,
    },
}

/// One artifact's gateway.
pub struct Gateway {}
