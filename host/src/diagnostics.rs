//! Diagnostics: what every refusal and warning looks like, and the one table of codes.
//!
//! An error says what happened to which thing and what to do next. Nothing here prints by itself: `Diagnostic` is a
//! value, and the entry layer prints it once.

pub mod codes;
mod nearest;
pub mod output;
mod wire;

use std::borrow::Cow;
use std::fmt;

pub use codes::Code;
pub use nearest::nearest;
use serde::{Deserialize, Serialize};

/// The result every fallible function of the host returns.
pub type Result<T> = std::result::Result<T, Diagnostic>;

/// Where the reference chapter of the book describes a code.
pub const DOCS_BASE: &str = "https://docs.murmur.nexus/reference";

/// A place in a file of the user's, shown with a caret under the fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file as the user named it.
    pub file: String,
    /// 1-based.
    pub line: usize,
    /// 1-based, in characters.
    pub column: usize,
    /// The line itself, without its end; empty when it is not to be shown.
    pub text: String,
}

/// One error or warning: a code, what happened, what to do next, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "wire::Wire", try_from = "wire::Wire")]
pub struct Diagnostic {
    code: Code,
    message: String,
    hint: Option<String>,
    place: Option<Place>,
}

impl Diagnostic {
    /// A diagnostic that says what happened to which thing.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: None, place: None }
    }

    /// Says before the message what it is about, such as the flag that held the thing.
    #[must_use]
    pub fn prefixed(mut self, prefix: &str) -> Self {
        self.message.insert_str(0, prefix);
        self
    }

    /// Says what to do next.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Says where in the user's file the fault is.
    #[must_use]
    pub fn at(mut self, place: Place) -> Self {
        self.place = Some(place);
        self
    }

    /// The code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// The message, without code and hint.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The hint, if there is one.
    pub fn hint_text(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// The place, if there is one.
    pub fn place(&self) -> Option<&Place> {
        self.place.as_ref()
    }

    /// The stable link to the code's entry in the reference.
    pub fn link(&self) -> String {
        format!("{DOCS_BASE}/diagnostics/#{}", self.code.as_str().to_lowercase())
    }

    /// A warning as one line of a running process: `warning[W-…]: <message> (<link>)`, without a prefix.
    pub fn warning_line(&self) -> String {
        format!("warning[{}]: {} ({})", self.code, shown(&self.message), self.link())
    }
}

impl fmt::Display for Diagnostic {
    /// The printed form, without a final newline.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.code.is_warning() { "warning" } else { "error" };
        write!(f, "{kind}[{}]: ", self.code)?;
        for (index, line) in self.message.lines().enumerate() {
            f.write_str(if index > 0 { "\n  " } else { "" })?;
            f.write_str(&shown(line))?;
        }
        if let Some(place) = &self.place {
            write_place(f, place)?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "\n  hint: {}", shown(hint))?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostic {}

/// Text as a terminal may have it: whatever would move its cursor, colour it, or turn the order of its letters around
/// is written out. Manifests, rosters, archives and models are outside bytes, and messages quote them.
pub fn shown(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unshowable) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_unshowable(c) { out.extend(c.escape_unicode()) } else { out.push(c) }
    }
    Cow::Owned(out)
}

fn is_unshowable(c: char) -> bool {
    (c.is_control() && !matches!(c, '\n' | '\t')) || turns(c)
}

/// Turns the order of the letters around it.
fn turns(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Whether a character cannot be seen in a name: controls, what turns text around, what takes no width, line ends of
/// Unicode's own. Two names that differ in one of these look alike.
pub fn is_hidden(c: char) -> bool {
    let no_width = matches!(c, '\u{ad}' | '\u{200b}'..='\u{200d}' | '\u{2060}'..='\u{2064}' | '\u{feff}');
    c.is_control() || turns(c) || no_width || matches!(c, '\u{2028}' | '\u{2029}')
}

/// A text with what cannot be seen in it written out.
pub fn revealed(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_hidden(c) { out.extend(c.escape_unicode()) } else { out.push(c) }
    }
    out
}

fn write_place(f: &mut fmt::Formatter<'_>, place: &Place) -> fmt::Result {
    write!(f, "\n  --> {}:{}:{}", shown(&place.file), place.line, place.column)?;
    if place.text.is_empty() {
        return Ok(());
    }
    let number = place.line.to_string();
    let gutter = " ".repeat(number.len());
    // Tabs and wide characters keep the caret under the fault: the text before it is repeated as blanks of its width.
    let lead: String = place.text.chars().take(place.column.saturating_sub(1)).map(blank_of).collect();
    // One column for one: the caret stays under the fault.
    let text = place.text.replace(is_unshowable, "\u{fffd}");
    write!(f, "\n  {gutter} |\n  {number} | {text}\n  {gutter} | {lead}^")
}

/// White space as wide as `c` on a terminal.
fn blank_of(c: char) -> &'static str {
    match c {
        '\t' => "\t",
        // Combining marks and zero-width characters take no column.
        '\u{300}'..='\u{36f}' | '\u{200b}'..='\u{200f}' | '\u{feff}' | '\u{fe00}'..='\u{fe0f}' => "",
        '\u{1100}'..='\u{115f}'
        | '\u{2e80}'..='\u{a4cf}'
        | '\u{ac00}'..='\u{d7a3}'
        | '\u{f900}'..='\u{faff}'
        | '\u{fe30}'..='\u{fe6f}'
        | '\u{ff00}'..='\u{ff60}'
        | '\u{ffe0}'..='\u{ffe6}'
        | '\u{1f300}'..='\u{1faff}'
        | '\u{20000}'..='\u{3fffd}' => "  ",
        _ => " ",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_shows_code_place_and_hint() {
        let text = Diagnostic::new(codes::E_ROS_001, "roster.yaml: members[0].name: 'A' is no member name")
            .at(Place { file: "roster.yaml".into(), line: 3, column: 11, text: "  - name: A".into() })
            .hint("correct that key")
            .to_string();
        assert_eq!(
            text,
            "error[E-ROS-001]: roster.yaml: members[0].name: 'A' is no member name\n  --> roster.yaml:3:11\n    |\n  \
             3 |   - name: A\n    |           ^\n  hint: correct that key"
        );
    }

    #[test]
    fn nothing_quoted_reaches_the_terminal_as_a_command() {
        let hostile = "\u{1b}[31m\u{7}\u{9b}2J\r\u{202e}x\u{2066}";
        let place = Place { file: hostile.into(), line: 1, column: 3, text: format!("a{hostile}") };
        let diagnostic = Diagnostic::new(codes::E_ROS_001, format!("one {hostile}\ntwo")).hint(hostile).at(place);
        for text in [diagnostic.to_string(), diagnostic.warning_line()] {
            assert!(!text.contains(is_unshowable), "{text:?}");
            assert!(text.contains("one \\u{1b}[31m\\u{7}\\u{9b}2J\\u{d}\\u{202e}x"), "{text}");
        }
        assert!(matches!(shown("tab\tand\nline, ümlaut 漢"), Cow::Borrowed(_)));
    }

    #[test]
    fn the_table_has_no_code_twice() {
        let mut seen = std::collections::HashSet::new();
        for code in codes::TABLE {
            assert!(seen.insert(code.as_str()), "{code}");
        }
    }

    #[test]
    fn a_wide_character_is_two_columns_of_caret_lead() {
        let place = Place { file: "f".into(), line: 1, column: 2, text: "漢x".into() };
        let text = Diagnostic::new(codes::E_ROS_001, "m").at(place).to_string();
        assert!(text.ends_with("  |   ^"), "{text}");
    }
}
