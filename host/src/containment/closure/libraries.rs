//! What files are loaded with: loaders, libraries, the interpreters of scripts.

use std::collections::{HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Component, Path, PathBuf};

use mur_plugin_api::elf::program::{self, Program};

use super::{Grant, List, Reason, Rights, matches};

/// Where the loader looks when a file does not say where.
const DEFAULT_DIRS: [&str; 8] = [
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
];

/// Bytes of a script the kernel looks at for its interpreter.
const MAX_SHEBANG: usize = 256;

/// Interpreters of interpreters the kernel follows.
const MAX_SCRIPTS: usize = 5;

/// Libraries of one file, theirs included; real programs have a few hundred.
const MAX_LIBRARIES: usize = 4096;

/// Files looked at in one directory of modules.
const MAX_MODULES: usize = 16_384;

/// How a file names its own directory.
const ORIGIN: [&[u8]; 2] = [b"$ORIGIN", b"${ORIGIN}"];

/// An ELF file.
pub(super) struct Object {
    program: Program,
    file: File,
    size: u64,
}

impl Object {
    /// Reads a file; `None` when it is no ELF file of this machine, or no file at all.
    pub(super) fn open(path: &Path) -> Option<Self> {
        let (file, size) = regular(path)?;
        let program = program::read_program(&file, size).ok()?;
        Some(Self { program, file, size })
    }

    /// Its loader, resolved.
    pub(super) fn loader(&self) -> Option<PathBuf> {
        let loader = self.program.interpreter.as_ref().filter(|loader| loader.is_absolute())?;
        loader.canonicalize().ok()
    }

    /// Whether its dynamic symbols have this name.
    pub(super) fn has_symbol(&self, name: &str) -> bool {
        program::has_symbol(&self.file, self.size, name).unwrap_or(false)
    }
}

/// Opens a regular file and nothing else: a FIFO would keep whoever opens it waiting.
fn regular(path: &Path) -> Option<(File, u64)> {
    let file = fs::OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path).ok()?;
    let found = file.metadata().ok()?;
    found.is_file().then_some((file, found.len()))
}

/// A program, and where it is a script what the kernel runs instead, down to a program that is none. A script that names
/// `env` also brings what that looks for.
pub(super) fn with_interpreters(program: &Path, search: &OsStr) -> Vec<PathBuf> {
    let mut found = vec![program.to_owned()];
    let mut at = 0;
    while at < found.len() && at <= MAX_SCRIPTS {
        let next = regular(&found[at]).map(|(file, _)| interpreters_of(&start_of(file), search)).unwrap_or_default();
        for file in next {
            if !found.contains(&file) {
                found.push(file);
            }
        }
        at += 1;
    }
    found
}

/// What a program is run by and that is not there: the interpreter of a script, what its `env` looks for, or a loader.
pub(super) fn missing(program: &Path, search: &OsStr) -> Option<PathBuf> {
    with_interpreters(program, search).iter().find_map(|file| {
        let (opened, _) = regular(file)?;
        missing_of(&start_of(opened), search).or_else(|| {
            Object::open(file)?.program.interpreter.filter(|loader| loader.is_absolute() && !loader.exists())
        })
    })
}

/// The same of a tool that is a program, by its bytes. Where its script's `env` would look, nothing is granted: `held` says
/// whether that matters.
pub fn native_missing(bytes: &[u8], held: bool) -> Option<PathBuf> {
    if let Some((interpreter, arguments)) = shebang(bytes) {
        if !interpreter.exists() {
            return Some(interpreter);
        }
        let name = named_by_env(&interpreter, &arguments)?;
        return held.then(|| PathBuf::from(name));
    }
    let program = program::read_program(bytes, bytes.len() as u64).ok()?;
    program.interpreter.filter(|loader| loader.is_absolute() && !loader.exists())
}

/// The same of a file that begins so.
fn missing_of(start: &[u8], search: &OsStr) -> Option<PathBuf> {
    let (interpreter, arguments) = shebang(start)?;
    if !interpreter.exists() {
        return Some(interpreter);
    }
    let name = named_by_env(&interpreter, &arguments)?;
    matches(name, search).is_empty().then(|| PathBuf::from(name))
}

/// What a script's `env` looks for on the search path.
fn named_by_env<'a>(interpreter: &Path, arguments: &'a [String]) -> Option<&'a str> {
    let mut words = arguments.iter().filter(|word| !word.starts_with('-') && !word.contains('='));
    let name = words.next().filter(|_| interpreter.file_name() == Some(OsStr::new("env")))?;
    (!name.contains('/')).then_some(name)
}

