//! `wasi:http` requests, forwarded: the head goes to `mur`, the bodies stream under credit, and nothing is connected
//! here.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use ::http::{HeaderMap, HeaderName, HeaderValue};
use bytes::Bytes;
use http_body::Body as _;
use http_body_util::BodyExt;
use tokio::sync::oneshot;
use wasmtime_wasi_http::{Error, RequestOptions, WasiBody, WasiHttpHooks};

use super::super::protocol::stream::{self, Credit, Receipt};
use super::super::protocol::{Frame, Up};
use super::board::{HttpPending, Pending};
use super::state::Link;
use crate::egress::{HttpError, Timeouts};

/// What a response comes with: work that goes on while its body is read.
type Background = Box<dyn Future<Output = Result<(), Error>> + Send>;

/// Sends requests by a call's line.
pub(super) struct Hooks(Arc<Link>);

impl Hooks {
    pub(super) fn new(link: Arc<Link>) -> Self {
        Self(link)
    }
}

impl WasiHttpHooks for Hooks {
    fn set_host_header(&mut self) -> bool {
        // The host is in the address; whoever connects says it to the server.
        false
    }

    fn send_request(
        &mut self,
        request: ::http::Request<WasiBody>,
        options: Option<RequestOptions>,
        _processed: Background,
    ) -> Box<dyn Future<Output = Result<(::http::Response<WasiBody>, Background), Error>> + Send> {
        let link = self.0.clone();
        Box::new(send(link, request, options.unwrap_or_default()))
    }
}

/// A request that `mur` knows of, until its response is whole. Dropping it lets go of both.
struct Open {
    link: Arc<Link>,
    request: u32,
}

impl Drop for Open {
    fn drop(&mut self) {
        if self.link.shared.board.forget(self.link.call, self.request) {
            self.link.shared.outgoing.send(&Up::Dropped { call: self.link.call, request: self.request });
        }
    }
}

impl Receipt for Open {
    fn consumed(&self, amount: u32) {
        // A hook's instance outlives its calls, and so does a body it kept: `mur` knows nothing of it any more.
        if self.link.shared.board.is_running(self.link.call) {
            self.link.shared.outgoing.send(&Up::Credit { call: self.link.call, request: self.request, amount });
        }
    }

    fn dropped(&self) {}
}

async fn send(
    link: Arc<Link>,
    request: ::http::Request<WasiBody>,
    options: RequestOptions,
) -> Result<(::http::Response<WasiBody>, Background), Error> {
    let (parts, body) = request.into_parts();
    let open = Open { request: link.next_request(), link };
    let (call, id) = (open.link.call, open.request);
    let has_body = !body.is_end_stream();
    let frame = Up::Open {
        call,
        request: id,
        method: parts.method.to_string(),
        uri: parts.uri.to_string(),
        headers: header_list(&parts.headers),
        body: has_body,
        timeouts: Timeouts {
            connect: options.connect_timeout,
            first_byte: options.first_byte_timeout,
            between_bytes: options.between_bytes_timeout,
        },
    };
    let frame = frame.encode().map_err(|_| Error::HttpRequestHeaderSectionSize(None))?;

    let shared = open.link.shared.clone();
    let credit = Arc::new(Credit::default());
    let (head, mut answered) = oneshot::channel();
    let (deliver, response) = stream::body(open);
    let pending = HttpPending { head: Some(head), body: deliver, credit: credit.clone() };
    if !shared.board.expect(call, id, Pending::Http(pending)) {
        return Err(Error::ConnectionLimitReached);
    }
    shared.outgoing.send_bytes(&frame);

    let mut upload = pin!(None);
    if has_body {
        upload.set(Some(Box::pin(async move {
            let sent = stream::pump(body, credit, |bytes: Bytes| {
                let running = shared.board.is_running(call);
                if running {
                    shared.outgoing.send(&Up::Chunk { call, request: id, bytes });
                }
                std::future::ready(running)
            });
            let sent = sent.await;
            if shared.board.is_running(call) {
                shared.outgoing.send(&Up::End { call, request: id, whole: sent.is_ok() });
            }
            sent
        })));
    }
    // The body is sent while the response is waited for, and may still be on its way when that comes.
    let head = loop {
        match upload.as_mut().get_mut() {
            Some(sending) => tokio::select! {
                biased;
                head = &mut answered => break head,
                sent = sending => {
                    upload.set(None);
                    sent?;
                }
            },
            None => break (&mut answered).await,
        }
    };
    let rest = upload.as_mut().get_mut().take();
    let head = head.unwrap_or(Err(HttpError::Cancelled)).map_err(wasi_error)?;
    let mut answer = ::http::Response::new(response.map_err(wasi_error).boxed_unsync());
    *answer.status_mut() = ::http::StatusCode::from_u16(head.status).map_err(|_| Error::HttpProtocolError)?;
    *answer.headers_mut() = head.headers;
    let background: Background = match rest {
        Some(rest) => Box::new(rest),
        None => Box::new(async { Ok(()) }),
    };
    Ok((answer, background))
}

/// Headers as a frame carries them.
fn header_list(headers: &HeaderMap) -> Vec<(String, Bytes)> {
    headers.iter().map(|(name, value)| (name.to_string(), Bytes::copy_from_slice(value.as_bytes()))).collect()
}

/// Headers of a frame; one that is no header is left out.
pub(super) fn header_map(list: Vec<(String, Bytes)>) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(list.len());
    for (name, value) in list {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::from_maybe_shared(value)) {
            headers.append(name, value);
        }
    }
    headers
}

fn wasi_error(error: HttpError) -> Error {
    match error {
        HttpError::Denied(_) => Error::HttpRequestDenied,
        HttpError::NameNotResolved => Error::DnsError { rcode: None, info_code: None },
        HttpError::ConnectionRefused => Error::ConnectionRefused,
        HttpError::ConnectionLost | HttpError::Cancelled => Error::ConnectionTerminated,
        HttpError::ConnectTimeout => Error::ConnectionTimeout,
        HttpError::ReadTimeout => Error::ConnectionReadTimeout,
        HttpError::Tls(_) => Error::TlsProtocolError,
        HttpError::InvalidRequest(_) => Error::HttpRequestUriInvalid,
        HttpError::Protocol(_) => Error::HttpProtocolError,
        HttpError::Other(why) => Error::InternalError(Some(why)),
    }
}
