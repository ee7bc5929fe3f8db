//! Versions: any text that can be one directory's name, ordered for "newest".

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::shown;
use crate::diagnostics::{Diagnostic, codes, is_hidden};

/// Longest version: it is one directory name and part of a file name, which Linux bounds at 255 bytes together with the
/// bare name, the platform tag and a temporary suffix.
pub const MAX_VERSION: usize = 64;

/// Versions that name a channel instead of one artifact.
pub const RESERVED_VERSIONS: [&str; 3] = ["latest", "stable", "edge"];

/// The exact version of an artifact: any text but the reserved ones that can be one directory name. Two versions are
/// the same when their texts are; the order is for "newest" only.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Version(String);

/// Why a text is no version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VersionFault {
    /// It names a channel.
    Reserved(String),
    /// It cannot be a version; the clause says why.
    Malformed(String, &'static str),
}

impl VersionFault {
    /// What is wrong.
    pub fn message(&self) -> String {
        match self {
            Self::Reserved(text) => format!("'{text}' is a reserved version: it names no one artifact"),
            Self::Malformed(text, reason) => format!("'{text}' is not a version: {reason}"),
        }
    }

    /// The fault of a version given on the command line or packed in an archive.
    pub fn diagnostic(&self) -> Diagnostic {
        match self {
            Self::Reserved(_) => Diagnostic::new(codes::E_REG_004, self.message())
                .hint("leave the version out to get the newest that fits, or name an exact one"),
            Self::Malformed(..) => Diagnostic::new(codes::E_IO_003, self.message()),
        }
    }
}

