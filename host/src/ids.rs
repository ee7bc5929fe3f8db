//! Identifiers: a prefix and a UUID v7 as 32 lowercase hex digits.
//!
//! The first twelve hex digits are the mint time in Unix milliseconds, so a lexical sort is chronological. An id
//! groups and grants nothing.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Hex digits after the prefix.
const HEX_LEN: usize = 32;

fn is_id(text: &str, prefix: &str) -> bool {
    text.strip_prefix(prefix).is_some_and(|hex| {
        hex.len() == HEX_LEN && hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    })
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident $prefix:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// The prefix, underscore included.
            pub const PREFIX: &'static str = $prefix;

            /// A new id, later in sort order than every id this process minted before it.
            pub fn mint() -> Self {
                Self(format!("{}{}", $prefix, uuid::Uuid::now_v7().simple()))
            }

            /// Reads an id strictly: prefix and 32 lowercase hex digits, nothing trimmed.
            pub fn parse(text: &str) -> Option<Self> {
                is_id(text, $prefix).then(|| Self(text.to_owned()))
            }

            /// The whole id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// When the id was minted, in Unix milliseconds.
            pub fn minted_ms(&self) -> u64 {
                let hex = &self.0[$prefix.len()..$prefix.len() + 12];
                u64::from_str_radix(hex, 16).unwrap_or(0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                Self::parse(&text).ok_or_else(|| {
                    serde::de::Error::custom(concat!("not an id of the form ", $prefix, "<32 hex digits>"))
                })
            }
        }
    )*};
}

ids! {
    /// One `mur run`.
    SessionId "ses_";
    /// A formation; minted once a launch by the launcher.
    FormationId "frm_";
    /// A task at a door.
    TaskId "tsk_";
    /// A message of a conversation.
    MessageId "msg_";
    /// One line of a trace.
    EventId "evt_";
    /// One `call-member` call.
    CallId "mcl_";
    /// A delegation to a child capsule.
    DelegationId "dlg_";
    /// A command moved to the background.
    WorkId "wrk_";
}

/// A context: minted as `ctx_…`, or any single path segment a caller supplied (no `/`, no leading dot, not empty).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ContextId(String);

impl ContextId {
    /// A new `ctx_…` id.
    pub fn mint() -> Self {
        Self(format!("ctx_{}", uuid::Uuid::now_v7().simple()))
    }

    /// Takes a caller's context id when it is one path segment.
    pub fn parse(text: &str) -> Option<Self> {
        let plain = !text.is_empty() && !text.starts_with('.') && !text.contains(['/', '\0']);
        plain.then(|| Self(text.to_owned()))
    }

    /// The whole id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ContextId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ContextId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_strictly() {
        let id = FormationId::mint();
        assert_eq!(FormationId::parse(id.as_str()), Some(id.clone()));
        for bad in ["frm_", "frm_0", &id.as_str().to_uppercase(), &format!(" {id}"), &format!("{id}0")] {
            assert_eq!(FormationId::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn ids_minted_in_turn_sort_in_turn() {
        let ids: Vec<TaskId> = (0..1000).map(|_| TaskId::mint()).collect();
        assert!(ids.is_sorted());
    }

    #[test]
    fn a_context_is_one_path_segment() {
        assert!(ContextId::parse("my chat").is_some());
        for bad in ["", ".", "..", ".x", "a/b", "/"] {
            assert!(ContextId::parse(bad).is_none(), "{bad}");
        }
    }
}
