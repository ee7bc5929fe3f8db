//! Everything that leaves the machine or goes to a peer: allow-list, HTTP client, credential gateway, formation addresses.
