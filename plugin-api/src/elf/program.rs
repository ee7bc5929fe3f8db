//! What a program or library is loaded with: its loader, the libraries it names, where it looks for them.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use super::{Elf, ElfError, MAX_SYMBOLS, ReadAt, SYM, SYMBOL_CHUNK, u32_at, u64_at};

/// Longest path or name taken from a file; the kernel's own bound for a path.
const MAX_TEXT: u64 = 4096;

/// Longest search path taken from a file.
const MAX_SEARCH: u64 = 64 << 10;

/// Dynamic entries looked at, at most.
const MAX_ENTRIES: u64 = 4096;

/// Libraries one file may name, at most.
const MAX_NEEDED: usize = 1024;

/// Symbol names looked through, at most, in bytes.
const MAX_NAMES: u64 = 32 << 20;

const ENTRY: usize = 16;
const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_RPATH: u64 = 15;
const DT_RUNPATH: u64 = 29;

/// What a file says of its own loading. Paths are as written: nothing is looked up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// `PT_INTERP`: the loader the kernel starts.
    pub interpreter: Option<PathBuf>,
    /// `DT_NEEDED`, in their order: names, or paths when they hold a slash.
    pub needed: Vec<OsString>,
    /// `DT_RUNPATH`, in its order: where this file's own libraries are looked for.
    pub runpath: Option<Vec<OsString>>,
    /// `DT_RPATH`, in its order: where its libraries and theirs are looked for.
    pub rpath: Vec<OsString>,
}

/// Reads a file of `size` bytes.
///
/// # Errors
/// When it is no ELF file of this machine that is loaded, or refers past its end.
pub fn read_program(file: &(impl ReadAt + ?Sized), size: u64) -> Result<Program, ElfError> {
    let elf = Elf::begin(file, size)?;
    let mut program = Program::default();
    if let Some((offset, size)) = elf.interpreter {
        let text = elf.text(offset, size.min(MAX_TEXT))?;
        program.interpreter = (!text.is_empty()).then(|| OsString::from_vec(text).into());
    }
    let entries = elf.dynamic_entries()?;
    let Some(strings) = entries.iter().find(|(tag, _)| *tag == DT_STRTAB).map(|(_, address)| *address) else {
        return Ok(program);
    };
    let list = |at: u64| -> Result<Vec<OsString>, ElfError> {
        let text = elf.text_at(strings, at, MAX_SEARCH)?;
        Ok(text.split(|byte| *byte == b':').map(|part| OsString::from_vec(part.to_vec())).collect())
    };
    for (tag, value) in entries {
        match tag {
            DT_NEEDED if program.needed.len() < MAX_NEEDED => {
                program.needed.push(OsString::from_vec(elf.text_at(strings, value, MAX_TEXT)?));
            }
            DT_RPATH => program.rpath = list(value)?,
            DT_RUNPATH => program.runpath = Some(list(value)?),
            _ => {}
        }
    }
    Ok(program)
}

/// Whether a file's dynamic symbols, its own or those it takes from others, have this name.
///
/// # Errors
/// As [`read_program`].
pub fn has_symbol(file: &(impl ReadAt + ?Sized), size: u64, name: &str) -> Result<bool, ElfError> {
    let elf = Elf::begin(file, size)?;
    let Some(symbols) = elf.dynamic_symbols()? else { return Ok(false) };
    if symbols.strings.1 > MAX_NAMES || symbols.count > MAX_SYMBOLS {
        return Ok(false);
    }
    let mut names = vec![0; symbols.strings.1 as usize];
    elf.read(&mut names, symbols.strings.0)?;
    let mut wanted = name.as_bytes().to_vec();
    wanted.push(0);
    let mut chunk = vec![0; SYM * SYMBOL_CHUNK];
    let mut done = 0;
    while done < symbols.count {
        let now = (symbols.count - done).min(SYMBOL_CHUNK as u64);
        let bytes = &mut chunk[..now as usize * SYM];
        elf.read(bytes, symbols.table + done * SYM as u64)?;
        let mut all = bytes.chunks_exact(SYM).map(|symbol| u32_at(symbol, 0) as usize);
        if all.any(|at| names.get(at..).is_some_and(|rest| rest.starts_with(&wanted))) {
            return Ok(true);
        }
        done += now;
    }
    Ok(false)
}

impl<F: ReadAt + ?Sized> Elf<'_, F> {
    /// Tags and values up to the closing entry.
    fn dynamic_entries(&self) -> Result<Vec<(u64, u64)>, ElfError> {
        let Some((offset, size)) = self.dynamic else { return Ok(Vec::new()) };
        let count = (size / ENTRY as u64).min(MAX_ENTRIES);
        let mut bytes = vec![0; count as usize * ENTRY];
        self.read(&mut bytes, offset)?;
        let entries = bytes.chunks_exact(ENTRY).map(|entry| (u64_at(entry, 0), u64_at(entry, 8)));
        Ok(entries.take_while(|(tag, _)| *tag != DT_NULL).collect())
    }

    /// The text that begins so many bytes into the string table at an address.
    fn text_at(&self, table: u64, at: u64, most: u64) -> Result<Vec<u8>, ElfError> {
        let damaged = ElfError::Damaged("a name lies in no segment");
        let Some(address) = table.checked_add(at) else { return Err(damaged) };
        // To the end of the segment at most: a name that does not end there has no end.
        let found = self.loads.iter().find_map(|load| {
            let within = address.checked_sub(load.address).filter(|within| *within < load.size)?;
            Some((load.offset + within, load.size - within))
        });
        let Some((offset, room)) = found else { return Err(damaged) };
        self.text(offset, room.min(most))
    }

    /// The bytes before the first NUL of a window; one without is damaged.
    fn text(&self, offset: u64, size: u64) -> Result<Vec<u8>, ElfError> {
        let mut bytes = vec![0; usize::try_from(size).map_err(|_| ElfError::Damaged("a name is too long"))?];
        self.read(&mut bytes, offset)?;
        let end = bytes.iter().position(|byte| *byte == 0).ok_or(ElfError::Damaged("a name has no end"))?;
        bytes.truncate(end);
        Ok(bytes)
    }
}

