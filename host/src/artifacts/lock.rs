//! `murmur.lock`: which bytes a project's artifacts are. Read strictly, written whole, changed by one process at a time.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use super::name::{ArtifactName, Digest, Platform, Version, VersionFault};
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::paths::write_atomic;
use crate::yaml::{self, Node, ReadFault};

/// The lock's file name, beside `murmur.yaml` or `roster.yaml`.
pub const FILE: &str = "murmur.lock";

/// The only version read and written.
pub const VERSION: u64 = 3;

/// Most bytes of a lock file: a hundred thousand pins.
const MAX_BYTES: u64 = 16 << 20;

/// Most bytes of a session id in a pin; ours have 36.
const MAX_SESSION: usize = 128;

/// The hashes of one pinned artifact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hashes {
    /// One payload for every machine.
    Any(Digest),
    /// One payload a platform; tags are kept as written.
    Platforms(BTreeMap<String, Digest>),
}

/// Who had the artifact pinned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The operator, by an install or a first run.
    Operator,
    /// A session that pulled it while it ran.
    Runtime {
        /// That session's id, as written.
        session: String,
    },
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The artifact.
    pub name: ArtifactName,
    /// Its version.
    pub version: Version,
    /// Its bytes.
    pub hashes: Hashes,
    /// Who pinned it.
    pub origin: Origin,
    /// The GitHub owner id of the source that served it, when known.
    pub owner_id: Option<u64>,
}

/// The bytes of one artifact, as an install or a launch found them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The artifact.
    pub name: ArtifactName,
    /// Its version.
    pub version: Version,
    /// The platform of a native payload.
    pub platform: Option<Platform>,
    /// What its archive hashes to.
    pub sha256: Digest,
    /// Of the source that served it.
    pub owner_id: Option<u64>,
}

/// A lock file, read or about to be written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lock {
    pins: Vec<Pin>,
}

impl Pin {
    /// The hash this machine's payload must have: `E-RUN-003` when the lock has none for it.
    pub fn hash_here(&self) -> Result<Digest> {
        match &self.hashes {
            Hashes::Any(digest) => Ok(*digest),
            Hashes::Platforms(platforms) => platforms.get(Platform::host().tag()).copied().ok_or_else(|| {
                Diagnostic::new(
                    codes::E_RUN_003,
                    format!("murmur.lock has no hash of '{}' for this platform ({})", self.name, Platform::host()),
                )
                .hint("run `mur install` on this machine")
            }),
        }
    }
}

impl Lock {
    /// Where a project's lock lies.
    pub fn path(project: &Path) -> PathBuf {
        project.join(FILE)
    }

    /// The lock of a project, `None` when it has none; `E-RUN-003` when it cannot be trusted.
    pub fn read(project: &Path) -> Result<Option<Self>> {
        let path = Self::path(project);
        match yaml::read_file(&path, MAX_BYTES) {
            Ok(bytes) => Self::parse(&bytes).map(Some),
            Err(ReadFault::Missing) => Ok(None),
            Err(ReadFault::Other(cause)) => Err(invalid(format!("{}: {cause}", path.display()))),
        }
    }

