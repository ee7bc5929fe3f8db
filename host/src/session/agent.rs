//! The agent loop: a task is asked of the model turn by turn, its tools are run, and its answer is handed back.

mod fence;
mod members;
mod prompt;
mod retry;
mod spend;
mod tokens;
mod wire;

/// Lowercase hex digits.
fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
