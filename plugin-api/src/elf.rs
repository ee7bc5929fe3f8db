//! Reads ELF files without loading them: a plugin's header here, what a program is loaded with in [`program`].
//!
//! Of a library, only what is needed to find one exported symbol and to know that `dlopen` will find every byte it maps.
//! The input is read through a bounded window and never trusted: every number is checked before it is used.

pub mod program;

use std::fmt;
use std::io;

use crate::header::{HEADER_SIZE, HEADER_SYMBOL, HeaderError, HeaderInfo};

/// A library larger than this is refused before it is read.
pub const MAX_LIBRARY: u64 = 256 << 20;
/// Program and section headers looked at, at most; real libraries have a few dozen.
const MAX_HEADERS: u16 = 512;
/// Dynamic symbols looked at, at most.
const MAX_SYMBOLS: u64 = 1 << 20;
/// Symbols read at once.
const SYMBOL_CHUNK: usize = 1024;

const EHDR: usize = 64;
const PHDR: usize = 56;
const SHDR: usize = 64;
const SYM: usize = 24;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const SHT_DYNSYM: u32 = 11;
const SHT_NOBITS: u32 = 8;
const ET_EXEC: u16 = 2;
const ET_DYN: u16 = 3;

#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;

/// Why a file is no plugin library.
#[derive(Debug)]
pub enum ElfError {
    /// It could not be read.
    Io(io::Error),
    /// It is not an ELF file at all.
    NotElf,
    /// It is an ELF file of another machine or word size.
    OtherMachine(u16),
    /// It is an ELF file, but a program or an object and no shared library.
    NotLibrary,
    /// Something it refers to lies past its end, or its tables make no sense.
    Damaged(&'static str),
    /// It exports no plugin header.
    NoHeader,
    /// It exports a header that cannot be read.
    Header(HeaderError),
}

impl fmt::Display for ElfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "cannot be read: {error}"),
            Self::NotElf => f.write_str("is not a shared library"),
            Self::OtherMachine(machine) => write!(f, "is a library for another machine (ELF machine {machine})"),
            Self::NotLibrary => f.write_str("is an ELF file but not a shared library"),
            Self::Damaged(what) => write!(f, "is a damaged library: {what}"),
            Self::NoHeader => write!(f, "is a library but no mur plugin: it exports no {HEADER_SYMBOL}"),
            Self::Header(error) => write!(f, "is no usable plugin: {error}"),
        }
    }
}

impl std::error::Error for ElfError {}

impl From<io::Error> for ElfError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// A file read at positions.
pub trait ReadAt {
    /// Fills the buffer from `offset`, or fails.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
}

impl ReadAt for std::fs::File {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(self, buffer, offset)
    }
}

impl ReadAt for [u8] {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let from = usize::try_from(offset).ok();
        let part = from.and_then(|from| self.get(from..from.checked_add(buffer.len())?));
        buffer.copy_from_slice(part.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// Checks that a file of `size` bytes is a whole shared library for this machine and reads its plugin header.
pub fn read_header(file: &(impl ReadAt + ?Sized), size: u64) -> Result<HeaderInfo, ElfError> {
    let elf = Elf::open(file, size)?;
    let value = elf.find_symbol(HEADER_SYMBOL)?.ok_or(ElfError::NoHeader)?;
    let offset = elf.offset_of(value, HEADER_SIZE as u64)?;
    let mut bytes = [0; HEADER_SIZE];
    elf.read(&mut bytes, offset)?;
    HeaderInfo::parse(&bytes).map_err(ElfError::Header)
}

struct Elf<'a, F: ?Sized> {
    file: &'a F,
    size: u64,
    kind: u16,
    loads: Vec<Load>,
    /// Where the loader's name stands.
    interpreter: Option<(u64, u64)>,
    /// Where the dynamic section stands.
    dynamic: Option<(u64, u64)>,
    /// Where the section headers stand, and how many; `None` when there are none that can be used.
    sections: Option<(u64, u16)>,
}

/// A symbol table in the file.
struct Symbols {
    table: u64,
    count: u64,
    /// Offset and size of the names.
    strings: (u64, u64),
}

struct Load {
    address: u64,
    offset: u64,
    size: u64,
}

impl<'a, F: ReadAt + ?Sized> Elf<'a, F> {
    /// A whole shared library.
    fn open(file: &'a F, size: u64) -> Result<Self, ElfError> {
        if size > MAX_LIBRARY {
            return Err(ElfError::Damaged("it is larger than any plugin"));
        }
        let elf = Self::begin(file, size)?;
        if elf.kind != ET_DYN {
            return Err(ElfError::NotLibrary);
        }
        if elf.sections.is_none() {
            return Err(ElfError::Damaged("it has no usable section headers"));
        }
        Ok(elf)
    }

