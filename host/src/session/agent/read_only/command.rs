//! What a command line writes, as far as its words show it: redirections, and the arguments of programs known to write.

use std::iter::Peekable;
use std::str::Chars;

use crate::session::commands::line::is_shell;

/// Programs that write to every argument that is no flag.
const ALL: [&str; 10] = ["tee", "rm", "rmdir", "unlink", "shred", "truncate", "mkdir", "touch", "chmod", "chown"];
/// `patch` too.
const PATCH: &str = "patch";
/// Programs that write to their last argument.
const LAST: [&str; 4] = ["mv", "cp", "install", "ln"];

/// A path that is written, and what shows it: `redirection` or `argument`.
pub type Written = (String, &'static str);

/// What an argument vector writes; a shell's line is looked through.
pub fn written(argv: &[String]) -> Vec<Written> {
    let mut found = Vec::new();
    match argv {
        [shell, flag, line] if is_shell(shell) && flag == "-c" => in_line(line, &mut found),
        _ => of_words(argv, &mut found),
    }
    found
}

enum Token {
    Word(String),
    /// The next word is written to.
    Redirect,
    /// A new command begins.
    Break,
}

fn in_line(line: &str, found: &mut Vec<Written>) {
    let mut words: Vec<String> = Vec::new();
    let mut redirected = false;
    for token in tokens(line) {
        match token {
            Token::Word(word) if redirected => {
                found.push((word, "redirection"));
                redirected = false;
            }
            Token::Word(word) => words.push(word),
            Token::Redirect => redirected = true,
            Token::Break => {
                of_words(&std::mem::take(&mut words), found);
                redirected = false;
            }
        }
    }
    of_words(&words, found);
}

fn of_words(words: &[String], found: &mut Vec<Written>) {
    // Assignments and words of the shell's own stand before the program.
    let lead = |word: &&String| {
        let assigns = word
            .split_once('=')
            .is_some_and(|(name, _)| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'));
        assigns || matches!(word.as_str(), "{" | "}" | "!" | "if" | "then" | "else" | "do" | "while" | "until" | "time")
    };
    let mut words = words.iter().skip_while(lead);
    let Some(program) = words.next() else { return };
    let program = program.rsplit('/').next().unwrap_or_default();
    let rest: Vec<&String> = words.collect();
    let plain = || rest.iter().filter(|word| !word.starts_with('-')).map(|word| (*word).clone());
    let argument = |path: String| (path, "argument");
    if ALL.contains(&program) || program == PATCH {
        found.extend(plain().map(argument));
    } else if LAST.contains(&program) {
        found.extend(plain().next_back().map(argument));
    } else if program == "sed" {
        let in_place = rest.iter().any(|word| word.starts_with("-i") || word.starts_with("--in-place"));
        if in_place {
            found.extend(plain().map(argument));
        }
    } else if program == "dd" {
        found.extend(rest.iter().filter_map(|word| word.strip_prefix("of=")).map(|path| argument(path.to_owned())));
    }
}

fn tokens(line: &str) -> Vec<Token> {
    let mut all = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\'' => quoted(&mut chars, '\'', word.get_or_insert_default()),
            '"' => quoted(&mut chars, '"', word.get_or_insert_default()),
            '\\' => word.get_or_insert_default().extend(chars.next()),
            '>' => {
                // A number before it is a descriptor, and `&` both streams.
                if word.as_ref().is_none_or(|word| !word.chars().all(|c| c.is_ascii_digit())) {
                    all.extend(word.take().map(Token::Word));
                }
                word = None;
                while matches!(chars.peek(), Some('>' | '|')) {
                    chars.next();
                }
                match chars.peek() {
                    // A descriptor made a copy of another writes nowhere new.
                    Some('&') => {
                        chars.next();
                        let copied = chars.peek().is_some_and(|c| c.is_ascii_digit() || *c == '-');
                        if !copied {
                            all.push(Token::Redirect);
                        }
                    }
                    // `>(…)` starts a command.
                    Some('(') => all.push(Token::Break),
                    _ => all.push(Token::Redirect),
                }
            }
            '&' if chars.peek() == Some(&'>') => all.extend(word.take().map(Token::Word)),
            ';' | '|' | '&' | '\n' | '(' | ')' | '`' => {
                all.extend(word.take().map(Token::Word));
                all.push(Token::Break);
            }
            '#' if word.is_none() => {
                while chars.peek().is_some_and(|c| *c != '\n') {
                    chars.next();
                }
            }
            '<' => all.extend(word.take().map(Token::Word)),
            c if c.is_whitespace() => all.extend(word.take().map(Token::Word)),
            c => word.get_or_insert_default().push(c),
        }
    }
    all.extend(word.map(Token::Word));
    all
}

fn quoted(chars: &mut Peekable<Chars<'_>>, quote: char, word: &mut String) {
    while let Some(c) = chars.next() {
        match c {
            c if c == quote => return,
            '\\' if quote == '"' && matches!(chars.peek(), Some('"' | '\\' | '$' | '`')) => word.extend(chars.next()),
            c => word.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(line: &str) -> Vec<String> {
        written(&["sh".into(), "-c".into(), line.into()]).into_iter().map(|(path, _)| path).collect()
    }

    #[test]
    fn redirections_and_known_writers_are_seen() {
        for (line, paths) in [
            ("echo x > a", &["a"][..]),
            ("echo x>>'a b'", &["a b"]),
            ("echo x >| a; cat <b", &["a"]),
            ("make &> log", &["log"]),
            ("make &>>log 2> err", &["log", "err"]),
            ("make 2>&1 >/dev/null", &["/dev/null"]),
            ("a | tee -a x y && rm -rf z", &["x", "y", "z"]),
            ("cp -r a b c", &["c"]),
            ("X=1 sudo=2 mv a b", &["b"]),
            ("sed -i s/a/b/ f", &["s/a/b/", "f"]),
            ("sed s/a/b/ f", &[]),
            ("dd if=/dev/zero of=disk", &["disk"]),
            ("(cd x; /bin/touch y)", &["y"]),
            ("if true; then rm q; fi", &["q"]),
            ("echo '> a' \"> b\" \\> c # > d", &[]),
            ("echo $(rm x) `rm y`", &["x", "y"]),
            ("chmod +x f\nmkdir d", &["+x", "f", "d"]),
            ("python3 -c 'open(\"a\",\"w\")'", &[]),
        ] {
            assert_eq!(of(line), paths, "{line}");
        }
    }

    #[test]
    fn a_program_that_is_no_shell_is_taken_by_its_arguments() {
        let argv = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        assert_eq!(written(&argv(&["rm", "-f", "a"])), [("a".to_owned(), "argument")]);
        assert_eq!(written(&argv(&["echo", ">", "a"])), []);
        assert_eq!(written(&argv(&["sh", "script"])), []);
        assert_eq!(written(&[]), []);
    }

    proptest! {
        #[test]
        fn no_line_panics(line in ".*") {
            let _ = of(&line);
        }
    }
}
