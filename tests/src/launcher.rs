//! The launcher's side of one member, for tests that stand in for it: they hold the formation's signing key, so they can
//! also sign and say what a launcher never would.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ed25519_dalek::{Signer, SigningKey};
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use serde_json::{Value, json};

use crate::{Agent, Door, Running, Trace, World};

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

/// A member whose launcher is the test.
pub struct Member {
    /// The session.
    pub running: Running,
    line: Value,
    channel: File,
    _lifeline: OwnedFd,
}

/// A pipe whose read end survives exec.
pub fn pipe() -> (OwnedFd, OwnedFd) {
    let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC).expect("a pipe");
    fcntl(&read, FcntlArg::F_SETFD(FdFlag::empty())).expect("a flag");
    (read, write)
}

impl Member {
    /// Starts a member of the name `boss` that may call these.
    #[track_caller]
    pub fn start(world: &World, agent: &Agent, callees: &[&str]) -> Self {
        world.write("murmur.yaml", agent.manifest());
        let ((channel, tell), (lifeline, holder)) = (pipe(), pipe());
        let mut tell = File::from(tell);
        tell.write_all(first_line("boss", callees).as_bytes()).expect("a pipe takes a line");
        let running = world
            .mur(["run", "--json", "--readiness-tokens"])
            .env("MURMUR_FORMATION_ID", FORMATION)
            .env("MURMUR_FORMATION_CHANNEL", channel.as_raw_fd().to_string())
            .env("MURMUR_FORMATION_LIFELINE", lifeline.as_raw_fd().to_string())
            .start();
        let line = running.json_line(0);
        Self { running, line, channel: tell, _lifeline: holder }
    }

    /// Tells the member where others answer.
    pub fn tell(&mut self, urls: &[(&str, &str)]) {
        self.channel.write_all(urls_line(urls).as_bytes()).expect("a pipe takes a line");
    }

    /// The door, presented with the operator's token.
    pub fn door(&self) -> Door {
        Door::ready(&self.line)
    }

    /// What it has recorded so far.
    #[track_caller]
    pub fn trace(&self) -> Trace {
        let records = PathBuf::from(self.line["records_dir"].as_str().expect("a path"));
        Trace::read(&records.join("trace.jsonl"))
    }
}
