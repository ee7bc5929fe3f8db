//! Provider keys, and how they are taken out of texts.

pub use crate::config::Secret;

/// What stands where a key was.
const REDACTED: &str = "[redacted]";

/// Texts shorter than this are too common to be replaced wherever they appear.
const SHORTEST_REDACTED: usize = 6;

/// Replaces every occurrence of a secret in a text.
pub fn redact(text: &str, secrets: &[Secret]) -> String {
    let mut known: Vec<&str> =
        secrets.iter().map(Secret::expose).filter(|key| key.len() >= SHORTEST_REDACTED).collect();
    // A key that contains another is replaced whole.
    known.sort_by_key(|key| std::cmp::Reverse(key.len()));
    known.into_iter().fold(
        text.to_owned(),
        |text, key| {
            if text.contains(key) { text.replace(key, REDACTED) } else { text }
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_occurrence_is_replaced_and_the_longer_key_first() {
        let keys = [Secret::new("sk-live".into()), Secret::new("sk-live-2".into()), Secret::new("a".into())];
        assert_eq!(redact("a sk-live-2 b sk-live c sk-live", &keys), "a [redacted] b [redacted] c [redacted]");
    }
}
