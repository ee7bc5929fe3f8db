//! The capsule manifest, `murmur.yaml`.
