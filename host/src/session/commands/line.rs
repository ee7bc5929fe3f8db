//! From what the model writes to an argument vector.

/// Programs that take a whole shell line.
const SHELLS: [&str; 6] = ["bash", "sh", "zsh", "fish", "dash", "ksh"];

/// Whether a program takes a whole line behind `-c`.
pub fn is_shell(binary: &str) -> bool {
    SHELLS.contains(&binary)
}

/// The argument vector of a command, the program's name first.
///
/// # Errors
/// In words: a blank command, a NUL in it, a quote that does not end.
pub fn argv(binary: &str, command: &str) -> Result<Vec<String>, String> {
    if command.trim().is_empty() {
        return Err("the command is blank".to_owned());
    }
    if command.contains('\0') {
        return Err("the command holds a NUL byte".to_owned());
    }
    if is_shell(binary) {
        return Ok(vec![binary.to_owned(), "-c".to_owned(), command.to_owned()]);
    }
    let mut words = vec![binary.to_owned()];
    words.extend(split(command)?);
    Ok(words)
}

/// A command as people and records see it: the line of a shell, the arguments of anything else.
pub fn shown(binary: &str, command: &str) -> String {
    if is_shell(binary) { command.to_owned() } else { format!("{binary} {command}") }
}

/// Splits at white space. Quotes group, a backslash takes the next character as it is (inside double quotes only `"` and
/// `\`), and nothing is expanded.
pub fn split(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            c if c.is_whitespace() => words.extend(word.take()),
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next().ok_or("a single quote does not end")? {
                        '\'' => break,
                        c => word.push(c),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next().ok_or("a double quote does not end")? {
                        '"' => break,
                        '\\' if matches!(chars.peek(), Some('"' | '\\')) => word.extend(chars.next()),
                        c => word.push(c),
                    }
                }
            }
            '\\' => word.get_or_insert_default().push(chars.next().ok_or("a backslash ends the command")?),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_shell_gets_the_line_and_others_its_words() {
        assert_eq!(argv("sh", "echo $HOME | cat").unwrap(), ["sh", "-c", "echo $HOME | cat"]);
        assert_eq!(argv("git", "commit -m 'a b'").unwrap(), ["git", "commit", "-m", "a b"]);
        for (bad, why) in [("", "blank"), (" \n", "blank"), ("a\0b", "NUL"), ("'a", "single"), ("\"a", "double")] {
            assert!(argv("git", bad).unwrap_err().contains(why), "{bad:?}");
        }
        assert_eq!(shown("sh", "x"), "x");
        assert_eq!(shown("git", "log"), "git log");
    }

    #[test]
    fn quotes_group_and_nothing_is_expanded() {
        for (text, expected) in [
            ("a  b\tc\n", &["a", "b", "c"][..]),
            (r#"'a b' "c d""#, &["a b", "c d"]),
            (r#"a'b'"c""#, &["abc"]),
            (r#""a\"b\\c\n""#, &[r#"a"b\c\n"#]),
            (r"a\ b \'c", &["a b", "'c"]),
            ("'' \"\"", &["", ""]),
            ("$HOME *.rs ~ `x` a|b", &["$HOME", "*.rs", "~", "`x`", "a|b"]),
        ] {
            assert_eq!(split(text).unwrap(), expected, "{text}");
        }
        assert!(split("a\\").is_err());
    }

    proptest! {
        #[test]
        fn quoting_a_word_gives_it_back(words in proptest::collection::vec("[^\0]*", 0..5)) {
            let quoted: Vec<String> =
                words.iter().map(|word| format!("'{}'", word.replace('\'', r"'\''"))).collect();
            prop_assert_eq!(split(&quoted.join(" ")).unwrap(), words);
        }
    }
}
