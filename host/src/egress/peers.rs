//! Formation addresses: `http://<member>.formation.invalid` is a member's door, reached with the caller's token.

use std::time::Duration;

use super::Secret;
use crate::worker::BoxFuture;

/// A peer's door as the formation channel told it.
pub struct PeerDoor {
    /// Its real URL, such as `http://localhost:40112`.
    pub url: String,
    /// The token of the edge from this member to it.
    pub token: Secret,
}

/// The members this session may call.
pub trait Peers: Send + Sync {
    /// The door of a member, waiting for its URL no longer than given. `None` for a member that may not be called, for
    /// no member at all, and for one whose URL did not come.
    fn door<'a>(&'a self, member: &'a str, wait: Duration) -> BoxFuture<'a, Option<PeerDoor>>;
}
