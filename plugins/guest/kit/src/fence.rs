//! Taking text out of the fence that the host puts around content from outside.

/// A fenced block: where it is from, and what it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block<'a> {
    /// The fence's source, such as `tool:text-stats` or `member:alice`.
    pub source: &'a str,
    /// The content, without the markers.
    pub text: &'a str,
}

const OPEN: &str = "<untrusted-content source=";
const CLOSE: &str = "\n</untrusted-content>";

/// Every fenced block of a message, in order. Content can hold no marker of its own: the host breaks those.
pub fn blocks(message: &str) -> Vec<Block<'_>> {
    let mut found = Vec::new();
    let mut rest = message;
    while let Some(start) = rest.find(OPEN) {
        let after = &rest[start + OPEN.len()..];
        let Some((source, body)) = after.split_once(">\n") else { break };
        let Some(end) = body.find(CLOSE).or_else(|| body.starts_with(&CLOSE[1..]).then_some(0)) else { break };
        found.push(Block { source, text: &body[..end] });
        rest = &body[end..];
    }
    found
}

/// The content of a message's first fenced block, or the message itself where there is none.
pub fn content(message: &str) -> &str {
    match blocks(message).first() {
        Some(block) if message.starts_with(OPEN) => block.text,
        _ => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_come_in_order_with_their_source() {
        let text = "[call-member] call a ended completed:\n<untrusted-content source=member:a>\none\ntwo\n\
                    </untrusted-content>\n\n<untrusted-content source=member:b>\n\n</untrusted-content>\nend";
        let found = blocks(text);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0], Block { source: "member:a", text: "one\ntwo" });
        assert_eq!(found[1], Block { source: "member:b", text: "" });
        assert_eq!(content(text), text);
    }

    #[test]
    fn notes_after_the_fence_are_no_content() {
        let text = "<untrusted-content source=tool:x>\n{\"a\":1}\n</untrusted-content>\nSession deadline: soon";
        assert_eq!(content(text), "{\"a\":1}");
        assert_eq!(content("plain"), "plain");
        assert_eq!(content("<untrusted-content source=x>\nno end"), "<untrusted-content source=x>\nno end");
    }
}
