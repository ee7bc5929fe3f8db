//! Whether a library may be loaded: because it is pinned, or because a trusted publisher signed it.
//!
//! The library is opened once; digest, header and signature are judged from that descriptor, and what is loaded later is
//! that descriptor too.

use std::path::{Path, PathBuf};

use mur_plugin_api::signature::{self, MAX_SIGNATURE, Signed};
use mur_plugin_api::{HeaderInfo, Kind};

use super::catalog::Pinned;
use super::publishers::Publisher;
use super::trust::{self, Opened};
use crate::credentials::publisher;
use crate::diagnostics::{Diagnostic, Result, codes};

/// A library that somebody asks for, and what the locks say of it.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) path: PathBuf,
    pub(super) pin: Option<Pinned>,
    /// Pinned in the lock that came with this mur.
    pub(super) first_party: bool,
}

/// Why a library is trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trusted {
    /// It came with this mur.
    FirstParty,
    /// The operator pinned it.
    Pinned,
    /// The publisher of this name signed it.
    Signed(String),
}

/// A library that may be loaded, from this descriptor.
pub(super) struct Approved {
    pub(super) opened: Opened,
    pub(super) header: HeaderInfo,
    pub(super) by: Trusted,
}

/// Everything a judgement rests on.
pub(super) struct Grounds<'a> {
    pub(super) first_party: &'a [Pinned],
    /// Read only when a signature is met.
    pub(super) publishers: &'a dyn Fn() -> Result<&'a [Publisher]>,
}

impl Candidate {
    /// A pinned library.
    pub(super) fn pinned(pinned: &Pinned, first_party: bool) -> Self {
        Self { path: pinned.path.clone(), pin: Some(pinned.clone()), first_party }
    }

    /// Opens and judges the library (`E-PLG-001` to `E-PLG-004`, `E-PLG-007` to `E-PLG-009`). Runs none of it.
    pub(super) fn approve(&self, grounds: &Grounds<'_>) -> Result<Approved> {
        let opened = trust::open_library(&self.path)?;
        let digest = opened.digest()?;
        let pinned = self.pin.as_ref().filter(|pinned| pinned.pin.sha256 == digest);
        if let Some(pinned) = pinned {
            let header = opened.header()?;
            pinned.check(&header)?;
            let by = if self.first_party { Trusted::FirstParty } else { Trusted::Pinned };
            return Ok(Approved { opened, header, by });
        }
        // What came with mur is what its own lock says, whoever signs something else.
        let refused = || self.pin.as_ref().map_or_else(|| not_trusted(&self.path), |pinned| pinned.changed(&digest));
        if self.first_party {
            return Err(refused());
        }
        let Some(signed) = beside(&self.path)? else { return Err(refused()) };
        let header = opened.header()?;
        check_name(grounds.first_party, &self.path, &header)?;
        if let Some(pinned) = &self.pin {
            pinned.check(&header)?;
        }
        let name = judge(&signed, &self.path, &header, &digest, (grounds.publishers)()?)?;
        Ok(Approved { opened, header, by: Trusted::Signed(name) })
    }
}

/// The signature's place.
pub(super) fn signature_of(library: &Path) -> PathBuf {
    let mut name = library.as_os_str().to_owned();
    name.push(signature::SUFFIX);
    name.into()
}

/// The signature beside a library, if there is one.
fn beside(library: &Path) -> Result<Option<Signed>> {
    let path = signature_of(library);
    let Some(opened) = trust::open_signature(&path)? else { return Ok(None) };
    signature::parse(&opened.read_small(MAX_SIGNATURE)?)
        .map(Some)
        .map_err(|error| unsound(&path, &format!("cannot be read: {error}")))
}

/// The name of the trusted publisher who signed exactly this library.
fn judge(
    signed: &Signed,
    library: &Path,
    header: &HeaderInfo,
    digest: &str,
    publishers: &[Publisher],
) -> Result<String> {
    let path = signature_of(library);
    let statement = &signed.statement;
    if !publisher::holds(signed) {
        return Err(unsound(&path, &format!("does not hold: {} did not sign what it says", statement.publisher)));
    }
    if statement.sha256 != digest {
        let other = format!(
            "is of another library: it signs the SHA-256 {}, that of {} is {digest}",
            statement.sha256,
            library.display()
        );
        return Err(unsound(&path, &other));
    }
    let said = (statement.kind, statement.name.as_str(), statement.version.as_str());
    let is = (header.kind, header.name.as_str(), header.version.as_str());
    if said != is {
        let text = |(kind, name, version): (Kind, &str, &str)| format!("{kind} '{name}' {version}");
        return Err(unsound(&path, &format!("is for {}, but the library says it is {}", text(said), text(is))));
    }
    publishers.iter().find(|known| known.key == statement.publisher).map(|known| known.name.clone()).ok_or_else(|| {
        Diagnostic::new(
            codes::E_PLG_009,
            format!(
                "plugin library {} is signed by {}, a publisher you do not trust, so it is not loaded",
                library.display(),
                statement.publisher
            ),
        )
        .hint(
            "if that key is theirs and you trust all they sign as mur itself: 'mur plugin publisher trust NAME KEY'; for \
             this file alone: 'mur plugin trust FILE'",
        )
    })
}

fn unsound(path: &Path, why: &str) -> Diagnostic {
    Diagnostic::new(codes::E_PLG_008, format!("plugin signature {} {why}", path.display()))
        .hint("fetch library and signature again, together; an author signs after every build: 'mur plugin sign FILE'")
}

/// The names of this mur's own plugins are nobody else's (`E-PLG-001`).
pub(super) fn check_name(first_party: &[Pinned], path: &Path, header: &HeaderInfo) -> Result<()> {
    let own = first_party.iter().find(|own| own.pin.kind == header.kind && own.pin.name == header.name);
    own.map_or(Ok(()), |own| {
        Err(Diagnostic::new(
            codes::E_PLG_001,
            format!(
                "plugin library {} cannot be trusted: {} '{}' is the name of this mur's own plugin ({})",
                path.display(),
                header.kind,
                header.name,
                own.path.display()
            ),
        )
        .hint("build the plugin under another name"))
    })
}

/// `E-PLG-001`: neither pinned nor signed.
pub(super) fn not_trusted(path: &Path) -> Diagnostic {
    Diagnostic::new(
        codes::E_PLG_001,
        format!("plugin library {} is not pinned and has no signature beside it, so it is not loaded", path.display()),
    )
    .hint(format!("if you trust it as mur itself, pin it with 'mur plugin trust {}'", path.display()))
}
