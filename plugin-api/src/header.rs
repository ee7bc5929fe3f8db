//! The plain static every plugin exports beside its root module, read before anything of the library runs.
//!
//! It holds no pointer, so the host reads it from the file itself: what a library says it is can be judged without
//! running its constructors. The layout of this header never changes; what it describes may.

use std::fmt;
use std::ops::RangeInclusive;

/// The exported name of the header.
pub const HEADER_SYMBOL: &str = "MUR_PLUGIN_HEADER";

/// First bytes of every header.
pub const MAGIC: [u8; 16] = *b"\x7fmur-plugin\r\n\x1a\n\0";

/// Size of the header in bytes.
pub const HEADER_SIZE: usize = size_of::<PluginHeader>();

const NAME_SIZE: usize = 64;
const VERSION_SIZE: usize = 64;
const CLASS_SIZE: usize = 32;

/// What a plugin is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Serves one containment class.
    Containment,
    /// Holds artifacts.
    Store,
    /// Receives trace records.
    Sink,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Containment, Self::Store, Self::Sink];

    /// The word for it, in locks and messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Containment => "containment",
            Self::Store => "store",
            Self::Sink => "sink",
        }
    }

    /// Its number in the header.
    pub const fn number(self) -> u32 {
        match self {
            Self::Containment => 1,
            Self::Store => 2,
            Self::Sink => 3,
        }
    }

    /// The interface version this crate builds plugins for.
    pub const fn interface(self) -> u32 {
        match self {
            Self::Containment | Self::Store | Self::Sink => 1,
        }
    }

    /// The interface versions a host built with this crate can speak.
    pub const fn accepted(self) -> RangeInclusive<u32> {
        1..=self.interface()
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for Kind {
    type Err = HeaderError;

    fn from_str(text: &str) -> Result<Self, HeaderError> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text).ok_or(HeaderError::Kind)
    }
}

/// The exported static itself: integers in the machine's order, texts padded with NUL.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct PluginHeader {
    magic: [u8; 16],
    size: u32,
    kind: u32,
    interface: u32,
    reserved: u32,
    name: [u8; NAME_SIZE],
    version: [u8; VERSION_SIZE],
    class: [u8; CLASS_SIZE],
}

impl PluginHeader {
    /// For the export macro: evaluated at compile time, so a name that does not fit is a compile error.
    pub const fn new(kind: Kind, name: &str, version: &str, class: &str) -> Self {
        Self::with_interface(kind.number(), kind.interface(), name, version, class)
    }

    /// A header with any kind and interface version, as a plugin of another time would carry it.
    pub const fn with_interface(kind: u32, interface: u32, name: &str, version: &str, class: &str) -> Self {
        Self {
            magic: MAGIC,
            size: HEADER_SIZE as u32,
            kind,
            interface,
            reserved: 0,
            name: padded(name),
            version: padded(version),
            class: padded(class),
        }
    }

    /// The header as it lies in a library.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_SIZE);
        bytes.extend_from_slice(&self.magic);
        for number in [self.size, self.kind, self.interface, self.reserved] {
            bytes.extend_from_slice(&number.to_ne_bytes());
        }
        bytes.extend_from_slice(&self.name);
        bytes.extend_from_slice(&self.version);
        bytes.extend_from_slice(&self.class);
        bytes
    }
}

const fn padded<const N: usize>(text: &str) -> [u8; N] {
    let bytes = text.as_bytes();
    assert!(bytes.len() < N, "too long for the plugin header");
    let mut out = [0; N];
    let mut index = 0;
    while index < bytes.len() {
        out[index] = bytes[index];
        index += 1;
    }
    out
}

/// What a header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderInfo {
    /// What the plugin is.
    pub kind: Kind,
    /// The interface version it was built for.
    pub interface: u32,
    /// Its name: lowercase letters, digits and hyphens.
    pub name: String,
    /// Its own version, any printable text.
    pub version: String,
    /// For a containment plugin the class it serves, as a word; empty otherwise.
    pub class: String,
}

