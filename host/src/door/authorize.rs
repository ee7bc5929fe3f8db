//! Who calls: the `Authorization` header of an authenticated door, and the refusals with their exact bytes.

use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use http::{HeaderMap, HeaderValue, StatusCode, header};

use super::DoorConfig;
use crate::credentials::MemberName;
use crate::credentials::door::{OPERATOR, Scope};
use crate::credentials::token::{self, Refusal};
use crate::session::tasks::Owner;

/// The scopes of a formation token.
const MEMBER_SCOPES: [Scope; 5] =
    [Scope::SendMessage, Scope::GetTask, Scope::CancelTask, Scope::ListTasks, Scope::SubscribeToTask];

/// Who presents a request.
#[derive(Clone, Debug)]
pub(super) enum Caller {
    /// Anybody, at a public door.
    Anybody,
    /// The operator's token.
    Operator,
    /// A declared credential.
    Credential { name: Arc<str>, scopes: Arc<[Scope]> },
    /// Another member of the formation.
    Member(MemberName),
}

impl Caller {
    /// Whose tasks it starts and reaches. A public door makes no difference between callers: each is the operator.
    pub(super) fn owner(&self) -> Owner {
        match self {
            Self::Anybody | Self::Operator => Owner::Operator,
            Self::Credential { name, .. } => Owner::Credential(name.clone()),
            Self::Member(member) => Owner::Member(member.clone()),
        }
    }

    pub(super) fn reaches(&self, scope: Scope) -> bool {
        match self {
            Self::Anybody | Self::Operator => true,
            Self::Credential { scopes, .. } => scopes.contains(&scope),
            Self::Member(_) => MEMBER_SCOPES.contains(&scope),
        }
    }

    /// Whether its word about a task's trust counts: only a credential the runtime itself hands out binds it.
    pub(super) fn may_vouch(&self) -> bool {
        matches!(self, Self::Operator | Self::Member(_))
    }

    fn credential(&self) -> String {
        match self {
            Self::Anybody | Self::Operator => OPERATOR.to_owned(),
            Self::Credential { name, .. } => name.to_string(),
            Self::Member(member) => format!("member:{member}"),
        }
    }
}

/// Checks the header of an authenticated door; a public door does not look at it.
pub(super) fn authorize(config: &DoorConfig, headers: &HeaderMap) -> Result<Caller, Refused> {
    let Some(tokens) = &config.tokens else { return Ok(Caller::Anybody) };
    let mut lines = headers.get_all(header::AUTHORIZATION).iter();
    let Some(line) = lines.next() else { return Err(Refused::Unauthenticated) };
    if lines.next().is_some() {
        return Err(Refused::InvalidToken);
    }
    let token = bearer(line).ok_or(Refused::InvalidToken)?;
    if token.starts_with(token::TAG) {
        let verifier = config.formation.as_ref().ok_or(Refused::InvalidToken)?;
        return verifier.verify(token).map(Caller::Member).map_err(|refusal| match refusal {
            Refusal::Invalid => Refused::InvalidToken,
            Refusal::NotPermitted { from } => Refused::NotPermitted(from),
        });
    }
    let grant = tokens.verify(token).ok_or(Refused::InvalidToken)?;
    Ok(match &*grant.credential {
        OPERATOR => Caller::Operator,
        _ => Caller::Credential { name: grant.credential.clone(), scopes: grant.scopes.clone() },
    })
}

/// The scheme in any case, one space, the token exactly.
fn bearer(line: &HeaderValue) -> Option<&str> {
    let (scheme, token) = line.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token)
}

/// A refusal before any method: a status and a flat body, never an envelope.
#[derive(Clone, Debug)]
pub(super) enum Refused {
    Unauthenticated,
    InvalidToken,
    NotPermitted(MemberName),
    OutOfScope { credential: String, scope: Scope },
    PeerNotAccepted,
}

impl Refused {
    pub(super) fn scope(caller: &Caller, scope: Scope) -> Self {
        Self::OutOfScope { credential: caller.credential(), scope }
    }

    pub(super) fn response(&self, capsule: &str) -> Response {
        let realm = format!("Bearer realm=\"{capsule}\"");
        let (status, challenge, error, message) = match self {
            Self::Unauthenticated => (
                StatusCode::UNAUTHORIZED,
                Some(realm),
                "unauthenticated",
                "this door takes a token this capsule's runtime minted, as Authorization: Bearer <token>".to_owned(),
            ),
            Self::InvalidToken => (
                StatusCode::UNAUTHORIZED,
                Some(format!("{realm}, error=\"invalid_token\"")),
                "invalid_token",
                "the Authorization header does not present a token this session minted".to_owned(),
            ),
            Self::NotPermitted(from) => (
                StatusCode::FORBIDDEN,
                Some(format!("{realm}, error=\"insufficient_scope\"")),
                "not_permitted",
                format!("member '{from}' may not call this capsule"),
            ),
            Self::OutOfScope { credential, scope } => (
                StatusCode::FORBIDDEN,
                Some(format!("{realm}, error=\"insufficient_scope\", scope=\"{}\"", scope.as_str())),
                "insufficient_scope",
                format!("credential '{credential}' does not reach {}", scope.as_str()),
            ),
            Self::PeerNotAccepted => (
                StatusCode::FORBIDDEN,
                None,
                "peer_not_accepted",
                "this capsule does not accept tasks from peers".to_owned(),
            ),
        };
        let mut response = flat(status, error, &message);
        if let Some(challenge) = challenge.and_then(|text| HeaderValue::from_str(&text).ok()) {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
        }
        response
    }
}

/// `{"error":…,"message":…}` with a status.
pub(super) fn flat(status: StatusCode, error: &str, message: &str) -> Response {
    let body = serde_json::json!({ "error": error, "message": message }).to_string();
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
