//! What a capsule's grants for commands are refused or warned of, on what it declares and the class in force.

use std::ffi::OsStr;
use std::path::Path;

use crate::containment::{Class, RUNTIME_TREE, closure};
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::manifest::{Capsule, Shell};

/// Interpreters whose programs write where no check of a call can see.
const INTERPRETERS: [&str; 24] = [
    "python", "pypy", "perl", "ruby", "node", "nodejs", "deno", "bun", "php", "lua", "luajit", "tclsh", "Rscript",
    "julia", "guile", "awk", "gawk", "mawk", "nawk", "java", "jshell", "pwsh", "erl", "elixir",
];

/// Checks the grants of a capsule whose declared floor and class in force are given; `search` is the `PATH`.
///
/// # Errors
/// `E-CAP-004` for a staged runtime below `sealed`, `E-CAP-006` for a script that cannot run in the composed root.
pub fn check(capsule: &Capsule, floor: Class, class: Class, search: &OsStr) -> Result<Vec<Diagnostic>> {
    let mut warnings = Vec::new();
    if let Some(shell) = &capsule.capabilities.shell {
        staged(shell, floor)?;
        in_root(shell, class, search)?;
        warnings.extend(found(shell, class, search));
        of_class(capsule, shell, class, &mut warnings);
    }
    warnings.extend(declared(capsule));
    Ok(warnings)
}

/// What is warned of whatever the class is.
pub(crate) fn declared(capsule: &Capsule) -> Vec<Diagnostic> {
    let capabilities = &capsule.capabilities;
    let mut warnings = Vec::new();
    for grant in capabilities.shell.iter().flat_map(|shell| &shell.interpreter_runtime) {
        for dir in &grant.dirs {
            let list = if dir.list_dir { ", list" } else { "" };
            let message =
                format!("'{}' may read{list} and execute what lies in {} of the host", grant.binary, dir.path);
            warnings.push(Diagnostic::new(codes::W_SEC_009, message).hint("grant only what the interpreter needs"));
        }
    }
    if capabilities.filesystem.workdir_exec {
        let message = "capabilities.filesystem.workdir_exec lets the capsule run what it wrote: its class is advisory at \
                       most";
        let hint = "remove workdir_exec where it is not needed";
        warnings.push(Diagnostic::new(codes::W_SEC_011, message).hint(hint));
    }
    warnings.extend(read_only_advisory_for(capsule).into_iter().map(|binary| {
        Diagnostic::new(
            codes::W_SEC_017,
            format!("capabilities.filesystem.read_only does not see through '{binary}': what its programs write is not checked"),
        )
        .hint(format!("remove '{binary}' from capabilities.shell.allow, or keep what must not change out of the work folder"))
    }));
    warnings
}

/// The allowed interpreters against which `read_only` is advice.
pub(crate) fn read_only_advisory_for(capsule: &Capsule) -> Vec<&str> {
    if capsule.capabilities.filesystem.read_only.is_empty() {
        return Vec::new();
    }
    let allow = capsule.capabilities.shell.iter().flat_map(|shell| &shell.allow).map(String::as_str);
    allow.filter(|binary| is_interpreter(binary)).collect()
}

