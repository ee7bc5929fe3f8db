//! The launcher's side of one member, for tests that stand in for it: they hold the formation's signing key, so they can
//! also sign and say what a launcher never would.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ed25519_dalek::{Signer, SigningKey};
use serde_json::{Value, json};

/// The formation of these members.
pub const FORMATION: &str = "frm_01a22cf8888f775faca078c11f3e61c5";

/// A key; the formation's own is that of 1.
pub fn key(seed: u8) -> SigningKey {
    SigningKey::from_bytes(&[seed; 32])
}

/// A token of any payload, signed.
pub fn signed(key: &SigningKey, payload: &str) -> String {
    let payload = URL_SAFE_NO_PAD.encode(payload);
    let text = [b"murmur-formation-token-v1\x1fmft1\x1f".as_slice(), payload.as_bytes()].concat();
    format!("mft1.{payload}.{}", URL_SAFE_NO_PAD.encode(key.sign(&text).to_bytes()))
}

/// The token of an edge.
pub fn token(from: &str, to: &str) -> String {
    signed(&key(1), &format!(r#"{{"formation":"{FORMATION}","from":"{from}","to":"{to}"}}"#))
}

/// The channel's first line for a member that may call these others.
pub fn first_line(member: &str, callees: &[&str]) -> String {
    let tokens: Vec<Value> = callees.iter().map(|to| json!({"to": to, "token": token(member, to)})).collect();
    let first = json!({
        "formation": FORMATION, "member": member, "entry": false,
        "key": URL_SAFE_NO_PAD.encode(key(1).verifying_key().as_bytes()),
        "launcher": {"pid": std::process::id(), "process_start": "1"}, "tokens": tokens,
    });
    format!("{first}\n")
}

/// A later line: the doors of members.
pub fn urls_line(urls: &[(&str, &str)]) -> String {
    let urls: Vec<Value> = urls.iter().map(|(member, url)| json!({"member": member, "url": url})).collect();
    format!("{}\n", json!({"urls": urls}))
}
