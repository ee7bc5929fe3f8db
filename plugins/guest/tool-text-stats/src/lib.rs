//! Counts what a text is made of.

use std::collections::HashMap;

use mur_guest_kit::Answer;
use mur_guest_kit::input::Input;
use serde_json::{Value, json};

/// The largest file that is measured.
#[cfg(target_family = "wasm")]
const MAX_FILE: u64 = 64 * 1024 * 1024;
const MAX_TOP: u64 = 100;

#[cfg(target_family = "wasm")]
mur_guest_kit::artifact!(super::call);

#[cfg(target_family = "wasm")]
fn call(input: &str) -> Answer {
    run(input, |path| {
        let (bytes, size) = mur_guest_kit::files::read(path, 0, MAX_FILE)?;
        if size > MAX_FILE {
            return Err(format!("'{path}' has {size} bytes, more than the {MAX_FILE} that are measured"));
        }
        String::from_utf8(bytes).map_err(|_| format!("'{path}' is not UTF-8 text"))
    })
}

/// One call; `load` reads a file of the work folder.
pub fn run(input: &str, load: impl FnOnce(&str) -> Result<String, String>) -> Answer {
    answer(input, load).unwrap_or_else(|refusal| refusal)
}

fn answer(input: &str, load: impl FnOnce(&str) -> Result<String, String>) -> Result<Answer, Answer> {
    let input = Input::read(input)?;
    let top = input.number("top")?.unwrap_or(5).min(MAX_TOP) as usize;
    let loaded;
    let text = match (input.optional_text("text")?, input.optional_text("path")?) {
        (Some(text), None) => text,
        (None, Some(path)) => {
            loaded = load(path).map_err(Answer::failed)?;
            &loaded
        }
        _ => return Err(Answer::error("give either 'text' or 'path'")),
    };
    Ok(Answer::json(&measure(text, top)).note("state_effect", "read"))
}

/// What a text is made of.
pub fn measure(text: &str, top: usize) -> Value {
    let words: Vec<String> = text
        .split_whitespace()
        .map(|word| word.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase())
        .filter(|word| !word.is_empty())
        .collect();
    let mut counts: HashMap<&str, u64> = HashMap::new();
    for word in &words {
        *counts.entry(word).or_default() += 1;
    }
    let distinct = counts.len();
    let mut ranked: Vec<(&str, u64)> = counts.into_iter().collect();
    ranked.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    ranked.truncate(top);
    let longest =
        words.iter().fold("", |best, word| if word.chars().count() > best.chars().count() { word } else { best });
    json!({
        "bytes": text.len(),
        "characters": text.chars().count(),
        "words": words.len(),
        "distinct_words": distinct,
        "lines": text.lines().count(),
        "sentences": sentences(text),
        "paragraphs": paragraphs(text),
        "longest_word": longest,
        "top_words": ranked.iter().map(|(word, count)| json!({"word": word, "count": count})).collect::<Vec<_>>(),
    })
}

/// Runs of sentence-ending marks that follow a word and stand before a gap or the end.
fn sentences(text: &str) -> usize {
    let mut count = 0;
    let mut in_sentence = false;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c.is_alphanumeric() {
            in_sentence = true;
        } else if in_sentence && matches!(c, '.' | '!' | '?' | '…') {
            let ends =
                chars.peek().is_none_or(|next| !next.is_alphanumeric() && !matches!(next, '.' | '!' | '?' | '…'));
            if ends {
                count += 1;
                in_sentence = false;
            }
        }
    }
    count + usize::from(in_sentence)
}

fn paragraphs(text: &str) -> usize {
    let mut count = 0;
    let mut inside = false;
    for line in text.lines() {
        let blank = line.trim().is_empty();
        count += usize::from(!blank && !inside);
        inside = !blank;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_is_there() {
        let stats = measure("The cat saw the dog. Did the dog see 3.14 cats?!\n\nYes…\n", 2);
        assert_eq!(stats["words"], 12);
        assert_eq!(stats["lines"], 3);
        assert_eq!(stats["sentences"], 3);
        assert_eq!(stats["paragraphs"], 2);
        assert_eq!(stats["top_words"], json!([{"word": "the", "count": 3}, {"word": "dog", "count": 2}]));
    }

    #[test]
    fn an_empty_text_has_nothing() {
        let stats = measure("", 5);
        assert_eq!(stats["words"], 0);
        assert_eq!(stats["lines"], 0);
        assert_eq!(stats["sentences"], 0);
        assert_eq!(stats["longest_word"], "");
    }

    #[test]
    fn text_and_path_exclude_each_other() {
        assert!(run("{}", |_| Ok(String::new())).data.contains("either"));
        assert!(run(r#"{"text":"a","path":"b"}"#, |_| Ok(String::new())).data.contains("either"));
        assert!(run(r#"{"path":"b"}"#, |_| Ok("two words".into())).data.contains("\"words\":2"));
    }
}
