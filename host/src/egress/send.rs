//! Which way a request goes, and its sending.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::uri::Scheme;
use http::{HeaderMap, Method, StatusCode, Uri};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};

use super::client::{self, TimedBody};
use super::gateway::{self, Gateway};
use super::types::{HttpBody, HttpError, HttpRequest, HttpResponse, Timeouts};
use super::{Egress, Sender};

/// The domain of formation addresses; `.invalid` never resolves.
const FORMATION: &str = ".formation.invalid";

/// How long a door's address is waited for.
const DOOR_WAIT: Duration = Duration::from_secs(10);

/// Most bytes of a request's body that are kept to send it a second time with a new key.
const MAX_RESENT: usize = 16 << 20;

/// Headers of one connection, which are not passed on. `host` is said by whoever connects.
const CONNECTION_HEADERS: [&str; 10] = [
    "connection",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "transfer-encoding",
    "upgrade",
];

/// The origin a peer's door is told.
pub(super) const TASK_ORIGIN: HeaderName = HeaderName::from_static("x-murmur-task-origin");
/// The trust a peer's door is told.
pub(super) const TASK_TRUST: HeaderName = HeaderName::from_static("x-murmur-task-trust");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Where a request wants to go.
struct Target {
    scheme: Scheme,
    host: String,
    port: u16,
}

impl Target {
    fn read(uri: &Uri) -> Result<Self, HttpError> {
        let invalid = |why: &str| HttpError::InvalidRequest(why.to_owned());
        let scheme = uri.scheme().ok_or_else(|| invalid("its address has no scheme"))?;
        let default = match scheme.as_str() {
            "http" => 80,
            "https" => 443,
            _ => return Err(invalid("its scheme is neither http nor https")),
        };
        let authority = uri.authority().ok_or_else(|| invalid("its address has no host"))?;
        if authority.as_str().contains('@') {
            return Err(invalid("its address holds a user name"));
        }
        let host = authority.host().to_ascii_lowercase();
        if host.is_empty() {
            return Err(invalid("its address has no host"));
        }
        // A colon with nothing or no number behind it is no port; `port_u16` alone would take it for none.
        if authority.port_u16().is_none() && authority.as_str().len() != authority.host().len() {
            return Err(invalid("its port is none"));
        }
        Ok(Self { scheme: scheme.clone(), host, port: authority.port_u16().unwrap_or(default) })
    }

    /// The member a formation address names, whatever else is right or wrong with it.
    fn member(&self) -> Option<&str> {
        let host = self.host.trim_end_matches('.');
        let member = if host == &FORMATION[1..] { Some("") } else { host.strip_suffix(FORMATION) };
        // A final dot is part of any name; more of them are of none, and are still no matter for the allow-list.
        member.map(|member| if self.host.len() > host.len() + 1 { "" } else { member })
    }

    fn is_gateway(&self) -> bool {
        self.scheme == Scheme::HTTP && format!("{}:{}", self.host, self.port) == gateway::AUTHORITY
    }

    fn allowed(&self, sender: &Sender) -> bool {
        sender.rules.allow(self.scheme.as_str(), &self.host, self.port)
    }

    /// As a refusal names it.
    fn shown(&self) -> String {
        let usual = if self.scheme == Scheme::HTTP { 80 } else { 443 };
        if self.port == usual {
            format!("{}://{}", self.scheme, self.host)
        } else {
            format!("{}://{}:{}", self.scheme, self.host, self.port)
        }
    }
}

pub(super) async fn send(egress: &Egress, sender: &Sender, request: HttpRequest) -> Result<HttpResponse, HttpError> {
    if request.method == Method::CONNECT {
        return Err(HttpError::InvalidRequest("CONNECT asks for a tunnel, and there is none".to_owned()));
    }
    let target = Target::read(&request.uri)?;
    let request = HttpRequest { headers: passed_on(request.headers), ..request };
    if let Some(member) = target.member() {
        return to_peer(egress, sender, &target, member, request).await;
    }
    if let Some(gateway) = sender.gateway.as_ref().filter(|_| target.is_gateway()) {
        return by_gateway(egress, gateway, request).await;
    }
    if !target.allowed(sender) {
        return Err(HttpError::Denied(target.shown()));
    }
    exchange(egress, request).await
}

/// To a member of the formation. Whatever keeps it from being sent is one and the same refusal, before anything
/// connects, and nothing that goes back names the door.
async fn to_peer(
    egress: &Egress,
    sender: &Sender,
    target: &Target,
    member: &str,
    mut request: HttpRequest,
) -> Result<HttpResponse, HttpError> {
    let refused = || HttpError::Denied(target.shown());
    if target.scheme != Scheme::HTTP || target.port != 80 {
        return Err(refused());
    }
    let peers = egress.peers.as_ref().ok_or_else(refused)?;
    let door = peers.door(member, DOOR_WAIT).await.ok_or_else(refused)?;
    let door_uri: Uri = door.url.parse().map_err(|_| refused())?;
    let real = Target::read(&door_uri).map_err(|_| refused())?;
    if !real.allowed(sender) {
        return Err(refused());
    }
    let mut parts = request.uri.into_parts();
    parts.scheme = Some(real.scheme.clone());
    // A door on this machine is connected to without looking its name up; it is still told the name.
    let host = if real.host == "localhost" { "127.0.0.1" } else { &real.host };
    parts.authority = Some(format!("{host}:{}", real.port).parse().map_err(|_| refused())?);
    request.uri = Uri::from_parts(parts).map_err(|_| refused())?;

    let headers = &mut request.headers;
    for name in [header::AUTHORIZATION, TASK_ORIGIN, TASK_TRUST] {
        headers.remove(name);
    }
    let bearer = zeroize::Zeroizing::new(format!("Bearer {}", door.token.expose()));
    let mut bearer = HeaderValue::from_str(&bearer).map_err(|_| refused())?;
    bearer.set_sensitive(true);
    headers.insert(header::AUTHORIZATION, bearer);
    let name = format!("{}:{}", real.host, real.port);
    headers.insert(header::HOST, HeaderValue::from_str(&name).map_err(|_| refused())?);
    stamp(headers, sender);
    exchange(egress, request).await
}

