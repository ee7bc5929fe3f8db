//! The one constructor of HTTP clients: HTTP/1.1, no proxy from the environment, no redirects, bounded connects.

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use hyper::body::Incoming;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{self, Client};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::{Instant, Sleep};

use super::types::{HttpBody, HttpError};

/// How long a connection may take to come about, the name's lookup included.
const CONNECT: Duration = Duration::from_secs(10);

/// How long a response's head may take: a model thinks for minutes.
pub(super) const FIRST_BYTE: Duration = Duration::from_secs(600);

/// How long a response's body may stand still.
pub(super) const BETWEEN_BYTES: Duration = Duration::from_secs(300);

/// How long an idle connection is kept for the next request.
const IDLE: Duration = Duration::from_secs(60);

/// Idle connections to one host.
const IDLE_PER_HOST: usize = 4;

/// A client for plain HTTP: peers' doors, probes, allow-listed `http` hosts.
pub type Plain = Client<HttpConnector, HttpBody>;

/// A client that also speaks TLS.
pub type Tls = Client<HttpsConnector<HttpConnector>, HttpBody>;

/// Makes a client for plain HTTP.
pub fn plain() -> Plain {
    builder().build(connector(true))
}

/// Makes a client for HTTPS. Reading the host's certificate authorities takes tens of milliseconds: call it off the
/// async thread.
pub fn tls() -> Tls {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = match config {
        Ok(config) => config.with_root_certificates(roots()).with_no_client_auth(),
        // ring supports both TLS 1.2 and 1.3.
        Err(error) => unreachable!("the default protocol versions: {error}"),
    };
    let https = hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(config).https_only().enable_http1();
    builder().build(https.wrap_connector(connector(false)))
}

/// The host's authorities, the operator's own among them; the built-in list where the host has none.
fn roots() -> rustls::RootCertStore {
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    roots
}

fn connector(http_only: bool) -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.enforce_http(http_only);
    connector.set_connect_timeout(Some(CONNECT));
    connector.set_nodelay(true);
    connector
}

fn builder() -> legacy::Builder {
    let mut builder = Client::builder(TokioExecutor::new());
    builder.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE).pool_max_idle_per_host(IDLE_PER_HOST);
    builder
}

/// What went wrong, by what lies beneath hyper's own words.
pub(super) fn error(error: &legacy::Error) -> HttpError {
    let connecting = error.is_connect();
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(found) = cause {
        if let Some(io) = found.downcast_ref::<io::Error>() {
            return of_io(io, connecting);
        }
        if let Some(hyper) = found.downcast_ref::<hyper::Error>()
            && let Some(named) = of_hyper(hyper)
        {
            return named;
        }
        // The connector names a failed lookup by this text alone.
        if connecting && found.to_string() == "dns error" {
            return HttpError::NameNotResolved;
        }
        cause = found.source();
    }
    if connecting { HttpError::ConnectionRefused } else { HttpError::ConnectionLost }
}

fn of_hyper(error: &hyper::Error) -> Option<HttpError> {
    if error.is_parse() || error.is_parse_too_large() {
        Some(HttpError::Protocol("the answer is not HTTP/1.1".to_owned()))
    } else if error.is_incomplete_message() || error.is_closed() || error.is_canceled() {
        Some(HttpError::ConnectionLost)
    } else if error.is_user() {
        Some(HttpError::InvalidRequest("it, or its body, cannot be sent".to_owned()))
    } else {
        None
    }
}

fn of_io(error: &io::Error, connecting: bool) -> HttpError {
    if let Some(inner) = error.get_ref()
        && let Some(tls) = inner.downcast_ref::<rustls::Error>()
    {
        return HttpError::Tls(tls.to_string());
    }
    match error.kind() {
        io::ErrorKind::ConnectionRefused => HttpError::ConnectionRefused,
        io::ErrorKind::TimedOut if connecting => HttpError::ConnectTimeout,
        io::ErrorKind::TimedOut => HttpError::ReadTimeout,
        io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::UnexpectedEof
        | io::ErrorKind::NotConnected => HttpError::ConnectionLost,
        kind => HttpError::Other(kind.to_string()),
    }
}

/// A response's body that may not stand still for longer than a limit.
pub(super) struct TimedBody {
    inner: Incoming,
    limit: Duration,
    sleep: Pin<Box<Sleep>>,
}

impl TimedBody {
    pub(super) fn new(inner: Incoming, limit: Duration) -> Self {
        Self { inner, limit, sleep: Box::pin(tokio::time::sleep(limit)) }
    }
}

impl Body for TimedBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.inner).poll_frame(cx) {
            let limit = self.limit;
            self.sleep.as_mut().reset(Instant::now() + limit);
            return Poll::Ready(frame.map(|frame| frame.map_err(|error| body_error(&error))));
        }
        ready!(self.sleep.as_mut().poll(cx));
        Poll::Ready(Some(Err(HttpError::ReadTimeout)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.inner.size_hint()
    }
}

fn body_error(error: &hyper::Error) -> HttpError {
    of_hyper(error).filter(|named| !matches!(named, HttpError::InvalidRequest(_))).unwrap_or(HttpError::ConnectionLost)
}
