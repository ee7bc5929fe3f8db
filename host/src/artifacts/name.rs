//! What an artifact is called: full names, versions, platforms and digests. Each is parsed once at the edge; inside,
//! a value of these types is always well formed and safe as one path segment.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

use crate::diagnostics::{Code, Diagnostic, Result, codes, is_hidden};

/// Longest scope or bare name, in characters.
pub const MAX_PART: usize = 100;

/// What a full name matches: two parts of at most [`MAX_PART`] characters.
pub const FULL_NAME: &str = "^[a-z0-9]([a-z0-9-]{0,98}[a-z0-9])?/[a-z0-9]([a-z0-9-]{0,98}[a-z0-9])?$";

/// Longest version: it is one directory name and part of a file name, which Linux bounds at 255 bytes together with the
/// bare name, the platform tag and a temporary suffix.
pub const MAX_VERSION: usize = 64;

/// The scope of artifacts installed from a file; no source serves it.
pub const LOCAL_SCOPE: &str = "local";

/// The scope of the default artifacts, also served from beside the binary.
pub const MURMUR_SCOPE: &str = "murmur";

/// Versions that name a channel instead of one artifact.
pub const RESERVED_VERSIONS: [&str; 3] = ["latest", "stable", "edge"];

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
            "name it with its scope: 'murmur/{short}' for a Murmur default artifact, '<owner>/{text}' for one \
             published from github.com/<owner>, or 'local/{text}' for one installed from a .mur.zip file"
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

/// What machine a native payload is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Platform {
    /// `linux-x86_64`
    LinuxX86_64,
    /// `linux-aarch64`
    LinuxAarch64,
    /// `darwin-x86_64`
    DarwinX86_64,
    /// `darwin-aarch64`
    DarwinAarch64,
    /// Any other host.
    Unknown,
}

impl Platform {
    /// Those that have a tag.
    pub const TAGGED: [Self; 4] = [Self::LinuxX86_64, Self::LinuxAarch64, Self::DarwinX86_64, Self::DarwinAarch64];

    /// This machine.
    pub const fn host() -> Self {
        if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
            Self::LinuxX86_64
        } else if cfg!(all(target_os = "linux", target_arch = "aarch64")) {
            Self::LinuxAarch64
        } else if cfg!(all(target_os = "macos", target_arch = "x86_64")) {
            Self::DarwinX86_64
        } else if cfg!(all(target_os = "macos", target_arch = "aarch64")) {
            Self::DarwinAarch64
        } else {
            Self::Unknown
        }
    }

    /// The tag in file names, the lock and messages.
    pub const fn tag(self) -> &'static str {
        match self {
            Self::LinuxX86_64 => "linux-x86_64",
            Self::LinuxAarch64 => "linux-aarch64",
            Self::DarwinX86_64 => "darwin-x86_64",
            Self::DarwinAarch64 => "darwin-aarch64",
            Self::Unknown => "unknown",
        }
    }

    /// By tag.
    pub fn from_tag(tag: &str) -> Option<Self> {
        Self::TAGGED.into_iter().find(|platform| platform.tag() == tag)
    }

    /// The tag a file name ends with before `.mur.zip`.
    pub fn of_file_name(name: &str) -> Option<Self> {
        let stem = name.strip_suffix(".mur.zip")?;
        Self::TAGGED
            .into_iter()
            .find(|platform| stem.strip_suffix(platform.tag()).is_some_and(|rest| rest.ends_with('-')))
    }

    /// Operating system and architecture apart.
    pub fn parts(self) -> Option<(&'static str, &'static str)> {
        self.tag().split_once('-')
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.tag())
    }
}

/// A SHA-256.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Of some bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// From the 32 bytes themselves.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// From 64 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.as_bytes();
        if text.len() != 64 {
            return None;
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
            let digit = |b: u8| char::from(b).to_digit(16);
            *byte = u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok()?;
        }
        Some(Self(bytes))
    }

    /// 64 lowercase hexadecimal digits.
    pub fn hex(&self) -> String {
        self.to_string()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("not a SHA-256 in hexadecimal"))
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

    #[test]
    fn a_file_name_tells_its_platform() {
        let of = Platform::of_file_name;
        assert_eq!(of("x-1.0.0-linux-aarch64.mur.zip"), Some(Platform::LinuxAarch64));
        assert_eq!(of("x-1.0.0.mur.zip"), None);
        assert_eq!(of("linux-x86_64.mur.zip"), None);
        assert_eq!(of("x-linux-x86_64.zip"), None);
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

        #[test]
        fn a_digest_reads_back_as_written(bytes in any::<[u8; 32]>()) {
            let digest = Digest::from_bytes(bytes);
            prop_assert_eq!(Digest::parse(&digest.hex()), Some(digest));
        }

        #[test]
        fn the_order_of_versions_is_total(mut texts in prop::collection::vec("[0-9v]{1,2}\\.[0-9]{1,2}(\\.[0-9a]{1,2})?(-[0-9a-]{1,3})?", 1..12)) {
            texts.retain(|text| Version::parse(text).is_ok());
            let mut versions: Vec<Version> = texts.iter().map(|text| Version::parse(text).unwrap()).collect();
            versions.sort();
            prop_assert!(versions.windows(2).all(|pair| pair[0] <= pair[1]));
        }
    }
}
