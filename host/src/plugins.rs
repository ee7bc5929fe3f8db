//! Plugins: discovery, trust, loading, and the registry of what is loaded.
