//! What an artifact is called: full names, versions, platforms and digests. Each is parsed once at the edge; inside,
//! a value of these types is always well formed and safe as one path segment.

mod digest;
mod platform;
mod version;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::diagnostics::{Code, Diagnostic, Result, codes};

pub use digest::Digest;
pub use platform::Platform;
pub use version::{MAX_VERSION, RESERVED_VERSIONS, Version, VersionFault};

/// Longest scope or bare name, in characters.
pub const MAX_PART: usize = 100;

/// What a full name matches: two parts of at most [`MAX_PART`] characters.
pub const FULL_NAME: &str = "^[a-z0-9]([a-z0-9-]{0,98}[a-z0-9])?/[a-z0-9]([a-z0-9-]{0,98}[a-z0-9])?$";

/// The scope of artifacts installed from a file; no source serves it.
pub const LOCAL_SCOPE: &str = "local";

/// The scope of the default artifacts, also served from beside the binary.
pub const MURMUR_SCOPE: &str = "murmur";

/// A full artifact name, `<scope>/<name>`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ArtifactName {
    full: String,
    slash: usize,
}

/// Why a text is no full artifact name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameFault {
    /// It has no scope; it can be asked for under one of three.
    Bare(String),
    /// It has a scope and breaks the rule.
    Malformed {
        /// The text.
        text: String,
        /// The rule broken.
        reason: String,
    },
}

impl NameFault {
    /// What is wrong, without a hint.
    pub fn message(&self) -> String {
        match self {
            Self::Bare(text) => {
                format!("'{text}' is not a full artifact name: an artifact is named <scope>/<name>")
            }
            Self::Malformed { text, reason } => format!("'{text}' is not a valid artifact name: {reason}"),
        }
    }

    /// The scoped forms of a bare name; a malformed one has no hint.
    pub fn hint(&self) -> Option<String> {
        let Self::Bare(text) = self else { return None };
        let short = text.strip_prefix("murmur-").unwrap_or(text);
        Some(format!(
            "name it with its scope: 'local/{text}' for one installed from a .mur.zip file, 'murmur/{short}' for one that \
             comes with mur, or '<owner>/{text}' for one published from github.com/<owner>"
        ))
    }

    /// The fault as a diagnostic; `context` names the place it was read from and may be empty.
    pub fn diagnostic(&self, code: Code, context: &str) -> Diagnostic {
        let message = if context.is_empty() { self.message() } else { format!("{context}: {}", self.message()) };
        let diagnostic = Diagnostic::new(code, message);
        match self.hint() {
            Some(hint) => diagnostic.hint(hint),
            None => diagnostic,
        }
    }
}

/// What to do for an artifact that no store has, as a clause: a name alone installs only what some store holds.
pub fn how_to_get(name: &ArtifactName, version: &Version) -> String {
    match name.scope() {
        LOCAL_SCOPE => format!(
            "build it (mur build <directory>) and install the file: mur install -g <directory>/{}-{version}.mur.zip",
            name.bare()
        ),
        MURMUR_SCOPE => "name a version that comes with this mur (mur list --all)".to_owned(),
        _ => format!("get its .mur.zip and install the file, which then is local/{}", name.bare()),
    }
}

/// Checks one part of a name; the error is the rule broken, as a clause.
pub fn check_part(part: &str) -> std::result::Result<(), String> {
    if part.is_empty() {
        return Err("an empty part".into());
    }
    // Counted up to the bound only: the text may come from anywhere.
    if part.chars().nth(MAX_PART).is_some() {
        return Err(format!("a part is longer than {MAX_PART} characters"));
    }
    if let Some(c) = part.chars().find(|c| !matches!(c, 'a'..='z' | '0'..='9' | '-')) {
        return Err(format!("only a-z, 0-9 and '-' are allowed, found {c:?}"));
    }
    if part.starts_with('-') || part.ends_with('-') {
        return Err("a part starts or ends with '-'".into());
    }
    Ok(())
}

