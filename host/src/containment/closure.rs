//! What a session's commands need of the host's files, found out from `shell.allow`: the programs themselves, what they
//! are loaded with, where their interpreters look for modules.
//!
//! The result is one flat list of paths, rights and reasons. What a backend is asked to grant and what `--explain-scope`
//! prints are read from it, so that neither can say what the other does not do. Nothing here is an error: what cannot be
//! resolved contributes nothing, and the command that needs it fails by the kernel's word.

mod interpreters;
mod libraries;

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::manifest::Shell;

pub use libraries::{native_missing, native_tool};

/// Files with certificate authorities, where distributions keep them.
const TRUST_FILES: [&str; 7] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/usr/lib/ssl/cert.pem",
];

/// Directories with certificate authorities.
const TRUST_DIRS: [&str; 5] = [
    "/etc/ssl/certs",
    "/etc/pki/tls/certs",
    "/etc/pki/ca-trust/extracted/pem",
    "/usr/lib/ssl/certs",
    "/var/lib/ca-certificates/pem",
];

/// What may be done with a granted path. Everything granted may be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// Files may be executed.
    pub execute: bool,
    /// Directories may be listed.
    pub list: bool,
}

impl Rights {
    const READ: Self = Self { execute: false, list: false };
    const READ_AND_LIST: Self = Self { execute: false, list: true };
    const EXECUTE: Self = Self { execute: true, list: false };
}

/// Why a path is granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A program of `shell.allow`, or what the kernel starts with it: its loader, a script's interpreter.
    Program,
    /// A shared object a program or a module is loaded with.
    Library,
    /// A place an allowed interpreter said it imports from.
    DerivedRuntime {
        /// The entry of `shell.allow`.
        binary: String,
    },
    /// `shell.interpreter_runtime`.
    InterpreterRuntime {
        /// The entry of `shell.allow`.
        binary: String,
    },
    /// `shell.staged_runtime`.
    StagedRuntime {
        /// The entry of `shell.allow`.
        binary: String,
        /// As declared.
        pin: String,
    },
    /// Certificate authorities, for commands that may use the network.
    TrustStore,
}

/// One path a command may use, with everything below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Absolute.
    pub path: PathBuf,
    /// What may be done.
    pub rights: Rights,
    /// Why.
    pub reason: Reason,
}

/// Everything `shell.allow` leads to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Closure {
    /// Every match of each entry, resolved, in the order of the list and then of the search path.
    pub programs: Vec<(String, Vec<PathBuf>)>,
    /// What is granted.
    pub grants: Vec<Grant>,
    /// One line for each interpreter that could not be asked.
    pub notes: Vec<String>,
}

impl Closure {
    /// Finds out what `shell` leads to. `search` is the `PATH`; below `writable` stand folders the capsule can write to,
    /// whose programs are not run to ask them. `network` is whether commands may connect anywhere.
    ///
    /// Asks interpreters, so it blocks for up to some seconds: call it off the async thread.
    pub fn derive(shell: &Shell, search: &OsStr, writable: &[PathBuf], network: bool) -> Self {
        let mut list = List::default();
        let mut closure = Self::default();
        for binary in &shell.allow {
            let found = matches(binary, search);
            for program in &found {
                list.program(program, search);
            }
            closure.programs.push((binary.clone(), found));
        }
        for (binary, found) in &closure.programs {
            if shell.staged_runtime.iter().any(|staged| staged.binary == *binary) {
                continue;
            }
            let asked = found.iter().filter(|program| !writable.iter().any(|folder| program.starts_with(folder)));
            for program in asked {
                match interpreters::import_path(program) {
                    None => {}
                    Some(Ok(places)) => list.derived(binary, &places),
                    Some(Err(why)) => closure.notes.push(format!(
                        "[capsule-runtime] '{}' could not be asked where it imports from ({why}): nothing is granted \
                         for it",
                        program.display()
                    )),
                }
            }
        }
        list.declared(shell);
        if network && !shell.allow.is_empty() {
            list.trust_store();
        }
        closure.grants = list.grants;
        closure
    }

