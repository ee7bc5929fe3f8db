//! The WIT level: which version of each `murmur:` package this host serves, and whether a component fits it.
//!
//! What counts is the names in the binary: no version is matched loosely, because a field or a case added to an
//! interface changes its ABI and a host that took the neighbouring version would lift garbage.

use std::fmt::Write as _;

use wasmparser::{Encoding, Parser, Payload};

use super::name::{ArtifactName, Version};
use crate::diagnostics::{Diagnostic, Result, codes};

/// The numbered name of the whole set served.
pub const SERVED: u32 = 1;

/// Level 1: every package once, sorted.
pub const PACKAGES: [(&str, &str); 16] = [
    ("murmur:artifact-manager", "0.1.0"),
    ("murmur:capsule", "0.1.0"),
    ("murmur:conversation", "0.2.0"),
    ("murmur:driver", "0.3.0"),
    ("murmur:hook", "0.9.0"),
    ("murmur:host", "0.1.0"),
    ("murmur:message", "0.1.0"),
    ("murmur:process", "0.1.0"),
    ("murmur:runtime", "0.4.0"),
    ("murmur:runtime-guest", "0.1.0"),
    ("murmur:shell", "0.1.0"),
    ("murmur:stream", "0.1.0"),
    ("murmur:task", "0.1.0"),
    ("murmur:task-io", "0.1.0"),
    ("murmur:tool", "0.1.0"),
    ("murmur:tool-registry", "0.1.0"),
];

/// Most names kept of one component; a component with more is refused by the engine long before.
const MAX_NAMES: usize = 10_000;

/// What a component imports and exports by name, each list sorted and without repetition. Only interface names are
/// kept (those with a `/`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interfaces {
    /// What it asks for.
    pub imports: Vec<String>,
    /// What it offers.
    pub exports: Vec<String>,
}

/// Which way an interface goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The component offers it.
    Export,
    /// The component asks for it.
    Import,
}

/// One interface that does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// Which way it goes.
    pub direction: Direction,
    /// Its name as in the binary.
    pub interface: String,
}

impl Interfaces {
    /// Reads the names of the outermost component. A core module, or bytes that are no component, name none; a
    /// component that breaks off names what came before the break (the engine refuses it later, with its reason).
    pub fn of(component: &[u8]) -> Self {
        let mut interfaces = Self::default();
        let mut depth = 0_usize;
        for payload in Parser::new(0).parse_all(component) {
            match payload {
                Ok(Payload::Version { encoding: Encoding::Module, .. }) if depth == 0 => break,
                Ok(Payload::ModuleSection { .. } | Payload::ComponentSection { .. }) => depth += 1,
                Ok(Payload::End(_)) => depth = depth.saturating_sub(1),
                Ok(Payload::ComponentImportSection(section)) if depth == 0 => {
                    let names = section.into_iter().map_while(|import| Some(import.ok()?.name.name.to_owned()));
                    interfaces.imports.extend(names.filter(|name| is_interface(name)).take(MAX_NAMES));
                }
                Ok(Payload::ComponentExportSection(section)) if depth == 0 => {
                    let names = section.into_iter().map_while(|export| Some(export.ok()?.name.name.to_owned()));
                    interfaces.exports.extend(names.filter(|name| is_interface(name)).take(MAX_NAMES));
                }
                Ok(_) => {}
                Err(_) => break,
            }
        }
        for names in [&mut interfaces.imports, &mut interfaces.exports] {
            names.sort_unstable();
            names.dedup();
        }
        interfaces
    }

    /// What does not fit the served level, exports first.
    pub fn misfits(&self) -> Vec<Misfit> {
        let judge = |direction, names: &[String]| {
            names
                .iter()
                .filter(|name| !fits(name))
                .map(|name| Misfit { direction, interface: name.clone() })
                .collect::<Vec<_>>()
        };
        let mut misfits = judge(Direction::Export, &self.exports);
        misfits.extend(judge(Direction::Import, &self.imports));
        misfits
    }

    /// The newest level they fit.
    pub fn level(&self) -> Option<u32> {
        self.misfits().is_empty().then_some(SERVED)
    }
}

fn is_interface(name: &str) -> bool {
    name.contains('/')
}

/// The package of an interface name.
pub fn package_of(interface: &str) -> &str {
    interface.split('/').next().unwrap_or(interface)
}