/// Why bytes are no plugin header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// Too few bytes.
    Short,
    /// The magic is not there.
    Magic,
    /// A kind this crate does not know.
    Kind,
    /// A text is not NUL-terminated, not printable, or the name breaks its rule.
    Text,
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Short => "its plugin header is cut short",
            Self::Magic => "its plugin header does not start as one",
            Self::Kind => "its plugin header names a kind of plugin this mur does not know",
            Self::Text => "its plugin header holds an unreadable name or version",
        })
    }
}

impl std::error::Error for HeaderError {}

impl HeaderInfo {
    /// Reads a header from the bytes of a library. The interface version is not judged here.
    pub fn parse(bytes: &[u8]) -> Result<Self, HeaderError> {
        let mut rest = bytes.get(..HEADER_SIZE).ok_or(HeaderError::Short)?;
        let mut take = |size: usize| {
            let (head, tail) = rest.split_at(size);
            rest = tail;
            head
        };
        if take(MAGIC.len()) != MAGIC {
            return Err(HeaderError::Magic);
        }
        let mut number = || {
            let mut out = [0; 4];
            out.copy_from_slice(take(4));
            u32::from_ne_bytes(out)
        };
        let (_size, kind, interface, _reserved) = (number(), number(), number(), number());
        let kind = Kind::ALL.into_iter().find(|known| known.number() == kind).ok_or(HeaderError::Kind)?;
        let name = text(take(NAME_SIZE))?;
        let version = text(take(VERSION_SIZE))?;
        let class = text(take(CLASS_SIZE))?;
        if !is_plugin_name(&name) || version.is_empty() {
            return Err(HeaderError::Text);
        }
        Ok(Self { kind, interface, name, version, class })
    }

    /// Whether this crate's host can speak to it.
    pub fn is_accepted(&self) -> bool {
        self.kind.accepted().contains(&self.interface)
    }
}

fn text(bytes: &[u8]) -> Result<String, HeaderError> {
    let end = bytes.iter().position(|byte| *byte == 0).ok_or(HeaderError::Text)?;
    let text = &bytes[..end];
    if !text.iter().all(u8::is_ascii_graphic) {
        return Err(HeaderError::Text);
    }
    Ok(String::from_utf8_lossy(text).into_owned())
}

/// Whether a text is a plugin name: 1 to 63 lowercase letters, digits and hyphens, a letter first.
pub fn is_plugin_name(name: &str) -> bool {
    name.len() < NAME_SIZE
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_reads_back_as_written() {
        let header = PluginHeader::new(Kind::Containment, "advisory", "0.1.0", "advisory");
        let info = HeaderInfo::parse(&header.to_bytes()).unwrap();
        assert_eq!((info.kind, info.interface, info.name.as_str()), (Kind::Containment, 1, "advisory"));
        assert_eq!((info.version.as_str(), info.class.as_str()), ("0.1.0", "advisory"));
        assert!(info.is_accepted());
        assert_eq!(header.to_bytes().len(), HEADER_SIZE);
    }

    #[test]
    fn another_interface_version_is_read_and_not_accepted() {
        for interface in [0, 2, u32::MAX] {
            let header = PluginHeader::with_interface(2, interface, "x", "9", "");
            let info = HeaderInfo::parse(&header.to_bytes()).unwrap();
            assert!(!info.is_accepted(), "{interface}");
        }
    }

    #[test]
    fn every_damaged_header_is_refused() {
        let good = PluginHeader::new(Kind::Store, "x", "1", "").to_bytes();
        assert_eq!(HeaderInfo::parse(&good[..HEADER_SIZE - 1]), Err(HeaderError::Short));
        let damaged = |at: usize, with: u8| {
            let mut bytes = good.clone();
            bytes[at] = with;
            HeaderInfo::parse(&bytes)
        };
        assert_eq!(damaged(0, 0), Err(HeaderError::Magic));
        assert_eq!(damaged(20, 99), Err(HeaderError::Kind));
        assert_eq!(damaged(32, b'/'), Err(HeaderError::Text));
        assert_eq!(damaged(32, 0), Err(HeaderError::Text));
        assert_eq!(damaged(96, 0), Err(HeaderError::Text));
        assert_eq!(damaged(97, b'\n'), Err(HeaderError::Text));
    }
}
