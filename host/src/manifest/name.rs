//! Name rules shared by manifests, rosters and the command line, as plain checks on text.

/// Most characters of a scope or a name.
pub const MAX_PART: usize = 100;

/// Why a text is not a full artifact name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameFault {
    /// Says what is wrong, naming the text.
    pub message: String,
    /// The scoped forms a bare name could have meant.
    pub hint: Option<String>,
}

/// Checks one part of a name: 1 to 100 of `a-z 0-9 -`, no `-` at either end.
///
/// # Errors
/// The reason in words.
pub fn check_part(part: &str) -> Result<(), String> {
    if part.is_empty() {
        return Err("it is empty".to_owned());
    }
    if part.chars().count() > MAX_PART {
        return Err(format!("it is longer than {MAX_PART} characters"));
    }
    if let Some(c) = part.chars().find(|c| !matches!(c, 'a'..='z' | '0'..='9' | '-')) {
        return Err(format!("{} is not one of a-z, 0-9 and '-'", quoted_char(c)));
    }
    if part.starts_with('-') || part.ends_with('-') {
        return Err("it begins or ends with '-'".to_owned());
    }
    Ok(())
}

/// Checks a full name `<scope>/<name>`.
///
/// # Errors
/// A bare name carries the hint with its scoped forms; a malformed one carries none.
pub fn check_full(text: &str) -> Result<(), NameFault> {
    let Some((scope, name)) = text.split_once('/') else {
        let message = format!("'{text}' is not a full artifact name: an artifact is named <scope>/<name>");
        return Err(NameFault { message, hint: Some(scoped_forms(text)) });
    };
    let malformed =
        |reason: String| NameFault { message: format!("'{text}' is not a valid artifact name: {reason}"), hint: None };
    if name.contains('/') {
        return Err(malformed("it has more than one '/'".to_owned()));
    }
    check_part(scope).map_err(|why| malformed(format!("scope '{scope}': {why}")))?;
    check_part(name).map_err(|why| malformed(format!("name '{name}': {why}")))
}

/// The scoped forms a bare name could stand for.
pub fn scoped_forms(bare: &str) -> String {
    let default = bare.strip_prefix("murmur-").unwrap_or(bare);
    format!(
        "name it with its scope: 'murmur/{default}' for a Murmur default artifact, '<owner>/{bare}' for one published from \
         github.com/<owner>, or 'local/{bare}' for one installed from a .mur.zip file"
    )
}

/// Versions that name no version.
pub const RESERVED_VERSIONS: [&str; 3] = ["latest", "stable", "edge"];

/// Whether a version names none, compared without case.
pub fn is_reserved_version(version: &str) -> bool {
    RESERVED_VERSIONS.iter().any(|reserved| version.eq_ignore_ascii_case(reserved))
}

/// Checks a store's name: one path segment without a leading dot.
///
/// # Errors
/// The reason in words.
pub fn check_segment(text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Err("it is empty".to_owned());
    }
    if text.contains('/') || text.contains('\0') {
        return Err("it is not one path segment".to_owned());
    }
    if text.starts_with('.') {
        return Err("it begins with a dot".to_owned());
    }
    Ok(())
}

/// A character as a reader can tell it from a look-alike.
fn quoted_char(c: char) -> String {
    if c.is_ascii_graphic() { format!("'{c}'") } else { format!("U+{:04X}", u32::from(c)) }
}
