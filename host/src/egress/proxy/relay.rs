//! One connection of a command, carried to where it was going.

use std::io;
use std::net::SocketAddrV4;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(15);

/// How long a connection may stand still in both directions.
const IDLE: Duration = Duration::from_secs(300);

/// Bytes carried at once, each way.
const BUFFER: usize = 16 << 10;

/// Connects to where a command wanted to go and carries bytes until both sides have ended, one has failed, or nothing
/// moves any more. Bytes are carried as they are: TLS stays between its ends.
pub async fn carry(inside: TcpStream, to: SocketAddrV4) -> io::Result<()> {
    let outside = timeout(CONNECT, TcpStream::connect(to)).await??;
    splice(inside, outside, IDLE).await
}

async fn splice(mut inside: TcpStream, mut outside: TcpStream, idle: Duration) -> io::Result<()> {
    inside.set_nodelay(true)?;
    outside.set_nodelay(true)?;
    let (from_inside, to_inside) = inside.split();
    let (from_outside, to_outside) = outside.split();
    // One clock for both ways: a download that takes long keeps its silent other half.
    let moved = Moved::new();
    let both = async { tokio::try_join!(pump(from_inside, to_outside, &moved), pump(from_outside, to_inside, &moved)) };
    tokio::select! {
        done = both => done.map(|_| ()),
        () = still(&moved, idle) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Carries one way to its end, and passes that end on while the other way goes on.
async fn pump(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, moved: &Moved) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let length = from.read(&mut buffer).await?;
        if length == 0 {
            return to.shutdown().await;
        }
        let mut left = &buffer[..length];
        while !left.is_empty() {
            moved.now();
            let written = to.write(left).await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            left = &left[written..];
        }
        moved.now();
    }
}

/// When a byte last moved.
struct Moved {
    start: Instant,
    millis: AtomicU64,
}

impl Moved {
    fn new() -> Self {
        Self { start: Instant::now(), millis: AtomicU64::new(0) }
    }

    fn now(&self) {
        self.millis.store(self.start.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    fn last(&self) -> Instant {
        self.start + Duration::from_millis(self.millis.load(Ordering::Relaxed))
    }
}

async fn still(moved: &Moved, idle: Duration) {
    loop {
        let end = moved.last() + idle;
        if end <= Instant::now() {
            return;
        }
        sleep_until(end).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (near, listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn an_end_is_passed_on_and_the_other_way_goes_on() {
        let ((mut command, inside), (outside, mut server)) = (pair().await, pair().await);
        let carrying = tokio::spawn(splice(inside, outside, IDLE));
        command.write_all(b"question").await.unwrap();
        command.shutdown().await.unwrap();
        let mut asked = String::new();
        server.read_to_string(&mut asked).await.unwrap();
        assert_eq!(asked, "question");
        let long = vec![7; 1 << 20];
        let sending = async {
            server.write_all(&long).await.unwrap();
            drop(server);
        };
        let mut answer = Vec::new();
        let (_, read) = tokio::join!(sending, command.read_to_end(&mut answer));
        assert_eq!((read.unwrap(), answer.len()), (1 << 20, 1 << 20));
        carrying.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_connection_on_which_nothing_moves_is_ended() {
        let ((mut command, inside), (outside, _server)) = (pair().await, pair().await);
        let ended = splice(inside, outside, Duration::from_millis(20)).await.unwrap_err();
        assert_eq!(ended.kind(), io::ErrorKind::TimedOut);
        assert_eq!(command.read(&mut [0]).await.unwrap(), 0);
    }
}
