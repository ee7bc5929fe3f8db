//! What the end-to-end suites share: an isolated home, the built binary run with bounded waits, capsules written, built
//! and installed as a user would, a client for doors, and traces read back.
//!
//! Nothing here imitates a part of `mur`: the suites drive the binary that `cargo xtask dist` assembled.

#![allow(clippy::disallowed_methods, reason = "suites start the binary under test with the standard library")]

pub mod capsule;
pub mod dist;
pub mod door;
pub mod home;
pub mod proc;
pub mod run;
pub mod trace;

pub use capsule::Capsule;
pub use door::Door;
pub use home::Home;
pub use run::{Output, Running};
