//! `mur config set`: changing one value of a configuration file and nothing else.
//!
//! The file's own text is edited, so that comments, order and keys of other programs survive. The edit is trusted only
//! when the result reads as the old values with the one changed; otherwise the whole file is written anew from its
//! values.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::{MAX_BYTES, PROJECT_FILE};
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::manifest::is_credential_name;
use crate::paths::{self, MurmurHome};
use crate::yaml::{self, Entry, Kind, Mark, Node, ReadFault};

/// Keys that can be set, besides `credentials.<NAME>`.
pub const KEYS: [&str; 5] =
    ["registry.index_url", "inference.provider", "inference.model", API_KEY, "inference.endpoint"];

/// A key, so never in a project's file.
pub const API_KEY: &str = "inference.api_key";

/// Which file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// `~/.murmur/config.yaml`.
    Global(&'a MurmurHome),
    /// `.murmur/config.yaml` below this directory.
    Project(&'a Path),
}

/// Sets one key and returns the file that was written, as it is shown.
///
/// # Errors
/// `E-CFG-002` for a key that cannot be set there, `E-IO-003` for a file that cannot be read, parsed or written.
/// Nothing is written then.
pub fn set(target: Target<'_>, key: &str, value: &str) -> Result<String> {
    let (block, name) = known(target, key)?;
    let (path, shown) = match target {
        Target::Global(home) => (home.config(), "~/.murmur/config.yaml".to_owned()),
        Target::Project(dir) => (dir.join(PROJECT_FILE), format!("./{PROJECT_FILE}")),
    };
    let refused = |why: String| Diagnostic::new(codes::E_IO_003, format!("{shown}: {why}"));
    let text = match yaml::read_file(&path, MAX_BYTES) {
        Ok(bytes) => String::from_utf8(bytes).map_err(|_| refused("the file is not UTF-8".to_owned()))?,
        Err(ReadFault::Missing) => String::new(),
        Err(ReadFault::Other(why)) => return Err(refused(why)),
    };
    let text = edit(&text, &[block, name], value).map_err(refused)?;
    write(target, &path, &text).map_err(|error| refused(format!("cannot be written: {error}")))?;
    Ok(shown)
}

fn known<'k>(target: Target<'_>, key: &'k str) -> Result<(&'k str, &'k str)> {
    let refused = |why: String, hint: String| Err(Diagnostic::new(codes::E_CFG_002, why).hint(hint));
    if let Some(name) = key.strip_prefix("credentials.") {
        if !is_credential_name(name) {
            return refused(
                format!("'{key}': '{name}' is no name of a credential"),
                "a credential's name matches [A-Z_][A-Z0-9_]*".to_owned(),
            );
        }
        if matches!(target, Target::Project(_)) {
            return refused(
                format!("'{key}' can only be set for all projects"),
                format!("mur config set -g {key} <value>; a project's file never holds credentials"),
            );
        }
        return Ok(("credentials", name));
    }
    if key == API_KEY && matches!(target, Target::Project(_)) {
        return refused(
            format!("'{key}' can only be set for all projects"),
            format!("mur config set -g {key} <value>; a project's file never holds keys"),
        );
    }
    match key.split_once('.') {
        Some(parts) if KEYS.contains(&key) => Ok(parts),
        _ => refused(
            format!("'{key}' cannot be set"),
            format!("one of: {}, credentials.<NAME> (keys with -g)", KEYS.join(", ")),
        ),
    }
}

fn write(target: Target<'_>, path: &Path, text: &str) -> io::Result<()> {
    // A linked file keeps its link; what it points to is replaced.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    match target {
        Target::Global(home) => {
            paths::make_private(home.root())?;
            let mut permissions = fs::metadata(home.root())?.permissions();
            if permissions.mode() & 0o077 != 0 {
                permissions.set_mode(0o700);
                fs::set_permissions(home.root(), permissions)?;
            }
            paths::write_atomic(&path, text.as_bytes(), 0o600)
        }
        Target::Project(_) => {
            fs::create_dir_all(path.parent().map_or_else(PathBuf::new, Path::to_owned))?;
            paths::write_atomic(&path, text.as_bytes(), 0o666)
        }
    }
}

/// The text with `block.key` set to a string. The reason is in words and repeats nothing of the text.
pub(super) fn edit(text: &str, path: &[&str; 2], value: &str) -> std::result::Result<String, String> {
    let root = read(text)?;
    let wanted = with_value(&root, path, value)?;
    if let Some(edited) = edit_text(text, &root, path, value)
        && read(&edited).is_ok_and(|found| same(&found, &wanted))
    {
        return Ok(edited);
    }
    let mut whole = String::new();
    emit(&wanted, 0, &mut whole);
    match read(&whole) {
        Ok(found) if same(&found, &wanted) => Ok(whole),
        _ => Err("the file cannot be rewritten without changing what it says; edit it by hand".to_owned()),
    }
}

