//! Dividing a text.

/// Divides a text into `count` parts of about the same size that make up the whole when put together again: between
/// lines where there are enough of them, else between words, else between characters.
pub fn parts(text: &str, count: usize) -> Vec<String> {
    let count = count.max(1);
    let pieces: Vec<&str> = [lines(text), words(text)]
        .into_iter()
        .find(|pieces| pieces.len() >= count)
        .unwrap_or_else(|| text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()]).collect());
    let mut parts = Vec::with_capacity(count);
    let mut rest = pieces.as_slice();
    let mut left = text.len();
    for remaining in (1..=count).rev() {
        let target = left.div_ceil(remaining);
        // Every part still to come is left at least one piece.
        let most = rest.len().saturating_sub(remaining - 1);
        let mut take = 0;
        let mut size = 0;
        while take < most && (remaining == 1 || take == 0 || size + rest[take].len() / 2 < target) {
            size += rest[take].len();
            take += 1;
        }
        let (mine, others) = rest.split_at(take);
        parts.push(mine.concat());
        rest = others;
        left -= size;
    }
    parts
}

/// Lines, each with its end.
fn lines(text: &str) -> Vec<&str> {
    text.split_inclusive('\n').collect()
}

/// Words, each with the gap after it; a gap at the start belongs to the first.
fn words(text: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut start = 0;
    let mut gap = true;
    let mut any = false;
    for (at, c) in text.char_indices() {
        if gap && !c.is_whitespace() && any {
            pieces.push(&text[start..at]);
            start = at;
        }
        any |= !c.is_whitespace();
        gap = c.is_whitespace();
    }
    if start < text.len() {
        pieces.push(&text[start..]);
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::parts;

    #[test]
    fn parts_make_up_the_whole() {
        let texts = ["", "x", "one two three", "a\nb\nc\n", "ä ö ü\nlong line of many words here\n\nend", "\n\n\n"];
        for text in texts {
            for count in 1..8 {
                let divided = parts(text, count);
                assert_eq!(divided.len(), count, "{text:?} in {count}");
                assert_eq!(divided.concat(), text, "{text:?} in {count}");
            }
        }
    }

    #[test]
    fn parts_are_of_about_one_size_and_end_between_lines() {
        let text: String = (0..100).map(|n| format!("line number {n}\n")).collect();
        let divided = parts(&text, 3);
        assert!(divided.iter().all(|part| part.ends_with('\n') && part.lines().count().abs_diff(33) <= 2));
    }
}
