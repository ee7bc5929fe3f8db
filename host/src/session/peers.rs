//! The members a session may call, as its egress asks for them.

use std::sync::Arc;
use std::time::Duration;

use crate::credentials::channel::Membership;
use crate::egress::{PeerDoor, Peers, Secret};
use crate::worker::BoxFuture;

/// Doors by the formation channel: the address it told, and the token of this member's edge.
pub struct Members(pub Arc<Membership>);

impl Peers for Members {
    fn door<'a>(&'a self, member: &'a str, wait: Duration) -> BoxFuture<'a, Option<PeerDoor>> {
        Box::pin(async move {
            let callee = self.0.callee(member)?;
            let url = tokio::time::timeout(wait, self.0.url_of(&callee.name)).await.ok()??;
            // A door's address has no path of its own.
            let url = url.to_string().trim_end_matches('/').to_owned();
            Some(PeerDoor { url, token: Secret::new(callee.token.expose().to_owned()) })
        })
    }
}
