//! An author's side: signing a library that was built.

use std::path::{Path, PathBuf};

use mur_plugin_api::signature::{Signed, Statement};

use super::{approve, trust};
use crate::credentials::publisher::AuthorKey;
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::paths::write_atomic;

/// Signs a library as it stands and writes the signature beside it, replacing an older one. Runs none of it.
///
/// # Errors
/// What is wrong with the library (`E-PLG-002` to `E-PLG-004`), or `E-PLG-008` when the signature cannot be written.
pub fn sign(file: &Path, key: &AuthorKey) -> Result<(Signed, PathBuf)> {
    let library = std::fs::canonicalize(file).map_err(|error| {
        Diagnostic::new(codes::E_PLG_003, format!("plugin library {} cannot be read: {error}", file.display()))
            .hint("name the library that was built")
    })?;
    let opened = trust::open_library(&library)?;
    let signed = key.sign(Statement::new(key.public(), &opened.header()?, opened.digest()?));
    let path = approve::signature_of(&library);
    write_atomic(&path, signed.render().as_bytes(), 0o644).map_err(|error| {
        Diagnostic::new(codes::E_PLG_008, format!("plugin signature {} cannot be written: {error}", path.display()))
            .hint("sign the library in a directory that you can write")
    })?;
    Ok((signed, path))
}
