//! Containment classes in the host: floors, the class in force, and the request handed to a backend.

pub mod enclosure;

pub mod enter;