    /// The grants of one kind.
    pub fn of(&self, wanted: impl Fn(&Reason) -> bool) -> impl Iterator<Item = &Grant> {
        self.grants.iter().filter(move |grant| wanted(&grant.reason))
    }
}

/// The list while it grows; a path is in it once for each kind of reason.
#[derive(Default)]
struct List {
    grants: Vec<Grant>,
    /// Files whose libraries are followed already.
    followed: HashSet<PathBuf>,
}

impl List {
    fn add(&mut self, path: PathBuf, rights: Rights, reason: Reason) {
        let is_file = |reason: &Reason| matches!(reason, Reason::Program | Reason::Library);
        let known = self.grants.iter_mut().find(|known| known.path == path && is_file(&known.reason));
        if let Some(known) = known.filter(|_| is_file(&reason)) {
            // A loader is also a library of others.
            if reason == Reason::Program {
                (known.rights, known.reason) = (rights, reason);
            }
            return;
        }
        let grant = Grant { path, rights, reason };
        if !self.grants.contains(&grant) {
            self.grants.push(grant);
        }
    }

    /// A program, the interpreter of a script, and what they are loaded with.
    fn program(&mut self, program: &Path, search: &OsStr) {
        for file in libraries::with_interpreters(program, search) {
            let object = libraries::Object::open(&file);
            self.add(file.clone(), Rights::EXECUTE, Reason::Program);
            let loader = object.as_ref().and_then(libraries::Object::loader);
            self.follow(&file);
            if let Some(loader) = loader {
                self.add(loader.clone(), Rights::EXECUTE, Reason::Program);
                self.follow(&loader);
            }
        }
    }

    /// The libraries of a file and theirs.
    fn follow(&mut self, file: &Path) {
        for library in libraries::needed(file, &mut self.followed) {
            self.add(library, Rights::READ, Reason::Library);
        }
    }

    fn derived(&mut self, binary: &str, places: &[PathBuf]) {
        for place in places {
            // The root of everything is no place of modules.
            let Ok(place) = place.canonicalize() else { continue };
            if place.parent().is_none() {
                continue;
            }
            let rights = if place.is_dir() { Rights::READ_AND_LIST } else { Rights::READ };
            for module in libraries::objects_in(&place) {
                self.follow(&module);
            }
            self.add(place, rights, Reason::DerivedRuntime { binary: binary.to_owned() });
        }
    }

    fn declared(&mut self, shell: &Shell) {
        for runtime in &shell.interpreter_runtime {
            for dir in &runtime.dirs {
                let rights = Rights { execute: true, list: dir.list_dir };
                let reason = Reason::InterpreterRuntime { binary: runtime.binary.clone() };
                self.add(dir.path.clone().into(), rights, reason);
            }
        }
        for staged in &shell.staged_runtime {
            let reason = Reason::StagedRuntime { binary: staged.binary.clone(), pin: staged.pin.clone() };
            self.add(staged.source_path.clone().into(), Rights { execute: true, list: true }, reason);
        }
    }

    fn trust_store(&mut self) {
        for file in TRUST_FILES.iter().map(Path::new).filter(|file| file.is_file()) {
            self.add(file.to_owned(), Rights::READ, Reason::TrustStore);
        }
        for dir in TRUST_DIRS.iter().map(Path::new).filter(|dir| dir.is_dir()) {
            self.add(dir.to_owned(), Rights::READ_AND_LIST, Reason::TrustStore);
        }
    }
}

/// The matches of an entry that are scripts, each with the interpreters that run it.
pub fn scripts(binary: &str, search: &OsStr) -> Vec<(PathBuf, Vec<PathBuf>)> {
    let found = matches(binary, search).into_iter().map(|script| {
        let mut files = libraries::with_interpreters(&script, search);
        files.remove(0);
        (script, files)
    });
    found.filter(|(_, interpreters)| !interpreters.is_empty()).collect()
}

/// What a program is run by and that is not there.
pub fn missing(program: &Path, search: &OsStr) -> Option<PathBuf> {
    libraries::missing(program, search)
}

