//! What a session is asked to be: the command line of `mur run`, nothing checked yet.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use super::deadline::Start;

/// Where the capsule comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A project's manifest.
    Manifest(PathBuf),
    /// An installed capsule.
    Capsule {
        /// As written; has to be `<scope>/<name>`.
        name: String,
        /// Exact.
        version: String,
        /// What its bytes have to hash to.
        sha256: Option<String>,
        /// Where stores, lock and `.env` resolve, when not from the current directory.
        store_root: Option<PathBuf>,
    },
}

/// A given work folder.
#[derive(Clone, Debug)]
pub struct Place {
    /// The directory.
    pub dir: PathBuf,
    /// `<dev>:<ino>` it has to be.
    pub identity: Option<String>,
}

/// A session to go on from.
#[derive(Clone, Debug)]
pub struct Resume {
    /// `@N`, an id, a suffix of one, or a path.
    pub address: String,
    /// `--resume-mode compact`: a hook shortens the conversation first.
    pub compact: bool,
}

/// One launch.
#[derive(Clone, Debug)]
pub struct RunRequest {
    /// When the process began.
    pub start: Start,
    /// Where the capsule comes from.
    pub source: Source,
    /// A text, or the path of a file.
    pub task: Option<OsString>,
    /// Replaces the manifest's prompt.
    pub system_prompt: Option<String>,
    /// Seconds from the start of the process.
    pub deadline: Option<u64>,
    /// Unix milliseconds.
    pub inherited_deadline: Option<u64>,
    /// One path segment.
    pub context: Option<String>,
    /// The session to go on from.
    pub resume: Option<Resume>,
    /// Only under `transport: process`.
    pub forget_session: bool,
    /// Replaces `lifecycle.task_acceptance`.
    pub task_acceptance: Option<String>,
    /// Replaces `lifecycle.after_task`.
    pub after_task: Option<String>,
    /// The work folder, when it is given.
    pub place: Option<Place>,
    /// The door's address.
    pub bind: IpAddr,
    /// Raises the floor.
    pub containment: Option<String>,
    /// Report only.
    pub explain_scope: bool,
    /// One readiness line on stdout.
    pub json: bool,
    /// More start lines.
    pub verbose: bool,
    /// Skip the project's `.env`.
    pub no_env_file: bool,
    /// A delegated child's approval comes on stdin.
    pub spawn_grant_stdin: bool,
    /// Door tokens in the readiness line.
    pub readiness_tokens: bool,
}

#[cfg(test)]
pub mod testing {
    //! A launch as the bare command line asks for it.

    use super::*;

    /// `mur run` without flags.
    pub fn request() -> RunRequest {
        RunRequest {
            start: Start::now(),
            source: Source::Manifest("murmur.yaml".into()),
            task: None,
            system_prompt: None,
            deadline: None,
            inherited_deadline: None,
            context: None,
            resume: None,
            forget_session: false,
            task_acceptance: None,
            after_task: None,
            place: None,
            bind: IpAddr::from([127, 0, 0, 1]),
            containment: None,
            explain_scope: false,
            json: false,
            verbose: false,
            no_env_file: false,
            spawn_grant_stdin: false,
            readiness_tokens: false,
        }
    }
}
