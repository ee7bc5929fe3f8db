//! A diagnostic between two processes of one `mur`, as JSON.

use serde::{Deserialize, Serialize};

use super::{Code, Diagnostic, Place};

/// What travels: the code by its name, so that the table stays the only place that knows codes.
#[derive(Serialize, Deserialize)]
pub(super) struct Wire {
    code: String,
    message: String,
    hint: Option<String>,
    place: Option<(String, usize, usize, String)>,
}

impl From<Diagnostic> for Wire {
    fn from(diagnostic: Diagnostic) -> Self {
        let place = diagnostic.place.map(|place| (place.file, place.line, place.column, place.text));
        Self { code: diagnostic.code.as_str().to_owned(), message: diagnostic.message, hint: diagnostic.hint, place }
    }
}

impl TryFrom<Wire> for Diagnostic {
    type Error = String;

    fn try_from(wire: Wire) -> Result<Self, String> {
        let code = Code::find(&wire.code).ok_or_else(|| format!("'{}' is no code", wire.code))?;
        let place = wire.place.map(|(file, line, column, text)| Place { file, line, column, text });
        Ok(Self { code, message: wire.message, hint: wire.hint, place })
    }
}
