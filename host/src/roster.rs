//! Rosters: parsing, checking and admission.

pub mod admit;