/// Says to a door on whose behalf it is called.
pub(super) fn stamp(headers: &mut HeaderMap, sender: &Sender) {
    headers.insert(TASK_ORIGIN, HeaderValue::from_static("peer"));
    headers.insert(TASK_TRUST, HeaderValue::from_static(sender.trust.as_str()));
    if let Some(value) = sender.traceparent.as_deref().and_then(|text| HeaderValue::from_str(text).ok()) {
        headers.insert(TRACEPARENT, value);
    }
}

/// To the artifact's own provider, with its key. A 401 reads the key again, and a new one is tried once.
async fn by_gateway(egress: &Egress, gateway: &Gateway, request: HttpRequest) -> Result<HttpResponse, HttpError> {
    let uri = gateway
        .address(&request.uri)
        .ok_or_else(|| HttpError::InvalidRequest("its path cannot be sent to the provider".to_owned()))?;
    let HttpRequest { method, mut headers, body, timeouts, .. } = request;
    let key = gateway.key();
    let again = gateway.is_rotating().then(|| (method.clone(), headers.clone(), Kept::default()));
    gateway.attach(&mut headers, key.as_ref());
    let body = match &again {
        Some((.., kept)) => KeptBody { inner: body, kept: kept.clone() }.boxed_unsync(),
        None => body,
    };
    let mut response = exchange(egress, HttpRequest { method, uri: uri.clone(), headers, body, timeouts }).await?;
    if response.status != StatusCode::UNAUTHORIZED || key.is_none() {
        return Ok(response);
    }
    if let Some((method, mut headers, kept)) = again
        && let Some(new) = gateway.other_key(key.as_ref())
        && let Some(body) = kept.whole()
    {
        gateway.attach(&mut headers, Some(&new));
        response = exchange(egress, HttpRequest { method, uri, headers, body, timeouts }).await?;
    }
    response.credential_rejected = response.status == StatusCode::UNAUTHORIZED;
    Ok(response)
}

/// Sends a request that may be sent, and waits for the head of its response.
async fn exchange(egress: &Egress, request: HttpRequest) -> Result<HttpResponse, HttpError> {
    let HttpRequest { method, uri, headers, body, timeouts } = request;
    let secure = uri.scheme() == Some(&Scheme::HTTPS);
    let mut sent = http::Request::new(body);
    *sent.method_mut() = method;
    *sent.uri_mut() = uri;
    *sent.headers_mut() = headers;
    let first_byte = timeouts.first_byte.map_or(client::FIRST_BYTE, |own| own.min(client::FIRST_BYTE));
    let answered =
        async { if secure { egress.tls().await.request(sent).await } else { egress.plain().request(sent).await } };
    let response = match tokio::time::timeout(first_byte, answered).await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => return Err(client::error(&error)),
        Err(_) => return Err(HttpError::ReadTimeout),
    };
    let (parts, body) = response.into_parts();
    Ok(HttpResponse {
        status: parts.status,
        headers: passed_on(parts.headers),
        body: TimedBody::new(body, between_bytes(timeouts)).boxed_unsync(),
        credential_rejected: false,
    })
}

fn between_bytes(timeouts: Timeouts) -> Duration {
    timeouts.between_bytes.map_or(client::BETWEEN_BYTES, |own| own.min(client::BETWEEN_BYTES))
}

/// The headers that are not about one connection: those always so, and those the message itself lists as such.
fn passed_on(mut headers: HeaderMap) -> HeaderMap {
    let listed: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in CONNECTION_HEADERS {
        headers.remove(name);
    }
    for name in listed {
        headers.remove(name);
    }
    headers
}

/// What of a body has been sent, while it may have to be sent again.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<KeptState>>);

#[derive(Default)]
struct KeptState {
    parts: Vec<Bytes>,
    size: usize,
    ended: bool,
    too_large: bool,
}

impl Kept {
    fn with<T>(&self, then: impl FnOnce(&mut KeptState) -> T) -> T {
        then(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The body once more, when all of it was sent and kept.
    fn whole(self) -> Option<HttpBody> {
        let bytes = self.with(|state| {
            let parts = std::mem::take(&mut state.parts);
            (state.ended && !state.too_large).then(|| Bytes::from(parts.concat()))
        })?;
        Some(Full::new(bytes).map_err(|never| match never {}).boxed_unsync())
    }
}

/// A body that is kept as it is sent.
struct KeptBody {
    inner: HttpBody,
    kept: Kept,
}

impl Body for KeptBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(cx);
        let ended = self.inner.is_end_stream();
        self.kept.with(|state| match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    state.size += data.len();
                    state.too_large |= state.size > MAX_RESENT;
                    if state.too_large {
                        state.parts.clear();
                    } else {
                        state.parts.push(data.clone());
                    }
                }
                state.ended |= ended;
            }
            Poll::Ready(None) => state.ended = true,
            _ => {}
        });
        polled
    }

    fn is_end_stream(&self) -> bool {
        let ended = self.inner.is_end_stream();
        // An empty body is never polled.
        self.kept.with(|state| state.ended |= ended);
        ended
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.inner.size_hint()
    }
}
