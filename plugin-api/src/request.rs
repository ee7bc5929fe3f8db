//! What `mur` asks a containment backend for: what a session's enclosure is to be, and what one kind of process in it may
//! reach. Each is one JSON object; keys may be added, so a backend ignores what it does not know.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What a session shares (`open`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnclosureRequest {
    /// The session's id, for names that people see.
    pub session: String,
    /// Bounds of everything inside together.
    pub scope: ScopeLimits,
    /// TCP ports on which `mur` answers inside the session's network; each gets a listener on every address.
    #[serde(default)]
    pub ports: Vec<u16>,
    /// Whether `mur` answers name queries there: a UDP socket on port 53, after the listeners.
    #[serde(default)]
    pub names: bool,
    /// How fast everything inside together may read and write, where that can be bounded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io: Option<IoLimit>,
    /// Whether to try on the way, for the record, what a composed root would need: reading `backs_sealed` of
    /// [`Enclosure::report`](crate::Enclosure::report).
    #[serde(default)]
    pub rehearse_root: bool,
}

impl EnclosureRequest {
    /// A session's enclosure without any listener and without a bound of its reading and writing.
    pub fn new(session: impl Into<String>, scope: ScopeLimits) -> Self {
        Self { session: session.into(), scope, ports: Vec::new(), names: false, io: None, rehearse_root: false }
    }
}

/// A bound of the bytes read and, apart from them, written in a second (`cgroup_io_bytes_per_sec`): best effort.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoLimit {
    /// Bytes a second.
    pub bytes_per_second: u64,
    /// A path on the file system that is meant: the work folder.
    #[serde(with = "path")]
    pub path: PathBuf,
}

/// What became of an [`IoLimit`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoStatus {
    /// Whether the bound holds.
    pub status: IoHeld,
    /// Why it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Whether an [`IoLimit`] holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IoHeld {
    /// The kernel bounds it.
    Enforced,
    /// This host cannot bound it.
    Unavailable,
    /// Nobody asked for a bound.
    NotRequired,
    /// Nothing was tried.
    #[default]
    NotProbed,
}

/// How often a bound of a scope was met, so far. 0 where the host does not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScopeEvents {
    /// Processes the kernel killed because the scope's memory was used up.
    pub oom_kills: u64,
    /// Processes or threads that were refused because the scope had as many as it may.
    pub pids_refused: u64,
}

/// Bounds of everything inside an enclosure together (`capabilities.resources`, the `cgroup_…` keys).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScopeLimits {
    /// Bytes of memory.
    pub memory: u64,
    /// Processes and threads.
    pub pids: u64,
    /// Processor time, in percent of one core.
    pub cpu_percent: u64,
}

/// Bounds of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessLimits {
    /// Most open files (`RLIMIT_NOFILE`).
    pub open_files: u64,
    /// Largest file written, in bytes (`RLIMIT_FSIZE`).
    pub file_size: u64,
    /// Processor time, in seconds; absent for workers, whose calls have deadlines of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_seconds: Option<u64>,
    /// Address space, in bytes; absent for workers, whose runtime reserves far more than it uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address_space: Option<u64>,
}

/// Which kind of process a profile is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProcessKind {
    /// A guest worker: confines itself by `enter`, never starts a program.
    Worker,
    /// A command, forked by the enclosure.
    Command,
}

/// What became of an enclosure's bounds (`bounds`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EnclosureBounds {
    /// How often they were met.
    pub events: ScopeEvents,
    /// Of reading and writing.
    pub io: IoStatus,
}

/// What one kind of process may reach (`prepare`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfileRequest {
    /// Which kind.
    pub process: ProcessKind,
    /// Its bounds.
    pub limits: ProcessLimits,
    /// Every path it may open, with what lies below; nothing else.
    #[serde(default)]
    pub grants: Vec<Grant>,
    /// The session's folder for temporary files; where the class has mounts of its own, it is `/tmp` there.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_path")]
    pub tmp: Option<PathBuf>,
    /// The session's home folder, at its own path.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_path")]
    pub home: Option<PathBuf>,
    /// What may be done in `tmp` and `home`: [`Access::Write`], or [`Access::WriteExecute`].
    #[serde(default = "own_access")]
    pub own: Access,
    /// Whether it may make sockets of family `AF_UNIX` (`capabilities.network.unix_sockets`).
    #[serde(default)]
    pub unix_sockets: bool,
}

fn own_access() -> Access {
    Access::Write
}

impl ProfileRequest {
    /// A kind of process that reaches nothing.
    pub fn new(process: ProcessKind, limits: ProcessLimits) -> Self {
        let own = own_access();
        Self { process, limits, grants: Vec::new(), tmp: None, home: None, own, unix_sockets: false }
    }
}

/// A path and what may be done with it and below it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// An absolute path.
    #[serde(with = "path")]
    pub path: PathBuf,
    /// What is allowed.
    pub access: Access,
    /// Whether a path that is not there refuses the process; others are left out.
    #[serde(default)]
    pub required: bool,
    /// Device and inode the path must lead to: another file there refuses the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<(u64, u64)>,
}

impl Grant {
    /// A path that must be there.
    pub fn required(path: impl Into<PathBuf>, access: Access) -> Self {
        Self { path: path.into(), access, required: true, identity: None }
    }

    /// A path that is left out where it is not there.
    pub fn optional(path: impl Into<PathBuf>, access: Access) -> Self {
        Self { path: path.into(), access, required: false, identity: None }
    }
}

