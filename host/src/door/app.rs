//! Routing and the order of checks. The first that matches answers:
//!
//! 1. the peer plane and the control surface, which have tokens of their own;
//! 2. the public card;
//! 3. the caller's token (`authorize`), then the capsule's consent to peers;
//! 4. the operator's plane;
//! 5. path, method, content type and length of a JSON-RPC request, then its body, envelope and version;
//! 6. the method, its scope, its parameters.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::any;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Method as Verb, StatusCode, header};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use serde_json::{Map, Value};
use tokio::sync::watch;

use super::authorize::{Caller, Refused, authorize, flat};
use super::methods::{self, Call, Method};
use super::rpc::{self, RpcError};
use super::{DoorConfig, card, origin, planes};
use crate::session::tasks::{Origin, TaskRegistry};

/// Longest body of a request.
pub const MAX_BODY: usize = 16 << 20;
/// Longest head of a request.
pub const MAX_HEADERS: usize = 64 << 10;
/// How long a body may take.
const BODY_WAIT: Duration = Duration::from_secs(30);
/// What is still read of a refused request's body, and for how long, so that its client reads the answer.
const DRAINED: usize = 64 << 10;
const DRAIN_WAIT: Duration = Duration::from_millis(500);
/// A comment on every open stream in this time.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// What every request is answered from.
pub(super) struct App {
    pub(super) config: DoorConfig,
    pub(super) registry: TaskRegistry,
    pub(super) closing: watch::Receiver<bool>,
    pub(super) heartbeat: Duration,
    pub(super) extended_card: Value,
    public_card: Bytes,
}

impl App {
    pub(super) fn new(config: DoorConfig, registry: TaskRegistry, port: u16, closing: watch::Receiver<bool>) -> Self {
        let public_card = card::public(&config, port).to_string().into();
        let extended_card = card::extended(&config, port);
        Self { config, registry, closing, heartbeat: HEARTBEAT, extended_card, public_card }
    }

    /// Resolves when the door closes.
    pub(super) async fn closed(&self) {
        let mut closing = self.closing.clone();
        // A sender that is gone closes as well.
        let _ = closing.wait_for(|closing| *closing).await;
    }
}

pub(super) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/resources/peer", any(planes::peer))
        .route("/resources/peer/", any(planes::peer))
        .route("/resources/peer/{*rest}", any(planes::peer))
        .route("/control", any(planes::control))
        .route("/control/", any(planes::control))
        .route("/control/{*rest}", any(planes::control))
        .route("/.well-known/agent-card.json", any(public_card))
        .fallback(gated)
        .with_state(app)
}

