//! A publisher's signature of a library: a text file, `<library>.sig`, beside it.
//!
//! ```text
//! mur-plugin-signature 1
//! publisher ed25519:<public key, 64 lowercase hex digits>
//! sha256 <of the library, 64 lowercase hex digits>
//! kind <containment, store or sink>
//! name <name>
//! version <version>
//! signature <128 lowercase hex digits>
//! ```
//!
//! These seven lines in this order, each ended by one line feed, and nothing else: a statement has one spelling. The
//! Ed25519 signature is over the bytes of the first six lines, so the first line keeps it apart from anything else that is
//! ever signed, and the key that signed is itself signed.
//!
//! This module reads and writes the format; it verifies nothing.

use std::fmt;
use std::fmt::Write as _;
use std::str::FromStr;

use crate::header::{HeaderInfo, Kind, is_plugin_name};

/// What is appended to a library's file name.
pub const SUFFIX: &str = ".sig";
/// A signature file larger than this is refused before it is read.
pub const MAX_SIGNATURE: u64 = 1 << 10;

const FIRST_LINE: &str = "mur-plugin-signature 1";
const KEY_TAG: &str = "ed25519:";

/// A publisher's public key: 32 bytes, not yet judged.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublisherKey(pub [u8; 32]);

impl fmt::Display for PublisherKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{KEY_TAG}{}", to_hex(&self.0))
    }
}

impl fmt::Debug for PublisherKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PublisherKey {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let hex = text.strip_prefix(KEY_TAG).ok_or("a publisher's key starts with 'ed25519:'")?;
        from_hex(hex).map(Self).ok_or("a publisher's key is 'ed25519:' and 64 lowercase hex digits")
    }
}

/// What a publisher says of a library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// Who says it.
    pub publisher: PublisherKey,
    /// SHA-256 of the library, 64 lowercase hex digits.
    pub sha256: String,
    /// What it is.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
}

impl Statement {
    /// A statement about a library whose header was read and whose bytes were hashed.
    pub fn new(publisher: PublisherKey, header: &HeaderInfo, sha256: String) -> Self {
        let HeaderInfo { kind, name, version, .. } = header.clone();
        Self { publisher, sha256, kind, name, version }
    }

    /// The bytes a publisher signs.
    pub fn signed_bytes(&self) -> Vec<u8> {
        let Self { publisher, sha256, kind, name, version } = self;
        format!("{FIRST_LINE}\npublisher {publisher}\nsha256 {sha256}\nkind {kind}\nname {name}\nversion {version}\n")
            .into_bytes()
    }
}

/// A statement and the signature that came with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// What is said.
    pub statement: Statement,
    /// Ed25519, over [`Statement::signed_bytes`].
    pub signature: [u8; 64],
}

impl Signed {
    /// The file's text.
    pub fn render(&self) -> String {
        let mut text = String::from_utf8_lossy(&self.statement.signed_bytes()).into_owned();
        // Writing to a String cannot fail.
        let _ = writeln!(text, "signature {}", to_hex(&self.signature));
        text
    }
}

/// Why a file is no signature: the line, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignatureError {
    /// 1-based.
    pub line: usize,
    /// What is wrong.
    pub what: &'static str,
}

impl fmt::Display for SignatureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

impl std::error::Error for SignatureError {}