/// The version this level has of a package.
pub fn served(package: &str) -> Option<&'static str> {
    PACKAGES.iter().find(|(name, _)| *name == package).map(|(_, version)| *version)
}

/// Whether one interface name fits the served level; names of other namespaces are not judged.
pub fn fits(interface: &str) -> bool {
    if !interface.starts_with("murmur:") {
        return true;
    }
    let version = interface.rsplit_once('@').map(|(_, version)| version);
    version.is_some() && version == served(package_of(interface))
}

/// `E-WIT-LEVEL-001`: which of an artifact's interfaces this level has at another version, or not at all.
pub fn does_not_fit(name: &ArtifactName, version: &Version, misfits: &[Misfit]) -> Diagnostic {
    let mut clauses = String::new();
    for misfit in misfits {
        if !clauses.is_empty() {
            clauses.push_str("; ");
        }
        let verb = match misfit.direction {
            Direction::Export => "exports",
            Direction::Import => "imports",
        };
        let package = package_of(&misfit.interface);
        let _ = write!(clauses, "it {verb} {}, and level {SERVED} has ", misfit.interface);
        let _ = match served(package) {
            Some(version) => write!(clauses, "{package}@{version}"),
            None => write!(clauses, "no version of {package}"),
        };
    }
    Diagnostic::new(
        codes::E_WIT_LEVEL_001,
        format!("artifact '{name}@{version}' does not fit WIT level {SERVED}, the level this mur serves: {clauses}"),
    )
    .hint("rebuild it against the packages that `mur version` lists")
}

/// How a session uses a driver artifact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driving {
    /// It is the inference driver, or a choice for it, on `transport: http`.
    Http,
    /// The same on `transport: process`.
    Process,
    /// It is declared as a driver and called by name.
    ByName,
}

/// What a launch checks of a `runtime: driver` artifact before any worker starts: `E-WIT-LEVEL-001`, `E-RUN-029` or
/// `E-RUN-030`. Other kinds are not judged at staging: they fail when they are instantiated.
pub fn check_driver(name: &ArtifactName, version: &Version, interfaces: &Interfaces, driving: Driving) -> Result<()> {
    const PROCESS: &str = "murmur:driver/process";
    let reference = format!("{name}@{version}");
    let process: Vec<&String> = interfaces.exports.iter().filter(|name| unversioned(name) == PROCESS).collect();
    if driving == Driving::Http && !process.is_empty() {
        let message = format!("driver '{reference}' exports {}, which transport: http does not use", process[0]);
        return Err(Diagnostic::new(codes::E_RUN_030, message)
            .hint("declare transport: process, or name a driver that speaks http"));
    }
    let mut misfits = Vec::new();
    if driving == Driving::Process && !process.iter().any(|name| fits(name)) {
        if process.is_empty() {
            let message = format!("driver '{reference}' does not export {PROCESS}, which transport: process needs");
            return Err(Diagnostic::new(codes::E_RUN_029, message).hint("name a driver of the transport declared"));
        }
        misfits
            .extend(process.into_iter().map(|name| Misfit { direction: Direction::Export, interface: name.clone() }));
    }
    let streams =
        || interfaces.imports.iter().filter(|name| matches!(package_of(name), "murmur:text" | "murmur:stream"));
    misfits.extend(
        streams()
            .filter(|name| !fits(name))
            .map(|name| Misfit { direction: Direction::Import, interface: name.clone() }),
    );
    if !misfits.is_empty() {
        return Err(does_not_fit(name, version, &misfits));
    }
    match streams().find(|name| unversioned(name) != "murmur:stream/events") {
        Some(unknown) => {
            let message = format!("driver '{reference}' imports {unknown}, which WIT level {SERVED} does not have");
            Err(Diagnostic::new(codes::E_RUN_029, message).hint("rebuild it against murmur:stream/events"))
        }
        None => Ok(()),
    }
}

