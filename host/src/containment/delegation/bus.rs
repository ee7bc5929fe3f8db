//! As much of the D-Bus protocol as one question takes: a connection to a socket of this host, who asks, a call with its
//! arguments, and the answer to it. Everything that is read is bounded, in bytes and in time.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, setsockopt, socket, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};

/// Most bytes of one message that is read: what answers us is a path or an error's text.
const MAX_MESSAGE: usize = 64 << 10;

/// Most bytes of a line while it is said who asks.
const MAX_LINE: usize = 1024;

/// Messages that are not the answer and are passed over.
const MAX_OTHERS: usize = 64;

const METHOD_CALL: u8 = 1;
const METHOD_RETURN: u8 = 2;
const ERROR: u8 = 3;

/// A value of a property.
pub(super) enum Argument<'a> {
    /// `s`
    Text(&'a str),
    /// `b`
    Flag(bool),
    /// `au`
    Numbers(&'a [u32]),
}

/// A call of a method.
pub(super) struct Call<'a> {
    pub(super) destination: &'a str,
    pub(super) path: &'a str,
    pub(super) interface: &'a str,
    pub(super) member: &'a str,
    /// Arguments of the form `ssa(sv)a(sa(sv))`: a unit, how it is started, its properties, and no further units.
    pub(super) unit: Option<(&'a str, &'a str, &'a [(&'a str, Argument<'a>)])>,
}

/// A connection.
pub(super) struct Bus {
    stream: UnixStream,
    until: Instant,
    serial: u32,
}

impl Bus {
    /// Connects to the first address of a list that answers, and says who we are.
    pub(super) fn connect(addresses: &str, until: Instant) -> Result<Self, String> {
        let mut why = "it names no socket of this host".to_owned();
        for address in addresses.split(';').filter_map(|address| address.strip_prefix("unix:")) {
            match Self::open(address, until) {
                Ok(bus) => return Ok(bus),
                Err(fault) => why = fault,
            }
        }
        Err(why)
    }

    fn open(address: &str, until: Instant) -> Result<Self, String> {
        let place = place(address).ok_or("it names no socket of this host")?;
        let say = |error: nix::Error| error.desc().to_owned();
        let fd = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).map_err(say)?;
        // Also bounds a connect to a socket whose queue is full.
        setsockopt(&fd, sockopt::SendTimeout, &left(until)?).map_err(say)?;
        nix::sys::socket::connect(fd.as_raw_fd(), &place).map_err(say)?;
        let peer = nix::sys::socket::getsockopt(&fd, sockopt::PeerCredentials).map_err(say)?;
        // Process numbers mean the same there only if that process has one here.
        if peer.pid() <= 0 {
            return Err("it is in another process namespace".to_owned());
        }
        if peer.uid() != 0 && peer.uid() != nix::unistd::geteuid().as_raw() {
            return Err(format!("it is of another user ({})", peer.uid()));
        }
        let mut bus = Self { stream: UnixStream::from(fd), until, serial: 0 };
        bus.introduce()?;
        bus.call(&Call {
            destination: "org.freedesktop.DBus",
            path: "/org/freedesktop/DBus",
            interface: "org.freedesktop.DBus",
            member: "Hello",
            unit: None,
        })?;
        Ok(bus)
    }

    fn introduce(&mut self) -> Result<(), String> {
        let user = nix::unistd::geteuid().to_string();
        let hex = user.bytes().fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        });
        self.send(format!("\0AUTH EXTERNAL {hex}\r\n").as_bytes())?;
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            if line.len() >= MAX_LINE {
                return Err("it answered no line".to_owned());
            }
            let mut byte = [0];
            self.read(&mut byte)?;
            line.push(byte[0]);
        }
        if !line.starts_with(b"OK") {
            return Err(format!("it does not know this user: {}", String::from_utf8_lossy(&line).trim_end()));
        }
        self.send(b"BEGIN\r\n")
    }

    /// Calls a method and waits for its answer.
    pub(super) fn call(&mut self, call: &Call<'_>) -> Result<(), String> {
        self.serial += 1;
        let message = encode(call, self.serial);
        self.send(&message)?;
        for _ in 0..MAX_OTHERS {
            let answer = self.message()?;
            if answer.reply_to != Some(self.serial) {
                continue;
            }
            return match answer.kind {
                METHOD_RETURN => Ok(()),
                ERROR => Err(format!("{} failed: {}", call.member, answer.error)),
                _ => Err("it answered something else".to_owned()),
            };
        }
        Err("it did not answer".to_owned())
    }

    fn message(&mut self) -> Result<Answer, String> {
        let mut head = [0; 16];
        self.read(&mut head)?;
        let little = match head[0] {
            b'l' => true,
            b'B' => false,
            _ => return Err("it does not speak D-Bus".to_owned()),
        };
        let word = |at: usize| number(&head, at, little).unwrap_or(u32::MAX) as usize;
        let (body, fields) = (word(4), word(12));
        if body > MAX_MESSAGE || fields > MAX_MESSAGE {
            return Err("its answer is too long".to_owned());
        }
        let mut rest = vec![0; fields.next_multiple_of(8) + body];
        self.read(&mut rest)?;
        Ok(Answer::of(head[1], &rest[..fields], little))
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        let time = left(self.until)?;
        setsockopt(&self.stream, sockopt::SendTimeout, &time).map_err(|error| error.desc().to_owned())?;
        self.stream.write_all(bytes).map_err(|error| error.to_string())
    }

    /// Reads exactly as many bytes, each wait no longer than what is left.
    fn read(&mut self, buffer: &mut [u8]) -> Result<(), String> {
        let mut read = 0;
        while read < buffer.len() {
            let time = left(self.until)?;
            setsockopt(&self.stream, sockopt::ReceiveTimeout, &time).map_err(|error| error.desc().to_owned())?;
            match self.stream.read(&mut buffer[read..]) {
                Ok(0) => return Err("it hung up".to_owned()),
                Ok(count) => read += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(())
    }
}

/// What is left until then, for a socket's bound.
fn left(until: Instant) -> Result<TimeVal, String> {
    let left = until.saturating_duration_since(Instant::now());
    // Zero would mean no bound at all.
    if left < Duration::from_millis(1) {
        return Err("it did not answer in time".to_owned());
    }
    Ok(TimeVal::milliseconds(i64::try_from(left.as_millis()).unwrap_or(i64::MAX)))
}

/// The socket of an address: `path=…` or `abstract=…` among its keys, values escaped as `%41`.
fn place(address: &str) -> Option<UnixAddr> {
    let mut keys = address.split(',').filter_map(|pair| pair.split_once('='));
    keys.find_map(|(key, value)| match key {
        "path" => UnixAddr::new(Path::new(OsStr::from_bytes(&unescaped(value)?))).ok(),
        "abstract" => UnixAddr::new_abstract(&unescaped(value)?).ok(),
        _ => None,
    })
}

fn unescaped(value: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut rest = value.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        if *first == b'%' {
            let digits = std::str::from_utf8(after.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &after[2..];
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    Some(bytes)
}

/// A path as an address holds it.
pub(super) fn escaped(path: &Path) -> String {
    let mut text = String::new();
    for byte in path.as_os_str().to_owned().into_vec() {
        if byte.is_ascii_alphanumeric() || b"-_/.".contains(&byte) {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02x}");
        }
    }
    text
}

/// What is known of a message that came.
#[derive(Debug, Default, PartialEq, Eq)]
struct Answer {
    kind: u8,
    reply_to: Option<u32>,
    error: String,
}

impl Answer {
    /// Of a message's kind and its fields: a byte says which, a signature what it holds. What cannot be read ends them.
    fn of(kind: u8, fields: &[u8], little: bool) -> Self {
        let mut answer = Self { kind, ..Self::default() };
        let mut at = 0_usize;
        while let Some((code, sign)) = fields.get(at).zip(fields.get(at + 2)) {
            if fields.get(at + 1) != Some(&1) {
                break;
            }
            let value = at + 4;
            let end = match sign {
                b'u' => {
                    if *code == 5 {
                        answer.reply_to = number(fields, value, little);
                    }
                    value + 4
                }
                b's' | b'o' => {
                    let Some(length) = number(fields, value, little).map(|length| length as usize) else { break };
                    let Some(text) = value.checked_add(4 + length).and_then(|end| fields.get(value + 4..end)) else {
                        break;
                    };
                    if *code == 4 {
                        answer.error = String::from_utf8_lossy(text).into_owned();
                    }
                    value + 4 + length + 1
                }
                b'g' => value + usize::from(fields.get(value).copied().unwrap_or(0)) + 2,
                _ => break,
            };
            at = end.next_multiple_of(8);
        }
        answer
    }
}

fn number(bytes: &[u8], at: usize, little: bool) -> Option<u32> {
    let word: [u8; 4] = bytes.get(at..at.checked_add(4)?)?.try_into().ok()?;
    Some(if little { u32::from_le_bytes(word) } else { u32::from_be_bytes(word) })
}

/// A call as it is sent: little-endian, each value aligned to its size from the start of the message's part.
fn encode(call: &Call<'_>, serial: u32) -> Vec<u8> {
    let mut body = Writer::default();
    if let Some((unit, mode, properties)) = call.unit {
        body.text(unit);
        body.text(mode);
        body.array(8, |body| {
            for (name, value) in properties {
                body.align(8);
                body.text(name);
                match value {
                    Argument::Text(text) => {
                        body.signature("s");
                        body.text(text);
                    }
                    Argument::Flag(flag) => {
                        body.signature("b");
                        body.word(u32::from(*flag));
                    }
                    Argument::Numbers(numbers) => {
                        body.signature("au");
                        body.array(4, |body| numbers.iter().for_each(|number| body.word(*number)));
                    }
                }
            }
        });
        body.array(8, |_| ());
    }
    let body = body.0;
    let mut head = Writer(vec![b'l', METHOD_CALL, 0, 1]);
    head.word(u32::try_from(body.len()).unwrap_or(u32::MAX));
    head.word(serial);
    head.array(8, |head| {
        let fields = [(1, "o", call.path), (2, "s", call.interface), (3, "s", call.member), (6, "s", call.destination)];
        for (code, sign, value) in fields {
            head.align(8);
            head.0.push(code);
            head.signature(sign);
            head.text(value);
        }
        if call.unit.is_some() {
            head.align(8);
            head.0.push(8);
            head.signature("g");
            head.signature("ssa(sv)a(sa(sv))");
        }
    });
    head.align(8);
    head.0.extend(body);
    head.0
}

/// Bytes of a message's part.
#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn align(&mut self, to: usize) {
        self.0.resize(self.0.len().next_multiple_of(to), 0);
    }

    fn word(&mut self, value: u32) {
        self.align(4);
        self.0.extend(value.to_le_bytes());
    }

    /// Only texts of ours, and none of them is long.
    fn text(&mut self, text: &str) {
        self.word(u32::try_from(text.len()).unwrap_or(u32::MAX));
        self.0.extend(text.bytes());
        self.0.push(0);
    }

    fn signature(&mut self, signature: &str) {
        self.0.push(u8::try_from(signature.len()).unwrap_or(u8::MAX));
        self.0.extend(signature.bytes());
        self.0.push(0);
    }

    /// An array: its length counts from its first element, which is aligned to `to`.
    fn array(&mut self, to: usize, fill: impl FnOnce(&mut Self)) {
        self.word(0);
        let at = self.0.len() - 4;
        self.align(to);
        let start = self.0.len();
        fill(self);
        let length = u32::try_from(self.0.len() - start).unwrap_or(u32::MAX);
        self.0[at..at + 4].copy_from_slice(&length.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_without_arguments_is_laid_out_as_the_specification_says() {
        let call = Call { destination: "d", path: "/p", interface: "i", member: "m", unit: None };
        let bytes = encode(&call, 7);
        let expected: &[&[u8]] = &[
            b"l\x01\x00\x01\x00\x00\x00\x00\x07\x00\x00\x00\x3a\x00\x00\x00",
            b"\x01\x01o\x00\x02\x00\x00\x00/p\x00\x00\x00\x00\x00\x00",
            b"\x02\x01s\x00\x01\x00\x00\x00i\x00\x00\x00\x00\x00\x00\x00",
            b"\x03\x01s\x00\x01\x00\x00\x00m\x00\x00\x00\x00\x00\x00\x00",
            b"\x06\x01s\x00\x01\x00\x00\x00d\x00\x00\x00\x00\x00\x00\x00",
        ];
        assert_eq!(bytes, expected.concat());
    }

    #[test]
    fn answers_are_read_in_either_byte_order_and_nonsense_is_no_answer() {
        let little = b"\x06\x01s\x00\x04\x00\x00\x00:1.2\x00\x00\x00\x00\x05\x01u\x00\x09\x00\x00\x00\x04\x01s\x00\x03\x00\x00\x00a.b\x00";
        let answer = Answer::of(ERROR, little, true);
        assert_eq!(answer, Answer { kind: ERROR, reply_to: Some(9), error: "a.b".to_owned() });
        assert_eq!(Answer::of(METHOD_RETURN, b"\x05\x01u\x00\x00\x00\x00\x09", false).reply_to, Some(9));
        for cut in 0..little.len() {
            let _ = Answer::of(ERROR, &little[..cut], true);
        }
        for nonsense in
            [&b"\x05\x01s\x00\xff\xff\xff\xff"[..], b"\x05\x02uu\x00", b"\x05\x01q\x00\x01", b"\x08\x01g\x00\xff"]
        {
            assert_eq!(Answer::of(METHOD_RETURN, nonsense, true).reply_to, None);
        }
    }

    #[test]
    fn addresses_name_sockets_of_this_host() {
        let path = |address: &str| place(address).and_then(|place| place.path().map(Path::to_owned));
        assert_eq!(path("path=/run/user/1000/bus,guid=00"), Some("/run/user/1000/bus".into()));
        assert_eq!(path("guid=00,path=/a%20b"), Some("/a b".into()));
        assert_eq!(place("abstract=/tmp/x").unwrap().as_abstract(), Some(&b"/tmp/x"[..]));
        for bad in ["tmpdir=/tmp", "path=%4", "path=%zz", "", "path"] {
            assert!(place(bad).is_none(), "{bad}");
        }
        assert_eq!(unescaped(&escaped(Path::new("/a b/ü"))).unwrap(), "/a b/ü".as_bytes());
    }
}
