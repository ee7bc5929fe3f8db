//! Asking a door who it is, with plain blocking sockets: for `mur ps`, readiness and live commands.
//!
//! Probes never consult proxy variables and never follow redirects.

use std::io::{self, Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// How long a connection may take.
pub const CONNECT: Duration = Duration::from_secs(2);
/// How long an answer may take.
pub const READ: Duration = Duration::from_secs(5);
/// Largest answer read; an agent card has a few kilobytes.
const MAX_ANSWER: usize = 4 << 20;
/// The extension of an agent card that names the session.
const CAPSULE_EXTENSION: &str = "https://docs.murmur.nexus/reference/agent-card/#murmur-capsule-v1";

/// The session id the door at `address` (`host:port`) says it serves: by the public card, or by the extended card with
/// the operator token where the door is authenticated.
pub fn session_at(address: &str, token: Option<&str>) -> io::Result<String> {
    // With a token one request is enough; a public door has no extended card and no token.
    if let Some(token) = token {
        let answer = call(address, token, "GetExtendedAgentCard", &json!({}))?;
        return session_of(&answer["result"]).ok_or_else(|| io::Error::other("its extended card names no session"));
    }
    let (status, card) = request(address, "GET", "/.well-known/agent-card.json", &[], b"")?;
    if status != 200 {
        return Err(io::Error::other(format!("the agent card answered {status}")));
    }
    session_of(&serde_json::from_slice(&card)?)
        .ok_or_else(|| io::Error::other("its public card names no session, and no token is known"))
}

fn session_of(card: &Value) -> Option<String> {
    let extensions = card.pointer("/capabilities/extensions")?.as_array()?;
    let capsule = extensions.iter().find(|extension| extension["uri"] == CAPSULE_EXTENSION)?;
    capsule.pointer("/params/sessionId")?.as_str().map(str::to_owned)
}

/// One JSON-RPC call at a door; an HTTP refusal is an error naming its status and message.
pub fn call(address: &str, token: &str, method: &str, params: &Value) -> io::Result<Value> {
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
    let authorization = format!("Bearer {token}");
    let mut headers = vec![("Content-Type", "application/json"), ("A2A-Version", "1.0")];
    if !token.is_empty() {
        headers.push(("Authorization", authorization.as_str()));
    }
    let (status, answer) = request(address, "POST", "/", &headers, body.as_bytes())?;
    if status != 200 {
        let body = serde_json::from_slice::<Value>(&answer).unwrap_or_default();
        let said = body["message"].as_str().unwrap_or("no message");
        return Err(io::Error::other(format!("the door answered {status}: {said}")));
    }
    Ok(serde_json::from_slice(&answer)?)
}

/// One HTTP/1.1 request on a connection of its own; returns status and body.
pub fn request(
    address: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> io::Result<(u16, Vec<u8>)> {
    request_within(READ, address, method, path, headers, body)
}

/// [`request`] with a bound of its own on the answer.
pub fn request_within(
    wait: Duration,
    address: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> io::Result<(u16, Vec<u8>)> {
    use std::fmt::Write as _;
    let mut stream = connect(address)?;
    stream.set_read_timeout(Some(wait))?;
    stream.set_write_timeout(Some(READ))?;
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
    for (name, value) in headers {
        let _ = write!(head, "{name}: {value}\r\n");
    }
    let _ = write!(head, "Content-Length: {}\r\n\r\n", body.len());
    stream.write_all(&[head.as_bytes(), body].concat())?;
    read_answer(&mut stream, Instant::now() + wait)
}

fn connect(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, format!("'{address}' has no address"));
    // Doors listen on IPv4 loopback by default; a look-up of localhost would cost more than the request.
    let addresses: Vec<SocketAddr> = match address.strip_prefix("localhost:").and_then(|port| port.parse().ok()) {
        Some(port) => vec![SocketAddr::from(([127, 0, 0, 1], port)), SocketAddr::from((Ipv6Addr::LOCALHOST, port))],
        None => address.to_socket_addrs()?.collect(),
    };
    for address in addresses {
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn read_answer(stream: &mut TcpStream, deadline: Instant) -> io::Result<(u16, Vec<u8>)> {
    let mut bytes = Vec::new();
    let mut chunk = [0_u8; 16 * 1024];
    loop {
        if let Some(answer) = parse_answer(&bytes)? {
            return Ok(answer);
        }
        if bytes.len() > MAX_ANSWER {
            return Err(invalid("the answer is too large"));
        }
        if Instant::now() > deadline {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the answer did not end in time"));
        }
        match stream.read(&mut chunk) {
            Ok(0) => {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection closed inside an answer"));
            }
            Ok(count) => bytes.extend_from_slice(&chunk[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// `None` until the whole answer is there. Only `Content-Length` framing: doors answer no other to these requests.
fn parse_answer(bytes: &[u8]) -> io::Result<Option<(u16, Vec<u8>)>> {
    let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { return Ok(None) };
    let head = std::str::from_utf8(&bytes[..end]).map_err(|_| invalid("the answer's head is no text"))?;
    let mut lines = head.split("\r\n");
    let status = lines
        .next()
        .and_then(|line| line.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)))
        .and_then(|status| status.parse().ok())
        .ok_or_else(|| invalid("the answer is not HTTP"))?;
    let length: usize = lines
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, value)| value.trim().parse().ok())
        .filter(|length| *length <= MAX_ANSWER)
        .ok_or_else(|| invalid("the answer has no usable length"))?;
    let body = &bytes[end + 4..];
    Ok((body.len() >= length).then(|| (status, body[..length].to_vec())))
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}