fn unversioned(interface: &str) -> &str {
    interface.rsplit_once('@').map_or(interface, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A component made of an import section for each name: the encoding of an instance import of an empty type.
    pub(crate) fn component(imports: &[&str]) -> Vec<u8> {
        let mut bytes = b"\0asm\x0d\0\x01\0".to_vec();
        // Type section: one instance type without declarations.
        bytes.extend([7, 3, 1, 0x42, 0]);
        for name in imports {
            let length = u8::try_from(name.len()).unwrap();
            let mut section = vec![1, 0, length];
            section.extend(name.as_bytes());
            section.extend([5, 0]);
            bytes.extend([10, u8::try_from(section.len()).unwrap()]);
            bytes.extend(section);
        }
        bytes
    }

    #[test]
    fn the_table_is_sorted_and_lists_a_package_once() {
        assert!(PACKAGES.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }

    #[test]
    fn names_are_read_sorted_and_those_without_a_slash_left_out() {
        let names = ["wasi:io/poll@0.2.6", "murmur:task/task@0.1.0", "plain"];
        let interfaces = Interfaces::of(&component(&names));
        assert_eq!(interfaces.imports, ["murmur:task/task@0.1.0", "wasi:io/poll@0.2.6"]);
        assert_eq!(interfaces.level(), Some(1));
    }

    #[test]
    fn only_the_exact_version_fits() {
        for fitting in ["murmur:tool/run@0.1.0", "murmur:process/exec@0.1.0", "wasi:http/types@9.9.9", "other:x/y"] {
            assert!(fits(fitting), "{fitting}");
        }
        for not in [
            "murmur:hook/lifecycle@0.8.0",
            "murmur:tool/run",
            "murmur:tool/run@0.1",
            "murmur:tool/run@0.1.0+a",
            "murmur:text/events@0.1.0",
            "murmur:nothing/x@0.1.0",
            "murmur:tool/run@",
        ] {
            assert!(!fits(not), "{not}");
        }
    }

    #[test]
    fn a_misfit_names_both_versions() {
        let interfaces = Interfaces::of(&component(&["murmur:text/out@0.1.0", "murmur:stream/events@0.2.0"]));
        assert_eq!(interfaces.level(), None);
        let name = ArtifactName::parse("local/x").unwrap();
        let text = does_not_fit(&name, &Version::parse("1.0.0").unwrap(), &interfaces.misfits()).to_string();
        assert!(
            text.contains(
                "'local/x@1.0.0' does not fit WIT level 1, the level this mur serves: it imports \
             murmur:stream/events@0.2.0, and level 1 has murmur:stream@0.1.0; it imports murmur:text/out@0.1.0, and \
             level 1 has no version of murmur:text"
            ),
            "{text}"
        );
    }

    #[test]
    fn a_driver_is_judged_by_its_streams_and_its_transport() {
        let name = ArtifactName::parse("local/d").unwrap();
        let version = Version::parse("1").unwrap();
        let code = |imports: &[&str], exports: &[&str], driving| {
            let owned = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect();
            let interfaces = Interfaces { imports: owned(imports), exports: owned(exports) };
            check_driver(&name, &version, &interfaces, driving).err().map(|refusal| refusal.code())
        };
        let (run, process) = ("murmur:tool/run@0.1.0", "murmur:driver/process@0.3.0");
        let old = "murmur:driver/process@0.2.0";
        assert_eq!(code(&["murmur:stream/events@0.1.0", "wasi:io/poll@0.2.0"], &[run], Driving::Http), None);
        assert_eq!(code(&["murmur:stream/events@0.2.0"], &[run], Driving::Http), Some(codes::E_WIT_LEVEL_001));
        assert_eq!(code(&["murmur:text/out@0.1.0"], &[run], Driving::ByName), Some(codes::E_WIT_LEVEL_001));
        assert_eq!(code(&["murmur:stream/other@0.1.0"], &[run], Driving::ByName), Some(codes::E_RUN_029));
        assert_eq!(code(&[], &[old], Driving::Http), Some(codes::E_RUN_030));
        assert_eq!(code(&[], &[old], Driving::Process), Some(codes::E_WIT_LEVEL_001));
        assert_eq!(code(&[], &[run], Driving::Process), Some(codes::E_RUN_029));
        assert_eq!(code(&[], &[old, process], Driving::Process), None);
    }

    #[test]
    fn what_is_no_component_names_nothing() {
        for bytes in [&b""[..], b"\0asm", b"\0asm\x01\0\0\0", b"not wasm at all"] {
            assert_eq!(Interfaces::of(bytes), Interfaces::default());
        }
    }

    proptest::proptest! {
        #[test]
        fn reading_names_never_panics(mut bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
            Interfaces::of(&bytes);
            let mut whole = component(&["murmur:task/task@0.1.0"]);
            whole.append(&mut bytes);
            Interfaces::of(&whole);
        }
    }
}
