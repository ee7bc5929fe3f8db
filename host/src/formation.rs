//! Formations: the launcher, readiness, member directories and their marker, ends, retention.
