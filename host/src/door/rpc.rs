//! The JSON-RPC envelope and every error a method answers with.

use axum::body::Body;
use axum::response::Response;
use http::{HeaderMap, HeaderValue, header};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::session::tasks::State;

/// The header that names the protocol's version.
pub(super) const VERSION: &str = "a2a-version";
/// Values a body may hold: what they take in memory is bounded, whatever the text's own size.
const MAX_VALUES: usize = 1 << 20;
/// Smaller bodies cannot hold that many.
const COUNT_ABOVE: usize = MAX_VALUES;

/// A request that has the shape of one.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) id: Value,
    pub(super) method: String,
    pub(super) params: Option<Value>,
}

/// Reads a body as one request. The error goes with the id to answer to.
pub(super) fn read(body: &[u8]) -> Result<Request, (Value, RpcError)> {
    let text = String::from_utf8_lossy(body);
    if text.len() > COUNT_ABOVE && values(text.as_bytes()) > MAX_VALUES {
        return Err((Value::Null, RpcError::not_a_request()));
    }
    let Ok(value) = serde_json::from_str::<Value>(&text) else { return Err((Value::Null, RpcError::not_json())) };
    let Value::Object(mut members) = value else { return Err((Value::Null, RpcError::not_a_request())) };
    let id = members.remove("id").filter(is_id);
    let versioned = members.get("jsonrpc").and_then(Value::as_str) == Some("2.0");
    match (id, members.remove("method")) {
        (Some(id), Some(Value::String(method))) if versioned => {
            Ok(Request { id, method, params: members.remove("params") })
        }
        (id, _) => Err((id.unwrap_or(Value::Null), RpcError::not_a_request())),
    }
}

/// A string or an integer.
fn is_id(id: &Value) -> bool {
    match id {
        Value::String(_) => true,
        Value::Number(number) => number.is_i64() || number.is_u64(),
        _ => false,
    }
}

/// At least as many values as this text holds: one, and one for each comma or opening outside strings.
fn values(text: &[u8]) -> usize {
    let (mut count, mut in_string, mut escaped) = (1_usize, false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b',' | b'[' | b'{' if !in_string => count += 1,
            _ => {}
        }
    }
    count
}

/// Checks the version header: one line of `1.0` or `1.0.<digits>`.
pub(super) fn check_version(headers: &HeaderMap) -> Result<(), RpcError> {
    let requested: Vec<String> = headers
        .get_all(VERSION)
        .iter()
        .map(|line| String::from_utf8_lossy(line.as_bytes()).trim().to_owned())
        .collect();
    let spoken = |text: &str| {
        text == "1.0"
            || text
                .strip_prefix("1.0.")
                .is_some_and(|patch| !patch.is_empty() && patch.bytes().all(|b| b.is_ascii_digit()))
    };
    match requested.as_slice() {
        [one] if spoken(one) => Ok(()),
        several => Err(RpcError::version(&several.join(", "))),
    }
}

/// An error answer.
#[derive(Debug, Serialize)]
pub(super) struct RpcError {
    pub(super) code: i32,
    pub(super) message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) data: Option<Value>,
}

/// Domain of the protocol's own errors.
const A2A: &str = "a2a-protocol.org";
/// Domain of ours.
const MURMUR: &str = "murmur.nexus";

