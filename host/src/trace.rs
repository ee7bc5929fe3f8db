//! Trace records and their fan-out to sinks.
