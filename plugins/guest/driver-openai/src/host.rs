//! One call, on the real network.

use mur_guest_kit::provider::Failure;
use mur_guest_kit::{Answer, guest, http};

/// One call.
pub fn call(request: &str) -> Answer {
    ask(request).unwrap_or_else(Failure::answer)
}

fn ask(request: &str) -> Result<Answer, Failure> {
    let config = guest::env("MURMUR_INFERENCE_DRIVER_CONFIG");
    let outgoing = crate::outgoing(request, config.as_deref())?;
    let endpoint = guest::env("MURMUR_GATEWAY_ENDPOINT").or_else(|| guest::env("MURMUR_INFERENCE_ENDPOINT"));
    let endpoint = endpoint.ok_or_else(|| Failure::fixed("this driver is given no gateway to a provider"))?;
    let url = format!("{}/chat/completions", endpoint.trim_end_matches('/'));
    let accept = if outgoing["stream"] == true { "text/event-stream" } else { "application/json" };
    let headers = [("content-type", "application/json"), ("accept", accept)];
    let body = outgoing.to_string();
    let request =
        http::Request { method: "POST", url: &url, headers: &headers, body: body.as_bytes(), patience_secs: 0 };
    // Whether a connection that failed may be tried again is the host's to judge: it saw how.
    let mut response = http::send(&request).map_err(Failure::open)?;
    let status = response.status;
    let head = response.headers.clone();
    let header = |name: &str| head.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
    crate::incoming(status, header, &mut response, &mut guest::HostEvents).map(mur_guest_kit::provider::Reply::answer)
}
