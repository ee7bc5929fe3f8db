//! The one YAML reader: strict, positioned, bounded.
