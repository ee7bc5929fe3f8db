//! What listens on the host while the probe tries to reach it: a TCP listener that counts, a UDP socket that answers, and
//! Unix sockets with and without a path. What arrives here has left the enclosure, whatever the probe saw.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The listeners of a run. Their threads end with the process.
pub struct Listeners {
    /// Where TCP connections are counted.
    pub tcp: Vec<SocketAddr>,
    /// Where datagrams are answered.
    pub udp: Vec<SocketAddr>,
    /// The name of the abstract Unix socket.
    pub name: String,
    /// The path of the other.
    pub path: PathBuf,
    hits: Arc<AtomicUsize>,
    _unix: [UnixListener; 2],
}

impl Listeners {
    /// Opens them.
    ///
    /// # Errors
    /// Of the sockets.
    pub fn open(folder: &Path) -> io::Result<Self> {
        let hits = Arc::new(AtomicUsize::new(0));
        let (mut tcp, mut udp) = (Vec::new(), Vec::new());
        for address in [Some(IpAddr::V4(Ipv4Addr::LOCALHOST)), outward()].into_iter().flatten() {
            tcp.push(count(TcpListener::bind((address, 0))?, &hits)?);
            udp.push(answer(UdpSocket::bind((address, 0))?, &hits)?);
        }
        static OPENED: AtomicUsize = AtomicUsize::new(0);
        let name = format!("mur-escape-{}-{}", std::process::id(), OPENED.fetch_add(1, Ordering::Relaxed));
        let path = folder.join("socket");
        let by_name = UnixListener::bind_addr(&std::os::unix::net::SocketAddr::from_abstract_name(&name)?)?;
        let by_path = UnixListener::bind(&path)?;
        Ok(Self { tcp, udp, name, path, hits, _unix: [by_name, by_path] })
    }

    /// How many connections and datagrams have arrived so far.
    pub fn hits(&self) -> usize {
        self.hits.load(Ordering::SeqCst)
    }
}

/// The address of this host on the way out, where it has one. Nothing is sent.
fn outward() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect((Ipv4Addr::new(1, 1, 1, 1), 53)).ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}

fn count(listener: TcpListener, hits: &Arc<AtomicUsize>) -> io::Result<SocketAddr> {
    let (address, hits) = (listener.local_addr()?, hits.clone());
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            hits.fetch_add(1, Ordering::SeqCst);
            drop(connection);
        }
    });
    Ok(address)
}

fn answer(socket: UdpSocket, hits: &Arc<AtomicUsize>) -> io::Result<SocketAddr> {
    let (address, hits) = (socket.local_addr()?, hits.clone());
    std::thread::spawn(move || {
        let mut datagram = [0; 512];
        while let Ok((size, from)) = socket.recv_from(&mut datagram) {
            hits.fetch_add(1, Ordering::SeqCst);
            let _ = socket.send_to(&datagram[..size], from);
        }
    });
    Ok(address)
}
