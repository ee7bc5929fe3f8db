//! Guest workers: all WASM code runs there.

pub mod guest;
