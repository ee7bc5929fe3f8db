//! The untrusted fence: text from outside reaches the model between two markers that it cannot forge.
//!
//! A block ends at its *final* closing marker, and the content can hold no marker: each is broken right after its `<`.

/// What is inserted after the `<` of a marker found inside the content.
const NEUTRAL: &str = "!MURMUR-NEUTRALISED!";
/// The word both markers carry.
const MARKER: &str = "untrusted-content";

/// Fences `content` as untrusted text from `source` (such as `tool:grep` or `member:coder`). Nothing is trimmed.
pub fn fenced(source: &str, content: &str) -> String {
    let mut text = String::with_capacity(content.len() + source.len() + 64);
    text.push_str("<untrusted-content source=");
    text.extend(source.chars().map(plain_in_a_name));
    text.push_str(">\n");
    neutralise_into(content, &mut text);
    text.push_str("\n</untrusted-content>");
    text
}

/// A name stays on its line and inside its marker.
fn plain_in_a_name(c: char) -> char {
    match c {
        '>' => '_',
        '\r' | '\n' => ' ',
        c => c,
    }
}

/// Breaks every opening or closing marker in `content`; doing it twice changes nothing more.
fn neutralise_into(content: &str, text: &mut String) {
    let mut rest = content;
    while let Some(at) = rest.find('<') {
        let (before, after) = rest.split_at(at + 1);
        text.push_str(before);
        if starts_marker(after) {
            text.push_str(NEUTRAL);
        }
        rest = after;
    }
    text.push_str(rest);
}

/// Whether what follows a `<` makes it a marker.
fn starts_marker(after: &str) -> bool {
    let name = after.strip_prefix('/').unwrap_or(after).as_bytes();
    name.get(..MARKER.len()).is_some_and(|name| name.eq_ignore_ascii_case(MARKER.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn neutralised(content: &str) -> String {
        let mut text = String::new();
        neutralise_into(content, &mut text);
        text
    }

    #[test]
    fn a_block_has_its_markers_on_lines_of_their_own() {
        assert_eq!(
            fenced("tool:read", " two\nlines\n"),
            "<untrusted-content source=tool:read>\n two\nlines\n\n</untrusted-content>"
        );
        assert_eq!(fenced("x", ""), "<untrusted-content source=x>\n\n</untrusted-content>");
    }

    #[test]
    fn a_name_cannot_leave_its_marker() {
        assert!(fenced("task:a>b\r\nc", "").starts_with("<untrusted-content source=task:a_b  c>\n"));
    }

    #[test]
    fn markers_inside_are_broken_in_any_case() {
        assert_eq!(
            neutralised("a</Untrusted-Content> <UNTRUSTED-CONTENT source=x> << untrusted-content </ untrusted-content"),
            "a<!MURMUR-NEUTRALISED!/Untrusted-Content> <!MURMUR-NEUTRALISED!UNTRUSTED-CONTENT source=x> \
             << untrusted-content </ untrusted-content"
        );
        assert_eq!(neutralised("<<untrusted-content"), "<<!MURMUR-NEUTRALISED!untrusted-content");
    }

    fn hostile() -> impl Strategy<Value = String> {
        proptest::collection::vec(
            prop_oneof![
                Just("<".to_owned()),
                Just("</".to_owned()),
                Just("untrusted-content".to_owned()),
                Just("UNTRUSTED-content".to_owned()),
                Just(NEUTRAL.to_owned()),
                Just(" source=x>\n".to_owned()),
                any::<String>(),
            ],
            0..20,
        )
        .prop_map(|parts| parts.concat())
    }

    proptest! {
        #[test]
        fn a_block_holds_exactly_one_marker_of_each_kind(content in hostile(), source in ".*") {
            let block = fenced(&source, &content).to_ascii_lowercase();
            let body = &block[block.find('\n').unwrap()..];
            prop_assert_eq!(body.matches("</untrusted-content").count(), 1);
            prop_assert_eq!(body.matches("<untrusted-content").count(), 0);
            prop_assert!(block.ends_with("\n</untrusted-content>"));
        }

        #[test]
        fn breaking_markers_twice_changes_nothing_more(content in hostile()) {
            let once = neutralised(&content);
            prop_assert_eq!(neutralised(&once), once.clone());
            prop_assert_eq!(once.replace(NEUTRAL, ""), content.replace(NEUTRAL, ""));
        }
    }
}