/// What may be done with a granted path. On a path that is no folder, what is said of folders means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// Nothing; where a class composes a root, it is there and its metadata can be read.
    Visible,
    /// Files read; folders not listed.
    ReadFiles,
    /// Files read and folders listed.
    Read,
    /// That, and files, folders, links and FIFOs made, changed, moved and removed; never devices or sockets.
    Write,
    /// That, and files executed (`workdir_exec`).
    WriteExecute,
    /// Files read and executed; folders not listed.
    Execute,
    /// Files read and executed, folders listed.
    ExecuteRead,
    /// One device, read and written.
    Device,
}

impl Access {
    /// Whether what is there can be changed: where a class composes a root, it is mounted writable.
    pub fn writes(self) -> bool {
        matches!(self, Self::Write | Self::WriteExecute | Self::Device)
    }
}

/// A command, as [`Enclosure::spawn`](crate::Enclosure::spawn) gets it, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandRequest {
    /// The program's absolute path, as it is inside the enclosure.
    #[serde(with = "path")]
    pub program: PathBuf,
    /// Its arguments, the name it sees as its own first.
    pub args: Vec<Bytes>,
    /// Its whole environment.
    pub env: Vec<(Bytes, Bytes)>,
    /// Where it starts, as an absolute path inside the enclosure.
    #[serde(with = "path")]
    pub cwd: PathBuf,
}

/// Text of the operating system's: any bytes, as text when they are UTF-8, else as a list of numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub Vec<u8>);

impl<T: AsRef<std::ffi::OsStr>> From<T> for Bytes {
    fn from(text: T) -> Self {
        Self(std::os::unix::ffi::OsStrExt::as_bytes(text.as_ref()).to_vec())
    }
}

impl Serialize for Bytes {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        path::Written::from(self.0.as_slice()).serialize(to)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Self(path::Written::deserialize(from)?.into_bytes()))
    }
}

/// For `serde(with = …)`. Paths are bytes: as text when they are UTF-8, else as a list of numbers.
pub mod path {
    use std::ffi::OsString;
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    use std::path::{Path, PathBuf};

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    pub(super) enum Written {
        Text(String),
        Bytes(Vec<u8>),
    }

    impl From<&[u8]> for Written {
        fn from(bytes: &[u8]) -> Self {
            match std::str::from_utf8(bytes) {
                Ok(text) => Self::Text(text.to_owned()),
                Err(_) => Self::Bytes(bytes.to_vec()),
            }
        }
    }

    impl From<&Path> for Written {
        fn from(path: &Path) -> Self {
            path.as_os_str().as_bytes().into()
        }
    }

    impl Written {
        pub(super) fn into_bytes(self) -> Vec<u8> {
            match self {
                Self::Text(text) => text.into_bytes(),
                Self::Bytes(bytes) => bytes,
            }
        }
    }

    impl From<Written> for PathBuf {
        fn from(written: Written) -> Self {
            OsString::from_vec(written.into_bytes()).into()
        }
    }

    /// Writes it.
    pub fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
        Written::from(path).serialize(to)
    }

    /// Reads it.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
        Written::deserialize(from).map(PathBuf::from)
    }
}

/// The same, of a path that may be left out.
pub mod optional_path {
    use std::path::PathBuf;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::path::Written;

    /// Writes it.
    pub fn serialize<S: Serializer>(path: &Option<PathBuf>, to: S) -> Result<S::Ok, S::Error> {
        path.as_deref().map(Written::from).serialize(to)
    }

    /// Reads it.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PathBuf>, D::Error> {
        Ok(Option::<Written>::deserialize(from)?.map(PathBuf::from))
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn a_request_travels_whole_and_paths_are_bytes() {
        let odd = PathBuf::from(OsString::from_vec(b"/a/\xff".to_vec()));
        let limits = ProcessLimits { open_files: 1, file_size: 2, cpu_seconds: None, address_space: None };
        let request = ProfileRequest {
            grants: vec![
                Grant::required("/work/é", Access::Write),
                Grant { identity: Some((1, 2)), ..Grant::optional(odd.clone(), Access::ExecuteRead) },
            ],
            tmp: Some(odd),
            ..ProfileRequest::new(ProcessKind::Worker, limits)
        };
        let text = serde_json::to_string(&request).unwrap();
        assert!(text.contains(r#""path":"/work/é","access":"write""#), "{text}");
        assert_eq!(serde_json::from_str::<ProfileRequest>(&text).unwrap(), request);
    }

    #[test]
    fn a_command_travels_whole_and_its_words_are_bytes() {
        let request = CommandRequest {
            program: "/bin/echo".into(),
            args: vec!["echo".into(), Bytes(b"\xff\n".to_vec()), "".into()],
            env: vec![("A".into(), Bytes(b"\xfe=".to_vec()))],
            cwd: "/work".into(),
        };
        let text = serde_json::to_string(&request).unwrap();
        assert!(text.contains(r#""args":["echo",[255,10],""]"#), "{text}");
        assert_eq!(serde_json::from_str::<CommandRequest>(&text).unwrap(), request);
    }

    #[test]
    fn keys_of_a_later_time_are_ignored() {
        let text = r#"{"session":"s","scope":{"memory":1,"pids":2,"cpu_percent":3},"later":true}"#;
        let request: EnclosureRequest = serde_json::from_str(text).unwrap();
        assert_eq!((request.ports, request.names), (Vec::new(), false));
    }
}