/// Both readers on arbitrary bytes.
pub fn fuzz(bytes: &[u8]) {
    for size in [bytes.len() as u64, 2 * bytes.len() as u64] {
        if let Ok(program) = read_program(bytes, size) {
            assert!(program.needed.len() <= MAX_NEEDED);
        }
        let _ = has_symbol(bytes, size, "main");
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::path::Path;

    use super::super::MACHINE;
    use super::*;

    fn read(path: &str) -> Program {
        let file = File::open(path).unwrap();
        let size = file.metadata().unwrap().len();
        read_program(&file, size).unwrap()
    }

    /// A program of three segments: everything loaded at 0x1000, a loader's name, a dynamic section.
    fn crafted(strings: &[u8], entries: &[(u64, u64)]) -> Vec<u8> {
        let interpreter = b"/lib/ld.so\0";
        let (at_strings, at_interpreter) = (64 + 3 * 56, 64 + 3 * 56 + strings.len());
        let at_dynamic = at_interpreter + interpreter.len();
        let total = at_dynamic + (entries.len() + 1) * 16;
        let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
        bytes.resize(64, 0);
        bytes[16] = 2;
        bytes[18..20].copy_from_slice(&MACHINE.to_le_bytes());
        bytes[32] = 64;
        bytes[54] = 56;
        bytes[56] = 3;
        let segments =
            [(1_u32, 0, total), (3, at_interpreter, interpreter.len()), (2, at_dynamic, (entries.len() + 1) * 16)];
        for (kind, offset, size) in segments {
            let mut segment = vec![0; 56];
            segment[0..4].copy_from_slice(&kind.to_le_bytes());
            segment[8..16].copy_from_slice(&(offset as u64).to_le_bytes());
            segment[16..24].copy_from_slice(&(0x1000 + offset as u64).to_le_bytes());
            segment[32..40].copy_from_slice(&(size as u64).to_le_bytes());
            bytes.extend(segment);
        }
        bytes.extend_from_slice(strings);
        bytes.extend_from_slice(interpreter);
        let table = (DT_STRTAB, 0x1000 + at_strings as u64);
        for (tag, value) in entries.iter().copied().chain([table]) {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(value.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn a_real_program_names_its_loader_and_libraries() {
        let shell = read("/bin/sh");
        assert!(shell.interpreter.unwrap().to_string_lossy().contains("ld-linux"));
        assert!(shell.needed.iter().any(|name| name.to_string_lossy().starts_with("libc.so")));
        let file = File::open("/bin/sh").unwrap();
        let size = file.metadata().unwrap().len();
        assert!(has_symbol(&file, size, "execve").unwrap());
        assert!(!has_symbol(&file, size, "Py_BytesMain").unwrap());
        assert!(matches!(read_program(&b"#!/bin/sh\n"[..], 10), Err(ElfError::NotElf)));
    }

    #[test]
    fn a_crafted_program_is_read_as_written() {
        let strings = b"liba.so\0$ORIGIN/../lib:/opt/lib\0";
        let found = crafted(strings, &[(DT_NEEDED, 0), (DT_RUNPATH, 8), (DT_RPATH, 23)]);
        let program = read_program(&found[..], found.len() as u64).unwrap();
        assert_eq!(program.interpreter.as_deref(), Some(Path::new("/lib/ld.so")));
        assert_eq!(program.needed, ["liba.so"]);
        assert_eq!(program.runpath.unwrap(), ["$ORIGIN/../lib", "/opt/lib"]);
        assert_eq!(program.rpath, ["/opt/lib"]);
    }

    #[test]
    fn offsets_that_lead_nowhere_are_damage() {
        for bad in [(DT_NEEDED, u64::MAX), (DT_NEEDED, 1 << 40), (DT_RUNPATH, u64::MAX - 0x1000)] {
            let bytes = crafted(b"a\0", &[bad]);
            assert!(matches!(read_program(&bytes[..], bytes.len() as u64), Err(ElfError::Damaged(_))), "{bad:?}");
        }
        let whole = crafted(b"a\0", &[(DT_NEEDED, 0)]);
        for cut in 0..whole.len() {
            assert!(read_program(&whole[..cut], cut as u64).is_err(), "{cut}");
        }
        for at in 0..whole.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = value;
                fuzz(&bytes);
            }
        }
    }

    #[test]
    fn a_real_program_cut_anywhere_is_refused_or_read() {
        let whole = std::fs::read("/bin/sh").unwrap();
        for cut in (0..whole.len()).step_by(997) {
            fuzz(&whole[..cut]);
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_behind_an_elf_start_are_survived(
            bytes in proptest::collection::vec(proptest::num::u8::ANY, 57..600), count in 1_u8..9,
        ) {
            let mut file = b"\x7fELF\x02\x01\x01".to_vec();
            file.extend(bytes);
            file[16..20].copy_from_slice(&[2, 0, MACHINE as u8, 0]);
            file[32..40].copy_from_slice(&64_u64.to_le_bytes());
            file[54..58].copy_from_slice(&[56, 0, count, 0]);
            fuzz(&file);
        }
    }
}
