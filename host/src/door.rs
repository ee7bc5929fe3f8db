//! The door: a session's HTTP listener with its agent card, authorization, JSON-RPC methods and streams.
//!
//! A request passes the checks in one fixed order (`app`): card, token, consent, planes, envelope, method, scope,
//! parameters. Nothing here decides about a task; that is the registry's.

mod app;
mod authorize;
mod card;
mod exposure;
mod files;
mod message;
mod methods;
mod origin;
mod planes;
mod render;
mod rpc;
mod serve;
mod stream;

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use app::{MAX_BODY, MAX_HEADERS};
pub use card::{CAPSULE_EXTENSION, DOOR_EXTENSION, STREAM_EXTENSION};
pub use exposure::exposure_warning;
pub use files::ExportedFiles;
pub use message::fuzz_message;
pub use rpc::fuzz_envelope;

use crate::credentials::door::DoorTokens;
use crate::credentials::token::Verifier;
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::ids::{ContextId, SessionId};
use crate::session::tasks::TaskRegistry;

/// How long streams and answers in flight may take once the door closes.
const CLOSING_BOUND: Duration = Duration::from_millis(500);
/// Connections the kernel holds for a door that is busy accepting.
const BACKLOG: i32 = 1024;

/// What a door is to answer for.
pub struct DoorConfig {
    /// What the card says of the capsule.
    pub capsule: CapsuleFacts,
    /// The session.
    pub session: SessionId,
    /// The tokens of an authenticated door; `None` for a public one.
    pub tokens: Option<Arc<DoorTokens>>,
    /// What formation tokens verify with, at the door of a formation's member.
    pub formation: Option<Verifier>,
    /// `exports.peer_tasks.accept`.
    pub accepts_peers: bool,
    /// Whether messages start tasks here: every task acceptance but `none`.
    pub accepts_tasks: bool,
    /// Whether the conversation is threaded (else stateless), for observers.
    pub threaded: bool,
    /// The launch's own context: where the operator's tasks belong that name none.
    pub context: Option<ContextId>,
    /// What `exports.files` lets the operator read.
    pub files: Option<ExportedFiles>,
}

/// What a capsule's card says of it.
#[derive(Clone, Debug)]
pub struct CapsuleFacts {
    /// The manifest's name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Names of installed artifacts of kind tool or skill.
    pub tools: Vec<String>,
    /// Whether it may run commands.
    pub shell: bool,
    /// Whether it may reach the network.
    pub network: bool,
    /// Whether it exports files to its operator.
    pub exports_files: bool,
    /// Whether it hands files to peers.
    pub exports_peer_files: bool,
}

/// A listener that is bound and does not answer yet.
pub struct Bound {
    listener: TcpListener,
    port: u16,
}

/// Binds `address` on `port` (none: the system picks). A port that is taken is `E-RUN-010`.
pub fn bind(address: &str, port: Option<u16>) -> Result<Bound> {
    let wanted = port.unwrap_or(0);
    let listener = listen(address, wanted).map_err(|error| {
        if error.kind() == io::ErrorKind::AddrInUse && wanted != 0 {
            return Diagnostic::new(codes::E_RUN_010, format!("internal_port {wanted} is already bound"))
                .hint("end what listens there, write another port in network.internal_port, or leave the key out");
        }
        Diagnostic::new(codes::E_IO_003, format!("the door cannot listen on {address}: {error}"))
            .hint("give --bind an address of this host, such as 127.0.0.1")
    })?;
    let port = listener
        .local_addr()
        .map_err(|error| Diagnostic::new(codes::E_IO_003, format!("the door's own address cannot be read: {error}")))?
        .port();
    Ok(Bound { listener, port })
}

fn listen(address: &str, port: u16) -> io::Result<TcpListener> {
    let listener = TcpListener::bind((address.trim_start_matches('[').trim_end_matches(']'), port))?;
    // The standard library listens with a backlog of 128; a formation's members call all at once.
    nix::sys::socket::listen(
        &listener,
        nix::sys::socket::Backlog::new(BACKLOG).unwrap_or(nix::sys::socket::Backlog::MAXCONN),
    )?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

impl Bound {
    /// The port, for every announced address.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The announced address: `localhost:<port>`, wherever the listener is bound.
    pub fn address(&self) -> String {
        format!("localhost:{}", self.port)
    }

    /// Starts to answer. Must be called on a runtime.
    pub fn serve(self, config: DoorConfig, registry: TaskRegistry) -> Result<Door> {
        let listener = tokio::net::TcpListener::from_std(self.listener)
            .map_err(|error| Diagnostic::new(codes::E_IO_003, format!("the door cannot be served: {error}")))?;
        let (closing, closed) = watch::channel(false);
        let app = Arc::new(app::App::new(config, registry, self.port, closed));
        let serving = tokio::spawn(serve::serve(listener, app));
        Ok(Door { port: self.port, closing, serving })
    }
}

/// A door that answers. Dropping it closes it without waiting.
pub struct Door {
    port: u16,
    closing: watch::Sender<bool>,
    serving: JoinHandle<()>,
}

impl Door {
    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The announced address: `localhost:<port>`.
    pub fn address(&self) -> String {
        format!("localhost:{}", self.port)
    }

    /// Takes no more connections, lets each open stream write what has happened, and closes; at most half a second.
    pub async fn close(mut self) {
        self.closing.send_replace(true);
        if tokio::time::timeout(CLOSING_BOUND, &mut self.serving).await.is_err() {
            self.serving.abort();
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

#[cfg(test)]
mod tests;
