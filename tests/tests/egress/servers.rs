//! Servers outside the namespace, on loopback.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use http::StatusCode;
use mur::egress::proxy::dns::{Code, parse_query};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};

/// Connects to an address and port; prints what came, or the name of the error.
pub const CONNECT: &str = r#"
import errno, socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
stream = socket.socket(family)
stream.settimeout(60)
try:
    stream.connect((sys.argv[1], int(sys.argv[2])))
    stream.sendall(b"GET /page HTTP/1.0\r\n\r\n")
    data = b""
    while piece := stream.recv(4096):
        data += piece
    print(data.decode().split("\r\n\r\n")[-1] or "nothing")
except OSError as error:
    print(errno.errorcode[error.errno])
"#;

/// Where the servers of these tests stand: not where a session's own would.
pub const ALIAS: Ipv4Addr = Ipv4Addr::new(127, 7, 7, 7);

/// Carries connections to an address of the test's own to a port of this machine.
pub async fn at_alias(port: u16) -> u16 {
    let listener = TcpListener::bind((ALIAS, 0)).await.unwrap();
    let alias = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut from, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut to = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
            });
        }
    });
    alias
}

/// An HTTP server of the files below a folder.
pub async fn files(folder: PathBuf) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let serve = move |request: Request| {
        let path = folder.join(request.uri().path().trim_start_matches('/'));
        async move {
            match std::fs::read(path) {
                Ok(bytes) => Response::new(Body::from(bytes)),
                Err(_) => Response::builder().status(StatusCode::NOT_FOUND).body(Body::empty()).unwrap(),
            }
        }
    };
    tokio::spawn(async move { axum::serve(listener, axum::Router::new().fallback(serve)).await });
    port
}

/// An HTTP server with one page.
pub async fn page(text: &str) -> (tempfile::TempDir, u16) {
    let folder = tempfile::TempDir::new().unwrap();
    std::fs::write(folder.path().join("page"), text).unwrap();
    let port = files(folder.path().to_path_buf()).await;
    (folder, port)
}

/// A server that reads a connection to its end and sends everything back afterwards.
pub async fn echo_at_end() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut all = Vec::new();
                stream.read_to_end(&mut all).await.unwrap();
                stream.write_all(&all).await.unwrap();
            });
        }
    });
    port
}

/// A server that greets with one byte, keeps the connection until the client ends it, and counts those that are open.
pub async fn greeting() -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let open = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&open);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let counted = Arc::clone(&counted);
            counted.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(async move {
                stream.write_all(b"x").await.unwrap();
                let _ = stream.read(&mut [0]).await;
                counted.fetch_sub(1, Ordering::SeqCst);
            });
        }
    });
    (port, open)
}

/// A name server that remembers what it was asked. Names that begin with `gone.` do not exist, those with `silent.` are
/// in trouble, `late.` is the same for as long as a resolver asks the first time, all others have the given addresses.
pub async fn names(addresses: &[&str]) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    let addresses: Vec<IpAddr> = addresses.iter().map(|address| address.parse().unwrap()).collect();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    tokio::spawn(async move {
        let mut buffer = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
            let query = parse_query(&buffer[..length]).unwrap();
            let name = query.name.clone().unwrap();
            let asked_of_it = seen.lock().unwrap().iter().filter(|seen| **seen == name).count();
            let reply = match name.split('.').next().unwrap() {
                // A lookup asks its one server twice.
                "late" if asked_of_it < 2 => query.reply(Code::ServerFailure, &[]),
                "gone" => query.reply(Code::NoName, &[]),
                "silent" => query.reply(Code::ServerFailure, &[]),
                _ => query.reply(Code::NoError, &addresses),
            };
            seen.lock().unwrap().push(name);
            socket.send_to(&reply, from).await.unwrap();
        }
    });
    (address, asked)
}
