//! `call-member`: work given to other members of the formation, and the answers that come back together.
//!
//! A call is one background task from its first offer to its ending: it offers while the member is busy, then watches
//! the member's task. What the tool returns is only how the first offer went. Requests leave through the session's
//! egress under the member's virtual address, so no door URL and no token ever passes through here.

mod calls;
mod client;
mod message;
mod pace;
mod protocol;

pub use calls::{Caller, Calls, Reply};
pub use client::Redactor;
pub use message::continuation;
pub use pace::jitter;