fn read(text: &str) -> std::result::Result<Node, String> {
    let doc = yaml::parse("config.yaml", text.as_bytes(), MAX_BYTES).map_err(|fault| fault.message())?;
    Ok(doc.root().clone())
}

fn scalar(text: &str) -> Node {
    Node { mark: Mark::default(), kind: Kind::Scalar { text: text.into(), plain: false } }
}

/// The tree with the value in its place; null blocks become mappings.
fn with_value(root: &Node, path: &[&str], value: &str) -> std::result::Result<Node, String> {
    let Some((key, rest)) = path.split_first() else { return Ok(scalar(value)) };
    let mut entries = match &root.kind {
        Kind::Map(entries) => entries.clone(),
        _ if root.is_null() => Vec::new(),
        _ => return Err(format!("what should hold '{key}' is no mapping")),
    };
    let null = Node { mark: Mark::default(), kind: Kind::Scalar { text: "".into(), plain: true } };
    match entries.iter_mut().find(|entry| &*entry.key == *key) {
        Some(entry) => entry.value = with_value(&entry.value, rest, value)?,
        None => {
            let value = with_value(&null, rest, value)?;
            entries.push(Entry { key: (*key).into(), key_is_text: true, mark: Mark::default(), value });
        }
    }
    Ok(Node { mark: root.mark, kind: Kind::Map(entries) })
}

/// Equal but for places and the order of keys.
fn same(a: &Node, b: &Node) -> bool {
    match (&a.kind, &b.kind) {
        (Kind::Scalar { .. }, Kind::Scalar { .. }) if a.is_null() && b.is_null() => true,
        (Kind::List(a), Kind::List(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Kind::Map(a), Kind::Map(other)) => {
            a.len() == other.len()
                && a.iter().all(|entry| b.get(&entry.key).is_some_and(|value| same(&entry.value, value)))
        }
        (a, b) => a == b,
    }
}

/// The simple edits: a line replaced, a line added to a block, a block added at the end.
fn edit_text(text: &str, root: &Node, path: &[&str; 2], value: &str) -> Option<String> {
    let [block, key] = path;
    let quoted = quoted(value);
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let line_of = |mark: Mark| mark.line as usize - 1;
    match root.entry(block) {
        None => {
            lines.push(format!("{block}:"));
            lines.push(format!("  {key}: {quoted}"));
        }
        Some(outer) if outer.value.is_null() => {
            let at = line_of(outer.mark);
            *lines.get_mut(at)? = format!("{block}:");
            lines.insert(at + 1, format!("  {key}: {quoted}"));
        }
        Some(outer) => match outer.value.entry(key) {
            None => {
                let first = outer.value.map()?.first()?;
                let indent = " ".repeat(first.mark.column as usize - 1);
                lines.insert(line_of(first.mark), format!("{indent}{key}: {quoted}"));
            }
            Some(inner) => {
                let line = lines.get_mut(line_of(inner.mark))?;
                let lead: String = line.chars().take(inner.mark.column as usize - 1).collect();
                *line = format!("{lead}{key}: {quoted}");
            }
        },
    }
    Some(lines.join("\n") + "\n")
}

/// A string as YAML reads it back, whatever is in it.
fn quoted(text: &str) -> String {
    serde_json::Value::String(text.to_owned()).to_string()
}

/// Writes a tree in block style.
fn emit(node: &Node, indent: usize, out: &mut String) {
    let pad = " ".repeat(indent);
    match &node.kind {
        Kind::Map(entries) if indent == 0 || !entries.is_empty() => {
            for entry in entries {
                let plain = !entry.key_is_text
                    || entry.key.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'));
                let key = if plain { entry.key.to_string() } else { quoted(&entry.key) };
                let _ = write!(out, "{pad}{key}:");
                emit_value(&entry.value, indent, out);
            }
        }
        Kind::List(items) if !items.is_empty() => {
            for item in items {
                let _ = write!(out, "{pad}-");
                emit_value(item, indent, out);
            }
        }
        _ => {}
    }
}

fn emit_value(node: &Node, indent: usize, out: &mut String) {
    match &node.kind {
        Kind::Scalar { text, plain: true } => {
            let _ = writeln!(out, " {text}");
        }
        Kind::Scalar { text, .. } => {
            let _ = writeln!(out, " {}", quoted(text));
        }
        Kind::Map(entries) if entries.is_empty() => out.push_str(" {}\n"),
        Kind::List(items) if items.is_empty() => out.push_str(" []\n"),
        _ => {
            out.push('\n');
            emit(node, indent + 2, out);
        }
    }
}
