//! Connections: accepting them, HTTP/1.1 with keep-alive and bounds, and their end with the door.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use http::{Request, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::app::{App, MAX_HEADERS, router};

/// Connections served at once; further ones wait to be accepted.
const MAX_CONNECTIONS: usize = 1024;
/// How long a connection may take over a request's head, idle time between requests included.
const HEAD_WAIT: Duration = Duration::from_secs(60);
/// Pause after a failed accept: descriptors are short, and only time frees them.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Serves until the door closes and every connection has ended.
pub(super) async fn serve(listener: TcpListener, app: Arc<App>) {
    let router = router(app.clone());
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &places) => accepted,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            () = app.closed() => break,
        };
        match accepted {
            Ok((stream, place)) => {
                let (router, app) = (router.clone(), app.clone());
                connections.spawn(async move {
                    connection(stream, router, &app).await;
                    drop(place);
                });
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> io::Result<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let place = places.clone().acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    // Events are small and are read as they come.
    stream.set_nodelay(true)?;
    Ok((stream, place))
}

async fn connection(stream: TcpStream, router: Router, app: &App) {
    let app_service = TowerToHyperService::new(router);
    let service = service_fn(move |request| {
        let app_service = app_service.clone();
        async move {
            // The server's own bound on its buffer lets a head of twice the size through that came in one piece.
            if head_bytes(&request) > MAX_HEADERS { Ok(too_large()) } else { app_service.call(request).await }
        }
    });
    let mut server = http1::Builder::new();
    server.max_buf_size(MAX_HEADERS).timer(TokioTimer::new()).header_read_timeout(HEAD_WAIT);
    let mut connection = pin!(server.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        // What goes wrong on a connection is its client's affair.
        _ = &mut connection => return,
        () = app.closed() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

/// The head's size as it was sent: `: ` and the line's end add four bytes to a header.
fn head_bytes(request: &Request<Incoming>) -> usize {
    let uri = request.uri();
    let path = uri.path_and_query().map_or(0, |path| path.as_str().len());
    let authority = uri.authority().map_or(0, |authority| authority.as_str().len());
    let lines: usize = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    path + authority + lines
}

fn too_large() -> axum::response::Response {
    let mut response = axum::response::Response::new(axum::body::Body::empty());
    *response.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    response
}
