//! `mur __admit`: admits a roster for the launcher, which itself loads no plugin.
//!
//! One request frame on standard input, one answer frame on standard output; each a length of four bytes, little-endian,
//! and that many bytes of JSON. Checks 1 to 5 are made before any plugin is loaded. While it asks the stores, the child
//! says on standard error what it is about to do, so that a store that takes the process down can be named.

mod ahead;
mod frame;
mod parent;
mod stores;

use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

pub use parent::{admit_in_child, survey_in_child};

use super::admission::{self, Admitted};
use super::survey::{self, Survey};
use crate::diagnostics::{Diagnostic, Result};
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
    /// The whole roster is to be looked at, admitted or not.
    #[serde(default)]
    survey: bool,
}

impl Request {
    fn new(project: &Path, text: &[u8], survey: bool) -> Self {
        Self { project: STANDARD.encode(project.as_os_str().as_bytes()), text: STANDARD.encode(text), survey }
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
    Surveyed(Survey),
    Refused(Diagnostic),
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
    let parsed = serde_json::from_slice::<Request>(&request).ok();
    drop(request);
    let Some((survey, (project, text))) = parsed.and_then(|request| Some((request.survey, request.open()?))) else {
        return complain("mur __admit: the request cannot be read");
    };
    let answer = answer(&project, &text, survey).unwrap_or_else(Answer::Refused);
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

/// Admits or surveys in this process: the structure first, then what loads plugins.
fn answer(project: &Path, text: &[u8], survey: bool) -> Result<Answer> {
    let roster = super::parse(text)?;
    let checked = roster.check()?;
    let home = MurmurHome::from_env()?;
    let mut source = stores::StoreSource::open(&home, project)?;
    match survey {
        true => Ok(Answer::Surveyed(survey::survey(&roster, checked, &mut source))),
        false => admission::admit(&roster, checked, &mut source).map(Answer::Admitted),
    }
}
