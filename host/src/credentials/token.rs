//! Formation tokens: one signed edge of the roster each.
//!
//! `mft1.<payload>.<signature>`: unpadded base64url of the payload's JSON and of an Ed25519 signature over
//! `murmur-formation-token-v1` 0x1f `mft1` 0x1f `<payload segment>`. The launcher signs every edge at once and the key
//! is gone; a door holds the public half only, so it can verify and never mint.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::{Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ed25519_dalek::{Signature, Signer as _};
use zeroize::Zeroizing;

use super::MemberName;
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::ids::FormationId;

/// The tag every formation token starts with, its dot included.
pub const TAG: &str = "mft1.";
/// What precedes the payload segment in the signed bytes.
const SIGNED_PREFIX: &[u8] = b"murmur-formation-token-v1\x1fmft1\x1f";
/// Longer than any token two 32-character names can make, so that nothing longer is decoded.
const MAX_TOKEN: usize = 512;
/// Verified tokens a door remembers; a formation has fewer callers of one door than that.
const REMEMBERED: usize = 4096;

/// The formation's signing key. Wiped when dropped.
pub struct SigningKey(ed25519_dalek::SigningKey);

impl SigningKey {
    /// A new random key.
    pub fn mint() -> Result<Self> {
        let mut seed = Zeroizing::new([0_u8; 32]);
        getrandom::fill(seed.as_mut())
            .map_err(|error| Diagnostic::new(codes::E_IO_003, format!("no random bytes for a signing key: {error}")))?;
        Ok(Self(ed25519_dalek::SigningKey::from_bytes(&seed)))
    }

    /// The public half, which every member's door is handed.
    pub fn verifying_key(&self) -> VerifyingKey {
        VerifyingKey(self.0.verifying_key())
    }

    /// Signs one edge.
    pub fn sign_edge(&self, formation: &FormationId, from: &MemberName, to: &MemberName) -> EdgeToken {
        let payload = URL_SAFE_NO_PAD.encode(payload_text(formation.as_str(), from.as_str(), to.as_str()));
        let signature = self.0.sign(&signed_bytes(&payload));
        EdgeToken(Zeroizing::new(format!("{TAG}{payload}.{}", URL_SAFE_NO_PAD.encode(signature.to_bytes()))))
    }

    /// Signs every edge (pairs of indices into `members`) and ends the key.
    pub fn sign_edges(
        self,
        formation: &FormationId,
        members: &[MemberName],
        edges: &[(usize, usize)],
    ) -> Vec<EdgeToken> {
        edges.iter().map(|&(from, to)| self.sign_edge(formation, &members[from], &members[to])).collect()
    }
}

/// A signed edge: a secret. Clones are as secret as the original.
#[derive(Clone)]
pub struct EdgeToken(Zeroizing<String>);

impl EdgeToken {
    /// Takes a token that was read off a channel and verified.
    pub(super) fn from_verified(text: Zeroizing<String>) -> Self {
        Self(text)
    }

    /// The token's text, for the `Authorization` header and the formation channel only.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

/// The public half of a formation's signing key. Not a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifyingKey(ed25519_dalek::VerifyingKey);

impl VerifyingKey {
    /// Reads 32 bytes as unpadded base64url; a small-order key is refused.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes: [u8; 32] = URL_SAFE_NO_PAD.decode(text).ok()?.try_into().ok()?;
        let key = ed25519_dalek::VerifyingKey::from_bytes(&bytes).ok()?;
        (!key.is_weak()).then_some(Self(key))
    }

    /// The form [`VerifyingKey::parse`] reads.
    pub fn to_text(&self) -> String {
        URL_SAFE_NO_PAD.encode(self.0.as_bytes())
    }

    /// Reads a token and checks everything but its audience. Every fault is the same one.
    pub fn open(&self, token: &str) -> std::result::Result<Claims, Invalid> {
        if token.len() > MAX_TOKEN {
            return Err(Invalid);
        }
        let (payload, signature) = token.strip_prefix(TAG).and_then(|rest| rest.split_once('.')).ok_or(Invalid)?;
        let signature: [u8; 64] =
            URL_SAFE_NO_PAD.decode(signature).ok().and_then(|bytes| bytes.try_into().ok()).ok_or(Invalid)?;
        // Strict: no small-order points, no S outside the group order.
        self.0.verify_strict(&signed_bytes(payload), &Signature::from_bytes(&signature)).map_err(|_| Invalid)?;
        let payload = URL_SAFE_NO_PAD.decode(payload).map_err(|_| Invalid)?;
        Claims::read(&payload).ok_or(Invalid)
    }
}