async fn public_card(State(app): State<Arc<App>>, request: Request) -> Response {
    if request.method() != Verb::GET || request.uri().query().is_some() {
        return gated(State(app), request).await;
    }
    let mut response = Response::new(Body::from(app.public_card.clone()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Everything that asks for the caller's token.
async fn gated(State(app): State<Arc<App>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let origin = origin::origin(&head.headers);
    let caller = match admit(&app.config, &head, origin) {
        Ok(caller) => caller,
        Err(refused) => return refuse(body, refused.response(&app.config.capsule.name)),
    };
    if head.uri.path().starts_with("/resources/") {
        return refuse(body, planes::operator(&app, &caller, &head).await);
    }
    let Some(length) = rpc_length(&head) else { return refuse(body, no_request(&head)) };
    if length > MAX_BODY as u64 {
        let message = format!("a request's body holds at most {MAX_BODY} bytes");
        return refuse(body, flat(StatusCode::PAYLOAD_TOO_LARGE, "too_large", &message));
    }
    match read_body(body, length).await {
        Ok(body) => answer(&app, caller, origin, &head, &body).await,
        Err(response) => response,
    }
}

fn admit(config: &DoorConfig, head: &Parts, origin: Origin) -> Result<Caller, Refused> {
    let caller = authorize(config, &head.headers)?;
    if origin == Origin::Peer && !config.accepts_peers {
        return Err(Refused::PeerNotAccepted);
    }
    Ok(caller)
}

/// The declared length of a JSON-RPC request; `None` when this is none.
fn rpc_length(head: &Parts) -> Option<u64> {
    let at_root = matches!(head.uri.path(), "/" | "") && head.uri.query().is_none();
    let json = head
        .headers
        .get(header::CONTENT_TYPE)
        .and_then(|line| line.to_str().ok())
        .is_some_and(|line| line.to_ascii_lowercase().contains("application/json"));
    let length: u64 = head.headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.trim().parse().ok()?;
    (head.method == Verb::POST && at_root && json && length > 0).then_some(length)
}

/// `404` of a request that is none of ours, with what one would be.
fn no_request(head: &Parts) -> Response {
    let json =
        head.headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
    let message = if head.uri.path() != "/" || head.uri.query().is_some() {
        "nothing is at this path; the door takes POST / and shows its card at GET /.well-known/agent-card.json"
    } else if head.method != Verb::POST {
        "the door takes POST /; its card is at GET /.well-known/agent-card.json"
    } else if !json {
        "the door takes JSON-RPC: send Content-Type: application/json"
    } else {
        "the door takes JSON-RPC: send a body, and its length as Content-Length"
    };
    not_found(message)
}

pub(super) fn not_found(message: &str) -> Response {
    flat(StatusCode::NOT_FOUND, "not_found", message)
}

/// Answers without waiting for the body; some of it is read meanwhile, for closing on unread bytes would take the
/// answer away from its client.
fn refuse(body: Body, response: Response) -> Response {
    if !body.is_end_stream() {
        tokio::spawn(tokio::time::timeout(DRAIN_WAIT, drain(body)));
    }
    response
}

async fn drain(mut body: Body) {
    let mut drained = 0;
    while drained < DRAINED
        && let Some(Ok(frame)) = body.frame().await
    {
        drained += frame.data_ref().map_or(0, Bytes::len);
    }
}

/// Exactly the declared bytes; the server refuses a body that is longer. One that stalls is given up.
async fn read_body(body: Body, length: u64) -> Result<Bytes, Response> {
    let read = tokio::time::timeout(BODY_WAIT, body.collect()).await;
    let (status, message) = match read {
        Ok(Ok(collected)) => {
            let bytes = collected.to_bytes();
            if bytes.len() as u64 == length {
                return Ok(bytes);
            }
            (StatusCode::BAD_REQUEST, "the body is not of its declared length")
        }
        // The client went away: nobody reads this.
        Ok(Err(_)) => (StatusCode::BAD_REQUEST, "the body ended early"),
        Err(_) => (StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time"),
    };
    let mut response = flat(status, "incomplete_body", message);
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    Err(response)
}

/// From the body on, every answer but a missing scope is a JSON-RPC one.
async fn answer(app: &Arc<App>, caller: Caller, origin: Origin, head: &Parts, body: &[u8]) -> Response {
    let request = match rpc::read(body) {
        Ok(request) => request,
        Err((id, error)) => return rpc::error_response(&id, &error),
    };
    let method = match find(app, origin, head, &request.method) {
        Ok(method) => method,
        Err(error) => return rpc::error_response(&request.id, &error),
    };
    if let Some(scope) = method.scope()
        && !caller.reaches(scope)
    {
        return Refused::scope(&caller, scope).response(&app.config.capsule.name);
    }
    let params = match parameters(request.params) {
        Ok(params) => params,
        Err(error) => return rpc::error_response(&request.id, &error),
    };
    methods::answer(method, Call { app, caller, origin, headers: &head.headers, id: request.id, params }).await
}

fn find(app: &App, origin: Origin, head: &Parts, method: &str) -> Result<Method, RpcError> {
    rpc::check_version(&head.headers)?;
    if origin == Origin::Completion {
        return Err(methods::completion(app, &head.headers, method));
    }
    Method::find(method, &app.config)
}

fn parameters(params: Option<Value>) -> Result<Map<String, Value>, RpcError> {
    let params = match params {
        None => Map::new(),
        Some(Value::Object(params)) => params,
        Some(_) => return Err(RpcError::params_shape()),
    };
    match params.get("tenant") {
        None => Ok(params),
        Some(Value::String(tenant)) if tenant.is_empty() => Ok(params),
        Some(tenant) => Err(RpcError::params(format!(
            "tenant {tenant} names a tenant; this agent serves no tenants, so omit tenant"
        ))),
    }
}
