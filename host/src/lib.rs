//! `mur` hosts AI-agent capsules: WASM components run in confined guest workers, and formations of capsules whose
//! edges are signed, checked at every door, and ended together.
//!
//! Layers, top to bottom: entry (`cli`), work (`session`, `formation`, `door`), means (`worker`, `egress`,
//! `containment`, `trace`, `records`), things (`roster`, `manifest`, `artifacts`, `config`, `credentials`, `plugins`,
//! `schema`),
//! ground (`process`, `diagnostics`, `ids`, `paths`). A module uses the layers below it, never above.

pub mod cli;

pub mod doctor;
pub mod door;
pub mod formation;
pub mod session;

pub mod containment;
pub mod egress;
pub mod records;
pub mod trace;
pub mod worker;

pub mod artifacts;
pub mod config;
pub mod credentials;
pub mod manifest;
pub mod plugins;
pub mod roster;
pub mod schema;
pub mod shape;
pub mod yaml;

pub mod diagnostics;
pub mod ids;
pub mod paths;
pub mod process;
