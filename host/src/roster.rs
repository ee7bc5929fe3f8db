//! Rosters: parsing, checking and admission.
//!
//! Parsing and checks 1 to 5 read no store; [`admission`] does the rest. Everything stops at the first fault.

pub mod admission;
pub mod admit;