    /// Reads the text of a lock.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let doc = yaml::parse(FILE, bytes, MAX_BYTES).map_err(|fault| invalid(fault.message()))?;
        let root = doc.root();
        match root.get("lock_version") {
            Some(node) if node.integer() == Some(i128::from(VERSION)) => {}
            Some(node) => {
                let found = node.text().unwrap_or_else(|| node.found());
                return Err(regenerate(format!("unsupported lock_version {found} (expected {VERSION})")));
            }
            None => return Err(regenerate(format!("no lock_version (expected {VERSION})"))),
        }
        let artifacts = root.get("artifacts").filter(|node| !node.is_null());
        let entries = match artifacts {
            None => &[],
            Some(node) => node.list().ok_or_else(|| invalid("'artifacts' is not a list"))?,
        };
        let mut pins: Vec<Pin> = Vec::with_capacity(entries.len());
        let mut seen = std::collections::HashSet::new();
        for (index, entry) in entries.iter().enumerate() {
            let pin = parse_pin(entry, index)?;
            if !seen.insert(pin.name.clone()) {
                return Err(invalid(format!("artifacts[{index}]: '{}' is pinned twice", pin.name)));
            }
            pins.push(pin);
        }
        Ok(Self { pins })
    }

    /// What pins an artifact.
    pub fn pin(&self, name: &ArtifactName) -> Option<&Pin> {
        self.pins.iter().find(|pin| pin.name == *name)
    }

    /// What pins an artifact that has to be pinned: `E-RUN-003` when nothing does.
    pub fn require(&self, name: &ArtifactName) -> Result<&Pin> {
        self.pin(name).ok_or_else(|| {
            Diagnostic::new(codes::E_RUN_003, format!("murmur.lock missing artifact entry for '{name}'"))
                .hint("run `mur install` to pin every artifact of the manifest")
        })
    }

    /// All entries, in file order.
    pub fn pins(&self) -> &[Pin] {
        &self.pins
    }

    /// Whether what a store holds is what the lock pins; an artifact that is not pinned agrees. `E-REG-005` names both
    /// values.
    pub fn agrees(&self, bound: &Bound) -> Result<()> {
        let Some(pin) = self.pin(&bound.name) else { return Ok(()) };
        let conflict = |what: String| {
            Err(Diagnostic::new(codes::E_REG_005, format!("murmur.lock conflict for '{}': {what}", bound.name))
                .hint("remove that entry from murmur.lock if the stored artifact is the one you want"))
        };
        if pin.version != bound.version {
            return conflict(format!("the lock pins version {}, the store has {}", pin.version, bound.version));
        }
        let pinned = match (&pin.hashes, bound.platform) {
            (Hashes::Any(digest), None) => *digest,
            (Hashes::Platforms(platforms), Some(platform)) => match platforms.get(platform.tag()) {
                Some(digest) => *digest,
                // Another machine's pins say nothing about this one's payload.
                None => return Ok(()),
            },
            (Hashes::Any(_), Some(platform)) => {
                return conflict(format!(
                    "the lock pins one payload for all platforms, the store has one for {platform}"
                ));
            }
            (Hashes::Platforms(_), None) => {
                return conflict("the lock pins a payload for each platform, the store has one for all".into());
            }
        };
        if pinned != bound.sha256 {
            return conflict(format!("the lock pins sha256 {pinned}, the stored payload has {}", bound.sha256));
        }
        Ok(())
    }

    /// Pins an artifact as the operator's. Returns the session that had pulled it, when that made it the operator's.
    pub fn upsert(&mut self, bound: Bound) -> Option<String> {
        let hashes = match bound.platform {
            None => Hashes::Any(bound.sha256),
            Some(platform) => Hashes::Platforms(BTreeMap::from([(platform.tag().to_owned(), bound.sha256)])),
        };
        let Some(pin) = self.pins.iter_mut().find(|pin| pin.name == bound.name) else {
            let Bound { name, version, owner_id, .. } = bound;
            self.pins.push(Pin { name, version, hashes, origin: Origin::Operator, owner_id });
            return None;
        };
        match (&mut pin.hashes, hashes) {
            (Hashes::Platforms(known), Hashes::Platforms(new)) if pin.version == bound.version => known.extend(new),
            (known, new) => *known = new,
        }
        pin.version = bound.version;
        pin.owner_id = bound.owner_id.or(pin.owner_id);
        match std::mem::replace(&mut pin.origin, Origin::Operator) {
            Origin::Operator => None,
            Origin::Runtime { session } => Some(session),
        }
    }

    /// Pins what a session pulled while it ran. What is pinned already keeps its origin and must be the same bytes
    /// (`E-REG-005`).
    pub fn pull(&mut self, bound: Bound, session: &str) -> Result<()> {
        self.agrees(&bound)?;
        if self.pin(&bound.name).is_none() {
            let name = bound.name.clone();
            self.upsert(bound);
            if let Some(pin) = self.pins.iter_mut().find(|pin| pin.name == name) {
                pin.origin = Origin::Runtime { session: session.to_owned() };
            }
        }
        Ok(())
    }

    /// Drops the pin of what a session pulled; the operator's own stays.
    pub fn remove_pulled(&mut self, name: &ArtifactName) {
        self.pins.retain(|pin| pin.name != *name || pin.origin == Origin::Operator);
    }

    /// Changes a project's lock, made when absent, while no other `mur` changes it. Nothing is written when `change`
    /// refuses or leaves the lock as it was.
    pub fn update<T>(project: &Path, change: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let refused = |error: std::io::Error| {
            Diagnostic::new(codes::E_IO_003, format!("{}: {error}", Self::path(project).display()))
        };
        // The directory itself is what is locked, so that nothing lies around.
        let dir = File::open(project).map_err(refused)?;
        let _turn = Flock::lock(dir, FlockArg::LockExclusive).map_err(|(_, errno)| refused(errno.into()))?;
        let before = Self::read(project)?;
        let mut lock = before.clone().unwrap_or_default();
        let answer = change(&mut lock)?;
        if before.as_ref() != Some(&lock) {
            lock.write(project)?;
        }
        Ok(answer)
    }

    /// Writes the lock beside the project's manifest: a reader sees the old file or the whole new one.
    pub fn write(&self, project: &Path) -> Result<()> {
        let path = Self::path(project);
        write_atomic(&path, self.text().as_bytes(), 0o666)
            .map_err(|error| Diagnostic::new(codes::E_IO_003, format!("{} cannot be written: {error}", path.display())))
    }

    /// The file's text.
    pub fn text(&self) -> String {
        let mut text = format!("lock_version: {VERSION}\n");
        text.push_str(if self.pins.is_empty() { "artifacts: []\n" } else { "artifacts:\n" });
        for pin in &self.pins {
            let _ =
                writeln!(text, "- name: {}\n  resolved_version: {}\n  sha256:", pin.name, quoted(pin.version.as_str()));
            match &pin.hashes {
                Hashes::Any(digest) => {
                    let _ = writeln!(text, "    any: \"{digest}\"");
                }
                Hashes::Platforms(platforms) => {
                    text.push_str("    platforms:\n");
                    for (tag, digest) in platforms {
                        let _ = writeln!(text, "      {}: \"{digest}\"", quoted(tag));
                    }
                }
            }
            let _ = match &pin.origin {
                Origin::Operator => writeln!(text, "  origin: operator"),
                Origin::Runtime { session } => writeln!(text, "  origin: runtime\n  session: {}", quoted(session)),
            };
            if let Some(owner) = pin.owner_id {
                let _ = writeln!(text, "  owner_id: {owner}");
            }
        }
        text
    }
}

