//! The publishers whose plugins the operator trusts: `~/.murmur/plugin-publishers`.
//!
//! ```text
//! mur-plugin-publishers 1
//! <name the operator gave> <ed25519:public key>
//! ```
//!
//! Lines that are blank or start with `#` are comments. One bad line makes the whole file unusable.

use std::fmt::Write as _;
use std::fs::File;

use mur_plugin_api::header::is_plugin_name;
use mur_plugin_api::signature::PublisherKey;

use super::trust;
use crate::credentials::publisher;
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::paths::{MurmurHome, make_private, write_atomic};

const FIRST_LINE: &str = "mur-plugin-publishers 1";
/// A file larger than this is refused before it is read.
const MAX_FILE: u64 = 1 << 18;

/// A publisher the operator trusts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publisher {
    /// What the operator calls them.
    pub name: String,
    /// What they sign with.
    pub key: PublisherKey,
}

/// The publishers; none when there is no file (`E-PLG-002`, `E-PLG-007`).
pub(super) fn read(home: &MurmurHome) -> Result<Vec<Publisher>> {
    let path = home.publishers();
    let Some(opened) = trust::open_publishers(&path)? else { return Ok(Vec::new()) };
    parse(&opened.read_small(MAX_FILE)?).map_err(|(line, what)| {
        Diagnostic::new(
            codes::E_PLG_007,
            format!("list of publishers {} cannot be read: line {line}: {what}", path.display()),
        )
        .hint("correct or remove that line; 'mur plugin publisher trust NAME KEY' writes it again")
    })
}

/// Adds a publisher. The same again changes nothing; a name or key that is known otherwise is refused (`E-PLG-010`).
pub(super) fn add(home: &MurmurHome, name: &str, key: &str) -> Result<Publisher> {
    let refused = |why: String| Diagnostic::new(codes::E_PLG_010, why);
    if !is_plugin_name(name) {
        return Err(refused(format!("'{name}' is no name for a publisher"))
            .hint("1 to 63 lowercase letters, digits and hyphens, a letter first"));
    }
    let key: PublisherKey = key.parse().map_err(|why| {
        refused(format!("'{key}' is no key: {why}"))
            .hint("take the line that 'mur plugin keygen' printed for its author")
    })?;
    if !publisher::is_sound(&key) {
        return Err(refused(format!("{key} is no key: signatures for it can be had without a secret"))
            .hint("ask the publisher for the right one"));
    }
    let added = Publisher { name: name.to_owned(), key };
    change(home, |known| {
        if let Some(same) = known.iter().find(|one| one.name == name || one.key == key) {
            if *same == added {
                return Ok(());
            }
            return Err(refused(format!("{} is trusted already, as '{}'", same.key, same.name))
                .hint(format!("to replace it, first 'mur plugin publisher remove {}'", same.name)));
        }
        known.push(added.clone());
        Ok(())
    })?;
    Ok(added)
}

/// Removes a publisher by name (`E-PLG-006` when there is none).
pub(super) fn remove(home: &MurmurHome, name: &str) -> Result<Publisher> {
    let mut removed = None;
    change(home, |known| {
        let at = known.iter().position(|one| one.name == name).ok_or_else(|| {
            Diagnostic::new(codes::E_PLG_006, format!("no publisher '{name}' is trusted"))
                .hint("see who is with 'mur plugin publisher list'")
        })?;
        removed = Some(known.remove(at));
        Ok(())
    })?;
    removed.ok_or_else(|| Diagnostic::new(codes::E_PLG_006, format!("no publisher '{name}' is trusted")))
}

fn change(home: &MurmurHome, edit: impl FnOnce(&mut Vec<Publisher>) -> Result<()>) -> Result<()> {
    let path = home.publishers();
    let fault = |error: std::io::Error| {
        Diagnostic::new(codes::E_PLG_007, format!("list of publishers {} cannot be written: {error}", path.display()))
    };
    make_private(home.root()).map_err(fault)?;
    // Two changes at once must not lose each other's line.
    let guard = File::open(home.root()).map_err(fault)?;
    guard.lock().map_err(fault)?;
    let mut known = read(home)?;
    let before = known.clone();
    edit(&mut known)?;
    if known == before {
        return Ok(());
    }
    write_atomic(&path, render(&known).as_bytes(), 0o600).map_err(fault)
}

fn parse(bytes: &[u8]) -> std::result::Result<Vec<Publisher>, (usize, &'static str)> {
    let text = std::str::from_utf8(bytes).map_err(|_| (1, "it is not UTF-8"))?;
    let mut lines = text.lines().enumerate();
    if lines.next().is_none_or(|(_, line)| line != FIRST_LINE) {
        return Err((1, "it does not start with 'mur-plugin-publishers 1'"));
    }
    let mut publishers: Vec<Publisher> = Vec::new();
    for (index, line) in lines.filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#')) {
        let fault = |what| (index + 1, what);
        let (name, key) = line.split_once(' ').ok_or(fault("it does not say '<name> <key>'"))?;
        if !is_plugin_name(name) {
            return Err(fault("the name is no name for a publisher"));
        }
        let key: PublisherKey = key.parse().map_err(fault)?;
        if !publisher::is_sound(&key) {
            return Err(fault("signatures for this key can be had without a secret"));
        }
        if publishers.iter().any(|known| known.name == name || known.key == key) {
            return Err(fault("this name or key stands there twice"));
        }
        publishers.push(Publisher { name: name.to_owned(), key });
    }
    Ok(publishers)
}

fn render(publishers: &[Publisher]) -> String {
    let mut text = format!("{FIRST_LINE}\n");
    for Publisher { name, key } in publishers {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name} {key}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::publisher::AuthorKey;

    #[test]
    fn publishers_are_added_once_and_removed_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let home = MurmurHome::at(dir.path().to_owned());
        let (one, two) = (AuthorKey::mint().unwrap().public(), AuthorKey::mint().unwrap().public());
        assert_eq!(read(&home).unwrap(), []);
        add(&home, "acme", &one.to_string()).unwrap();
        add(&home, "acme", &one.to_string()).unwrap();
        for (name, key) in [("acme", two), ("other", one)] {
            assert_eq!(add(&home, name, &key.to_string()).unwrap_err().code(), codes::E_PLG_010);
        }
        add(&home, "other", &two.to_string()).unwrap();
        assert_eq!(read(&home).unwrap().len(), 2);
        assert_eq!(remove(&home, "acme").unwrap().key, one);
        assert_eq!(remove(&home, "acme").unwrap_err().code(), codes::E_PLG_006);
        assert_eq!(read(&home).unwrap(), [Publisher { name: "other".into(), key: two }]);
    }

    #[test]
    fn one_bad_line_refuses_the_file_and_names_it() {
        let key = AuthorKey::mint().unwrap().public();
        let good = render(&[Publisher { name: "acme".into(), key }]);
        assert_eq!(parse(format!("{good}\n# none\n").as_bytes()).unwrap().len(), 1);
        let weak = PublisherKey([0; 32]);
        for (text, line) in [
            ("mur-plugin-publishers 2\n".to_owned(), 1),
            (format!("{good}acme\n"), 3),
            (format!("{good}other {key}\n"), 3),
            (format!("{good}Other {key}\n"), 3),
            (format!("{good}other {weak}\n"), 3),
            (format!("{good}other {key} \n"), 3),
            (format!("{good}other ed25519:xx\n"), 3),
        ] {
            assert_eq!(parse(text.as_bytes()).unwrap_err().0, line, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let _ = parse(&[b"mur-plugin-publishers 1\n", bytes.as_slice()].concat());
        }
    }
}
