//! `plugins.lock`: which libraries may be loaded, by digest.
//!
//! A text file, one pin a line, written by the build beside the first-party libraries and by `mur plugin trust` in the
//! operator's home:
//!
//! ```text
//! mur-plugins-lock 1
//! <sha256, 64 lowercase hex digits> <kind> <name> <version> <class, or -> <path>
//! ```
//!
//! The path is the rest of the line: absolute, or a plain file name beside the lock. Lines that are blank or start with
//! `#` are comments.

use std::fmt;
use std::fmt::Write as _;

use crate::header::{HeaderInfo, Kind, is_plugin_name};

/// A lock file's name.
pub const LOCK_FILE: &str = "plugins.lock";
/// A lock larger than this is refused before it is read.
pub const MAX_LOCK: u64 = 1 << 20;

const FIRST_LINE: &str = "mur-plugins-lock 1";

/// One library that may be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// SHA-256 of the file, 64 lowercase hex digits.
    pub sha256: String,
    /// What it is.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The class a containment plugin serves, as a word; empty otherwise.
    pub class: String,
    /// The file: absolute, or a plain name beside the lock.
    pub path: String,
}

impl Pin {
    /// A pin for a library whose header was read and whose bytes were hashed.
    pub fn new(header: &HeaderInfo, sha256: String, path: String) -> Self {
        let HeaderInfo { kind, name, version, class, .. } = header.clone();
        Self { sha256, kind, name, version, class, path }
    }
}

/// Why a lock cannot be used: the line, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockError {
    /// 1-based.
    pub line: usize,
    /// What is wrong.
    pub what: &'static str,
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

impl std::error::Error for LockError {}

/// Reads a lock. One bad line makes the whole lock unusable: a pin that cannot be read must not silently be missing.
pub fn parse(bytes: &[u8]) -> Result<Vec<Pin>, LockError> {
    let text = std::str::from_utf8(bytes).map_err(|_| LockError { line: 1, what: "it is not UTF-8" })?;
    let mut lines = text.lines().enumerate();
    match lines.next() {
        Some((_, FIRST_LINE)) => {}
        _ => return Err(LockError { line: 1, what: "it does not start with 'mur-plugins-lock 1'" }),
    }
    let mut pins: Vec<Pin> = Vec::new();
    for (index, line) in lines {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let fault = |what| LockError { line: index + 1, what };
        let pin = pin(line).map_err(fault)?;
        if pins.iter().any(|known| known.kind == pin.kind && known.name == pin.name) {
            return Err(fault("this kind and name is pinned twice"));
        }
        pins.push(pin);
    }
    Ok(pins)
}

fn pin(line: &str) -> Result<Pin, &'static str> {
    let mut fields = line.splitn(6, ' ');
    let mut field = || fields.next().filter(|field| !field.is_empty()).ok_or("a field is missing");
    let (sha256, kind, name, version, class, path) = (field()?, field()?, field()?, field()?, field()?, field()?);
    if sha256.len() != 64 || !sha256.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)) {
        return Err("the digest is not 64 lowercase hex digits");
    }
    let kind = kind.parse().map_err(|_| "the kind is not containment, store or sink")?;
    if !is_plugin_name(name) {
        return Err("the name is no plugin name");
    }
    if !path.starts_with('/') && (path.contains('/') || path == "." || path == "..") {
        return Err("the path is neither absolute nor a plain file name");
    }
    let class = if class == "-" { "" } else { class };
    Ok(Pin {
        sha256: sha256.to_owned(),
        kind,
        name: name.to_owned(),
        version: version.to_owned(),
        class: class.to_owned(),
        path: path.to_owned(),
    })
}

/// Writes a lock, pins in the order given.
pub fn render(pins: &[Pin]) -> String {
    let mut text = format!("{FIRST_LINE}\n");
    for Pin { sha256, kind, name, version, class, path } in pins {
        let class = if class.is_empty() { "-" } else { class };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{sha256} {kind} {name} {version} {class} {path}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<Pin> {
        let pin = |kind, name: &str, class: &str, path: &str| Pin {
            sha256: "ab".repeat(32),
            kind,
            name: name.into(),
            version: "0.1.0".into(),
            class: class.into(),
            path: path.into(),
        };
        vec![
            pin(Kind::Store, "directory", "", "libmur_store_directory.so"),
            pin(Kind::Containment, "advisory", "advisory", "/opt/my plugins/x.so"),
        ]
    }

    #[test]
    fn a_lock_reads_back_as_written_spaces_in_paths_included() {
        let pins = sample();
        assert_eq!(parse(render(&pins).as_bytes()).unwrap(), pins);
        assert_eq!(parse(b"mur-plugins-lock 1\n# none\n\n").unwrap(), vec![]);
    }

    #[test]
    fn one_bad_line_refuses_the_lock_and_names_it() {
        let good = render(&sample());
        for (from, to, line) in [
            ("mur-plugins-lock 1", "mur-plugins-lock 2", 1),
            ("store", "stoer", 2),
            ("ab", "AB", 2),
            (" directory ", " ../directory ", 2),
            (" libmur_store_directory.so", " sub/lib.so", 2),
            (" libmur_store_directory.so", "", 2),
            ("containment advisory", "store directory", 3),
        ] {
            let bad = good.replacen(from, to, 1);
            assert_eq!(parse(bad.as_bytes()).unwrap_err().line, line, "{bad}");
        }
        assert_eq!(parse(b"\xff").unwrap_err().line, 1);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..400)) {
            let _ = parse(&bytes);
            let _ = parse(&[b"mur-plugins-lock 1\n", bytes.as_slice()].concat());
        }

        #[test]
        fn what_is_rendered_reads_back(
            digest in "[0-9a-f]{64}", name in "[a-z][a-z0-9-]{0,20}", version in "[!-~]{1,20}", path in "/[a-z /]{0,40}x",
        ) {
            let pin = Pin { sha256: digest, kind: Kind::Sink, name, version, class: String::new(), path };
            proptest::prop_assert_eq!(parse(render(std::slice::from_ref(&pin)).as_bytes()), Ok(vec![pin]));
        }
    }
}