/// A JSON string is a YAML double-quoted scalar, and never read as a number.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn parse_pin(node: &Node, index: usize) -> Result<Pin> {
    let at = format!("artifacts[{index}]");
    if node.map().is_none() {
        return Err(invalid(format!("{at} is not a mapping")));
    }
    let field = |key: &str| node.get(key).filter(|value| !value.is_null());
    let text = |key: &str| match field(key) {
        None => Ok(None),
        Some(value) => value.text().map(Some).ok_or_else(|| invalid(format!("{at}.{key} is not text"))),
    };
    let name = text("name")?.ok_or_else(|| invalid(format!("{at} has no name")))?;
    let name = ArtifactName::parse(name).map_err(|fault| regenerate(format!("{at}.name: {}", fault.message())))?;
    let version =
        text("resolved_version")?.ok_or_else(|| invalid(format!("{at} ('{name}') has no resolved_version")))?;
    let version = Version::parse(version)
        .map_err(|fault: VersionFault| regenerate(format!("{at}.resolved_version: {}", fault.message())))?;
    let hashes = parse_hashes(field("sha256"), &format!("{at} ('{name}')"))?;
    let session = text("session")?;
    let origin = match (text("origin")?, session) {
        (None | Some("operator"), None) => Origin::Operator,
        (Some("runtime"), Some(session)) if !session.trim().is_empty() && session.len() <= MAX_SESSION => {
            Origin::Runtime { session: session.to_owned() }
        }
        (Some("runtime"), _) => return Err(invalid(format!("{at} ('{name}') has origin runtime and no session"))),
        (None | Some("operator"), Some(_)) => {
            return Err(invalid(format!("{at} ('{name}') has a session and origin operator")));
        }
        (Some(other), _) => return Err(invalid(format!("{at} ('{name}') has unknown origin '{other}'"))),
    };
    let owner_id = match field("owner_id") {
        None => None,
        Some(value) => {
            let id = value.integer().and_then(|id| u64::try_from(id).ok());
            Some(id.ok_or_else(|| invalid(format!("{at}.owner_id is not a number")))?)
        }
    };
    Ok(Pin { name, version, hashes, origin, owner_id })
}

