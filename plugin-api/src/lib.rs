//! The stable ABI between `mur` and its plugins, and the conformance kit every plugin can be tested with.

pub mod class;

pub use class::Class;
