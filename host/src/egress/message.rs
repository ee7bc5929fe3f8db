//! `murmur:message/send`: one A2A message to another capsule's door.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method, Uri};
use http_body_util::{BodyExt, Full, Limited};
use serde_json::{Value, json};

use super::send::stamp;
use super::types::{HttpError, HttpRequest, PeerAnswer, PeerMessage, Timeouts};
use super::{Egress, Sender};

/// Most bytes of a door's answer.
const MAX_ANSWER: usize = 16 << 20;

/// The version of A2A spoken.
const A2A_VERSION: &str = "1.0";

/// What is said of a destination that may not be sent to, whatever it is that forbids it.
pub fn refused(peer_url: &str) -> String {
    format!("network policy: '{peer_url}' not in capabilities.network.allow")
}

pub(super) async fn send(
    egress: &Egress,
    sender: &Sender,
    peer_url: &str,
    message: PeerMessage,
) -> Result<PeerAnswer, String> {
    let refused = || refused(peer_url);
    let uri: Uri = peer_url.parse().map_err(|_| refused())?;
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert("a2a-version", HeaderValue::from_static(A2A_VERSION));
    stamp(&mut headers, sender);
    let request = HttpRequest {
        method: Method::POST,
        uri,
        headers,
        body: Full::new(Bytes::from(body(&message).to_string())).map_err(|never| match never {}).boxed_unsync(),
        timeouts: Timeouts::default(),
    };
    let response = egress.send(sender, request).await.map_err(|error| match error {
        HttpError::Denied(_) | HttpError::InvalidRequest(_) => refused(),
        other => format!("'{peer_url}' could not be reached: {other}"),
    })?;
    let status = response.status;
    let bytes = Limited::new(response.body, MAX_ANSWER).collect().await;
    let bytes = bytes.map_err(|_| format!("'{peer_url}' did not answer in whole"))?.to_bytes();
    let value: Value =
        serde_json::from_slice(&bytes).map_err(|_| format!("'{peer_url}' answered {status} without JSON"))?;
    answer(&value).map_err(|why| format!("'{peer_url}' answered {status}: {why}"))
}

fn body(message: &PeerMessage) -> Value {
    let mut sent = json!({
        "messageId": message.message_id,
        "role": "ROLE_USER",
        "parts": [{ "text": message.text }],
    });
    if let Some(context) = &message.context_id {
        sent["contextId"] = json!(context);
    }
    json!({
        "jsonrpc": "2.0",
        "id": message.message_id,
        "method": "SendMessage",
        "params": { "message": sent, "configuration": { "returnImmediately": true } },
    })
}

fn answer(value: &Value) -> Result<PeerAnswer, String> {
    if let Some(error) = value.get("error") {
        // A door refuses before any method with the words beside the error, not in it.
        let text = error.get("message").or_else(|| value.get("message")).and_then(Value::as_str);
        let text = text.unwrap_or("an error without a message");
        return Err(text.chars().take(1000).collect());
    }
    let task = value.pointer("/result/task").ok_or("no task")?;
    let text = |pointer: &str| task.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let state = text("/status/state").ok_or("a task without a state")?;
    Ok(PeerAnswer {
        task_id: text("/id").ok_or("a task without an id")?,
        context_id: text("/contextId").unwrap_or_default(),
        state: state.strip_prefix("TASK_STATE_").unwrap_or(&state).to_ascii_lowercase().replace('_', "-"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_told_in_lowercase_words() {
        let value = json!({"result": {"task": {"id": "tsk_1", "contextId": "c",
            "status": {"state": "TASK_STATE_INPUT_REQUIRED"}}}});
        let found = answer(&value).unwrap();
        assert_eq!((found.task_id.as_str(), found.state.as_str()), ("tsk_1", "input-required"));
        assert_eq!(answer(&json!({"error": {"message": "no"}})), Err("no".to_owned()));
        assert_eq!(answer(&json!({"error": "peer_not_accepted", "message": "not here"})), Err("not here".to_owned()));
        assert!(answer(&json!({"result": {}})).is_err());
    }
}
