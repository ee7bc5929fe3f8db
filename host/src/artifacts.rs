//! Artifacts: what they are called, how their archives are read, where they are stored, what the lock pins, and their
//! compiled forms.

pub mod archive;
pub mod compile;
pub mod compiled;
pub mod lock;
pub mod name;
pub mod store;

pub use archive::{Archive, ArchiveError, Packaging, Payload};
pub use compiled::{CompiledForm, compiled_form, compiled_form_of};
pub use lock::Lock;
pub use name::{ArtifactName, Digest, Platform, Version};
pub use store::{Found, Stores, Verified};
