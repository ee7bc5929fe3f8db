//! A small HTTP client over `wasi:http`: one request, its head, then the body as it comes.

use wasip2::http::outgoing_handler;
use wasip2::http::types::{
    ErrorCode, Fields, IncomingBody, IncomingResponse, Method, OutgoingBody, OutgoingRequest, RequestOptions, Scheme,
};
use wasip2::io::streams::{InputStream, StreamError};

/// How much of a body is asked for at once.
const READ: u64 = 64 * 1024;
/// How much of a body one write may carry.
const WRITE: usize = 4096;

/// A request.
pub struct Request<'a> {
    /// `GET`, `POST` and so on.
    pub method: &'a str,
    /// `http://` or `https://`.
    pub url: &'a str,
    /// Names and values.
    pub headers: &'a [(&'a str, &'a str)],
    /// The body, empty for none.
    pub body: &'a [u8],
    /// How long the server may take to its first byte and between two, in seconds; `0` leaves it to the host.
    pub patience_secs: u64,
}

/// An answer's head, and the body still to be read.
pub struct Response {
    /// The status code.
    pub status: u16,
    /// Names in lower case, and values.
    pub headers: Vec<(String, String)>,
    // Fields drop in this order, and the stream must go before the body it belongs to.
    stream: InputStream,
    _body: IncomingBody,
    _response: IncomingResponse,
}

/// Sends a request and waits for the answer's head.
pub fn send(request: &Request<'_>) -> Result<Response, String> {
    let outgoing = head(request)?;
    let body = outgoing.body().map_err(|()| "the request has no body to write".to_owned())?;
    let options = (request.patience_secs > 0).then(|| {
        let options = RequestOptions::new();
        let nanos = request.patience_secs.saturating_mul(1_000_000_000);
        // A host that has no such timer says no, and keeps its own.
        let _ = options.set_first_byte_timeout(Some(nanos));
        let _ = options.set_between_bytes_timeout(Some(nanos));
        options
    });
    let future = outgoing_handler::handle(outgoing, options).map_err(|code| describe(&code))?;
    // A host that refuses the request may close the body first: the reason is in the response, so it is read before
    // a failed write is believed.
    let written = write(body, request.body);
    future.subscribe().block();
    let response = match future.get() {
        Some(Ok(Ok(response))) => response,
        Some(Ok(Err(code))) => return Err(describe(&code)),
        _ => return Err("the host gave no response".to_owned()),
    };
    if let Err(fault) = written
        && response.status() < 300
    {
        return Err(fault);
    }
    open(response)
}

fn head(request: &Request<'_>) -> Result<OutgoingRequest, String> {
    let (scheme, rest) = request.url.split_once("://").ok_or_else(|| format!("'{}' is no URL", request.url))?;
    let split = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(split);
    let headers = Fields::new();
    for (name, value) in request.headers {
        headers.append(name, value.as_bytes()).map_err(|fault| format!("the header '{name}' is refused: {fault:?}"))?;
    }
    let length = request.body.len().to_string();
    if !request.body.is_empty() {
        let _ = headers.append("content-length", length.as_bytes());
    }
    let outgoing = OutgoingRequest::new(headers);
    let bad = |what: &str| format!("'{}' has {what} that cannot be sent", request.url);
    let method = match request.method {
        "GET" => Method::Get,
        "POST" => Method::Post,
        "PUT" => Method::Put,
        "DELETE" => Method::Delete,
        "HEAD" => Method::Head,
        other => Method::Other(other.to_owned()),
    };
    outgoing.set_method(&method).map_err(|()| bad("a method"))?;
    let scheme = match scheme {
        "http" => Scheme::Http,
        "https" => Scheme::Https,
        other => return Err(format!("'{other}' is no scheme that can be fetched")),
    };
    outgoing.set_scheme(Some(&scheme)).map_err(|()| bad("a scheme"))?;
    outgoing.set_authority(Some(authority)).map_err(|()| bad("a host"))?;
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let path = path.split('#').next().unwrap_or("/");
    outgoing.set_path_with_query(Some(path)).map_err(|()| bad("a path"))?;
    Ok(outgoing)
}

fn write(body: OutgoingBody, bytes: &[u8]) -> Result<(), String> {
    if !bytes.is_empty() {
        let stream = body.write().map_err(|()| "the request's body cannot be written".to_owned())?;
        for piece in bytes.chunks(WRITE) {
            stream
                .blocking_write_and_flush(piece)
                .map_err(|fault| format!("the request was cut off while it was sent: {}", stream_fault(&fault)))?;
        }
    }
    OutgoingBody::finish(body, None).map_err(|code| describe(&code))
}

fn open(response: IncomingResponse) -> Result<Response, String> {
    let status = response.status();
    let headers = response
        .headers()
        .entries()
        .into_iter()
        .map(|(name, value)| (name.to_ascii_lowercase(), String::from_utf8_lossy(&value).into_owned()))
        .collect();
    let body = response.consume().map_err(|()| "the response's body cannot be read".to_owned())?;
    let stream = body.stream().map_err(|()| "the response's body cannot be read".to_owned())?;
    Ok(Response { status, headers, stream, _body: body, _response: response })
}

impl Response {
    /// The first header of a name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The next bytes of the body; `None` at its end. A body cut off is a fault, not an end.
    pub fn read(&mut self) -> Result<Option<Vec<u8>>, String> {
        loop {
            match self.stream.blocking_read(READ) {
                Ok(bytes) if bytes.is_empty() => {}
                Ok(bytes) => return Ok(Some(bytes)),
                Err(StreamError::Closed) => return Ok(None),
                Err(fault) => return Err(format!("the answer was cut off: {}", stream_fault(&fault))),
            }
        }
    }

    /// The rest of the body, up to a limit; and whether there was more.
    pub fn read_up_to(&mut self, limit: usize) -> Result<(Vec<u8>, bool), String> {
        let mut all = Vec::new();
        while let Some(bytes) = self.read()? {
            let room = limit - all.len();
            if bytes.len() > room {
                all.extend_from_slice(&bytes[..room]);
                return Ok((all, true));
            }
            all.extend_from_slice(&bytes);
        }
        Ok((all, false))
    }
}

impl crate::provider::Body for Response {
    fn next(&mut self) -> Result<Option<Vec<u8>>, String> {
        self.read()
    }
}

fn stream_fault(fault: &StreamError) -> String {
    match fault {
        StreamError::Closed => "the connection was closed".to_owned(),
        StreamError::LastOperationFailed(error) => error.to_debug_string(),
    }
}

fn describe(code: &ErrorCode) -> String {
    match code {
        ErrorCode::HttpRequestDenied => {
            "the host refused the request: its destination is not in capabilities.network.allow".into()
        }
        ErrorCode::DnsError(_) => "the server's name does not resolve".to_owned(),
        ErrorCode::ConnectionRefused => "the server refused the connection".to_owned(),
        ErrorCode::ConnectionTimeout => "the connection timed out".to_owned(),
        ErrorCode::ConnectionTerminated => "the connection was closed before an answer came".to_owned(),
        ErrorCode::HttpResponseTimeout | ErrorCode::ConnectionReadTimeout => "the server gave no answer in time".into(),
        ErrorCode::TlsCertificateError => "the server's certificate is not trusted".to_owned(),
        ErrorCode::HttpRequestUriInvalid => "the URL is not valid".to_owned(),
        ErrorCode::InternalError(Some(text)) => text.clone(),
        other => format!("{other:?}"),
    }
}
