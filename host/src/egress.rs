//! Everything that leaves the machine or goes to a peer: allow-list, HTTP client, credential gateway, formation
//! addresses, and the way out of a session's network namespace. Provider keys live here and nowhere else.
//!
//! A request takes one of three ways, decided by its authority before anything connects: the sender's own gateway
//! (`127.0.0.1:9`), a member of the formation (`<name>.formation.invalid`), or a host of the sender's rules. Anything
//! else is refused.

pub mod client;
pub mod gateway;
mod message;
pub mod peers;
pub mod proxy;
pub mod rules;
pub mod secret;
mod send;
#[cfg(test)]
mod tests;
pub mod types;

use std::sync::{Arc, OnceLock};

use tokio::sync::OnceCell;

pub use gateway::{Gateway, KeySource, ReadKey, Variable};
pub use message::refused as message_refused;
pub use peers::{PeerDoor, Peers};
pub use rules::RuleSet;
pub use secret::{Secret, redact};
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
    plain: OnceLock<client::Plain>,
    tls: OnceCell<client::Tls>,
}

impl Egress {
    /// For a session; `peers` are the members a formation member may call. Clients are made when first needed.
    pub fn new(peers: Option<Arc<dyn Peers>>) -> Arc<Self> {
        Arc::new(Self { peers, plain: OnceLock::new(), tls: OnceCell::new() })
    }

    /// Sends one request and returns as soon as the response's head is here; the body streams. Never follows a
    /// redirect, never uses a proxy. A refused request opens no connection.
    pub async fn send(&self, sender: &Sender, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        send::send(self, sender, request).await
    }

    /// `murmur:message/send`: one A2A message to a peer's door or a virtual address. The error is the artifact's, word
    /// for word.
    pub async fn message_send(
        &self,
        sender: &Sender,
        peer_url: &str,
        message: PeerMessage,
    ) -> Result<PeerAnswer, String> {
        message::send(self, sender, peer_url, message).await
    }

    /// Makes the TLS client ahead of the first request: it reads the host's certificate authorities.
    pub async fn warm(&self) {
        self.tls().await;
    }

    fn plain(&self) -> &client::Plain {
        self.plain.get_or_init(client::plain)
    }

    async fn tls(&self) -> &client::Tls {
        self.tls
            .get_or_init(|| async {
                // A failed join is a runtime that is going down: then it is made here and serves nobody.
                tokio::task::spawn_blocking(client::tls).await.unwrap_or_else(|_| client::tls())
            })
            .await
    }
}
