//! What a session and its enclosure's process say to each other: one frame asks, one answers, descriptors beside it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use mur_plugin_api::{Class, CommandRequest, EnclosureBounds, EnclosureRequest, HostReport, ProfileRequest, Shortfall};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::process::fds;

/// The helper's end of the connection.
pub(super) const DESCRIPTOR: i32 = 3;

/// Most bytes of one frame: a request with a few hundred long paths fits.
const MAX_FRAME: usize = 4 << 20;

/// What a session asks.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Ask {
    /// Ask one of these buses for a scope that is ours to divide. Done either way.
    Delegate(Vec<String>),
    /// Take the library of a class, which comes as a descriptor.
    Load(#[serde(with = "class")] Class),
    /// Try what the host can back of a class.
    Probe(#[serde(with = "class")] Class),
    /// Make the session's enclosure of a class.
    Open(#[serde(with = "class")] Class, EnclosureRequest),
    /// Make ready what one kind of process enters.
    Prepare(ProfileRequest),
    /// The sockets inside the session's network.
    Network,
    /// Make ready what commands enter.
    Commands(ProfileRequest),
    /// Start a command of the kind of this number. Beside it come its standard streams and one end of its connection.
    Spawn(u32, CommandRequest),
    /// What became of the scope's bounds.
    Bounds,
    /// What is used so far.
    Usage,
    /// End everything inside and remove what was made, within so many milliseconds.
    Close(u64),
}

/// What the helper answers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// It is done.
    Done,
    /// To [`Ask::Probe`] and [`Ask::Open`].
    Report(Box<Report>),
    /// To [`Ask::Prepare`]; the profile's descriptors come with it.
    Profile(Vec<u8>),
    /// To [`Ask::Network`]; the sockets come with it.
    Network,
    /// To [`Ask::Commands`]: the kind's number, and whether `/tmp` is the session's folder for it.
    Commands(u32, bool),
    /// To [`Ask::Spawn`]: the command's process number.
    Spawned(i32),
    /// To [`Ask::Spawn`]: nothing was started.
    NotSpawned(NotSpawned),
    /// To [`Ask::Bounds`].
    Bounds(EnclosureBounds),
    /// To [`Ask::Usage`]: bytes, nanoseconds, processes.
    Usage(u64, u64, u64),
    /// It failed, with one line.
    Failed(String),
}

/// Why a command was not started.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum NotSpawned {
    /// The program could not be executed, with this error number.
    Program(i32),
    /// A step of its confinement failed.
    SetUp(String),
    /// The enclosure has ended.
    Gone(String),
}

/// What a host can back of a class.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// What the class holds with, as traces show it.
    pub mechanism: String,
    /// Why the class cannot be had.
    pub class: Option<Short>,
    /// Why a session can have no namespaces.
    pub namespaces: Option<Short>,
    /// Why a session can have no cgroup scope.
    pub scope: Option<Short>,
    /// The kernel's Landlock version.
    pub landlock_abi: Option<i64>,
    /// Whether a session here could have `sealed`, where that was seen while a weaker class's enclosure was made.
    #[serde(default)]
    pub backs_sealed: Option<bool>,
    /// Whether commands find the session's folder for temporary files at `/tmp`, where the class composes no root.
    #[serde(default)]
    pub maps_tmp: Option<bool>,
}

impl Report {
    /// Whether anything is short.
    pub fn is_short(&self) -> bool {
        self.class.is_some() || self.namespaces.is_some() || self.scope.is_some()
    }
}

/// Why something cannot be had.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Short {
    /// A word for the cause.
    pub blocker: String,
    /// The step that failed.
    pub step: String,
    /// Its error number; 0 when there is none.
    pub errno: i32,
    /// What it means.
    pub cause: String,
    /// What to do about it.
    pub remedy: String,
}

impl Short {
    /// Of a plugin's account.
    fn of(short: &Shortfall) -> Self {
        Self {
            blocker: short.blocker.to_string(),
            step: short.step.to_string(),
            errno: short.errno,
            cause: short.cause.to_string(),
            remedy: short.remedy.to_string(),
        }
    }

    /// The step and its error: `<step> failed with <ERRNO> (<words>)`.
    pub fn failure(&self) -> String {
        if self.errno == 0 {
            return format!("{} failed", self.step);
        }
        let errno = nix::errno::Errno::from_raw(self.errno);
        format!("{} failed with {errno:?} ({})", self.step, errno.desc())
    }
}

impl Report {
    pub(super) fn of(mechanism: &str, report: &HostReport) -> Self {
        let readings: serde_json::Value = serde_json::from_str(&report.readings).unwrap_or_default();
        let short = |short: &abi_stable::std_types::ROption<Shortfall>| short.as_ref().map(Short::of).into_option();
        Self {
            mechanism: mechanism.to_owned(),
            class: short(&report.class),
            namespaces: short(&report.namespaces),
            scope: short(&report.scope),
            landlock_abi: readings["landlock_abi"].as_i64(),
            backs_sealed: readings["backs_sealed"].as_bool(),
            maps_tmp: readings["maps_tmp"].as_bool(),
        }
    }
}

/// Sends a frame, its descriptors with the first byte.
pub(super) fn send(socket: &UnixStream, frame: &impl Serialize, handed: &[BorrowedFd<'_>]) -> io::Result<()> {
    let body = serde_json::to_vec(frame)?;
    let size = u32::try_from(body.len()).ok().filter(|size| *size as usize <= MAX_FRAME);
    let size = size.ok_or_else(|| io::Error::from_raw_os_error(libc::EMSGSIZE))?;
    let bytes = [&size.to_le_bytes()[..], &body].concat();
    let mut rest = &bytes[..];
    let mut handed = handed;
    while !rest.is_empty() {
        match fds::send_with_fds(socket.as_fd(), rest, handed) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            sent => {
                rest = &rest[sent?..];
                handed = &[];
            }
        }
    }
    Ok(())
}

/// Receives a frame and its descriptors; `None` at end of file.
pub(super) fn receive<T: DeserializeOwned>(socket: &UnixStream) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut handed = Vec::new();
    let mut head = [0; 4];
    if !fill(socket, &mut head, &mut handed)? {
        return Ok(None);
    }
    let size = u32::from_le_bytes(head) as usize;
    if size > MAX_FRAME {
        return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
    }
    let mut body = vec![0; size];
    if !fill(socket, &mut body, &mut handed)? {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some((serde_json::from_slice(&body)?, handed)))
}

/// Reads exactly as many bytes; `false` when there was none.
fn fill(socket: &UnixStream, buffer: &mut [u8], handed: &mut Vec<OwnedFd>) -> io::Result<bool> {
    let mut read = 0;
    while read < buffer.len() {
        match fds::receive_with_fds(socket.as_fd(), &mut buffer[read..]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            Ok((0, _)) if read == 0 => return Ok(false),
            Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((count, received)) => {
                read += count;
                handed.extend(received);
            }
        }
    }
    Ok(true)
}

/// A class as its word.
mod class {
    use mur_plugin_api::Class;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(class: &Class, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(class.as_str())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Class, D::Error> {
        let word = String::deserialize(from)?;
        word.parse().map_err(|_| D::Error::custom(format!("'{word}' is no class")))
    }
}
