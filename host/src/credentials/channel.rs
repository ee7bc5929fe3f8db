//! The formation channel: the pipe on which a launcher hands one member its credentials, and later the addresses of
//! the members it may call.
//!
//! Lines of JSON, each at most 1 MiB. The first: formation, member, verification key, launcher, one token a callee.
//! Later ones: door URLs. Both ends are the same binary, so the reader is as strict as the writer is exact.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{OwnedFd, RawFd};
use std::time::Duration;

use http::Uri;
use nix::sys::stat::{SFlag, fstat};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use zeroize::{Zeroize as _, Zeroizing};

use super::MemberName;
use super::token::{EdgeToken, Verifier, VerifyingKey};
use crate::diagnostics::{Diagnostic, Result, codes, output};
use crate::ids::FormationId;

/// The variable that names the channel's descriptor.
pub const VARIABLE: &str = "MURMUR_FORMATION_CHANNEL";
/// Longest line, its end included: a first line of 2,000 callees fits.
pub const MAX_LINE: usize = 1 << 20;
/// How long the first line may take.
pub const FIRST_LINE_WAIT: Duration = Duration::from_secs(10);
/// How long a call waits for an address that has not arrived.
pub const ADDRESS_WAIT: Duration = Duration::from_secs(10);
/// What one read takes.
const READ_CHUNK: usize = 16 * 1024;

/// A process as records name it: pid and start time (field 22 of its `stat`, opaque).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessName {
    /// The pid.
    pub pid: u32,
    /// When it started; empty when that could not be read.
    pub process_start: String,
}

/// What a first line carries, as the launcher has it.
pub struct FirstLine<'a> {
    /// The launch's formation.
    pub formation: &'a FormationId,
    /// The member the line is for.
    pub member: &'a MemberName,
    /// Whether it is the entry member.
    pub entry: bool,
    /// The public half of the formation's key.
    pub key: &'a VerifyingKey,
    /// The launcher.
    pub launcher: &'a ProcessName,
    /// A token for each member it may call, in roster order.
    pub tokens: &'a [(&'a MemberName, &'a EdgeToken)],
}

/// The first line, its end included. It holds tokens.
pub fn first_line(first: &FirstLine<'_>) -> Zeroizing<String> {
    let start = serde_json::Value::from(first.launcher.process_start.as_str()).to_string();
    // Sized ahead: a string that grows leaves unwiped copies behind.
    let tokens: usize = first.tokens.iter().map(|(to, token)| to.as_str().len() + token.expose().len() + 24).sum();
    let mut line = Zeroizing::new(String::with_capacity(512 + start.len() + tokens));
    // Writing to a string cannot fail; names, ids, keys and tokens hold no character JSON would escape.
    let _ = write!(
        *line,
        r#"{{"formation":"{}","member":"{}","entry":{},"key":"{}","launcher":{{"pid":{},"process_start":{start}}},"tokens":["#,
        first.formation,
        first.member,
        first.entry,
        first.key.to_text(),
        first.launcher.pid,
    );
    for (index, (to, token)) in first.tokens.iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        let _ = write!(*line, r#"{comma}{{"to":"{to}","token":"{}"}}"#, token.expose());
    }
    line.push_str("]}\n");
    line
}

