//! One request of a call to a member's door, through the session's egress.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method, Uri};
use http_body_util::{BodyExt, Full, Limited};

use crate::egress::{Egress, HttpError, HttpRequest, Peers, Sender, Timeouts};

/// Most bytes of a door's answer.
const ANSWER_MAX: usize = 16 << 20;
/// The version of A2A that members speak.
const A2A_VERSION: &str = "1.0";

/// What stands where a token was.
const REDACTED: &str = "[redacted]";
/// How every formation token begins.
const TOKEN_PREFIX: &str = "mft1.";

/// Why a request brought no answer.
#[derive(Debug)]
pub enum Fault {
    /// The member's door could not be reached.
    Unreachable(String),
    /// The request was not sent: this capsule may not, or the member has no address.
    NotSent(String),
}

/// Posts one body to a member's door and reads the whole answer.
pub async fn post(
    egress: &Egress,
    sender: &Sender,
    member: &str,
    body: Vec<u8>,
    limit: Duration,
) -> Result<(u16, Bytes), Fault> {
    let exchange = async {
        let response = egress.send(sender, request(member, body)).await?;
        let status = response.status.as_u16();
        let body = Limited::new(response.body, ANSWER_MAX).collect().await;
        body.map(|body| (status, body.to_bytes())).map_err(|_| HttpError::ConnectionLost)
    };
    match tokio::time::timeout(limit, exchange).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(HttpError::Denied(what))) => Err(Fault::NotSent(format!(
            "{what} could not be called: the door has no address yet, or capabilities.network.allow does not reach it"
        ))),
        Ok(Err(HttpError::InvalidRequest(why))) => Err(Fault::NotSent(why)),
        Ok(Err(error)) => Err(Fault::Unreachable(format!("its door could not be reached: {error}"))),
        Err(_) => Err(Fault::Unreachable(format!("its door did not answer within {} s", limit.as_secs()))),
    }
}

fn request(member: &str, body: Vec<u8>) -> HttpRequest {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert("a2a-version", HeaderValue::from_static(A2A_VERSION));
    // A member's name is a host name by the roster's rule.
    let uri = Uri::builder().scheme("http").authority(virtual_host(member)).path_and_query("/").build();
    HttpRequest {
        method: Method::POST,
        uri: uri.unwrap_or_default(),
        headers,
        body: Full::new(Bytes::from(body)).map_err(|never| match never {}).boxed_unsync(),
        timeouts: Timeouts::default(),
    }
}

fn virtual_host(member: &str) -> String {
    format!("{member}.formation.invalid")
}

/// Takes real door addresses and tokens out of texts that a model or the trace will see.
#[derive(Clone)]
pub struct Redactor {
    peers: Option<Arc<dyn Peers>>,
    callees: Vec<String>,
}

impl Redactor {
    /// For the members this one may call.
    pub fn new(peers: Option<Arc<dyn Peers>>, callees: Vec<String>) -> Self {
        Self { peers, callees }
    }

    /// The text with every known door address in its virtual form and every formation token gone.
    pub async fn clean(&self, text: String) -> String {
        let Some(peers) = &self.peers else { return without_tokens(text) };
        if !may_name_an_address(&text) {
            return text;
        }
        let mut doors = Vec::with_capacity(self.callees.len());
        for member in &self.callees {
            if let Some(door) = peers.door(member, Duration::ZERO).await {
                doors.push((member.as_str(), door.url));
            }
        }
        without_tokens(without_addresses(text, &doors))
    }
}

fn may_name_an_address(text: &str) -> bool {
    text.contains(TOKEN_PREFIX) || text.contains("localhost:") || text.contains("127.0.0.1:") || text.contains("[::1]:")
}

fn without_addresses(mut text: String, doors: &[(&str, String)]) -> String {
    for (member, url) in doors {
        let Some(port) = url.parse::<Uri>().ok().and_then(|uri| uri.port_u16()) else { continue };
        for host in ["localhost", "127.0.0.1", "[::1]"] {
            text = without_authority(text, &format!("{host}:{port}"), member);
        }
    }
    text
}

/// Replaces an authority, its scheme included, where its port is not the beginning of a longer number.
fn without_authority(text: String, authority: &str, member: &str) -> String {
    if !text.contains(authority) {
        return text;
    }
    let mut clean = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(at) = rest.find(authority) {
        let after = &rest[at + authority.len()..];
        if after.starts_with(|c: char| c.is_ascii_digit()) {
            clean.push_str(&rest[..at + authority.len()]);
        } else {
            let before = &rest[..at];
            clean.push_str(before.strip_suffix("http://").unwrap_or(before));
            clean.push_str("http://");
            clean.push_str(&virtual_host(member));
        }
        rest = after;
    }
    clean.push_str(rest);
    clean
}

fn without_tokens(text: String) -> String {
    if !text.contains(TOKEN_PREFIX) {
        return text;
    }
    let mut clean = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(at) = rest.find(TOKEN_PREFIX) {
        clean.push_str(&rest[..at]);
        clean.push_str(REDACTED);
        let of_token = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '=');
        rest = rest[at + TOKEN_PREFIX.len()..].trim_start_matches(of_token);
    }
    clean.push_str(rest);
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn door_addresses_become_virtual_ones() {
        let doors = [("coder", "http://localhost:4011".to_owned()), ("b", "http://127.0.0.1:9000/".to_owned())];
        let clean = without_addresses(
            "see http://localhost:4011/x, localhost:40110, 127.0.0.1:4011 and [::1]:9000.".into(),
            &doors,
        );
        assert_eq!(
            clean,
            "see http://coder.formation.invalid/x, localhost:40110, http://coder.formation.invalid and \
             http://b.formation.invalid."
        );
    }

    #[test]
    fn tokens_are_taken_out_whole() {
        assert_eq!(without_tokens("a mft1.ab-_.c= b mft1. c".into()), "a [redacted] b [redacted] c");
        assert_eq!(without_tokens("nothing".into()), "nothing");
    }

    #[test]
    fn a_request_goes_to_the_virtual_address_without_a_credential() {
        let request = request("coder", b"{}".to_vec());
        assert_eq!(request.uri.to_string(), "http://coder.formation.invalid/");
        assert_eq!(request.headers["a2a-version"], "1.0");
        assert!(!request.headers.contains_key("authorization"));
    }
}
