//! Compiled forms: machine code of components, kept under `~/.murmur/compiled` and handed to workers as read-only
//! descriptors, so that members that run the same artifact share its pages.
//!
//! Trouble with the cache never refuses a launch: at worst a form is compiled again, into memory.

mod cache;
mod compiler;

use std::os::fd::OwnedFd;
use std::path::Path;

use self::cache::Cache;
use super::archive::{self, Payload};
use super::level::Interfaces;
use super::name::Digest;
use super::store::Verified;
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::paths::{MurmurHome, resolve_through_existing};
use crate::worker::engine;

/// One component as machine code for the engine of this binary.
#[derive(Debug)]
pub struct CompiledForm {
    /// Read-only descriptor of it: a file of the cache, or a sealed memory file.
    pub fd: OwnedFd,
    /// SHA-256 of the machine code.
    pub digest: Digest,
    /// What the component imports and exports.
    pub interfaces: Interfaces,
}

/// Where a form came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It had been compiled before.
    AlreadyStored,
    /// It was compiled now.
    Compiled,
}

/// The compiled forms of one operator.
#[derive(Debug)]
pub struct Forms {
    cache: Option<Cache>,
}

impl Forms {
    /// Forms of this home. The cache is left alone when it lies in `writable`, a folder that the capsule's own code can
    /// write: what was stored there could be anything.
    pub fn open(home: &MurmurHome, writable: Option<&Path>) -> Self {
        let exposed = writable.is_some_and(|folder| {
            let folder = resolve_through_existing(folder);
            [home.root().to_owned(), home.compiled()]
                .iter()
                .any(|dir| resolve_through_existing(dir).starts_with(&folder))
        });
        Self { cache: if exposed { None } else { Cache::open(home) } }
    }

    /// Whether forms are kept.
    pub fn are_kept(&self) -> bool {
        self.cache.is_some()
    }

    /// The form of a wasm artifact that was read from a store. With a warm cache nothing is inflated: the key is the
    /// archive's hash. Blocks for as long as a compilation takes when the cache has no form.
    pub fn of(&self, artifact: &Verified) -> Result<CompiledForm> {
        Ok(self.of_with_outcome(artifact)?.0)
    }

    /// [`Forms::of`], and whether it was compiled now.
    pub fn of_with_outcome(&self, artifact: &Verified) -> Result<(CompiledForm, Outcome)> {
        let name = artifact.reference();
        self.form(&artifact.sha256, &name, || match artifact.payload()? {
            Payload::Wasm { bytes, .. } => Ok(bytes),
            Payload::Native(_) | Payload::Static(_) => Err(not_wasm(&name)),
        })
    }

    /// The form of a component that is in no archive (a script capsule run from its project).
    pub fn of_component(&self, component: &[u8], name: &str) -> Result<CompiledForm> {
        let bytes = bytes::Bytes::copy_from_slice(component);
        Ok(self.form(&Digest::of(component), name, || Ok(bytes))?.0)
    }

    fn form(
        &self,
        key: &Digest,
        name: &str,
        component: impl FnOnce() -> Result<bytes::Bytes>,
    ) -> Result<(CompiledForm, Outcome)> {
        let Some(cache) = &self.cache else {
            return Ok((compiler::into_memory(&component()?, name)?, Outcome::Compiled));
        };
        let file = format!("{key}-{}.cwasm", engine_key());
        if let Some(form) = cache.load(&file) {
            return Ok((form, Outcome::AlreadyStored));
        }
        // One compiles a key at a time; who waited finds the form that the other made.
        let _turn = cache.turn(&file, compiler::DEADLINE);
        if let Some(form) = cache.load(&file) {
            return Ok((form, Outcome::AlreadyStored));
        }
        let component = component()?;
        let stored =
            cache.store(&file, &Interfaces::of(&component), |output| compiler::run(&component, output, name))?;
        match stored {
            Some(form) => Ok((form, Outcome::Compiled)),
            None => Ok((compiler::into_memory(&component, name)?, Outcome::Compiled)),
        }
    }
}

/// The compiled form of a component's bytes; `name` is the artifact as messages name it.
pub fn compiled_form(home: &MurmurHome, component: &[u8], name: &str) -> Result<CompiledForm> {
    Forms::open(home, None).of_component(component, name)
}

/// The compiled form of a wasm artifact that was read from a store.
pub fn compiled_form_of(home: &MurmurHome, artifact: &Verified) -> Result<CompiledForm> {
    Forms::open(home, None).of(artifact)
}

/// What besides the component decides the machine code, and the ceiling that decides which components are read at all.
fn engine_key() -> String {
    let text = format!("{} ceiling {}", engine::settings_hash(), archive::ceiling());
    let mut hex = Digest::of(text.as_bytes()).hex();
    hex.truncate(16);
    hex
}

fn not_wasm(name: &str) -> Diagnostic {
    Diagnostic::new(codes::E_RUN_001, format!("'{name}' has no component to compile"))
}
