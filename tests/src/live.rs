//! Formations looked at while they live: processes by `/proc`, doors, traces, and the launch most suites share.

pub mod capsule;
pub mod dist;
pub mod door;
pub mod formation;
pub mod home;
pub mod proc;
pub mod run;
pub mod soak;
pub mod trace;

pub use capsule::Capsule;
pub use door::Door;
pub use home::Home;
pub use run::{Output, Running};