/// A later line: the doors of members, as `http://host:port`.
pub fn urls_line<'a>(urls: impl IntoIterator<Item = (&'a MemberName, &'a str)>) -> String {
    let urls: Vec<AddressText<'_>> = urls
        .into_iter()
        .map(|(member, url)| AddressText { member: member.clone(), url: std::borrow::Cow::Borrowed(url) })
        .collect();
    let mut line = serde_json::json!({ "urls": urls }).to_string();
    line.push('\n');
    line
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FirstText<'a> {
    formation: FormationId,
    member: MemberName,
    entry: bool,
    key: &'a str,
    launcher: ProcessName,
    #[serde(borrow)]
    tokens: Vec<TokenText<'a>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenText<'a> {
    to: MemberName,
    // Borrowed, so that no copy of the token is made that nobody wipes.
    token: &'a str,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LaterText<'a> {
    #[serde(borrow)]
    urls: Vec<AddressText<'a>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AddressText<'a> {
    member: MemberName,
    #[serde(borrow)]
    url: std::borrow::Cow<'a, str>,
}

/// Why a channel is refused; each with its own words.
#[derive(Debug)]
enum Fault {
    NoFormation,
    NotANumber,
    NotOpen(RawFd),
    WrongKind(RawFd),
    Silent,
    Ended,
    TooLong,
    Unreadable(io::Error),
    NotCredentials,
    ForeignToken(Option<MemberName>),
    OtherFormation,
}

impl Fault {
    fn diagnostic(self) -> Diagnostic {
        let reason = match self {
            Self::NoFormation => "it is set without MURMUR_FORMATION_ID".to_owned(),
            Self::NotANumber => "its value is not a descriptor number".to_owned(),
            Self::NotOpen(number) => format!("descriptor {number} is not open as a channel"),
            Self::WrongKind(number) => format!("descriptor {number} is neither a pipe nor a file"),
            Self::Silent => format!("no first line arrived within {} seconds", FIRST_LINE_WAIT.as_secs()),
            Self::Ended => "it ended before a whole first line".to_owned(),
            Self::TooLong => format!("its first line is longer than {MAX_LINE} bytes"),
            Self::Unreadable(error) => format!("it cannot be read: {error}"),
            Self::NotCredentials => "its first line is not a member's credentials".to_owned(),
            Self::ForeignToken(Some(to)) => {
                format!("the token for '{to}' in its first line was not issued to this member")
            }
            Self::ForeignToken(None) => "its first line holds two tokens for one member".to_owned(),
            Self::OtherFormation => "its first line names another formation than MURMUR_FORMATION_ID".to_owned(),
        };
        Diagnostic::new(codes::E_RUN_046, format!("{VARIABLE} is not this member's formation channel: {reason}"))
            .hint(format!("unset {VARIABLE}, or launch the formation with `mur run --roster`"))
    }
}

/// The reading end, adopted from the environment and not yet read.
pub struct Channel {
    source: Source,
    formation: FormationId,
    lines: LineBuffer,
}

enum Source {
    /// Until a runtime is there to wait with.
    Waiting(OwnedFd),
    Pipe(pipe::Receiver),
    File(File),
    Ended,
}

impl Channel {
    /// Adopts the channel named in this process's environment, if one is. `formation` is the parsed
    /// `MURMUR_FORMATION_ID`.
    pub fn from_env(formation: Option<&FormationId>) -> Result<Option<Self>> {
        std::env::var_os(VARIABLE).map(|value| Self::adopt(&value, formation)).transpose()
    }

    /// Adopts the descriptor `value` names. It is made close-on-exec; nothing is read.
    pub fn adopt(value: &OsStr, formation: Option<&FormationId>) -> Result<Self> {
        let formation = formation.ok_or_else(|| Fault::NoFormation.diagnostic())?;
        let number: RawFd = value
            .to_str()
            .and_then(|text| text.parse().ok())
            .filter(|number| *number >= 0)
            .ok_or_else(|| Fault::NotANumber.diagnostic())?;
        let fd = crate::process::fds::adopt(number).map_err(|_| Fault::NotOpen(number).diagnostic())?;
        Self::new(fd, number, formation.clone()).map_err(Fault::diagnostic)
    }

    fn new(fd: OwnedFd, number: RawFd, formation: FormationId) -> std::result::Result<Self, Fault> {
        let mode = fstat(&fd).map_err(|errno| Fault::Unreadable(errno.into()))?.st_mode;
        let source = match SFlag::from_bits_truncate(mode) & SFlag::S_IFMT {
            SFlag::S_IFIFO => Source::Waiting(fd),
            SFlag::S_IFREG => Source::File(File::from(fd)),
            _ => return Err(Fault::WrongKind(number)),
        };
        Ok(Self { source, formation, lines: LineBuffer::default() })
    }

    /// Reads the first line and becomes the membership it grants. What was read beyond it is kept for the addresses.
    pub async fn join(self) -> Result<Membership> {
        self.join_within(FIRST_LINE_WAIT).await.map_err(Fault::diagnostic)
    }

    async fn join_within(mut self, wait: Duration) -> std::result::Result<Membership, Fault> {
        let line = match tokio::time::timeout(wait, self.next_line()).await {
            Err(_) => return Err(Fault::Silent),
            Ok(Err(fault)) => return Err(fault),
            Ok(Ok(None)) => return Err(Fault::Ended),
            Ok(Ok(Some(line))) => line,
        };
        let credentials = Credentials::read(&line, &self.formation)?;
        let (sender, urls) = watch::channel(Addresses::new());
        let names: Vec<MemberName> = credentials.callees.iter().map(|callee| callee.name.clone()).collect();
        let reader = tokio::spawn(self.read_addresses(names, sender)).abort_handle();
        let Credentials { formation, member, entry, key, launcher, callees } = credentials;
        Ok(Membership { formation, member, entry, key, launcher, callees, urls, reader: Reader(reader) })
    }

    /// The next whole line, or `None` at end of file; a cut last line is no line.
    async fn next_line(&mut self) -> std::result::Result<Option<Zeroizing<Vec<u8>>>, Fault> {
        let mut chunk = Zeroizing::new(vec![0_u8; READ_CHUNK]);
        loop {
            if let Some(line) = self.lines.take()? {
                return Ok(Some(line));
            }
            let read = self.source.read(&mut chunk).await.map_err(Fault::Unreadable)?;
            if read == 0 {
                return Ok(None);
            }
            self.lines.push(&chunk[..read]);
        }
    }

    async fn read_addresses(mut self, callees: Vec<MemberName>, sender: watch::Sender<Addresses>) {
        loop {
            match self.next_line().await {
                Ok(Some(line)) => match read_addresses_line(&line) {
                    Some(urls) => sender.send_modify(|known| {
                        known.extend(urls.into_iter().filter(|(member, _)| callees.contains(member)));
                    }),
                    None => {
                        output::log("[mur run] a line of the formation channel that is no address line was dropped")
                    }
                },
                // Nothing more can come; waiting calls are told by the sender's end.
                Ok(None) | Err(_) => return,
            }
        }
    }
}

impl Source {
    async fn read(&mut self, chunk: &mut [u8]) -> io::Result<usize> {
        loop {
            match self {
                Self::Waiting(_) => {
                    let Self::Waiting(fd) = std::mem::replace(self, Self::Ended) else { continue };
                    *self = Self::Pipe(pipe::Receiver::from_owned_fd(fd)?);
                }
                Self::Pipe(pipe) => return pipe.read(chunk).await,
                // A file is read at once: it cannot be waited for, and ends where it ends.
                Self::File(file) => match file.read(chunk) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    other => return other,
                },
                Self::Ended => return Ok(0),
            }
        }
    }
}

/// Bytes not yet taken as lines; wiped as it grows and when dropped.
#[derive(Default)]
struct LineBuffer {
    bytes: Zeroizing<Vec<u8>>,
    /// How much of `bytes` is known to hold no line end.
    searched: usize,
}

impl LineBuffer {
    fn push(&mut self, more: &[u8]) {
        let needed = self.bytes.len() + more.len();
        if needed > self.bytes.capacity() {
            let mut grown = Vec::with_capacity(needed.next_power_of_two());
            grown.extend_from_slice(&self.bytes);
            self.bytes = Zeroizing::new(grown);
        }
        self.bytes.extend_from_slice(more);
    }

    /// The next line without its end.
    fn take(&mut self) -> std::result::Result<Option<Zeroizing<Vec<u8>>>, Fault> {
        let end = self.bytes[self.searched..].iter().position(|byte| *byte == b'\n').map(|at| self.searched + at);
        match end {
            Some(end) if end < MAX_LINE => {
                let line = Zeroizing::new(self.bytes[..end].to_vec());
                let rest = Zeroizing::new(self.bytes[end + 1..].to_vec());
                self.bytes.zeroize();
                self.bytes = rest;
                self.searched = 0;
                Ok(Some(line))
            }
            None if self.bytes.len() < MAX_LINE => {
                self.searched = self.bytes.len();
                Ok(None)
            }
            _ => Err(Fault::TooLong),
        }
    }
}

/// The first line, checked.
struct Credentials {
    formation: FormationId,
    member: MemberName,
    entry: bool,
    key: VerifyingKey,
    launcher: ProcessName,
    callees: Vec<Callee>,
}

impl Credentials {
    fn read(line: &[u8], expected: &FormationId) -> std::result::Result<Self, Fault> {
        let text: FirstText<'_> = serde_json::from_slice(line).map_err(|_| Fault::NotCredentials)?;
        let key = VerifyingKey::parse(text.key).ok_or(Fault::NotCredentials)?;
        let mut callees: Vec<Callee> = Vec::with_capacity(text.tokens.len());
        let mut named = std::collections::HashSet::with_capacity(text.tokens.len());
        for TokenText { to, token } in text.tokens {
            let issued = key.open(token).is_ok_and(|claims| {
                claims.formation == text.formation && claims.from == text.member && claims.to == to
            });
            if !issued {
                return Err(Fault::ForeignToken(Some(to)));
            }
            if !named.insert(to.clone()) {
                return Err(Fault::ForeignToken(None));
            }
            callees.push(Callee { name: to, token: EdgeToken::from_verified(Zeroizing::new(token.to_owned())) });
        }
        if text.formation != *expected {
            return Err(Fault::OtherFormation);
        }
        Ok(Self {
            formation: text.formation,
            member: text.member,
            entry: text.entry,
            key,
            launcher: text.launcher,
            callees,
        })
    }
}

fn read_addresses_line(line: &[u8]) -> Option<Addresses> {
    let later: LaterText<'_> = serde_json::from_slice(line).ok()?;
    later.urls.into_iter().map(|AddressText { member, url }| Some((member, door_url(&url)?))).collect()
}

/// A door's address: plain http, host and port, nothing behind them.
fn door_url(text: &str) -> Option<Uri> {
    let uri: Uri = text.parse().ok()?;
    let plain = uri.scheme_str() == Some("http")
        && uri.port_u16().is_some()
        && uri.authority().is_some_and(|authority| !authority.as_str().contains('@'))
        && uri.path_and_query().is_none_or(|path| path.as_str() == "/");
    plain.then_some(uri)
}

/// Where members' doors are, as far as the channel has said.
pub type Addresses = HashMap<MemberName, Uri>;

/// A member this one may call.
pub struct Callee {
    /// Its name.
    pub name: MemberName,
    /// What opens its door for this member.
    pub token: EdgeToken,
}

/// What being a member of a formation gives a session.
pub struct Membership {
    /// The formation.
    pub formation: FormationId,
    /// This member's roster name.
    pub member: MemberName,
    /// Whether this is the entry member.
    pub entry: bool,
    /// What formation tokens at this member's door verify with.
    pub key: VerifyingKey,
    /// The launcher.
    pub launcher: ProcessName,
    /// The members this one may call, in roster order.
    pub callees: Vec<Callee>,
    urls: watch::Receiver<Addresses>,
    #[expect(dead_code, reason = "ends the reading task when the membership ends")]
    reader: Reader,
}

struct Reader(AbortHandle);

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Membership {
    /// What this member's door checks formation tokens with.
    pub fn verifier(&self) -> Verifier {
        Verifier::new(self.formation.clone(), self.member.clone(), self.key)
    }

    /// The callee of this name.
    pub fn callee(&self, name: &str) -> Option<&Callee> {
        self.callees.iter().find(|callee| callee.name.as_str() == name)
    }

    /// Where a callee's door is; an address that has not arrived is waited for up to [`ADDRESS_WAIT`].
    pub async fn url_of(&self, member: &MemberName) -> Option<Uri> {
        self.url_within(member, ADDRESS_WAIT).await
    }

    async fn url_within(&self, member: &MemberName, wait: Duration) -> Option<Uri> {
        let mut urls = self.urls.clone();
        let known = tokio::time::timeout(wait, urls.wait_for(|known| known.contains_key(member))).await;
        let found = known.ok().and_then(std::result::Result::ok).and_then(|known| known.get(member).cloned());
        // The last value of a channel that has ended still counts.
        found.or_else(|| self.urls.borrow().get(member).cloned())
    }

    /// The value of `MURMUR_FORMATION_PEERS` for this member's components; `None` when it may call nobody.
    pub fn peers_variable(&self) -> Option<String> {
        let pairs: Vec<String> =
            self.callees.iter().map(|callee| format!("{0}=http://{0}.formation.invalid", callee.name)).collect();
        (!pairs.is_empty()).then(|| pairs.join(" "))
    }
}

/// Entry for a fuzzer: any bytes as what a channel carries. Must not panic, and must hand out nothing it did not verify.
pub fn fuzz_channel_line(bytes: &[u8]) {
    let expected = FormationId::parse("frm_0199c4e2f1b7712a9d3e4f5061728394");
    let mut lines = LineBuffer::default();
    for chunk in bytes.chunks(7) {
        lines.push(chunk);
        while let Ok(Some(line)) = lines.take() {
            if let Some(expected) = &expected {
                let _ = Credentials::read(&line, expected);
            }
            let _ = read_addresses_line(&line);
        }
    }
}

#[cfg(test)]
mod tests;