impl RpcError {
    fn plain(code: i32, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    fn detailed(code: i32, message: impl Into<String>, domain: &str, reason: &str, metadata: &[(&str, &str)]) -> Self {
        let metadata: Map<String, Value> =
            metadata.iter().map(|(key, value)| ((*key).to_owned(), Value::from(*value))).collect();
        let info = json!([{
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": reason,
            "domain": domain,
            "metadata": metadata,
        }]);
        Self { code, message: message.into(), data: Some(info) }
    }

    pub(super) fn not_json() -> Self {
        Self::plain(-32700, "Invalid JSON payload")
    }

    pub(super) fn not_a_request() -> Self {
        Self::plain(-32600, "Request payload validation error")
    }

    pub(super) fn no_method() -> Self {
        Self::plain(-32601, "Method not found")
    }

    pub(super) fn completion_method() -> Self {
        Self::plain(-32601, "a completion is posted with SendMessage")
    }

    /// A parameter is at fault; the message names it.
    pub(super) fn params(what: impl std::fmt::Display) -> Self {
        Self::plain(-32602, format!("Invalid params: {what}"))
    }

    pub(super) fn params_shape() -> Self {
        Self::plain(-32602, "Invalid parameters: params must be an object")
    }

    pub(super) fn task_not_found(id: &str) -> Self {
        Self::detailed(-32001, "Task not found", A2A, "TASK_NOT_FOUND", &[("taskId", id)])
    }

    pub(super) fn not_cancelable(id: &str, state: State) -> Self {
        let state = state.wire();
        Self::detailed(
            -32002,
            format!("Task cannot be canceled: it is already {state}"),
            A2A,
            "TASK_NOT_CANCELABLE",
            &[("taskId", id), ("state", state)],
        )
    }

    pub(super) fn push_notifications() -> Self {
        Self::detailed(
            -32003,
            "push notifications are not supported by this agent",
            A2A,
            "PUSH_NOTIFICATION_NOT_SUPPORTED",
            &[],
        )
    }

    pub(super) fn unsupported(message: impl Into<String>) -> Self {
        Self::detailed(-32004, message, A2A, "UNSUPPORTED_OPERATION", &[])
    }

    /// The same about a task in a state that does not allow it.
    pub(super) fn wrong_state(message: impl Into<String>, id: &str, state: State) -> Self {
        let metadata = [("taskId", id), ("state", state.wire())];
        Self::detailed(-32004, message, A2A, "UNSUPPORTED_OPERATION", &metadata)
    }

    pub(super) fn content_type(index: usize, kind: &str, media_type: Option<&str>) -> Self {
        let index = index.to_string();
        let mut metadata = vec![("partIndex", index.as_str())];
        metadata.extend(media_type.map(|media_type| ("mediaType", media_type)));
        Self::detailed(
            -32005,
            format!("message.parts[{index}] is a {kind} part; this agent reads text and data parts only"),
            A2A,
            "CONTENT_TYPE_NOT_SUPPORTED",
            &metadata,
        )
    }

    fn version(requested: &str) -> Self {
        Self::detailed(
            -32009,
            format!("A2A version '{requested}' is not supported; this agent speaks 1.0"),
            A2A,
            "VERSION_NOT_SUPPORTED",
            &[("requestedVersion", requested), ("supportedVersions", "1.0")],
        )
    }

    pub(super) fn completion_misaddressed(addressed: &str) -> Self {
        Self::detailed(
            -31001,
            "the completion is addressed to another session than this one",
            MURMUR,
            "COMPLETION_MISADDRESSED",
            &[("addressedSession", addressed)],
        )
    }

    pub(super) fn completion_not_awaited(delegation: Option<&str>) -> Self {
        let metadata: Vec<(&str, &str)> = delegation.map(|id| ("delegationId", id)).into_iter().collect();
        Self::detailed(
            -31002,
            "this session awaits no completion of that delegation",
            MURMUR,
            "COMPLETION_NOT_AWAITED",
            &metadata,
        )
    }
}

/// The answer of a method: a result, and the extensions it used.
pub(super) fn result_response(id: &Value, result: &impl Serialize, extensions: &[&str]) -> Response {
    #[derive(Serialize)]
    struct Answer<'a, T> {
        jsonrpc: &'static str,
        id: &'a Value,
        result: &'a T,
    }
    let mut response = json_response(&Answer { jsonrpc: "2.0", id, result });
    name_extensions(&mut response, extensions);
    response
}

/// The answer of a method that refuses.
pub(super) fn error_response(id: &Value, error: &RpcError) -> Response {
    #[derive(Serialize)]
    struct Answer<'a> {
        jsonrpc: &'static str,
        id: &'a Value,
        error: &'a RpcError,
    }
    json_response(&Answer { jsonrpc: "2.0", id, error })
}