fn parse_hashes(node: Option<&Node>, at: &str) -> Result<Hashes> {
    let digest = |node: &Node| {
        let text = node.text().unwrap_or_default().trim().to_owned();
        Digest::parse(&text).ok_or_else(|| invalid(format!("{at} has a sha256 that is not 64 hexadecimal digits")))
    };
    let key = |key: &str| node.and_then(|node| node.get(key)).filter(|value| !value.is_null());
    match (key("any"), key("platforms")) {
        (Some(any), None) => digest(any).map(Hashes::Any),
        (None, Some(platforms)) => {
            let entries = platforms.map().unwrap_or_default();
            if entries.is_empty() {
                return Err(invalid(format!("{at} has no hash")));
            }
            let pairs = entries.iter().map(|entry| Ok((entry.key.to_string(), digest(&entry.value)?)));
            pairs.collect::<Result<_>>().map(Hashes::Platforms)
        }
        (None, None) => Err(invalid(format!("{at} has no hash"))),
        (Some(_), Some(_)) => Err(invalid(format!("{at} has both a hash for any platform and hashes for some"))),
    }
}

fn invalid(what: impl std::fmt::Display) -> Diagnostic {
    Diagnostic::new(codes::E_RUN_003, format!("invalid {FILE}: {what}"))
        .hint("correct it or restore it from version control; it was left as it is")
}

fn regenerate(what: impl std::fmt::Display) -> Diagnostic {
    Diagnostic::new(
        codes::E_RUN_003,
        format!("invalid {FILE}: {what} — delete murmur.lock and run `mur install` to regenerate it"),
    )
}

