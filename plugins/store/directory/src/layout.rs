//! Names and paths of the tree.

use std::path::{Path, PathBuf};

const PAYLOAD: &str = ".mur.zip";

/// The three files of one payload.
pub struct Files {
    pub payload: PathBuf,
    pub digest: PathBuf,
    pub metadata: PathBuf,
}

impl Files {
    pub fn new(dir: &Path, bare: &str, version: &str, platform: &str) -> Self {
        let stem =
            if platform.is_empty() { format!("{bare}-{version}") } else { format!("{bare}-{version}-{platform}") };
        let file = |suffix: &str| dir.join(format!("{stem}{suffix}"));
        Self { payload: file(PAYLOAD), digest: file(".sha256"), metadata: file(".meta.json") }
    }

    /// In the order in which they are put in place.
    pub fn all(&self) -> [&Path; 3] {
        [&self.payload, &self.digest, &self.metadata]
    }
}

/// A scope or bare name: 1 to 100 of `a`–`z`, `0`–`9`, `-`, no hyphen first or last.
pub fn is_part(text: &str) -> bool {
    (1..=100).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// Whether a version's text can be the name of one directory.
pub fn is_version(text: &str) -> bool {
    !text.is_empty() && text != "." && text != ".." && !text.contains(['/', '\0'])
}

pub fn is_platform(tag: &str) -> bool {
    !tag.is_empty()
        && tag.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_')
}

/// The platform tag of a payload file of this version (empty for an untagged one); `None` for any other file.
pub fn platform_of<'a>(file: &'a str, bare: &str, version: &str) -> Option<&'a str> {
    let rest = file.strip_suffix(PAYLOAD)?.strip_prefix(bare)?.strip_prefix('-')?.strip_prefix(version)?;
    if rest.is_empty() {
        return Some("");
    }
    rest.strip_prefix('-').filter(|tag| is_platform(tag))
}
