//! Artifacts: what they are called, how their archives are read, where they are stored, what the lock pins, and their
//! compiled forms.

pub mod archive;
pub mod build;
pub mod compile;
pub mod compiled;
pub mod install;
pub mod level;
pub mod lock;
pub mod name;
pub mod project;
pub mod skill;
pub mod source;
pub mod store;

pub use archive::{Archive, ArchiveError, Payload};
pub use compiled::{CompiledForm, Forms, compiled_form, compiled_form_of};
pub use level::Interfaces;
pub use lock::{Bound, Lock};
pub use name::{ArtifactName, Digest, Platform, Version};
pub use store::{Found, Place, Stores, Verified};
