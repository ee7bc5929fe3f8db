//! The body behind a name: what `make test`, `just test` or `npm run test` runs, as the work folder's file says. It is a
//! help for hooks that look at commands, no more: a file with variables, includes or conditions runs what it runs.

use std::path::Path;

use serde_json::Value;

use crate::paths::beneath;

/// A longer file is not looked at.
const FILE_MAX: u64 = 1 << 20;

/// The body that the arguments of a runner name; `None` where that is not plain to see.
pub(super) fn of(work: &Path, runner: &str, args: &[String]) -> Option<String> {
    let read = |names: &[&str]| {
        let found = names.iter().find_map(|name| beneath::read(work, Path::new(name), FILE_MAX).ok())?;
        String::from_utf8(found).ok()
    };
    match runner {
        "make" | "gmake" => {
            let target = only(args.iter().filter(|arg| !arg.contains('=')))?;
            body(&read(&["GNUmakefile", "makefile", "Makefile"])?, target, |head| head.split_once(':').map(|(h, _)| h))
        }
        "just" => {
            let target = args.first().filter(|arg| !arg.starts_with('-'))?;
            body(&read(&["justfile", "Justfile", ".justfile"])?, target, just_head)
        }
        "npm" | "pnpm" | "yarn" => {
            let [word, name, ..] = args else { return None };
            if !matches!(word.as_str(), "run" | "run-script") {
                return None;
            }
            let package: Value = serde_json::from_str(&read(&["package.json"])?).ok()?;
            package["scripts"][name].as_str().map(str::to_owned)
        }
        _ => None,
    }
}

/// The one argument there is. An option may name another file or folder.
fn only<'a>(mut args: impl Iterator<Item = &'a String>) -> Option<&'a String> {
    let first = args.next().filter(|arg| !arg.starts_with('-'))?;
    args.next().is_none().then_some(first)
}

/// The name and parameters of a recipe, without what it depends on.
fn just_head(line: &str) -> Option<&str> {
    let at = line.match_indices(':').find(|(at, _)| !line[at + 1..].starts_with('='))?.0;
    Some(line[..at].trim_start_matches('@').split_whitespace().next().unwrap_or_default())
}

/// The indented lines below the line whose head names the target.
fn body(text: &str, target: &str, head: impl Fn(&str) -> Option<&str>) -> Option<String> {
    let indented = |line: &str| line.starts_with(['\t', ' ']);
    let mut lines = text.lines();
    lines.find(|line| {
        let names = (!indented(line) && !line.starts_with('#')).then(|| head(line)).flatten();
        names.is_some_and(|names| names.split_whitespace().any(|name| name == target))
    })?;
    let own = lines.take_while(|line| indented(line) || line.trim().is_empty());
    let text: Vec<&str> = own.map(str::trim).filter(|line| !line.is_empty()).collect();
    (!text.is_empty()).then(|| text.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_gives_its_body_where_that_is_plain() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write(
            "Makefile",
            "CC := cc\n# test:\nall build: dep\n\t$(CC) a.c\n\n\techo done\nclean:\n\trm -rf out\nnone:\n",
        );
        write("justfile", "x := \"1\"\n@test arg='a': build\n    cargo test\n");
        write("package.json", r#"{"scripts": {"test": "jest --ci"}}"#);
        let of = |line: &[&str]| {
            let args: Vec<String> = line[1..].iter().map(|arg| (*arg).to_owned()).collect();
            of(dir.path(), line[0], &args)
        };
        assert_eq!(of(&["make", "build"]).as_deref(), Some("$(CC) a.c\necho done"));
        assert_eq!(of(&["make", "V=1", "clean"]).as_deref(), Some("rm -rf out"));
        assert_eq!(of(&["just", "test", "x"]).as_deref(), Some("cargo test"));
        assert_eq!(of(&["npm", "run", "test"]).as_deref(), Some("jest --ci"));
        for none in [
            &["make"][..],
            &["make", "none"],
            &["make", "test"],
            &["make", "-f", "other.mk", "clean"],
            &["make", "clean", "build"],
            &["just", "--list"],
            &["npm", "test"],
            &["npm", "run", "other"],
            &["git", "build"],
        ] {
            assert_eq!(of(none), None, "{none:?}");
        }
    }
}