/// Entry point of the fuzz target: what reads must read back the same after writing.
pub fn fuzz_lock(bytes: &[u8]) {
    if let Ok(lock) = Lock::parse(bytes) {
        let again = Lock::parse(lock.text().as_bytes());
        assert_eq!(again.as_ref(), Ok(&lock));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bound(name: &str, version: &str, platform: Option<Platform>, content: &str) -> Bound {
        Bound {
            name: ArtifactName::parse(name).unwrap(),
            version: Version::parse(version).unwrap(),
            platform,
            sha256: Digest::of(content.as_bytes()),
            owner_id: None,
        }
    }

    fn message(text: &str) -> String {
        let refusal = Lock::parse(text.as_bytes()).unwrap_err();
        assert_eq!(refusal.code(), codes::E_RUN_003, "{text}");
        refusal.message().to_owned()
    }

    #[test]
    fn a_pin_is_written_in_the_order_of_the_format() {
        let mut lock = Lock::default();
        lock.upsert(bound("local/x", "1.10", None, "a"));
        lock.upsert(bound("murmur/y", "2", Some(Platform::LinuxX86_64), "b"));
        let (any, tagged) = (Digest::of(b"a"), Digest::of(b"b"));
        assert_eq!(
            lock.text(),
            format!(
                "lock_version: 3\nartifacts:\n- name: local/x\n  resolved_version: \"1.10\"\n  sha256:\n    any: \"{any}\"\n  \
                 origin: operator\n- name: murmur/y\n  resolved_version: \"2\"\n  sha256:\n    platforms:\n      \
                 \"linux-x86_64\": \"{tagged}\"\n  origin: operator\n"
            )
        );
        assert_eq!(Lock::parse(lock.text().as_bytes()).unwrap(), lock);
    }

    #[test]
    fn an_unquoted_version_is_its_text() {
        let digest = Digest::of(b"");
        let text = format!(
            "lock_version: 3\nartifacts:\n  - name: local/x\n    resolved_version: 1.20\n    sha256: {{any: {digest}}}\n"
        );
        assert_eq!(Lock::parse(text.as_bytes()).unwrap().pins()[0].version.as_str(), "1.20");
    }

    #[test]
    fn every_fault_is_refused_and_says_which() {
        let digest = Digest::of(b"");
        let entry =
            |rest: &str| format!("lock_version: 3\nartifacts:\n- name: local/x\n  resolved_version: '1'\n{rest}");
        let any = format!("  sha256: {{any: {digest}}}\n");
        let cases = [
            (
                "lock_version: 2\nartifacts: []\n".to_owned(),
                "unsupported lock_version 2 (expected 3) — delete murmur.lock",
            ),
            (String::new(), "no lock_version"),
            ("lock_version: 3\nartifacts: {}\n".to_owned(), "not a list"),
            ("lock_version: 3\nartifacts:\n- name: x\n".to_owned(), "is not a full artifact name"),
            ("lock_version: 3\nartifacts:\n- name: local/x\n  resolved_version: ' '\n".to_owned(), "blank"),
            (entry(""), "has no hash"),
            (entry("  sha256: {platforms: {}}\n"), "has no hash"),
            (entry(&format!("  sha256: {{any: {digest}, platforms: {{linux-x86_64: {digest}}}}}\n")), "has both"),
            (entry("  sha256: {any: ''}\n"), "64 hexadecimal"),
            (entry(&format!("{any}  origin: other\n")), "unknown origin 'other'"),
            (entry(&format!("{any}  origin: runtime\n")), "no session"),
            (entry(&format!("{any}  session: ses_1\n")), "has a session"),
            (entry(&format!("{any}- name: local/x\n  resolved_version: '1'\n{any}")), "pinned twice"),
            ("lock_version: 3\nlock_version: 3\n".to_owned(), "YAML"),
            ("\t{".to_owned(), "YAML"),
        ];
        for (text, expected) in cases {
            let message = message(&text);
            assert!(message.starts_with("invalid murmur.lock: ") && message.contains(expected), "{text:?}: {message}");
        }
    }

    #[test]
    fn a_second_platform_joins_and_another_version_or_shape_replaces() {
        let mut lock = Lock::default();
        lock.upsert(bound("local/x", "1", Some(Platform::LinuxX86_64), "a"));
        lock.upsert(bound("local/x", "1", Some(Platform::LinuxAarch64), "b"));
        assert!(matches!(&lock.pins()[0].hashes, Hashes::Platforms(known) if known.len() == 2));
        lock.upsert(bound("local/x", "2", Some(Platform::LinuxAarch64), "c"));
        assert!(matches!(&lock.pins()[0].hashes, Hashes::Platforms(known) if known.len() == 1));
        lock.upsert(bound("local/x", "2", None, "d"));
        assert_eq!(lock.pins()[0].hashes, Hashes::Any(Digest::of(b"d")));
        assert_eq!(lock.pins().len(), 1);
    }

    #[test]
    fn an_install_adopts_what_a_session_pulled() {
        let digest = Digest::of(b"a");
        let text = format!(
            "lock_version: 3\nartifacts:\n- name: local/x\n  resolved_version: '1'\n  sha256: {{any: {digest}}}\n  origin: \
             runtime\n  session: ses_1\n  owner_id: 7\n"
        );
        let mut lock = Lock::parse(text.as_bytes()).unwrap();
        assert_eq!(lock.upsert(bound("local/x", "1", None, "a")).as_deref(), Some("ses_1"));
        assert_eq!((&lock.pins()[0].origin, lock.pins()[0].owner_id), (&Origin::Operator, Some(7)));
    }

    #[test]
    fn what_disagrees_with_its_pin_is_named_with_both_values() {
        let mut lock = Lock::default();
        lock.upsert(bound("local/x", "1", None, "a"));
        lock.agrees(&bound("local/x", "1", None, "a")).unwrap();
        lock.agrees(&bound("local/other", "1", None, "z")).unwrap();
        for (other, expected) in [
            (bound("local/x", "2", None, "a"), "version 1, the store has 2"),
            (bound("local/x", "1", None, "b"), "the lock pins sha256"),
            (bound("local/x", "1", Some(Platform::LinuxX86_64), "a"), "one payload for all"),
        ] {
            let refusal = lock.agrees(&other).unwrap_err();
            assert_eq!(refusal.code(), codes::E_REG_005);
            assert!(refusal.message().contains(expected), "{refusal}");
        }
    }

    #[test]
    fn a_refused_change_writes_nothing_and_many_writers_lose_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let refused = Lock::update(dir.path(), |_| Err::<(), _>(Diagnostic::new(codes::E_REG_005, "no")));
        assert!(refused.is_err());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        std::thread::scope(|scope| {
            for n in 0..8 {
                let dir = dir.path();
                scope.spawn(move || {
                    let bound = bound(&format!("local/x{n}"), "1", None, "a");
                    Lock::update(dir, |lock| Ok(lock.upsert(bound))).unwrap();
                });
            }
        });
        assert_eq!(Lock::read(dir.path()).unwrap().unwrap().pins().len(), 8);
    }

    proptest! {
        #[test]
        fn reading_never_panics(text in "(lock_version: 3\n)?(artifacts:\n)?[- a-z0-9:{}\\[\\]\"'\n./\u{e9}]{0,120}") {
            fuzz_lock(text.as_bytes());
        }
    }
}
