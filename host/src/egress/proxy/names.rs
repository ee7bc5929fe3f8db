//! The name server of a session's namespace. Whatever address a command asks is answered from that address, and only
//! names of the allow-list are looked up.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::UdpSocket as StdSocket;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Instant;

use nix::libc::in_pktinfo;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg, sendmsg, setsockopt, sockopt,
};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::task::JoinSet;

use super::dns::{self, Code, Query};
use super::reach::Reach;
use super::resolver::{Found, Resolver};

/// Names looked up at once; while there are so many, further queries go unanswered, and clients ask again.
const MAX_LOOKUPS: usize = 64;

/// A UDP socket that knows which address each message was sent to.
#[derive(Debug)]
pub struct Socket(UdpSocket);

/// Who asked, and at which address.
#[derive(Clone, Copy, Debug)]
struct Peer {
    from: SockaddrIn,
    asked: in_pktinfo,
}

impl Socket {
    /// Takes a bound socket over.
    pub fn new(socket: StdSocket) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?;
        Ok(Self(UdpSocket::from_std(socket)?))
    }

    /// The next message; `None` is one whose sender or destination is not known.
    async fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, Option<Peer>)> {
        self.0
            .async_io(Interest::READABLE, || {
                let mut space = nix::cmsg_space!(in_pktinfo);
                let mut slices = [IoSliceMut::new(buffer)];
                let message =
                    recvmsg::<SockaddrIn>(self.0.as_raw_fd(), &mut slices, Some(&mut space), MsgFlags::MSG_DONTWAIT)?;
                let asked = message.cmsgs()?.find_map(|control| match control {
                    ControlMessageOwned::Ipv4PacketInfo(info) => Some(info),
                    _ => None,
                });
                let peer = message.address.zip(asked).map(|(from, asked)| Peer { from, asked });
                Ok((message.bytes, peer))
            })
            .await
    }

    /// Answers from the address that was asked. A reply that cannot be sent is lost, as any datagram may be.
    async fn send(&self, bytes: &[u8], to: Peer) {
        let info = in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: to.asked.ipi_addr, ipi_addr: to.asked.ipi_addr };
        let _ = self
            .0
            .async_io(Interest::WRITABLE, || {
                let control = [ControlMessage::Ipv4PacketInfo(&info)];
                let slices = [IoSlice::new(bytes)];
                Ok(sendmsg(self.0.as_raw_fd(), &slices, &control, MsgFlags::MSG_DONTWAIT, Some(&to.from))?)
            })
            .await;
    }
}

/// Answers until it is dropped.
pub async fn serve(socket: Socket, reach: Arc<Reach>, resolver: Arc<Resolver>) {
    let socket = Arc::new(socket);
    let mut lookups = JoinSet::new();
    // One byte more than is read, so that a longer message is seen to be longer.
    let mut buffer = vec![0; dns::MAX_QUERY + 1];
    loop {
        let received = tokio::select! {
            received = socket.receive(&mut buffer) => received,
            Some(_) = lookups.join_next() => continue,
        };
        let (length, peer) = match received {
            Ok((length, Some(peer))) => (length, peer),
            // An error of an earlier reply may be reported here; it is of no consequence.
            Ok((_, None)) | Err(_) => {
                tokio::task::yield_now().await;
                continue;
            }
        };
        let bytes = &buffer[..length];
        let Some(query) = dns::parse_query(bytes) else {
            if let Some(reply) = dns::format_error(bytes) {
                socket.send(&reply, peer).await;
            }
            continue;
        };
        if let Some(reply) = at_once(&query, &reach) {
            socket.send(&reply, peer).await;
        } else if lookups.len() < MAX_LOOKUPS {
            let (socket, reach, resolver) = (Arc::clone(&socket), Arc::clone(&reach), Arc::clone(&resolver));
            lookups.spawn(async move {
                let reply = look_up(&query, &reach, &resolver).await;
                socket.send(&reply, peer).await;
            });
        }
    }
}

/// The reply where nothing needs to be looked up.
fn at_once(query: &Query, reach: &Reach) -> Option<Vec<u8>> {
    if !query.name.as_deref().is_some_and(|name| reach.lists(name)) {
        return Some(query.reply(Code::Refused, &[]));
    }
    query.family.is_none().then(|| query.reply(Code::NoError, &[]))
}

async fn look_up(query: &Query, reach: &Reach, resolver: &Resolver) -> Vec<u8> {
    let (Some(name), Some(family)) = (&query.name, query.family) else { return query.reply(Code::Refused, &[]) };
    match resolver.lookup(name, family).await {
        Found::Addresses(addresses) => {
            // Before the reply: the connection that follows it finds the name bound.
            reach.bind(name, &addresses, Instant::now());
            query.reply(Code::NoError, &addresses)
        }
        Found::NoName => query.reply(Code::NoName, &[]),
        Found::NoAnswer => query.reply(Code::ServerFailure, &[]),
    }
}
