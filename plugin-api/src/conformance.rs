//! The conformance kit: what every plugin of a kind must do, as checks that run against the exported objects.
//!
//! The same functions serve an author's own tests and `mur plugin check`.
