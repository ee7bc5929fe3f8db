//! Formations looked at while they live: processes by `/proc`, doors, traces, and the launch most suites share.

pub mod calling;
pub mod capsule;
pub mod door;
pub mod formation;
pub mod gate;
pub mod home;
pub mod member;
pub mod proc;
pub mod run;
pub mod soak;
pub mod stops;
pub mod trace;

pub use capsule::Capsule;
pub use door::Door;
pub use gate::Gate;
pub use home::Home;
pub use member::Member;
pub use run::{Output, Running};
