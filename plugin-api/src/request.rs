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
    /// The session's folder for temporary files; where the class composes a root, it is `/tmp` there.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_path")]
    pub tmp: Option<PathBuf>,
    /// The session's home folder, at its own path.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_path")]
    pub home: Option<PathBuf>,
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
}

/// What may be done with a granted path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// Files read and folders listed.
    Read,
    /// That, and files, folders, links and FIFOs made, changed, moved and removed; never devices or sockets.
    Write,
    /// Files read and executed.
    Execute,
}

/// Paths are bytes: as text when they are UTF-8, else as a list of numbers.
mod path {
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

    impl From<&Path> for Written {
        fn from(path: &Path) -> Self {
            match path.to_str() {
                Some(text) => Self::Text(text.to_owned()),
                None => Self::Bytes(path.as_os_str().as_bytes().to_vec()),
            }
        }
    }

    impl From<Written> for PathBuf {
        fn from(written: Written) -> Self {
            match written {
                Written::Text(text) => text.into(),
                Written::Bytes(bytes) => OsString::from_vec(bytes).into(),
            }
        }
    }

    pub(super) fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
        Written::from(path).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
        Written::deserialize(from).map(PathBuf::from)
    }
}

mod optional_path {
    use std::path::PathBuf;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::path::Written;

    pub(super) fn serialize<S: Serializer>(path: &Option<PathBuf>, to: S) -> Result<S::Ok, S::Error> {
        path.as_deref().map(Written::from).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PathBuf>, D::Error> {
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
        let request = ProfileRequest {
            process: ProcessKind::Worker,
            limits: ProcessLimits { open_files: 1, file_size: 2, cpu_seconds: None, address_space: None },
            grants: vec![
                Grant { path: "/work/é".into(), access: Access::Write, required: true },
                Grant { path: odd.clone(), access: Access::Read, required: false },
            ],
            tmp: Some(odd),
            home: None,
        };
        let text = serde_json::to_string(&request).unwrap();
        assert!(text.contains(r#""path":"/work/é","access":"write""#), "{text}");
        assert_eq!(serde_json::from_str::<ProfileRequest>(&text).unwrap(), request);
    }

    #[test]
    fn keys_of_a_later_time_are_ignored() {
        let text = r#"{"session":"s","scope":{"memory":1,"pids":2,"cpu_percent":3},"later":true}"#;
        let request: EnclosureRequest = serde_json::from_str(text).unwrap();
        assert_eq!((request.ports, request.names), (Vec::new(), false));
    }
}
