//! The way out of a session's network namespace for its commands.
//!
//! Inside, every IPv4 address is delivered to the namespace itself, where sockets made by the enclosure listen; this
//! process holds them and serves them from the host's namespace. A connection's local address is where the command
//! wanted to go: it is compared with the allow-list, and carried there or closed. A port without a listener refuses at
//! once, and names that are not in the list are never looked up. No proxy variable is needed and TLS is never opened.

pub mod dns;
mod names;
mod reach;
mod relay;
mod resolver;

use std::collections::BTreeSet;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener, UdpSocket as StdSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::RuleSet;
use reach::Reach;
pub use resolver::{Resolver, servers_of};

/// Connections of one session at once; one more is closed.
pub const MAX_CONNECTIONS: usize = 128;

/// Ports that get a listener: the lowest.
pub const MAX_PORTS: usize = 16;

/// How long no connection is taken after the host had no descriptor left for one.
const OUT_OF_DESCRIPTORS: Duration = Duration::from_millis(100);

/// The TCP ports on which a session's namespace needs listeners: what the list names, and where it names a host alone,
/// 80 and 443.
pub fn ports(rules: &RuleSet) -> Vec<u16> {
    let mut ports = BTreeSet::new();
    for rule in rules.rules() {
        match rule.port {
            // No connection can be made to it, and a listener on it would be given another one.
            Some(0) => {}
            Some(port) => drop(ports.insert(port)),
            None => ports.extend([80, 443]),
        }
    }
    ports.into_iter().take(MAX_PORTS).collect()
}

/// Sockets made inside a session's network namespace.
#[derive(Debug, Default)]
pub struct Sockets {
    /// Listening TCP sockets on every address, one for each of [`ports`].
    pub listeners: Vec<OwnedFd>,
    /// A UDP socket bound to port 53 of every address.
    pub names: Option<OwnedFd>,
}

/// A session's running proxy. Dropping it ends every connection.
#[derive(Debug)]
pub struct Proxy {
    _serving: JoinSet<()>,
}

impl Proxy {
    /// Serves the sockets by the capsule's rules, on the runtime this is called in. `say` takes a line for each host of
    /// the list that is not to be resolved now.
    ///
    /// # Errors
    /// When a descriptor is no socket of its kind.
    pub fn start(
        sockets: Sockets,
        rules: RuleSet,
        resolver: Arc<Resolver>,
        say: impl Fn(&str) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let reach = Arc::new(Reach::new(rules));
        let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let mut serving = JoinSet::new();
        for listener in sockets.listeners {
            let listener = StdListener::from(listener);
            listener.set_nonblocking(true)?;
            serving.spawn(accept(TcpListener::from_std(listener)?, Arc::clone(&reach), Arc::clone(&permits)));
        }
        if let Some(socket) = sockets.names {
            let socket = names::Socket::new(StdSocket::from(socket))?;
            serving.spawn(names::serve(socket, Arc::clone(&reach), Arc::clone(&resolver)));
        }
        // In the background: a launch does not wait for name servers.
        serving.spawn(async move { reach.resolve(&resolver, say).await });
        Ok(Self { _serving: serving })
    }
}

async fn accept(listener: TcpListener, reach: Arc<Reach>, permits: Arc<Semaphore>) {
    let mut carried = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = carried.join_next() => continue,
        };
        match accepted {
            Ok((stream, _)) => {
                // Dropped, it is closed.
                let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else { continue };
                let reach = Arc::clone(&reach);
                carried.spawn(async move {
                    connection(stream, &reach).await;
                    drop(permit);
                });
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(_) => tokio::time::sleep(OUT_OF_DESCRIPTORS).await,
        }
    }
}

/// Whether only the connection that was to be taken is gone.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted
    )
}

/// Carries a connection, or closes it without a byte. How it ends is between its two sides.
async fn connection(stream: TcpStream, reach: &Reach) {
    let Ok(SocketAddr::V4(to)) = stream.local_addr() else { return };
    if reach.allows(*to.ip(), to.port(), Instant::now()).await {
        let _ = relay::carry(stream, to).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::NetworkRule;

    fn of(rules: &[&str]) -> Vec<u16> {
        ports(&RuleSet::new(rules.iter().map(|rule| NetworkRule::parse(rule).unwrap())))
    }

    #[test]
    fn every_form_of_an_entry_opens_its_ports() {
        assert_eq!(of(&["https://h"]), [443]);
        assert_eq!(of(&["http://h"]), [80]);
        assert_eq!(of(&["https://h:8443"]), [8443]);
        assert_eq!(of(&["h:8443", "h:80"]), [80, 8443]);
        assert_eq!(of(&["h", "localhost"]), [80, 443]);
        assert!(of(&["h:0"]).is_empty());
        assert!(of(&[]).is_empty());
    }

    #[test]
    fn the_lowest_sixteen_ports_get_a_listener() {
        let rules: Vec<String> = (0..20).rev().map(|n| format!("h:{}", 1000 + n)).collect();
        let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
        assert_eq!(of(&rules), (1000..1016).collect::<Vec<u16>>());
    }
}