fn start_of(file: File) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(MAX_SHEBANG);
    // What cannot be read is no script.
    let _ = file.take(MAX_SHEBANG as u64).read_to_end(&mut bytes);
    bytes
}

fn interpreters_of(start: &[u8], search: &OsStr) -> Vec<PathBuf> {
    let Some((interpreter, arguments)) = shebang(start) else { return Vec::new() };
    let mut found: Vec<PathBuf> = interpreter.canonicalize().into_iter().collect();
    found.extend(named_by_env(&interpreter, &arguments).map(|name| matches(name, search)).unwrap_or_default());
    found
}

/// The absolute interpreter of a script's first line, and the words after it.
fn shebang(start: &[u8]) -> Option<(PathBuf, Vec<String>)> {
    let line = start.get(..start.len().min(MAX_SHEBANG))?.strip_prefix(b"#!")?;
    let line = line.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty());
    let interpreter = PathBuf::from(OsStr::from_bytes(words.next()?));
    let arguments = words.filter_map(|word| String::from_utf8(word.to_vec()).ok()).collect();
    interpreter.is_absolute().then_some((interpreter, arguments))
}

/// Where one object's libraries are looked for.
struct Search {
    /// Of the objects that led to it, nearest first.
    inherited: Vec<PathBuf>,
    program: Program,
    /// The directory of the object; `None` where it must not matter.
    origin: Option<PathBuf>,
}

/// The libraries of a file and theirs, resolved, each once; those in `followed` and what they lead to are left out.
pub(super) fn needed(file: &Path, followed: &mut HashSet<PathBuf>) -> Vec<PathBuf> {
    if !followed.insert(file.to_owned()) {
        return Vec::new();
    }
    let Some(object) = Object::open(file) else { return Vec::new() };
    let origin = file.parent().map(Path::to_owned);
    walk(Search { inherited: Vec::new(), program: object.program, origin }, followed)
}

fn walk(first: Search, followed: &mut HashSet<PathBuf>) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = VecDeque::from([first]);
    while let Some(search) = open.pop_front() {
        let places = search.places();
        // What `DT_RPATH` says goes for the libraries of its libraries too.
        let own = expand(&search.program.rpath, search.origin.as_deref());
        let inherited: Vec<PathBuf> = own.into_iter().chain(search.inherited).collect();
        for name in &search.program.needed {
            let Some((path, program)) = resolve(name, &places) else { continue };
            if found.len() >= MAX_LIBRARIES {
                return found;
            }
            if followed.insert(path.clone()) {
                let origin = path.parent().map(Path::to_owned);
                open.push_back(Search { inherited: inherited.clone(), program, origin });
            }
            if !found.contains(&path) {
                found.push(path);
            }
        }
    }
    found
}

impl Search {
    fn places(&self) -> Vec<PathBuf> {
        let own = match &self.program.runpath {
            // With it, no `DT_RPATH` counts.
            Some(runpath) => expand(runpath, self.origin.as_deref()),
            None => {
                let mut own = expand(&self.program.rpath, self.origin.as_deref());
                own.extend(self.inherited.iter().cloned());
                own
            }
        };
        own.into_iter().chain(DEFAULT_DIRS.iter().map(PathBuf::from)).collect()
    }
}

/// The places of a search path that can be known: absolute ones, and those relative to the object itself.
fn expand(places: &[OsString], origin: Option<&Path>) -> Vec<PathBuf> {
    let expanded = places.iter().filter_map(|place| {
        let mut bytes = place.as_bytes().to_vec();
        for word in ORIGIN {
            if let Some(at) = bytes.windows(word.len()).position(|window| window == word) {
                bytes.splice(at..at + word.len(), origin?.as_os_str().as_bytes().iter().copied());
            }
        }
        // Other variables depend on the machine's loader.
        let path = PathBuf::from(OsString::from_vec(bytes));
        (path.is_absolute() && !path.as_os_str().as_bytes().contains(&b'$')).then_some(path)
    });
    expanded.collect()
}

/// The first file that can be loaded under a name, resolved.
fn resolve(name: &OsStr, places: &[PathBuf]) -> Option<(PathBuf, Program)> {
    let path = Path::new(name);
    let candidates: Vec<PathBuf> = if name.as_bytes().contains(&b'/') {
        // A relative one would be looked for in the work folder.
        vec![path.to_owned()]
    } else if path.components().all(|part| matches!(part, Component::Normal(_))) && !name.is_empty() {
        places.iter().map(|place| place.join(path)).collect()
    } else {
        return None;
    };
    candidates.into_iter().filter(|candidate| candidate.is_absolute()).find_map(|candidate| {
        let resolved = candidate.canonicalize().ok()?;
        // Of another machine, it is passed over as the loader passes it over.
        Some((resolved.clone(), Object::open(&resolved)?.program))
    })
}

