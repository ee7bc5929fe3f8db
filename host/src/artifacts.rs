//! Artifacts: names, archives, stores, the lock, compiled forms.

pub mod compile;
