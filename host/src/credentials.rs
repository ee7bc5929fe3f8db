//! Edge tokens, the formation channel, door tokens, publishers' keys, and the types that hold secrets.
//!
//! A secret's type has no `Debug`, `Display` or `Serialize`, and wipes itself when dropped: it leaves only through a
//! method whose name says so.

pub mod channel;
pub mod door;
pub mod publisher;
pub mod token;

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Longest member name.
const MAX_MEMBER_NAME: usize = 32;

/// A member's name within its roster: `^[a-z][a-z0-9-]{0,31}$`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberName(Arc<str>);

impl MemberName {
    /// Takes a well-formed name, exactly as written.
    pub fn parse(text: &str) -> Option<Self> {
        let mut bytes = text.bytes();
        let first = bytes.next().is_some_and(|b| b.is_ascii_lowercase());
        let rest = bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        (first && rest && text.len() <= MAX_MEMBER_NAME).then(|| Self(text.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for MemberName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for MemberName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for MemberName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for MemberName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("not a member name"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_name_is_read_strictly() {
        for good in ["a", "coder", "a-1", &"x".repeat(32)] {
            assert!(MemberName::parse(good).is_some(), "{good}");
        }
        for bad in ["", "A", "1a", "-a", "a_b", "a b", "é", "a\n", &"x".repeat(33)] {
            assert!(MemberName::parse(bad).is_none(), "{bad}");
        }
    }
}
