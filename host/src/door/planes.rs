//! The HTTP planes beside JSON-RPC, and what a door without them answers.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode, header};

use super::app::{App, not_found};
use super::authorize::{Caller, Refused, flat};
use super::files;
use crate::credentials::door::Scope;

/// The plane peers read files from.
pub(super) async fn peer(State(_): State<Arc<App>>, request: Request) -> Response {
    if request.method() != Method::GET {
        return method_not_allowed();
    }
    flat(StatusCode::NOT_FOUND, "no_peer_plane", "this capsule hands no files to peers")
}

/// The control surface: absent unless a manifest lists something for a controller.
pub(super) async fn control(State(_): State<Arc<App>>, _: Request) -> Response {
    not_found("this capsule lists nothing for a controller, so there is no control surface")
}

/// The plane the operator reads exported files from.
pub(super) async fn operator(app: &App, caller: &Caller, head: &Parts) -> Response {
    if !caller.reaches(Scope::ResourcesFiles) {
        return Refused::scope(caller, Scope::ResourcesFiles).response(&app.config.capsule.name);
    }
    if head.method != Method::GET {
        return method_not_allowed();
    }
    match &app.config.files {
        Some(files) => files::answer(files, app.registry.counts().finished, head.uri.path()).await,
        None => flat(StatusCode::NOT_FOUND, "no_resource_plane", "this capsule exports no files"),
    }
}

fn method_not_allowed() -> Response {
    let mut response = flat(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "this plane answers GET only");
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET"));
    response
}