/// Every executable file of that name on a search path, resolved. Relative places would be the work folder, whose files
/// never run.
pub fn matches(binary: &str, search: &OsStr) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in std::env::split_paths(search).filter(|folder| folder.is_absolute()) {
        let Ok(file) = folder.join(binary).canonicalize() else { continue };
        if is_executable(&file) && !found.contains(&file) {
            found.push(file);
        }
    }
    found
}

fn is_executable(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{InterpreterRuntime, RuntimeDir, StagedRuntime};

    const SEARCH: &str = "/usr/local/bin:/usr/bin:/bin:relative:";

    fn shell(allow: &[&str]) -> Shell {
        Shell { allow: allow.iter().map(|binary| (*binary).to_owned()).collect(), ..Shell::default() }
    }

    fn derive(shell: &Shell, network: bool) -> Closure {
        Closure::derive(shell, OsStr::new(SEARCH), &[], network)
    }

    fn find<'a>(closure: &'a Closure, name: &str) -> &'a Grant {
        let named =
            |grant: &&Grant| grant.path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(name));
        closure.grants.iter().find(named).unwrap_or_else(|| panic!("{name} is not in {:#?}", closure.grants))
    }

    #[test]
    fn a_shell_is_granted_itself_its_loader_and_its_libraries_and_nothing_else() {
        let closure = derive(&shell(&["bash", "no-such-program"]), false);
        assert_eq!(closure.programs[1], ("no-such-program".to_owned(), Vec::new()));
        assert_eq!(find(&closure, "bash").rights, Rights::EXECUTE);
        assert_eq!(find(&closure, "ld-linux").rights, Rights::EXECUTE);
        assert_eq!(find(&closure, "libc.so").rights, Rights::READ);
        assert!(closure.grants.len() < 10, "{:#?}", closure.grants);
        for grant in &closure.grants {
            assert_eq!(grant.path.canonicalize().unwrap(), grant.path);
        }
        assert_eq!(closure.notes, Vec::<String>::new());
    }

    #[test]
    fn everything_the_loader_lists_is_granted() {
        for binary in ["bash", "python3", "perl", "git", "curl", "env"] {
            let closure = derive(&shell(&[binary]), false);
            for program in &closure.programs[0].1 {
                let Some(loader) = libraries::Object::open(program).and_then(|object| object.loader()) else {
                    continue;
                };
                let child = crate::process::Spawn::program(loader)
                    .arg("--list")
                    .arg(program)
                    .stdio(crate::process::Stream::Null, crate::process::Stream::Pipe, crate::process::Stream::Null)
                    .spawn()
                    .unwrap();
                let listed = std::io::read_to_string(fs::File::from(child.stdout.unwrap())).unwrap();
                child.pidfd.reap().unwrap();
                let paths = listed.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from);
                for path in paths.filter_map(|path| path.canonicalize().ok()) {
                    let granted = closure.grants.iter().any(|grant| grant.path == path);
                    assert!(granted, "{} is loaded with {}", program.display(), path.display());
                }
            }
        }
    }

    #[test]
    fn python_and_perl_say_where_they_import_from() {
        let closure = derive(&shell(&["python3", "perl"]), false);
        for (binary, module) in [("python3", "os.py"), ("perl", "strict.pm")] {
            let places: Vec<&Grant> = closure
                .of(|reason| matches!(reason, Reason::DerivedRuntime { binary: found } if found == binary))
                .collect();
            assert!(places.iter().any(|grant| grant.path.join(module).is_file()), "{binary}: {places:#?}");
            assert!(places.iter().all(|grant| !grant.rights.execute), "{places:#?}");
        }
        assert_eq!(closure.notes, Vec::<String>::new());
    }

    #[test]
    fn every_match_of_the_search_path_is_granted() {
        let folder = tempfile::TempDir::new().unwrap();
        let root = folder.path().canonicalize().unwrap();
        for name in ["a", "b", "c"] {
            fs::create_dir(root.join(name)).unwrap();
        }
        fs::copy("/bin/sh", root.join("a/prog")).unwrap();
        fs::copy("/bin/sh", root.join("b/prog")).unwrap();
        fs::write(root.join("c/prog"), "not executable").unwrap();
        std::os::unix::fs::symlink("loop", root.join("c/loop")).unwrap();
        let search = std::env::join_paths(["a", "b", "c", "a"].map(|name| root.join(name))).unwrap();
        let closure = Closure::derive(&shell(&["prog", "loop"]), &search, &[], false);
        assert_eq!(closure.programs[0].1, [root.join("a/prog"), root.join("b/prog")]);
        assert_eq!(closure.programs[1].1, Vec::<PathBuf>::new());
    }

    #[test]
    fn a_script_brings_its_interpreter_and_env_the_program_it_looks_for() {
        let folder = tempfile::TempDir::new().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let script = |name: &str, text: &str| {
            fs::write(root.join(name), text).unwrap();
            fs::set_permissions(root.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        };
        script("plain", "#! /bin/sh -e\n");
        script("by-env", "#!/usr/bin/env -S perl -w\n");
        script("itself", &format!("#!{}\n", root.join("itself").display()));
        script("relative", "#!sh\n");
        let search = std::env::join_paths([root.clone(), "/usr/bin".into()]).unwrap();
        let of = |name: &str| {
            let closure = Closure::derive(&shell(&[name]), &search, &[], false);
            let programs = closure.of(|reason| *reason == Reason::Program).map(|grant| grant.path.clone());
            programs.collect::<Vec<_>>()
        };
        assert!(of("plain").contains(&Path::new("/bin/sh").canonicalize().unwrap()));
        let by_env = of("by-env");
        for program in ["/usr/bin/env", "/usr/bin/perl"] {
            assert!(by_env.contains(&Path::new(program).canonicalize().unwrap()), "{by_env:?}");
        }
        assert_eq!(of("itself"), [root.join("itself")]);
        assert_eq!(of("relative"), [root.join("relative")]);
    }

    #[test]
    fn declared_runtimes_are_granted_as_declared_and_a_staged_one_is_not_asked() {
        let mut shell = shell(&["python3"]);
        shell.staged_runtime =
            vec![StagedRuntime { binary: "python3".into(), source_path: "/opt/tree".into(), pin: "1".into() }];
        shell.interpreter_runtime = vec![InterpreterRuntime {
            binary: "python3".into(),
            dirs: vec![
                RuntimeDir { path: "/opt/a".into(), list_dir: true },
                RuntimeDir { path: "/opt/b".into(), list_dir: false },
            ],
        }];
        let closure = derive(&shell, false);
        assert_eq!(closure.of(|reason| matches!(reason, Reason::DerivedRuntime { .. })).count(), 0);
        let rights = |path: &str| closure.grants.iter().find(|grant| grant.path == Path::new(path)).unwrap().rights;
        assert_eq!(rights("/opt/a"), Rights { execute: true, list: true });
        assert_eq!(rights("/opt/b"), Rights { execute: true, list: false });
        assert_eq!(rights("/opt/tree"), Rights { execute: true, list: true });
    }

    #[test]
    fn certificates_are_granted_only_beside_a_network() {
        let with = |network| derive(&shell(&["bash"]), network).of(|reason| *reason == Reason::TrustStore).count();
        let here = TRUST_FILES.iter().chain(&TRUST_DIRS).filter(|path| Path::new(path).exists()).count();
        assert_eq!((with(false), with(true)), (0, here));
    }

    #[test]
    fn a_program_the_capsule_could_have_written_is_never_asked() {
        let folder = tempfile::TempDir::new().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let marker = root.join("asked");
        // Its symbols say interpreter, and it would tell on whoever runs it.
        let text = format!("#!/bin/sh\n# perl_parse\ntouch {}\n", marker.display());
        fs::write(root.join("fake"), text).unwrap();
        fs::set_permissions(root.join("fake"), fs::Permissions::from_mode(0o755)).unwrap();
        let python = matches("python3", OsStr::new("/usr/bin")).pop().unwrap();
        fs::copy(&python, root.join("python3")).unwrap();
        let search = root.clone().into_os_string();
        let closure = Closure::derive(&shell(&["fake", "python3"]), &search, std::slice::from_ref(&root), false);
        assert!(!marker.exists());
        assert_eq!(closure.of(|reason| matches!(reason, Reason::DerivedRuntime { .. })).count(), 0);
    }
}
