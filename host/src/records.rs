//! The layout of records, running records and retention.
