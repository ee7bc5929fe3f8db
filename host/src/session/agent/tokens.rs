//! Counting tokens: exactly only where a ceiling depends on it, since the encoding's table costs a start.

use std::sync::OnceLock;

use tiktoken_rs::CoreBPE;

/// Texts longer than this are estimated even under a ceiling: encoding them would take seconds.
const EXACT_MAX: usize = 8 << 20;

/// Bytes of text a token stands for, on average, when it is not counted.
const BYTES_PER_TOKEN: u64 = 4;

/// A quarter of the bytes, rounded up.
pub fn estimate_bytes(bytes: usize) -> u64 {
    (bytes as u64).div_ceil(BYTES_PER_TOKEN)
}

/// The `cl100k_base` count, made off the async thread; the estimate when the table cannot be used.
pub async fn count(text: String) -> u64 {
    let estimated = estimate_bytes(text.len());
    if text.len() > EXACT_MAX {
        return estimated;
    }
    let counted = tokio::task::spawn_blocking(move || {
        static TABLE: OnceLock<Option<CoreBPE>> = OnceLock::new();
        let table = TABLE.get_or_init(|| tiktoken_rs::cl100k_base().ok());
        table.as_ref().map(|table| table.encode_ordinary(&text).len() as u64)
    });
    counted.await.ok().flatten().unwrap_or(estimated)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_estimate_is_a_quarter_of_the_bytes() {
        assert_eq!([0, 3, 4, 5].map(estimate_bytes), [0, 1, 1, 2]);
    }

    #[tokio::test]
    async fn a_count_is_that_of_the_encoding() {
        assert_eq!(count("hello world".into()).await, 2);
        assert_eq!(count("<|endoftext|>".into()).await, 7, "special tokens are plain text");
    }
}