impl ArtifactName {
    /// Parses `<scope>/<name>`.
    pub fn parse(text: &str) -> std::result::Result<Self, NameFault> {
        let malformed = |reason: String| NameFault::Malformed { text: shown(text), reason };
        let Some(slash) = text.find('/') else {
            return match check_part(text) {
                Ok(()) => Err(NameFault::Bare(text.to_owned())),
                Err(reason) => Err(malformed(reason)),
            };
        };
        let (scope, bare) = (&text[..slash], &text[slash + 1..]);
        if bare.contains('/') {
            return Err(malformed("it has more than one '/'".into()));
        }
        check_part(scope).and_then(|()| check_part(bare)).map_err(malformed)?;
        Ok(Self { full: text.to_owned(), slash })
    }

    /// Parses a name given on the command line: a fault is `E-REG-007`.
    pub fn parse_argument(text: &str) -> Result<Self> {
        Self::parse(text).map_err(|fault| fault.diagnostic(codes::E_REG_007, ""))
    }

    /// From two parts that each keep the part rule.
    pub fn new(scope: &str, bare: &str) -> std::result::Result<Self, NameFault> {
        Self::parse(&format!("{scope}/{bare}"))
    }

    /// Whose it is.
    pub fn scope(&self) -> &str {
        &self.full[..self.slash]
    }

    /// The part after the `/`: the artifact's own name and its tool name inside a session.
    pub fn bare(&self) -> &str {
        &self.full[self.slash + 1..]
    }

    /// The whole name.
    pub fn as_str(&self) -> &str {
        &self.full
    }
}

/// A text for a message: cut, so that hostile input cannot fill a terminal.
fn shown(text: &str) -> String {
    const MOST: usize = 3 * MAX_PART;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

impl fmt::Display for ArtifactName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.full)
    }
}

impl fmt::Debug for ArtifactName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.full)
    }
}

impl FromStr for ArtifactName {
    type Err = NameFault;

    fn from_str(text: &str) -> std::result::Result<Self, NameFault> {
        Self::parse(text)
    }
}

impl Serialize for ArtifactName {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.full)
    }
}

impl<'de> Deserialize<'de> for ArtifactName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(|fault| serde::de::Error::custom(fault.message()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_full_name_has_a_scope_and_a_bare_part() {
        let name = ArtifactName::parse("local/word-count").unwrap();
        assert_eq!((name.scope(), name.bare(), name.as_str()), ("local", "word-count", "local/word-count"));
    }

    #[test]
    fn a_bare_name_is_refused_with_its_scoped_forms() {
        let fault = ArtifactName::parse("murmur-driver-anthropic").unwrap_err();
        let hint = fault.hint().unwrap();
        assert!(
            hint.contains("'murmur/driver-anthropic'") && hint.contains("'local/murmur-driver-anthropic'"),
            "{hint}"
        );
    }

    #[test]
    fn a_malformed_name_is_refused_without_scoped_forms() {
        let long = format!("a/{}", "b".repeat(101));
        for text in ["", "/", "a/", "/b", "a/b/c", "A/b", "a/b_c", "-a/b", "a/b-", "a/é", "a/b\0", "a/..", "..", &long]
        {
            let fault = ArtifactName::parse(text).unwrap_err();
            assert!(matches!(fault, NameFault::Malformed { .. }), "{text:?}");
            assert_eq!(fault.hint(), None);
        }
        assert!(ArtifactName::parse(&format!("a/{}", "b".repeat(100))).is_ok());
    }

    proptest! {
        #[test]
        fn parsing_a_name_never_panics_and_keeps_its_text(text in ".{0,300}") {
            if let Ok(name) = ArtifactName::parse(&text) {
                prop_assert_eq!(name.as_str(), text.as_str());
                prop_assert_eq!(format!("{}/{}", name.scope(), name.bare()), text.as_str());
            }
            if let Ok(version) = Version::parse(&text) {
                prop_assert!(!version.as_str().contains('/'));
            }
        }

    }
}