/// What a verified token says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// The formation it was signed in.
    pub formation: FormationId,
    /// Who may call.
    pub from: MemberName,
    /// Whose door it opens.
    pub to: MemberName,
}

impl Claims {
    /// Only the exact bytes the signer writes are a payload: another order, an escape, a repeat or a space is none.
    fn read(payload: &[u8]) -> Option<Self> {
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Payload {
            formation: FormationId,
            from: MemberName,
            to: MemberName,
        }
        let read: Payload = serde_json::from_slice(payload).ok()?;
        let canonical = payload_text(read.formation.as_str(), read.from.as_str(), read.to.as_str());
        (canonical.as_bytes() == payload).then_some(Self { formation: read.formation, from: read.from, to: read.to })
    }
}

/// The token does not verify: forged, altered, malformed, or another formation's. Nothing says which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalid;

/// Why a door refuses a formation token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// See [`Invalid`].
    Invalid,
    /// It is a valid token of this formation for another member's door.
    NotPermitted {
        /// The member that presented it.
        from: MemberName,
    },
}

/// What a member's door checks formation tokens with.
pub struct Verifier {
    formation: FormationId,
    audience: MemberName,
    key: VerifyingKey,
    /// Outcomes of tokens whose signature held, by their exact bytes; invalid ones are never remembered, so a stranger
    /// cannot fill the table.
    seen: Mutex<HashMap<Seen, Outcome>>,
}

type Outcome = std::result::Result<MemberName, Refusal>;

impl Verifier {
    /// A verifier for the door of `audience` in `formation`.
    pub fn new(formation: FormationId, audience: MemberName, key: VerifyingKey) -> Self {
        Self { formation, audience, key, seen: Mutex::new(HashMap::new()) }
    }

    /// The member this door belongs to.
    pub fn audience(&self) -> &MemberName {
        &self.audience
    }

    /// Who presents this token, or why it is refused.
    pub fn verify(&self, token: &str) -> Outcome {
        if token.len() > MAX_TOKEN {
            return Err(Refusal::Invalid);
        }
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(outcome) = seen.get(token) {
            return outcome.clone();
        }
        let claims = self.key.open(token).map_err(|Invalid| Refusal::Invalid)?;
        if claims.formation != self.formation {
            return Err(Refusal::Invalid);
        }
        let outcome =
            if claims.to == self.audience { Ok(claims.from) } else { Err(Refusal::NotPermitted { from: claims.from }) };
        if seen.len() >= REMEMBERED {
            seen.clear();
        }
        seen.insert(Seen(Zeroizing::new(token.to_owned())), outcome.clone());
        outcome
    }
}

/// A remembered token: wiped when the table lets go of it.
struct Seen(Zeroizing<String>);

impl PartialEq for Seen {
    fn eq(&self, other: &Self) -> bool {
        *self.0 == *other.0
    }
}

impl Eq for Seen {}

impl Hash for Seen {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.as_str().hash(state);
    }
}

impl Borrow<str> for Seen {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// Names and ids hold no character JSON would escape.
fn payload_text(formation: &str, from: &str, to: &str) -> String {
    format!(r#"{{"formation":"{formation}","from":"{from}","to":"{to}"}}"#)
}

fn signed_bytes(payload_segment: &str) -> Vec<u8> {
    [SIGNED_PREFIX, payload_segment.as_bytes()].concat()
}

/// Entry for a fuzzer: any bytes as a token, against a fixed key. Must not panic, and must refuse.
pub fn fuzz_token(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let key = ed25519_dalek::SigningKey::from_bytes(&[7; 32]);
    let verifying = VerifyingKey(key.verifying_key());
    let opened = verifying.open(text);
    assert!(opened.is_err(), "a token nobody signed verified");
    // Past the signature: the payload reader on the same bytes.
    let _ = Claims::read(bytes);
    let _ = VerifyingKey::parse(text);
}

#[cfg(test)]
mod tests;