/// By name, a version at its end or not: `python3.11` is `python`.
fn is_interpreter(binary: &str) -> bool {
    INTERPRETERS.contains(&binary.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.' || c == '-'))
}

/// A staged runtime is part of a composed root; only `sealed` has one.
fn staged(shell: &Shell, floor: Class) -> Result<()> {
    if shell.staged_runtime.is_empty() || floor >= Class::Sealed {
        return Ok(());
    }
    let binaries: Vec<String> = shell.staged_runtime.iter().map(|staged| format!("'{}'", staged.binary)).collect();
    Err(Diagnostic::new(
        codes::E_CAP_004,
        format!(
            "capabilities.shell.staged_runtime is declared for {}, and the floor is '{floor}': only class 'sealed' stages \
             a runtime",
            binaries.join(", ")
        ),
    )
    .hint("declare capabilities.containment: sealed, or remove staged_runtime"))
}

/// In the composed root a script's interpreter has to be there, with its packages.
///
/// # Errors
/// `E-CAP-006`.
pub(crate) fn in_root(shell: &Shell, class: Class, search: &OsStr) -> Result<()> {
    if class != Class::Sealed {
        return Ok(());
    }
    let declared = |interpreter: &Path| {
        let dirs = shell.interpreter_runtime.iter().flat_map(|grant| &grant.dirs).map(|dir| dir.path.as_str());
        let staged = shell.staged_runtime.iter().map(|staged| staged.source_path.as_str());
        let mut reached = dirs.chain(staged).chain(RUNTIME_TREE);
        reached.any(|tree| interpreter.starts_with(tree))
    };
    for binary in &shell.allow {
        for (script, interpreters) in closure::scripts(binary, search) {
            let Some(interpreter) = interpreters.iter().find(|interpreter| !declared(interpreter)) else { continue };
            return Err(Diagnostic::new(
                codes::E_CAP_006,
                format!(
                    "'{binary}' of capabilities.shell.allow is the script {}, and nothing declared brings its interpreter \
                     {} and its packages into the composed root",
                    script.display(),
                    interpreter.display()
                ),
            )
            .hint(
                "allow the interpreter and start the script as its module, or declare interpreter_runtime or staged_runtime \
                 for it",
            ));
        }
    }
    Ok(())
}

/// Folders of version managers: what lies in them only looks for the program that is meant, and starts it.
const SHIMS: &str = "shims";

/// Programs of which every call would fail: one warning each.
pub(crate) fn found(shell: &Shell, class: Class, search: &OsStr) -> Vec<Diagnostic> {
    let warned = shell.allow.iter().filter_map(|binary| {
        let (why, hint) = hopeless(binary, class, search)?;
        let message = format!("'{binary}' of capabilities.shell.allow {why}: every call of it will fail");
        Some(Diagnostic::new(codes::W_SEC_038, message).hint(hint))
    });
    warned.collect()
}

/// Why no call of a program can go well, and what to do about it.
fn hopeless(binary: &str, class: Class, search: &OsStr) -> Option<(String, String)> {
    let all = closure::matches(binary, search);
    let Some(program) = all.first() else {
        let hint = match binary.contains(['*', '?', '[']) {
            true => "name each program; patterns are not expanded".to_owned(),
            false => format!("install '{binary}', correct the PATH of mur run, or remove the entry"),
        };
        return Some(("is not on the PATH of mur run".to_owned(), hint));
    };
    if let Some(missing) = closure::missing(program, search) {
        let why = format!("is {}, which is run by {}, and that is not there", program.display(), missing.display());
        return Some((why, format!("install {}, or remove '{binary}'", missing.display())));
    }
    let mut shims = std::env::split_paths(search).filter(|folder| folder.ends_with(SHIMS));
    let is_shim = shims.any(|folder| folder.join(binary).canonicalize().is_ok_and(|file| file == *program));
    // Below `scoped` nothing keeps it from starting what it looks for.
    (is_shim && class >= Class::Scoped).then(|| {
        (
            format!("is {}, which only starts another program, one that is not allowed", program.display()),
            format!("put the folder of the real '{binary}' before {SHIMS} on the PATH of mur run"),
        )
    })
}

fn of_class(capsule: &Capsule, shell: &Shell, class: Class, warnings: &mut Vec<Diagnostic>) {
    let network = !capsule.capabilities.network.allow.is_empty();
    if class == Class::Unconfined && network && shell.allow.iter().any(|binary| binary == "bash") {
        warnings.push(
            Diagnostic::new(
                codes::W_SEC_003,
                "'bash' is allowed beside capabilities.network.allow, and under class 'unconfined' nothing holds its \
                 commands to that list",
            )
            .hint("run the capsule under a stronger class"),
        );
    }
    let held = match class {
        Class::Unconfined => return,
        Class::Advisory => {
            warnings.push(
                Diagnostic::new(
                    codes::W_SEC_002,
                    "shell commands run under class 'advisory': the kernel holds neither files nor programs from them, and \
                     capabilities.shell.allow is decided by mur alone",
                )
                .hint("use a host with Landlock (Linux 5.13 or later), or declare capabilities.containment: scoped"),
            );
            return;
        }
        Class::Scoped => {
            "they open granted folders only, and of other paths metadata stays visible and changes can be watched"
        }
        Class::Sealed => "they see a composed root with granted folders only",
    };
    warnings.push(Diagnostic::new(
        codes::W_SEC_005,
        format!(
            "shell commands run under class '{class}': {held}; they execute the programs of capabilities.shell.allow only, \
             and the network is capabilities.network.allow; what an allowed interpreter or the dynamic loader reads and \
             runs is not held"
        ),
    ));
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::diagnostics::Code;
    use crate::manifest::read_capsule;

    fn capsule(capabilities: &str) -> Capsule {
        let text = format!("name: c\nversion: 0.1.0\nscope: t\ncapabilities:\n{capabilities}");
        read_capsule(text.as_bytes(), "murmur.yaml").unwrap_or_else(|fault| panic!("{fault}")).0
    }

    fn codes_of(capabilities: &str, class: Class) -> Vec<Code> {
        let warnings = check(&capsule(capabilities), class, class, OsStr::new("/usr/bin:/bin")).unwrap();
        warnings.iter().map(Diagnostic::code).collect()
    }

    #[test]
    fn each_class_says_what_it_holds_of_commands() {
        use codes::{W_SEC_002, W_SEC_003, W_SEC_005};
        let shell = "  shell: {allow: [bash]}\n";
        let both = "  shell: {allow: [bash]}\n  network: {allow: [a.test]}\n";
        let other = "  shell: {allow: [ls]}\n  network: {allow: [a.test]}\n";
        for (capabilities, class, expected) in [
            (shell, Class::Unconfined, vec![]),
            (both, Class::Unconfined, vec![W_SEC_003]),
            (other, Class::Unconfined, vec![]),
            (both, Class::Advisory, vec![W_SEC_002]),
            (both, Class::Scoped, vec![W_SEC_005]),
            (both, Class::Sealed, vec![W_SEC_005]),
            ("  network: {allow: [a.test]}\n", Class::Scoped, vec![]),
        ] {
            assert_eq!(codes_of(capabilities, class), expected, "{capabilities} {class}");
        }
    }

    #[test]
    fn grants_that_weaken_are_warned_of_one_by_one() {
        use codes::{W_SEC_009, W_SEC_011, W_SEC_017};
        let text = "  shell:\n    allow: [python3.11, node, bash, pythonic]\n    interpreter_runtime:\n    - binary: node\n      \
            dirs: [{path: /a, list_dir: true}, {path: /b, list_dir: false}]\n  filesystem: {workdir_exec: true, read_only: \
            [x]}\n";
        let capsule = capsule(text);
        let warnings = declared(&capsule);
        let codes: Vec<Code> = warnings.iter().map(Diagnostic::code).collect();
        assert_eq!(codes, [W_SEC_009, W_SEC_009, W_SEC_011, W_SEC_017, W_SEC_017]);
        assert!(warnings[0].message().contains("'node' may read, list and execute what lies in /a"));
        assert!(warnings[1].message().contains("'node' may read and execute what lies in /b"));
        assert_eq!(read_only_advisory_for(&capsule), ["python3.11", "node"]);
    }

    #[test]
    fn a_staged_runtime_is_refused_on_the_floor_alone_and_names_every_binary() {
        let capsule = capsule(
            "  shell:\n    allow: [a, b]\n    staged_runtime:\n    - {binary: a, source_path: /x, pin: '1'}\n    - {binary: b, \
             source_path: /y, pin: '2'}\n",
        );
        for floor in [Class::Unconfined, Class::Advisory, Class::Scoped] {
            let refusal = check(&capsule, floor, Class::Sealed, OsStr::new("")).unwrap_err();
            assert_eq!(refusal.code(), codes::E_CAP_004);
            assert!(refusal.message().contains("'a', 'b'"), "{refusal}");
        }
        assert!(check(&capsule, Class::Sealed, Class::Sealed, OsStr::new("")).is_ok());
    }

    #[test]
    fn programs_that_can_only_fail_are_warned_of_at_launch() {
        let folder = tempfile::TempDir::new().unwrap();
        let root = folder.path().canonicalize().unwrap();
        fs::create_dir(root.join(SHIMS)).unwrap();
        let program = |name: &str, text: &[u8]| {
            fs::write(root.join(name), text).unwrap();
            fs::set_permissions(root.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        };
        program("orphan", b"#!/none/interpreter -x\n");
        program("by-env", b"#!/usr/bin/env no-such-interpreter\n");
        program("good", b"#! /bin/sh\n");
        program("shims/python9", b"#!/bin/sh\nexec pyenv exec python9\n");
        let search = std::env::join_paths([root.clone(), root.join(SHIMS), "/usr/bin".into()]).unwrap();
        let capsule = capsule("  shell: {allow: [orphan, by-env, good, python9, ls, no-such, '*']}\n");
        let shell = capsule.capabilities.shell.as_ref().unwrap();
        let warned = |class| -> Vec<String> {
            let warnings = found(shell, class, &search);
            assert!(warnings.iter().all(|warning| warning.code() == codes::W_SEC_038 && warning.hint_text().is_some()));
            let named = warnings.iter().filter_map(|warning| warning.message().split('\'').nth(1));
            named.map(str::to_owned).collect()
        };
        assert_eq!(warned(Class::Scoped), ["orphan", "by-env", "python9", "no-such", "*"]);
        assert_eq!(warned(Class::Advisory), ["orphan", "by-env", "no-such", "*"]);
        let star = found(shell, Class::Scoped, &search).pop().unwrap();
        assert_eq!(star.hint_text(), Some("name each program; patterns are not expanded"));
    }

    #[test]
    fn a_script_whose_interpreter_nothing_brings_is_refused_at_sealed_and_only_there() {
        let folder = tempfile::TempDir::new().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let program = |name: &str, text: &[u8]| {
            fs::write(root.join(name), text).unwrap();
            fs::set_permissions(root.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        };
        program("own-interpreter", b"\x7fELF");
        program("script", format!("#!{}/own-interpreter\n", root.display()).as_bytes());
        program("usual", b"#!/bin/sh\n");
        program("by-env", b"#!/usr/bin/env own-interpreter\n");
        let search = std::env::join_paths([root.clone(), "/usr/bin".into()]).unwrap();
        let shell = |binary: &str, more: &str| capsule(&format!("  shell:\n    allow: [{binary}]\n{more}"));
        for binary in ["script", "by-env"] {
            let refusal = check(&shell(binary, ""), Class::Sealed, Class::Sealed, &search).unwrap_err();
            assert_eq!(refusal.code(), codes::E_CAP_006);
            for part in [binary, "own-interpreter"] {
                assert!(refusal.message().contains(part), "{refusal}");
            }
            assert!(check(&shell(binary, ""), Class::Scoped, Class::Scoped, &search).is_ok());
            let dir = format!("    - {{binary: {binary}, dirs: [{{path: {}, list_dir: false}}]}}\n", root.display());
            let granted = shell(binary, &format!("    interpreter_runtime:\n{dir}"));
            assert!(check(&granted, Class::Sealed, Class::Sealed, &search).is_ok());
        }
        for binary in ["usual", "bash", "no-such"] {
            assert!(check(&shell(binary, ""), Class::Sealed, Class::Sealed, &search).is_ok(), "{binary}");
        }
    }
}
