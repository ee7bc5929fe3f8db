//! Formations: the launcher that admits a roster, signs its edges, starts its members, and ends them.
//!
//! The launcher loads no plugin, runs no WASM and serves no door. Each member is a `mur run` of its own that holds the
//! read end of a lifeline; the launcher holds the only write end, so the formation ends with the launcher, however it
//! ends.

pub mod announce;
pub mod channel;
pub mod credentials;
pub mod drive;
pub mod launch;
pub mod machine;
pub mod member;
pub mod project;
pub mod readiness;
pub mod refusal;
pub mod relay;
pub mod retention;
pub mod signals;

#[cfg(test)]
mod exploration;
