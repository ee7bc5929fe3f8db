//! The door: the session's HTTP listener, agent card, authorization, JSON-RPC methods and streams.