/// ELF objects directly inside a directory of modules.
pub(super) fn objects_in(place: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(place) else { return Vec::new() };
    let named =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.as_bytes().windows(3).any(|window| window == b".so"));
    let paths = entries.flatten().take(MAX_MODULES).map(|entry| entry.path()).filter(named);
    paths.filter_map(|path| path.canonicalize().ok()).collect()
}

/// What a native tool needs beside itself, found out from its own bytes: the absolute interpreter of a script, its
/// loader, its libraries from absolute places only. The tool's own folder is the capsule's, and brings none.
pub fn native_tool(bytes: &[u8]) -> Vec<Grant> {
    let mut list = List::default();
    if let Some((interpreter, _)) = shebang(bytes) {
        if let Ok(interpreter) = interpreter.canonicalize() {
            list.program(&interpreter, OsStr::new(""));
        }
        return list.grants;
    }
    let Ok(program) = program::read_program(bytes, bytes.len() as u64) else { return list.grants };
    let loader = program.interpreter.as_ref().filter(|loader| loader.is_absolute());
    if let Some(loader) = loader.and_then(|loader| loader.canonicalize().ok()) {
        list.add(loader.clone(), Rights::EXECUTE, Reason::Program);
        list.follow(&loader);
    }
    let first = Search { inherited: Vec::new(), program, origin: None };
    for library in walk(first, &mut list.followed) {
        list.add(library, Rights::READ, Reason::Library);
    }
    list.grants
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_native_tool_brings_its_loader_and_libraries_but_nothing_of_its_own_folder() {
        let bytes = fs::read("/bin/sh").unwrap();
        let grants = native_tool(&bytes);
        let has = |start: &str, execute: bool| {
            grants.iter().any(|grant| {
                let name = grant.path.file_name().unwrap().to_string_lossy();
                name.starts_with(start) && grant.rights.execute == execute
            })
        };
        assert!(has("ld-linux", true) && has("libc.so", false), "{grants:#?}");
        let script = native_tool(b"#!/usr/bin/perl -w\nprint 1;");
        assert_eq!(script[0].path, Path::new("/usr/bin/perl").canonicalize().unwrap());
        assert!(script.len() > 1, "{script:#?}");
        for none in [&b"#!perl\n"[..], b"", b"#!", b"#!\n", b"text", b"\x7fELF"] {
            assert_eq!(native_tool(none), [], "{none:?}");
        }
        let long = [b"#!".to_vec(), vec![b' '; 300], b"/bin/sh\n".to_vec()].concat();
        assert_eq!(native_tool(&long), []);
    }

    #[test]
    fn search_paths_are_expanded_from_the_object_and_no_further() {
        let places = ["$ORIGIN/../lib", "${ORIGIN}", "/opt/lib", "lib", "", "/x/$LIB"].map(OsString::from);
        let found = expand(&places, Some(Path::new("/a/bin")));
        assert_eq!(found, ["/a/bin/../lib", "/a/bin", "/opt/lib"].map(PathBuf::from));
        assert_eq!(expand(&places, None), [PathBuf::from("/opt/lib")]);
    }

    #[test]
    fn names_that_are_no_names_lead_nowhere() {
        let places = DEFAULT_DIRS.map(PathBuf::from);
        for name in ["", "..", ".", "lib/x.so", "../libc.so.6", "no-such.so", "/dev/null", "/"] {
            assert!(resolve(OsStr::new(name), &places).is_none(), "{name}");
        }
        assert!(resolve(OsStr::new("libc.so.6"), &places).is_some());
    }

    #[test]
    fn libraries_that_need_each_other_are_followed_once() {
        let libc = resolve(OsStr::new("libc.so.6"), &DEFAULT_DIRS.map(PathBuf::from)).unwrap();
        let mut followed = HashSet::new();
        // libc needs the loader, which needs nobody; asked again, nothing is left to follow.
        assert!(!needed(&libc.0, &mut followed).is_empty());
        assert_eq!(needed(&libc.0, &mut followed), Vec::<PathBuf>::new());
    }

    #[test]
    fn a_fifo_on_the_way_keeps_nobody_waiting() {
        let folder = tempfile::TempDir::new().unwrap();
        let fifo = folder.path().join("x.so");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(Object::open(&fifo).is_none());
        assert_eq!(objects_in(folder.path()).len(), 1);
        assert!(needed(&fifo, &mut HashSet::new()).is_empty());
        assert_eq!(with_interpreters(&fifo, OsStr::new("")), [fifo]);
    }
}