    /// Any file of this machine that is loaded: its header and its segments.
    fn begin(file: &'a F, size: u64) -> Result<Self, ElfError> {
        let mut magic = [0; 4];
        if size < 4 || file.read_exact_at(&mut magic, 0).is_err() || magic != *b"\x7fELF" {
            return Err(ElfError::NotElf);
        }
        let mut elf = Self { file, size, kind: 0, loads: Vec::new(), interpreter: None, dynamic: None, sections: None };
        let mut header = [0; EHDR];
        elf.read(&mut header, 0)?;
        // 64-bit, little endian, version 1: the only form the machines this crate is built for load.
        if header[4..7] != [2, 1, 1] || u16_at(&header, 18) != MACHINE {
            return Err(ElfError::OtherMachine(u16_at(&header, 18)));
        }
        elf.kind = u16_at(&header, 16);
        if elf.kind != ET_DYN && elf.kind != ET_EXEC {
            return Err(ElfError::NotLibrary);
        }
        let (segments, segment_size, segment_count) = (u64_at(&header, 32), u16_at(&header, 54), u16_at(&header, 56));
        let (sections, section_size, section_count) = (u64_at(&header, 40), u16_at(&header, 58), u16_at(&header, 60));
        if usize::from(segment_size) != PHDR || segment_count == 0 || segment_count > MAX_HEADERS {
            return Err(ElfError::Damaged("it has no usable program headers"));
        }
        let usable = usize::from(section_size) == SHDR && section_count != 0 && section_count <= MAX_HEADERS;
        if usable {
            elf.inside(sections, u64::from(section_count) * SHDR as u64)?;
            elf.sections = Some((sections, section_count));
        }
        elf.read_segments(segments, segment_count)?;
        Ok(elf)
    }

    /// Every loaded segment must lie in the file: the loader maps it unseen, and a page past the end is a bus error.
    fn read_segments(&mut self, table: u64, count: u16) -> Result<(), ElfError> {
        let mut bytes = vec![0; usize::from(count) * PHDR];
        self.read(&mut bytes, table)?;
        for segment in bytes.chunks_exact(PHDR) {
            let (offset, size) = (u64_at(segment, 8), u64_at(segment, 32));
            match u32_at(segment, 0) {
                PT_LOAD => {
                    self.inside(offset, size)?;
                    self.loads.push(Load { offset, address: u64_at(segment, 16), size });
                }
                PT_INTERP => self.interpreter = Some((offset, size)),
                PT_DYNAMIC => self.dynamic = Some((offset, size)),
                _ => {}
            }
        }
        if self.loads.is_empty() { Err(ElfError::Damaged("it loads nothing")) } else { Ok(()) }
    }

    /// The value of an exported symbol.
    fn find_symbol(&self, name: &str) -> Result<Option<u64>, ElfError> {
        let Some(symbols) = self.dynamic_symbols()? else { return Ok(None) };
        self.search(symbols.table, symbols.count, symbols.strings, name)
    }

    /// Where the dynamic symbols and their names stand.
    fn dynamic_symbols(&self) -> Result<Option<Symbols>, ElfError> {
        let sections = self.section_table()?;
        let Some(symbols) = sections.chunks_exact(SHDR).find(|section| u32_at(section, 4) == SHT_DYNSYM) else {
            return Ok(None);
        };
        let strings = sections
            .chunks_exact(SHDR)
            .nth(u32_at(symbols, 40) as usize)
            .ok_or(ElfError::Damaged("its symbol names are missing"))?;
        let (strings, strings_size) = (u64_at(strings, 24), u64_at(strings, 32));
        self.inside(strings, strings_size)?;
        let (table, size) = (u64_at(symbols, 24), u64_at(symbols, 32));
        self.inside(table, size)?;
        let count = size / SYM as u64;
        if count > MAX_SYMBOLS {
            return Err(ElfError::Damaged("it has more symbols than any plugin"));
        }
        Ok(Some(Symbols { table, count, strings: (strings, strings_size) }))
    }

