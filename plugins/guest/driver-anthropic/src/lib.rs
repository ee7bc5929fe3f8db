//! Inference over the Anthropic Messages API: <https://docs.anthropic.com/en/api/messages>.
//!
//! The request is built from the host's and sent to the gateway, which attaches the key; the answer is read as a stream
//! of events, or whole, and turned into the host's blocks.

mod reply;
mod request;

#[cfg(target_family = "wasm")]
mod host;

use mur_guest_kit::provider::{self, Body, Config, Events, Failure, Reply};
use serde_json::Value;

#[cfg(target_family = "wasm")]
mur_guest_kit::artifact!(super::host::call);

/// The API version all requests name unless the configuration names another.
pub const VERSION: &str = "2023-06-01";

const KNOWN: &[&str] = &["stream", "cache", "version", "betas", "body"];
/// Errors that pass by themselves, whatever status they came with.
const PASSING: &[&str] = &["overloaded_error", "rate_limit_error", "api_error", "timeout_error"];

/// What one call sends.
#[derive(Debug)]
pub struct Outgoing {
    /// Names and values beside those of every request.
    pub headers: Vec<(&'static str, String)>,
    /// The body.
    pub body: Value,
}

/// Turns the host's request into the provider's.
pub fn outgoing(request: &str, config: Option<&str>) -> Result<Outgoing, Failure> {
    let config = Config::read(config, KNOWN)?;
    let request = provider::Request::read(request)?;
    let mut headers = vec![
        ("anthropic-version", config.text("version")?.unwrap_or(VERSION).to_owned()),
        ("content-type", "application/json".to_owned()),
    ];
    if let Some(betas) = config.text("betas")? {
        headers.push(("anthropic-beta", betas.to_owned()));
    }
    let body = request::body(&request, &config)?;
    headers.push(("accept", if body["stream"] == true { "text/event-stream" } else { "application/json" }.to_owned()));
    Ok(Outgoing { headers, body })
}

/// Reads an answer: a stream by its content type, else a whole body.
pub fn incoming(
    status: u16,
    header: impl for<'a> Fn(&'a str) -> Option<String>,
    body: &mut dyn Body,
    events: &mut dyn Events,
) -> Result<Reply, Failure> {
    if !(200..300).contains(&status) {
        return Err(refusal(status, &header, body));
    }
    let kind = header("content-type").unwrap_or_default();
    if kind.starts_with("text/event-stream") {
        let mut reader = reply::StreamReader::default();
        provider::stream(body, |event| reader.take(event, events))?;
        return reader.finish();
    }
    let bytes = provider::whole_body(body).map_err(Failure::transient)?;
    reply::whole(&provider::whole_json(&bytes)?)
}

fn refusal(status: u16, header: &impl for<'a> Fn(&'a str) -> Option<String>, body: &mut dyn Body) -> Failure {
    // What could be read of the reason is better than why the rest could not.
    let bytes = provider::whole_body(body).unwrap_or_default();
    let (kind, message) = provider::error_text(&bytes);
    let kind = kind.map(|kind| format!(" {kind}")).unwrap_or_default();
    let retry_after = ["retry-after-ms", "retry-after"].map(|name| (name, header(name)));
    Failure {
        // The provider may say outright whether asking again makes sense.
        transient: header("x-should-retry").and_then(|text| text.trim().parse().ok()),
        status: Some(status),
        retry_after_ms: provider::retry_after_ms(|name| {
            retry_after.iter().find(|(known, _)| *known == name).and_then(|(_, value)| value.as_deref())
        }),
        ..Failure::open(format!("the provider answered {status}{kind}: {message}"))
    }
}

/// A failure that came inside an answer that began well.
fn stream_failure(error: &Value) -> Failure {
    let kind = error["type"].as_str().unwrap_or("error");
    let (message, _) = mur_guest_kit::input::cut(error["message"].as_str().unwrap_or_default(), provider::MAX_ERROR);
    let reason = format!("the provider broke off with {kind}: {message}");
    if PASSING.contains(&kind) { Failure::transient(reason) } else { Failure::fixed(reason) }
}

#[cfg(test)]
mod tests;
