//! The layout of records, running records and retention.

pub mod address;
pub mod probe;
pub mod running;
