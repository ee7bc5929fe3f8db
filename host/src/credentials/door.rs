//! Door tokens: what an authenticated door mints for its operator and its declared credentials.
//!
//! `mdt1.<payload>.<mac>`, with a key that lives in this process alone: tokens end with the session.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac as _};
use sha2::Sha256;
use std::sync::Arc;
use zeroize::Zeroizing;

use crate::diagnostics::{Diagnostic, Result, codes};

/// The tag every door token starts with, its dot included.
pub const TAG: &str = "mdt1.";
/// The credential every authenticated door mints, with every scope.
pub const OPERATOR: &str = "operator";
/// What precedes the payload segment in the authenticated bytes.
const MAC_PREFIX: &[u8] = b"murmur-door-token-v1\x1f";
/// Longer than any token a declared credential can have.
const MAX_TOKEN: usize = 1024;

macro_rules! scopes {
    ($($(#[$doc:meta])* $name:ident $text:literal;)*) => {
        /// One thing a credential may reach: a method by its name, or a plane.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Scope { $($(#[$doc])* $name,)* }

        impl Scope {
            /// Every scope, in the order the operator's token lists them.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The name a manifest and a token write.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

scopes! {
    /// Start or continue a task.
    SendMessage "SendMessage";
    /// The same, answered as a stream.
    SendStreamingMessage "SendStreamingMessage";
    /// Observe every task.
    WatchSession "murmur.WatchSession";
    /// Read one task.
    GetTask "GetTask";
    /// Read pages of tasks.
    ListTasks "ListTasks";
    /// Stop one task.
    CancelTask "CancelTask";
    /// Stream one live task.
    SubscribeToTask "SubscribeToTask";
    /// Stop every task.
    StopSession "murmur.StopSession";
    /// Read exported files.
    ResourcesFiles "resources/files";
}

impl Scope {
    /// Reads a scope's name, exactly.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|scope| scope.as_str() == text)
    }
}

/// What a presented door token is good for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The credential's name; `operator` or a declared one.
    pub credential: Arc<str>,
    /// What it reaches.
    pub scopes: Arc<[Scope]>,
}

/// One minted token: a secret.
pub struct DoorToken {
    text: Zeroizing<String>,
    grant: Grant,
}

impl DoorToken {
    /// The credential it was minted for.
    pub fn credential(&self) -> &str {
        &self.grant.credential
    }

    /// The token's text: for the running record, a private readiness line and `Authorization` headers only.
    pub fn expose(&self) -> &str {
        &self.text
    }
}

/// The tokens of one session and the key that made them.
pub struct DoorTokens {
    key: Zeroizing<[u8; 32]>,
    minted: Vec<DoorToken>,
}

impl DoorTokens {
    /// Mints the operator's token and one for each declared credential.
    pub fn mint<'a>(declared: impl IntoIterator<Item = (&'a str, &'a [Scope])>) -> Result<Self> {
        let mut key = Zeroizing::new([0_u8; 32]);
        getrandom::fill(key.as_mut())
            .map_err(|error| Diagnostic::new(codes::E_IO_003, format!("no random bytes for a door key: {error}")))?;
        let mut tokens = Self { key, minted: Vec::new() };
        tokens.add(OPERATOR, Scope::ALL);
        for (name, scopes) in declared {
            tokens.add(name, scopes);
        }
        Ok(tokens)
    }

    /// The operator's token.
    pub fn operator(&self) -> &DoorToken {
        // Minted first, always.
        &self.minted[0]
    }

    /// The declared credentials' tokens, in manifest order, without the operator's.
    pub fn declared(&self) -> &[DoorToken] {
        &self.minted[1..]
    }

    /// What a presented token is good for; `None` for anything this session did not mint. Header, then MAC in constant
    /// time, then payload.
    pub fn verify(&self, token: &str) -> Option<&Grant> {
        if token.len() > MAX_TOKEN {
            return None;
        }
        let (payload, mac) = token.strip_prefix(TAG)?.split_once('.')?;
        let mac = URL_SAFE_NO_PAD.decode(mac).ok()?;
        self.mac(payload).verify_slice(&mac).ok()?;
        // Only what `add` wrote carries a MAC of this key, so the payload is one of the minted ones.
        self.minted.iter().find(|minted| minted.text.as_str() == token).map(|minted| &minted.grant)
    }

    fn add(&mut self, credential: &str, scopes: &[Scope]) {
        let names: Vec<&str> = scopes.iter().map(|scope| scope.as_str()).collect();
        let payload = serde_json::json!({ "credential": credential, "scopes": names }).to_string();
        let payload = URL_SAFE_NO_PAD.encode(payload);
        let mac = URL_SAFE_NO_PAD.encode(self.mac(&payload).finalize().into_bytes());
        self.minted.push(DoorToken {
            text: Zeroizing::new(format!("{TAG}{payload}.{mac}")),
            grant: Grant { credential: credential.into(), scopes: scopes.into() },
        });
    }

    fn mac(&self, payload_segment: &str) -> Hmac<Sha256> {
        #[expect(clippy::expect_used, reason = "HMAC takes keys of any length")]
        let mut mac = Hmac::<Sha256>::new_from_slice(self.key.as_ref()).expect("a key of 32 bytes");
        mac.update(MAC_PREFIX);
        mac.update(payload_segment.as_bytes());
        mac
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens() -> DoorTokens {
        DoorTokens::mint([("watcher", &[Scope::GetTask, Scope::WatchSession][..])]).unwrap()
    }

    #[test]
    fn a_minted_token_carries_exactly_its_scopes() {
        let tokens = tokens();
        assert_eq!(&*tokens.verify(tokens.operator().expose()).unwrap().scopes, Scope::ALL);
        let watcher = tokens.verify(tokens.declared()[0].expose()).unwrap();
        assert_eq!(&*watcher.credential, "watcher");
        assert_eq!(&*watcher.scopes, [Scope::GetTask, Scope::WatchSession]);
    }

    #[test]
    fn the_payload_reads_as_the_page_says() {
        let tokens = tokens();
        let payload = tokens.declared()[0].expose().split('.').nth(1).unwrap().to_owned();
        let payload = String::from_utf8(URL_SAFE_NO_PAD.decode(payload).unwrap()).unwrap();
        assert_eq!(payload, r#"{"credential":"watcher","scopes":["GetTask","murmur.WatchSession"]}"#);
    }

    #[test]
    fn nothing_else_is_a_token_of_this_session() {
        let (tokens, other) = (tokens(), tokens());
        let good = tokens.operator().expose();
        assert!(tokens.verify(other.operator().expose()).is_none());
        for bad in ["", "mdt1.", "mdt1..", &good[5..], &good.to_uppercase(), &format!("{good}="), &format!("{good}.x")]
        {
            assert!(tokens.verify(bad).is_none(), "{bad}");
        }
        for index in 0..good.len() {
            let mut altered = good.as_bytes().to_vec();
            altered[index] = if altered[index] == b'A' { b'B' } else { b'A' };
            if let Ok(altered) = String::from_utf8(altered) {
                assert!(tokens.verify(&altered).is_none(), "byte {index}");
            }
        }
    }

    #[test]
    fn scope_names_are_read_exactly() {
        assert_eq!(Scope::ALL.len(), 9);
        for scope in Scope::ALL {
            assert_eq!(Scope::parse(scope.as_str()), Some(*scope));
        }
        assert_eq!(Scope::parse("gettask"), None);
        assert_eq!(Scope::parse("GetExtendedAgentCard"), None);
    }
}
