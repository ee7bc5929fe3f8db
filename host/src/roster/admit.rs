//! `mur __admit`: admits a roster for the launcher, which itself loads no plugin.
//!
//! One request frame on standard input, one answer frame on standard output; each a length of four bytes, little-endian,
//! and that many bytes of JSON. Checks 1 to 5 are made before any plugin is loaded. While it asks the stores, the child
//! says on standard error what it is about to do, so that a store that takes the process down can be named.

mod frame;
mod parent;
mod stores;

use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

pub use parent::admit_in_child;

use super::admission::{self, Admitted};
use crate::diagnostics::{Code, Diagnostic, Place, Result, codes};
use crate::paths::MurmurHome;

/// Largest request: a roster of [`super::MAX_BYTES`] in base64, a path, and what is around them.
const MAX_REQUEST: usize = 24 << 20;

/// Largest answer: ten million edges as pairs of numbers; a roster of 16 MiB names fewer.
const MAX_ANSWER: usize = 256 << 20;

/// What is to be admitted. Bytes travel as base64, since neither need be UTF-8.
#[derive(Serialize, Deserialize)]
struct Request {
    project: String,
    text: String,
}

impl Request {
    fn new(project: &Path, text: &[u8]) -> Self {
        Self { project: STANDARD.encode(project.as_os_str().as_bytes()), text: STANDARD.encode(text) }
    }

    fn open(&self) -> Option<(PathBuf, Vec<u8>)> {
        let project = STANDARD.decode(&self.project).ok()?;
        Some((PathBuf::from(std::ffi::OsString::from_vec(project)), STANDARD.decode(&self.text).ok()?))
    }
}

/// What came of it.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Answer {
    Admitted(Admitted),
    Refused(Refusal),
}

/// A diagnostic between two processes.
#[derive(Serialize, Deserialize)]
struct Refusal {
    code: String,
    message: String,
    hint: Option<String>,
    place: Option<(String, usize, usize, String)>,
}

impl From<Diagnostic> for Refusal {
    fn from(diagnostic: Diagnostic) -> Self {
        let place = diagnostic.place().map(|place| (place.file.clone(), place.line, place.column, place.text.clone()));
        Self {
            code: diagnostic.code().as_str().to_owned(),
            message: diagnostic.message().to_owned(),
            hint: diagnostic.hint_text().map(str::to_owned),
            place,
        }
    }
}

impl From<Refusal> for Diagnostic {
    fn from(refusal: Refusal) -> Self {
        let code = Code::find(&refusal.code).unwrap_or(codes::E_ROS_007);
        let mut diagnostic = Self::new(code, refusal.message);
        if let Some(hint) = refusal.hint {
            diagnostic = diagnostic.hint(hint);
        }
        if let Some((file, line, column, text)) = refusal.place {
            diagnostic = diagnostic.at(Place { file, line, column, text });
        }
        diagnostic
    }
}

/// Entry of the hidden subcommand: 0 when an answer was given, whatever it says.
pub fn main() -> u8 {
    crate::process::start::die_with_parent();
    let mut stdin = io::stdin().lock();
    let request = match frame::read(&mut stdin, MAX_REQUEST) {
        Ok(bytes) => bytes,
        Err(error) => return complain(&format!("mur __admit: no request: {error}")),
    };
    // Started by mur only: one request, and nothing after it.
    if !matches!(stdin.read(&mut [0]), Ok(0)) {
        return complain("mur __admit: something follows the request");
    }
    let Some((project, text)) = serde_json::from_slice::<Request>(&request).ok().and_then(|request| request.open())
    else {
        return complain("mur __admit: the request cannot be read");
    };
    drop(request);
    let answer = match admit(&project, &text) {
        Ok(admitted) => Answer::Admitted(admitted),
        Err(refusal) => Answer::Refused(refusal.into()),
    };
    let sent = serde_json::to_vec(&answer).map_err(io::Error::other).and_then(|bytes| {
        let mut stdout = io::stdout().lock();
        frame::write(&mut stdout, &bytes)?;
        stdout.flush()
    });
    match sent {
        Ok(()) => 0,
        Err(error) => complain(&format!("mur __admit: the answer cannot be sent: {error}")),
    }
}

fn complain(line: &str) -> u8 {
    crate::diagnostics::output::stderr_line(line);
    1
}

/// Admits in this process: the structure first, then what loads plugins.
fn admit(project: &Path, text: &[u8]) -> Result<Admitted> {
    let roster = super::parse(text)?;
    let checked = roster.check()?;
    let home = MurmurHome::from_env()?;
    let mut source = stores::StoreSource::open(&home, project)?;
    admission::admit(&roster, checked, &mut source)
}
