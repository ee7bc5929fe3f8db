//! Everything that leaves the machine or goes to a peer: allow-list, HTTP client, credential gateway, formation
//! addresses. Provider keys live here and nowhere else.
//!
//! A request takes one of three ways, decided by its authority before anything connects: the sender's own gateway
//! (`127.0.0.1:9`), a member of the formation (`<name>.formation.invalid`), or a host of the sender's rules. Anything
//! else is refused.

pub mod gateway;
pub mod peers;
pub mod rules;
pub mod secret;
pub mod types;

use std::sync::Arc;

pub use gateway::{Gateway, KeySource};
pub use peers::{PeerDoor, Peers};
pub use rules::RuleSet;
pub use secret::Secret;
pub use types::{HttpBody, HttpError, HttpRequest, HttpResponse, PeerAnswer, PeerMessage, Timeouts, TrustClass};

/// On whose behalf a request is sent.
#[derive(Clone)]
pub struct Sender {
    /// The artifact's bare name, for messages.
    pub artifact: String,
    /// Where it may connect.
    pub rules: RuleSet,
    /// Its credential gateway, if its entry has one.
    pub gateway: Option<Arc<Gateway>>,
    /// The trust of the task it runs for; `Untrusted` when there is none. Stamped on calls to peers.
    pub trust: TrustClass,
    /// The W3C trace context stamped on calls to peers.
    pub traceparent: Option<String>,
}

/// The one way out of a session. Shared by every call.
pub struct Egress {
    peers: Option<Arc<dyn Peers>>,
}

impl Egress {
    /// For a session; `peers` are the members a formation member may call. The TLS client is made when first needed.
    pub fn new(peers: Option<Arc<dyn Peers>>) -> Arc<Self> {
        Arc::new(Self { peers })
    }

    /// Sends one request and returns as soon as the response's head is here; the body streams. Never follows a
    /// redirect, never uses a proxy. A refused request opens no connection.
    pub async fn send(&self, _sender: &Sender, _request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let _ = &self.peers;
        Err(HttpError::Other("egress is not built yet".into()))
    }

    /// `murmur:message/send`: one A2A message to a peer's door or a virtual address. The error is the artifact's, word
    /// for word.
    pub async fn message_send(
        &self,
        _sender: &Sender,
        _peer_url: &str,
        _message: PeerMessage,
    ) -> Result<PeerAnswer, String> {
        Err("egress is not built yet".into())
    }
}
