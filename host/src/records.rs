//! The layout of records, running records and retention.

pub mod address;
pub mod elsewhere;
pub mod formations;
pub mod members;
pub mod probe;
pub mod read;
pub mod recorded;
pub mod running;
pub mod stop;
