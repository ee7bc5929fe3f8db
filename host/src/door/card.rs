//! The agent card, public and extended.

use serde_json::{Value, json};

use super::DoorConfig;
use super::methods::Method;

/// URI of the door extension.
pub const DOOR_EXTENSION: &str = "https://docs.murmur.nexus/reference/agent-card/#murmur-door-v1";
/// URI of the capsule extension.
pub const CAPSULE_EXTENSION: &str = "https://docs.murmur.nexus/reference/agent-card/#murmur-capsule-v1";
/// URI of the stream extension.
pub const STREAM_EXTENSION: &str = "https://docs.murmur.nexus/reference/streaming-protocol/#murmur-stream-v1";

/// Names of the stream extension's frames.
const FRAMES: [&str; 9] = [
    "text",
    "thinking",
    "tool-call-started",
    "tool-call-progress",
    "artifact",
    "gap",
    "lagged",
    "connection-ack",
    "capsule-closed",
];

/// The card anybody reads: without the capsule extension at an authenticated door.
pub(super) fn public(config: &DoorConfig, port: u16) -> Value {
    card(config, port, config.tokens.is_none())
}

/// The card an admitted caller of an authenticated door reads.
pub(super) fn extended(config: &DoorConfig, port: u16) -> Value {
    card(config, port, true)
}

fn card(config: &DoorConfig, port: u16, with_capsule: bool) -> Value {
    let capsule = &config.capsule;
    let authenticated = config.tokens.is_some();
    let mut extensions = vec![door_extension(config)];
    if with_capsule {
        extensions.push(capsule_extension(config));
    }
    extensions.push(extension(
        STREAM_EXTENSION,
        "Frames beside the task's own events: text as it is written, tool calls, results and losses.",
        json!({ "frames": FRAMES }),
    ));
    let modes = json!(["text/plain", "application/json"]);
    json!({
        "name": capsule.name,
        "description": format!("Murmur capsule {} {}", capsule.name, capsule.version),
        "version": capsule.version,
        "supportedInterfaces": [{
            "url": format!("http://localhost:{port}"),
            "protocolBinding": "JSONRPC",
            "protocolVersion": "1.0",
        }],
        "capabilities": {
            "streaming": config.accepts_tasks,
            "pushNotifications": false,
            "extendedAgentCard": authenticated,
            "extensions": extensions,
        },
        "securitySchemes": if authenticated { bearer_scheme() } else { json!({}) },
        "securityRequirements": if authenticated { json!([requirement(&[])]) } else { json!([]) },
        "defaultInputModes": modes,
        "defaultOutputModes": modes,
        "skills": skills(config),
    })
}

fn extension(uri: &str, description: &str, params: Value) -> Value {
    json!({ "uri": uri, "description": description, "required": false, "params": params })
}

fn door_extension(config: &DoorConfig) -> Value {
    let methods: Vec<&str> = Method::served(config.accepts_tasks, config.tokens.is_some()).map(Method::name).collect();
    extension(
        DOOR_EXTENSION,
        "The methods this door serves, and whether it takes tasks from peers.",
        json!({ "methods": methods, "peerTasks": config.accepts_peers }),
    )
}

fn capsule_extension(config: &DoorConfig) -> Value {
    let capsule = &config.capsule;
    let planes: Vec<&str> = [(capsule.exports_files, "files"), (capsule.exports_peer_files, "peer_files")]
        .into_iter()
        .filter_map(|(declared, name)| declared.then_some(name))
        .collect();
    extension(
        CAPSULE_EXTENSION,
        "The session behind this door and what its capsule may use.",
        json!({
            "sessionId": config.session,
            "tools": capsule.tools,
            "shell": capsule.shell,
            "network": capsule.network,
            "planes": planes,
        }),
    )
}

fn bearer_scheme() -> Value {
    json!({ "bearer": { "httpAuthSecurityScheme": {
        "scheme": "Bearer",
        "description": "A token minted by this capsule's runtime for this session; `mur token` prints it to its operator.",
    } } })
}

fn requirement(scopes: &[&str]) -> Value {
    json!({ "schemes": { "bearer": { "list": scopes } } })
}

fn skills(config: &DoorConfig) -> Value {
    if !config.accepts_tasks {
        return json!([]);
    }
    let mut skill = json!({
        "id": "task",
        "name": "Run a task",
        "description": "Runs one task given as a text message and reports its outcome.",
        "tags": ["task"],
    });
    if config.tokens.is_some() {
        skill["securityRequirements"] = json!([requirement(&["SendMessage"]), requirement(&["SendStreamingMessage"])]);
    }
    json!([skill])
}
