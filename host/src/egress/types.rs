//! Requests and responses as they pass between a worker, the session and the network.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode, Uri};
use http_body_util::combinators::UnsyncBoxBody;

/// A body that streams in bounded chunks.
pub type HttpBody = UnsyncBoxBody<Bytes, HttpError>;

/// One request of an artifact.
pub struct HttpRequest {
    /// The method.
    pub method: Method,
    /// Absolute: scheme, authority, path and query.
    pub uri: Uri,
    /// As the artifact set them.
    pub headers: HeaderMap,
    /// The body.
    pub body: HttpBody,
    /// The artifact's own bounds.
    pub timeouts: Timeouts,
}

/// How long a request may wait; each is capped by the client's own bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// For the connection.
    pub connect: Option<Duration>,
    /// From the request to the response's head.
    pub first_byte: Option<Duration>,
    /// Between two parts of the response's body.
    pub between_bytes: Option<Duration>,
}

/// A response whose body may still be on its way.
pub struct HttpResponse {
    /// The status.
    pub status: StatusCode,
    /// The headers, without those that belong to the connection.
    pub headers: HeaderMap,
    /// The body.
    pub body: HttpBody,
    /// A gateway's provider answered 401, and reading the key again did not help.
    pub credential_rejected: bool,
}

/// Why there is no response, or why a body ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HttpError {
    /// Not in the sender's rules; nothing was connected.
    Denied(String),
    /// The name has no address.
    NameNotResolved,
    /// Nothing listens there.
    ConnectionRefused,
    /// The connection was closed, reset or aborted before the response was whole.
    ConnectionLost,
    /// Connecting took too long.
    ConnectTimeout,
    /// No response, or no further part of it, in time.
    ReadTimeout,
    /// The TLS handshake failed.
    Tls(String),
    /// The request is not one that can be sent.
    InvalidRequest(String),
    /// The other side does not speak HTTP/1.1 properly.
    Protocol(String),
    /// The call the request belongs to ended.
    Cancelled,
    /// Anything else.
    Other(String),
}

impl HttpError {
    /// Whether a retry may help: the connection broke, or timed out, before a response was there.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::ConnectionLost | Self::ConnectTimeout | Self::ReadTimeout)
    }
}

impl std::fmt::Display for HttpError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Denied(what) => write!(f, "{what} is not in capabilities.network.allow"),
            Self::NameNotResolved => f.write_str("the host name has no address"),
            Self::ConnectionRefused => f.write_str("connection refused"),
            Self::ConnectionLost => f.write_str("the connection was closed before the response was whole"),
            Self::ConnectTimeout => f.write_str("connecting took too long"),
            Self::ReadTimeout => f.write_str("the response took too long"),
            Self::Tls(why) => write!(f, "TLS: {why}"),
            Self::InvalidRequest(why) => write!(f, "invalid request: {why}"),
            Self::Protocol(why) => write!(f, "HTTP: {why}"),
            Self::Cancelled => f.write_str("the call the request belongs to has ended"),
            Self::Other(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for HttpError {}

/// The trust of a task, as stamped on calls to peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrustClass {
    /// Its text may be followed.
    Trusted,
    /// Its text is data.
    #[default]
    Untrusted,
}

impl TrustClass {
    /// The header's word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Trusted => "trusted",
            Self::Untrusted => "untrusted",
        }
    }
}

/// `murmur:message/send` `message`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerMessage {
    /// The sender's id of it.
    pub message_id: String,
    /// The context it belongs to.
    pub context_id: Option<String>,
    /// Its text.
    pub text: String,
}

/// `murmur:message/send` `task-result`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerAnswer {
    /// The task the peer made of it.
    pub task_id: String,
    /// Its context.
    pub context_id: String,
    /// `submitted`, `working`, `input-required`, `completed`, `failed`, `rejected` or `canceled`.
    pub state: String,
}
