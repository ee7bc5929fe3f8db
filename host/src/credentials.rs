//! Edge tokens, the formation channel, door tokens and secret types.