/// Reads a signature file. What it accepts, [`Signed::render`] writes back byte for byte.
pub fn parse(bytes: &[u8]) -> Result<Signed, SignatureError> {
    let fault = |line, what| SignatureError { line, what };
    let text = std::str::from_utf8(bytes).map_err(|_| fault(1, "it is not UTF-8"))?;
    // `split` and not `lines`: a carriage return is part of the line, and so refused with it.
    let mut lines = text.split('\n').enumerate().map(|(index, line)| (index + 1, line));
    if lines.next().is_none_or(|(_, line)| line != FIRST_LINE) {
        return Err(fault(1, "it does not start with 'mur-plugin-signature 1'"));
    }
    let mut field = |word: &str, missing: &'static str| {
        let (number, line) = lines.next().unwrap_or((7, ""));
        let value = line.strip_prefix(word).and_then(|rest| rest.strip_prefix(' '));
        value.map(|value| (number, value)).ok_or_else(|| fault(number, missing))
    };
    let (at, key) = field("publisher", "it does not say 'publisher <key>'")?;
    let publisher = key.parse().map_err(|why| fault(at, why))?;
    let (at, sha256) = field("sha256", "it does not say 'sha256 <digest>'")?;
    from_hex::<32>(sha256).ok_or_else(|| fault(at, "the digest is not 64 lowercase hex digits"))?;
    let (at, kind) = field("kind", "it does not say 'kind <kind>'")?;
    let kind = kind.parse().map_err(|_| fault(at, "the kind is not containment, store or sink"))?;
    let (at, name) = field("name", "it does not say 'name <name>'")?;
    if !is_plugin_name(name) {
        return Err(fault(at, "the name is no plugin name"));
    }
    let (at, version) = field("version", "it does not say 'version <version>'")?;
    if version.is_empty() || !version.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(fault(at, "the version is not printable"));
    }
    let (at, hex) = field("signature", "it does not say 'signature <signature>'")?;
    let signature = from_hex(hex).ok_or_else(|| fault(at, "the signature is not 128 lowercase hex digits"))?;
    match (lines.next(), lines.next()) {
        (Some((_, "")), None) => {}
        (None, _) => return Err(fault(7, "the line does not end")),
        _ => return Err(fault(8, "something follows the signature")),
    }
    let statement =
        Statement { publisher, sha256: sha256.to_owned(), kind, name: name.to_owned(), version: version.to_owned() };
    Ok(Signed { statement, signature })
}

/// Bytes as lowercase hex digits.
pub fn to_hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Exactly `N` bytes of lowercase hex digits.
pub fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    if text.len() != N * 2 {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Signed {
        Signed {
            statement: Statement {
                publisher: PublisherKey([7; 32]),
                sha256: "ab".repeat(32),
                kind: Kind::Store,
                name: "shelf".into(),
                version: "0.1.0+local".into(),
            },
            signature: [9; 64],
        }
    }

    #[test]
    fn a_signature_reads_back_as_written_and_the_signed_part_is_its_beginning() {
        let signed = sample();
        let text = signed.render();
        assert_eq!(parse(text.as_bytes()).unwrap(), signed);
        assert!(text.as_bytes().starts_with(&signed.statement.signed_bytes()));
        assert_eq!(text.lines().count(), 7);
    }

    #[test]
    fn another_spelling_is_refused_with_its_line() {
        let good = sample().render();
        for (from, to, line) in [
            ("signature 1", "signature 2", 1),
            ("mur", "\u{feff}mur", 1),
            ("publisher ed25519", "publisher rsa", 2),
            ("publisher ", "publisher  ", 2),
            ("0707", "07", 2),
            ("sha256 ab", "sha256 AB", 3),
            ("kind store", "kind stoer", 4),
            ("kind store\nname shelf", "name shelf\nkind store", 4),
            ("name shelf", "name ../shelf", 5),
            ("version 0.1.0+local", "version ", 6),
            ("version 0.1.0", "version 0.1 0", 6),
            ("\nsignature", "\r\nsignature", 6),
            ("signature 09", "signature 0x", 7),
            ("0909\n", "0909", 7),
            ("0909\n", "0909\n\n", 8),
            ("0909\n", "0909\nname other\n", 8),
        ] {
            let bad = good.replacen(from, to, 1);
            assert_ne!(bad, good, "{from}");
            assert_eq!(parse(bad.as_bytes()).unwrap_err().line, line, "{bad}");
        }
        for cut in 0..good.len() {
            assert!(parse(&good.as_bytes()[..cut]).is_err(), "{cut}");
        }
        assert_eq!(parse(b"\xff").unwrap_err().line, 1);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..400)) {
            let _ = parse(&bytes);
            let _ = parse(&[b"mur-plugin-signature 1\n", bytes.as_slice()].concat());
        }

        #[test]
        fn what_is_accepted_is_written_back_byte_for_byte(
            at in 0_usize..420, byte in proptest::num::u8::ANY,
        ) {
            let mut bytes = sample().render().into_bytes();
            let at = at % bytes.len();
            bytes[at] = byte;
            if let Ok(signed) = parse(&bytes) {
                proptest::prop_assert_eq!(signed.render().into_bytes(), bytes);
            }
        }
    }
}
