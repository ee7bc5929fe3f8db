//! Inference over the Chat Completions API of OpenAI, and of every server that speaks it: vLLM, llama.cpp, Ollama,
//! gateways. The endpoint is the gateway's; `dialect: plain` leaves out what only OpenAI's own service knows.

mod reply;
mod request;

#[cfg(target_family = "wasm")]
mod host;

use mur_guest_kit::provider::{self, Body, Config, Events, Failure, Reply};
use serde_json::Value;

#[cfg(target_family = "wasm")]
mur_guest_kit::artifact!(super::host::call);

const KNOWN: &[&str] = &["stream", "dialect", "body"];
/// Errors that will not pass, whatever status they came with: a spent quota is answered with 429.
const LASTING: &[&str] = &["insufficient_quota", "billing_hard_limit_reached", "context_length_exceeded"];

/// Turns the host's request into the body of the provider's.
pub fn outgoing(request: &str, config: Option<&str>) -> Result<Value, Failure> {
    let config = Config::read(config, KNOWN)?;
    request::body(&provider::Request::read(request)?, &config)
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
    if header("content-type").unwrap_or_default().starts_with("text/event-stream") {
        let mut reader = reply::StreamReader::default();
        let read = provider::stream(body, |event| reader.take(event, events));
        // Some servers close after the last chunk without the closing mark; the answer is whole all the same.
        match read {
            Err(failure) if !(reader.ended() && failure.transient == Some(true)) => return Err(failure),
            _ => return reader.finish(),
        }
    }
    let bytes = provider::whole_body(body).map_err(Failure::transient)?;
    reply::whole(&provider::whole_json(&bytes)?)
}

fn refusal(status: u16, header: &impl for<'a> Fn(&'a str) -> Option<String>, body: &mut dyn Body) -> Failure {
    let bytes = provider::whole_body(body).unwrap_or_default();
    let (kind, message) = provider::error_text(&bytes);
    let code = serde_json::from_slice::<Value>(&bytes).unwrap_or_default()["error"]["code"].as_str().map(str::to_owned);
    let lasting = [&kind, &code].into_iter().flatten().any(|kind| LASTING.contains(&kind.as_str()));
    let told = header("x-should-retry").and_then(|text| text.trim().parse().ok());
    let kind = code.or(kind).map(|kind| format!(" {kind}")).unwrap_or_default();
    let retry_after = ["retry-after-ms", "retry-after"].map(|name| (name, header(name)));
    Failure {
        transient: if lasting { Some(false) } else { told },
        status: Some(status),
        retry_after_ms: provider::retry_after_ms(|name| {
            retry_after.iter().find(|(known, _)| *known == name).and_then(|(_, value)| value.as_deref())
        }),
        ..Failure::open(format!("the provider answered {status}{kind}: {message}"))
    }
}

/// An error that came inside an answer that began well.
fn stream_failure(error: &Value) -> Failure {
    let kind = ["code", "type"].iter().find_map(|key| error[*key].as_str()).unwrap_or("error");
    let message = error["message"].as_str().or_else(|| error.as_str()).unwrap_or_default();
    let (message, _) = mur_guest_kit::input::cut(message, provider::MAX_ERROR);
    let reason = format!("the provider broke off with {kind}: {message}");
    let fixed = LASTING.contains(&kind) || kind.starts_with("invalid_");
    if fixed { Failure::fixed(reason) } else { Failure::transient(reason) }
}

#[cfg(test)]
mod tests;