    fn search(&self, table: u64, count: u64, strings: (u64, u64), name: &str) -> Result<Option<u64>, ElfError> {
        let mut wanted = name.as_bytes().to_vec();
        wanted.push(0);
        let mut found = vec![0; wanted.len()];
        let mut chunk = vec![0; SYM * SYMBOL_CHUNK.min(usize::try_from(count).unwrap_or(SYMBOL_CHUNK))];
        let mut done = 0;
        while done < count {
            let now = (count - done).min(SYMBOL_CHUNK as u64);
            let bytes = &mut chunk[..now as usize * SYM];
            self.read(bytes, table + done * SYM as u64)?;
            for symbol in bytes.chunks_exact(SYM) {
                // Defined (its section is not 0) and as large as a header: the few that are, are compared by name.
                if u16_at(symbol, 6) == 0 || u64_at(symbol, 16) != HEADER_SIZE as u64 {
                    continue;
                }
                let at = u64::from(u32_at(symbol, 0));
                if at + wanted.len() as u64 <= strings.1 {
                    self.read(&mut found, strings.0 + at)?;
                    if found == wanted {
                        return Ok(Some(u64_at(symbol, 8)));
                    }
                }
            }
            done += now;
        }
        Ok(None)
    }

    fn section_table(&self) -> Result<Vec<u8>, ElfError> {
        let Some((table, count)) = self.sections else { return Ok(Vec::new()) };
        let mut bytes = vec![0; usize::from(count) * SHDR];
        self.read(&mut bytes, table)?;
        for section in bytes.chunks_exact(SHDR) {
            if u32_at(section, 4) != SHT_NOBITS {
                self.inside(u64_at(section, 24), u64_at(section, 32))?;
            }
        }
        Ok(bytes)
    }

    /// Where the bytes at an address lie in the file.
    fn offset_of(&self, address: u64, size: u64) -> Result<u64, ElfError> {
        self.loads
            .iter()
            .find_map(|load| {
                let within = address.checked_sub(load.address)?;
                (within.checked_add(size)? <= load.size).then(|| load.offset + within)
            })
            .ok_or(ElfError::Damaged("its plugin header lies in no segment"))
    }

    fn inside(&self, offset: u64, size: u64) -> Result<(), ElfError> {
        match offset.checked_add(size) {
            Some(end) if end <= self.size => Ok(()),
            _ => Err(ElfError::Damaged("it is cut short")),
        }
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> Result<(), ElfError> {
        self.inside(offset, buffer.len() as u64)?;
        self.file.read_exact_at(buffer, offset).map_err(ElfError::Io)
    }
}

// The callers slice at constant offsets inside fixed-size entries, so the indexing below cannot fail.

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<HeaderInfo, ElfError> {
        read_header(bytes, bytes.len() as u64)
    }

    #[test]
    fn what_is_no_library_is_told_apart() {
        assert!(matches!(read(b""), Err(ElfError::NotElf)));
        assert!(matches!(read(b"just text"), Err(ElfError::NotElf)));
        assert!(matches!(read(b"\x7fELF"), Err(ElfError::Damaged(_))));
        let exe = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let mut other = exe[..64].to_vec();
        other[18] = 8;
        assert!(matches!(read(&other), Err(ElfError::OtherMachine(8))));
        let mut object = exe[..64].to_vec();
        object[16] = 1;
        assert!(matches!(read(&object), Err(ElfError::NotLibrary)));
    }

    #[test]
    fn a_library_without_a_header_and_a_cut_one_are_refused() {
        // A position-independent program has the form of a library, symbols and all.
        let exe = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(matches!(read(&exe), Err(ElfError::NoHeader)));
        for keep in [63, 64, 200, exe.len() / 2, exe.len() - 1] {
            assert!(matches!(read(&exe[..keep]), Err(ElfError::Damaged(_))), "{keep}");
        }
    }

    #[test]
    fn damage_anywhere_in_the_headers_never_panics() {
        let exe = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let window = &exe[..4096.min(exe.len())];
        let mut bytes = window.to_vec();
        for at in 0..1024.min(window.len()) {
            for value in [0, 0x7f, 0xff] {
                bytes[at] = value;
                let _ = read_header(&bytes[..], exe.len() as u64);
                bytes[at] = window[at];
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_behind_an_elf_start_are_read_or_refused(
            bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..600), size in 0_u64..4096,
        ) {
            let mut file = b"\x7fELF\x02\x01\x01".to_vec();
            file.extend(bytes);
            if file.len() > 20 {
                file[16..20].copy_from_slice(&[3, 0, MACHINE as u8, 0]);
            }
            let _ = read_header(&file[..], size);
            let _ = read(&file);
        }
    }
}
