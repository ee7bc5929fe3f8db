//! The four containment classes, ordered by what they hold.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A containment class. The order is the order of strength: `Unconfined < Advisory < Scoped < Sealed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Nothing: everything runs as the invoking user.
    Unconfined,
    /// What any host can give, with no kernel claim on files.
    Advisory,
    /// Landlock and seccomp over the host's filesystem, in namespaces of the session's own.
    Scoped,
    /// All of scoped, inside a composed root.
    Sealed,
}

impl Class {
    /// All classes, weakest first.
    pub const ALL: [Self; 4] = [Self::Unconfined, Self::Advisory, Self::Scoped, Self::Sealed];

    /// The word used in manifests, configuration, flags, traces and messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unconfined => "unconfined",
            Self::Advisory => "advisory",
            Self::Scoped => "scoped",
            Self::Sealed => "sealed",
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text that names no class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownClass;

impl fmt::Display for UnknownClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not one of unconfined, advisory, scoped, sealed")
    }
}

impl std::error::Error for UnknownClass {}

impl FromStr for Class {
    type Err = UnknownClass;

    /// Exactly the lowercase word.
    fn from_str(text: &str) -> Result<Self, UnknownClass> {
        Self::ALL.into_iter().find(|class| class.as_str() == text).ok_or(UnknownClass)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_ordered_by_strength_and_named_by_their_word() {
        assert!(Class::ALL.is_sorted());
        for class in Class::ALL {
            assert_eq!(class.as_str().parse(), Ok(class));
            assert_eq!(serde_json::to_value(class).unwrap(), class.as_str());
        }
        assert_eq!("Sealed".parse::<Class>(), Err(UnknownClass));
    }
}
