//! Configuration files.