impl Version {
    /// Parses an exact version.
    pub fn parse(text: &str) -> std::result::Result<Self, VersionFault> {
        let malformed = |reason| Err(VersionFault::Malformed(shown(text), reason));
        if text.trim().is_empty() {
            return malformed("it is blank");
        }
        if RESERVED_VERSIONS.iter().any(|reserved| text.eq_ignore_ascii_case(reserved)) {
            return Err(VersionFault::Reserved(text.to_owned()));
        }
        if text.len() > MAX_VERSION {
            return malformed("it is longer than 64 bytes");
        }
        if text.chars().any(|c| matches!(c, '/' | '\\') || is_hidden(c)) {
            return malformed("it has a slash, a backslash or a character that cannot be seen");
        }
        if matches!(text, "." | "..") || text != text.trim() {
            return malformed("it names no directory of its own or has white space around it");
        }
        Ok(Self(text.to_owned()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Ord for Version {
    /// Semantic precedence, then text; what is no semantic version is below all that are.
    fn cmp(&self, other: &Self) -> Ordering {
        match (Semantic::parse(&self.0), Semantic::parse(&other.0)) {
            (Some(ours), Some(theirs)) => ours.cmp(&theirs).then_with(|| self.0.cmp(&other.0)),
            (Some(_), None) => Ordering::Greater,
            (None, Some(_)) => Ordering::Less,
            (None, None) => self.0.cmp(&other.0),
        }
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Version {
    type Err = VersionFault;

    fn from_str(text: &str) -> std::result::Result<Self, VersionFault> {
        Self::parse(text)
    }
}

impl Serialize for Version {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(|fault| serde::de::Error::custom(fault.message()))
    }
}

/// Precedence by semver.org 2.0.0, section 11.
#[derive(PartialEq, Eq)]
struct Semantic<'a> {
    core: [&'a str; 3],
    pre: Vec<&'a str>,
}

impl<'a> Semantic<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let (rest, build) = text.split_once('+').map_or((text, None), |(rest, build)| (rest, Some(build)));
        if build.is_some_and(|build| build.split('.').any(|part| !is_identifier(part))) {
            return None;
        }
        let (core, pre) = rest.split_once('-').map_or((rest, None), |(core, pre)| (core, Some(pre)));
        let mut numbers = core.split('.');
        let core = [numbers.next()?, numbers.next()?, numbers.next()?];
        if numbers.next().is_some() || !core.iter().all(|number| is_number(number)) {
            return None;
        }
        let pre: Vec<&str> = pre.map(|pre| pre.split('.').collect()).unwrap_or_default();
        let sound = |part: &&str| is_identifier(part) && (!part.bytes().all(|b| b.is_ascii_digit()) || is_number(part));
        pre.iter().all(sound).then_some(Self { core, pre })
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) && (text.len() == 1 || !text.starts_with('0'))
}

fn is_identifier(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

/// Decimal texts without leading zeros compare as numbers of any size.
fn by_number(ours: &str, theirs: &str) -> Ordering {
    ours.len().cmp(&theirs.len()).then_with(|| ours.cmp(theirs))
}

fn by_identifier(ours: &str, theirs: &str) -> Ordering {
    match (is_number(ours), is_number(theirs)) {
        (true, true) => by_number(ours, theirs),
        (true, false) => Ordering::Less,
        (false, true) => Ordering::Greater,
        (false, false) => ours.cmp(theirs),
    }
}

impl Ord for Semantic<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        for (ours, theirs) in self.core.iter().zip(&other.core) {
            match by_number(ours, theirs) {
                Ordering::Equal => {}
                decided => return decided,
            }
        }
        match (self.pre.is_empty(), other.pre.is_empty()) {
            (true, true) => return Ordering::Equal,
            (true, false) => return Ordering::Greater,
            (false, true) => return Ordering::Less,
            (false, false) => {}
        }
        for (ours, theirs) in self.pre.iter().zip(&other.pre) {
            match by_identifier(ours, theirs) {
                Ordering::Equal => {}
                decided => return decided,
            }
        }
        self.pre.len().cmp(&other.pre.len())
    }
}

impl PartialOrd for Semantic<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_version_is_any_text_that_names_one_directory() {
        for text in ["1.0.0", "v1.0.0", "1.20", "0x10", "2026-01-01", "12:30", "é"] {
            assert_eq!(Version::parse(text).unwrap().as_str(), text);
        }
        for text in ["latest", "Stable", "EDGE"] {
            assert_eq!(Version::parse(text).unwrap_err().diagnostic().code(), codes::E_REG_004);
        }
        for text in ["", "  ", "..", ".", "a/b", "a\\b", "a\0", "a\n", " 1", &"9".repeat(65)] {
            assert!(matches!(Version::parse(text), Err(VersionFault::Malformed(..))), "{text:?}");
        }
    }

    #[test]
    fn versions_order_by_precedence_then_text_and_others_come_first() {
        let ascending = [
            "nightly",
            "v1.0.0",
            "1.0.0-alpha",
            "1.0.0-alpha.1",
            "1.0.0-alpha.beta",
            "1.0.0-beta.2",
            "1.0.0-beta.11",
            "1.0.0-rc.1",
            "1.0.0",
            "1.0.0+b",
            "1.2.0",
            "1.10.0",
            "99999999999999999999.0.0",
        ];
        let mut shuffled: Vec<Version> = ascending.iter().rev().map(|text| Version::parse(text).unwrap()).collect();
        shuffled.sort();
        assert_eq!(shuffled.iter().map(Version::as_str).collect::<Vec<_>>(), ascending);
    }

    proptest! {
        #[test]
        fn the_order_of_versions_is_total(mut texts in prop::collection::vec("[0-9v]{1,2}\\.[0-9]{1,2}(\\.[0-9a]{1,2})?(-[0-9a-]{1,3})?", 1..12)) {
            texts.retain(|text| Version::parse(text).is_ok());
            let mut versions: Vec<Version> = texts.iter().map(|text| Version::parse(text).unwrap()).collect();
            versions.sort();
            prop_assert!(versions.windows(2).all(|pair| pair[0] <= pair[1]));
        }
    }
}
