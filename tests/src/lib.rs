//! The end-to-end harness: everything a suite needs to drive the built `mur` from outside.
//!
//! - [`World`]: a home and a project of one test's own, and `mur` run in them ([`Invocation`], [`Running`], [`Done`]);
//! - [`Agent`], [`Roster`]: sources of capsules and formations, built and installed by `mur` itself;
//! - [`Door`]: a client of a session's door that can also misbehave;
//! - [`Provider`]: a model provider that speaks real HTTP, well and badly;
//! - [`Trace`]: what a session recorded;
//! - [`ordinary`]: a user who is not root, and a place in the cgroup tree of theirs;
//! - [`escape`]: the escape-conformance harness.
//!
//! Every wait is bounded by [`PATIENCE`], every process is gone when the test ends, and nothing is shared between tests.
//! The binary is the one under `target/dist/debug`, made by `cargo xtask dist`; `MUR_DIST` names another.

mod capsule;
pub mod commands;
pub mod component;
pub mod conversation;
mod dist;
mod door;
pub mod escape;
pub mod hooked;
pub mod launcher;
mod lines;
pub mod live;
pub mod ordinary;
mod process;
mod provider;
mod trace;
mod world;

pub use capsule::{Agent, Roster};
pub use dist::{bundled_component, bundled_version, dist, mur_binary};
pub use door::{Door, Reply, Stream};
pub use process::{Done, Invocation, PATIENCE, Running, wait_until};
pub use provider::{Answer, Piece, Provider, Seen, anthropic, openai};
pub use trace::{Record, Trace};
pub use world::World;