fn json_response(answer: &impl Serialize) -> Response {
    // Values, strings and numbers only: nothing here fails to serialise.
    let body = serde_json::to_vec(answer).unwrap_or_default();
    let mut response = Response::new(Body::from(body));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

pub(super) fn name_extensions(response: &mut Response, extensions: &[&str]) {
    if !extensions.is_empty()
        && let Ok(value) = HeaderValue::from_str(&extensions.join(", "))
    {
        response.headers_mut().insert("a2a-extensions", value);
    }
}

/// Entry for a fuzzer: any bytes as a request's body.
pub fn fuzz_envelope(bytes: &[u8]) {
    let read = read(bytes);
    if let Err((id, _)) = read {
        assert!(id.is_null() || is_id(&id));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn refusal(body: &str) -> (Value, i32) {
        let (id, error) = read(body.as_bytes()).unwrap_err();
        (id, error.code)
    }

    #[test]
    fn a_request_is_read_and_other_members_are_ignored() {
        let request = read(br#"{"x":1,"jsonrpc":"2.0","id":"a","method":"GetTask","params":{"id":"t"}}"#).unwrap();
        assert_eq!((request.id, request.method.as_str()), (json!("a"), "GetTask"));
        assert_eq!(request.params, Some(json!({ "id": "t" })));
        assert!(read(br#"{"jsonrpc":"2.0","id":-3,"method":"x"}"#).unwrap().params.is_none());
    }

    #[test]
    fn what_is_no_request_is_answered_to_its_id_where_it_has_one() {
        for body in ["", "{", "nonsense", "{\"a\":1}x", "\u{feff}{}"] {
            assert_eq!(refusal(body), (Value::Null, -32700), "{body}");
        }
        for body in [
            "[]",
            "1",
            r#"[{"jsonrpc":"2.0","id":1,"method":"GetTask"}]"#,
            r#"{"jsonrpc":"2.0","method":"GetTask"}"#,
            r#"{"jsonrpc":"2.0","id":null,"method":"GetTask"}"#,
            r#"{"jsonrpc":"2.0","id":1.5,"method":"GetTask"}"#,
            r#"{"jsonrpc":"2.0","id":[],"method":"GetTask"}"#,
        ] {
            assert_eq!(refusal(body), (Value::Null, -32600), "{body}");
        }
        for body in [
            r#"{"id":7,"method":"GetTask"}"#,
            r#"{"jsonrpc":"1.0","id":7,"method":"GetTask"}"#,
            r#"{"jsonrpc":2.0,"id":7,"method":"GetTask"}"#,
            r#"{"jsonrpc":"2.0","id":7,"method":1}"#,
            r#"{"jsonrpc":"2.0","id":7}"#,
        ] {
            assert_eq!(refusal(body), (json!(7), -32600), "{body}");
        }
    }

    #[test]
    fn a_body_of_very_many_values_is_refused_and_one_of_text_is_not() {
        let many = format!("[{}0]", "0,".repeat(MAX_VALUES));
        assert_eq!(refusal(&many).1, -32600);
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{}\"x"}}"#, "a,[{".repeat(MAX_VALUES));
        assert!(read(text.as_bytes()).is_ok());
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(refusal(&deep).1, -32700);
    }

    #[test]
    fn one_version_line_of_1_0_is_spoken() {
        let check = |lines: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(VERSION, HeaderValue::from_static(line));
            }
            check_version(&headers).map_err(|error| error.message)
        };
        for good in ["1.0", " 1.0 ", "1.0.3", "1.0.17"] {
            assert_eq!(check(&[good]), Ok(()), "{good}");
        }
        for (bad, named) in [
            (&["1.1"][..], "1.1"),
            (&["1"], "1"),
            (&["1.0."], "1.0."),
            (&["1.0.x"], "1.0.x"),
            (&["v1.0"], "v1.0"),
            (&[""], ""),
            (&[], ""),
            (&["1.0", "1.0"], "1.0, 1.0"),
        ] {
            let expected = format!("A2A version '{named}' is not supported; this agent speaks 1.0");
            assert_eq!(check(bad), Err(expected), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn any_body_is_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            fuzz_envelope(&bytes);
        }

        #[test]
        fn values_are_never_undercounted(value in "[\\[\\]{},\"0a\\\\: ]{0,60}") {
            if let Ok(parsed) = serde_json::from_str::<Value>(&value) {
                fn count(value: &Value) -> usize {
                    1 + match value {
                        Value::Array(items) => items.iter().map(count).sum(),
                        Value::Object(members) => members.values().map(count).sum(),
                        _ => 0,
                    }
                }
                prop_assert!(values(value.as_bytes()) >= count(&parsed));
            }
        }
    }
}
