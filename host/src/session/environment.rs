//! Environments: the project's `.env`, and what a guest sees. A guest inherits nothing; every name is put there here.

pub mod command;

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::order::NEVER_FROM_HOST;
use crate::artifacts::project::find_root;
use crate::diagnostics::{Diagnostic, Place, Result, codes};
use crate::egress::Variable;

/// Most bytes of a `.env`.
const MAX_ENV_FILE: u64 = 1 << 20;

/// Credentials no list can hand to a guest.
const CREDENTIAL_PATTERNS: [&str; 13] = [
    "ANTHROPIC_API_KEY",
    "OPENAI_API_KEY",
    "GOOGLE_API_KEY",
    "HUGGING_FACE_HUB_TOKEN",
    "AWS_*",
    "GITHUB_TOKEN",
    "GH_TOKEN",
    "DOCKER_*",
    "KUBECONFIG",
    "NPM_TOKEN",
    "PYPI_TOKEN",
    "CARGO_REGISTRY_TOKEN",
    "*_API_KEY",
];

/// The variables of this process and, behind them, those of the project's `.env`, which feed look-ups only.
#[derive(Clone, Debug, Default)]
pub struct HostEnvironment {
    file: BTreeMap<String, String>,
    /// Of the file, when there is one.
    path: PathBuf,
}

impl HostEnvironment {
    /// With the `.env` beside the nearest manifest at or above a directory, when there is one.
    pub fn with_file_near(project: &Path) -> Result<Self> {
        let Some(path) = env_file_near(project) else { return Ok(Self::default()) };
        let text = read_bounded(&path)
            .map_err(|error| Diagnostic::new(codes::E_IO_003, format!("{} cannot be read: {error}", path.display())))?;
        Ok(Self { file: parse_env_file(&path.display().to_string(), &text)?, path })
    }

    /// A variable: this process's own first.
    pub fn get(&self, name: &str) -> Option<String> {
        self.find(name).map(|variable| variable.value)
    }

    /// The same, with the place it stands in.
    pub fn find(&self, name: &str) -> Option<Variable> {
        let own = std::env::var(name).ok();
        let own = own.map(|value| Variable { value, place: format!("the environment variable {name}") });
        own.or_else(|| {
            let value = self.file.get(name)?.clone();
            Some(Variable { value, place: format!("{name} in {}", self.path.display()) })
        })
    }
}

/// The file beside the nearest `murmur.yaml` or `roster.yaml` at or above a directory.
fn env_file_near(project: &Path) -> Option<PathBuf> {
    let path = find_root(project)?.join(".env");
    path.is_file().then_some(path)
}

fn read_bounded(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    let read = fs::File::open(path)?.take(MAX_ENV_FILE + 1).read_to_string(&mut text)?;
    if read as u64 > MAX_ENV_FILE {
        return Err(std::io::Error::other(format!("it is larger than {MAX_ENV_FILE} bytes")));
    }
    Ok(text)
}

/// `NAME=VALUE` lines; `export` before the name, comments, and quotes around the value are understood. A fault names the
/// line and never repeats its value.
fn parse_env_file(file: &str, text: &str) -> Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let refused = |what: &str| {
            Diagnostic::new(codes::E_IO_003, format!("{file}: line {number} {what}"))
                .at(Place { file: file.to_owned(), line: number, column: 1, text: String::new() })
                .hint("write NAME=VALUE, or pass --no-env-file")
        };
        let line = line.strip_prefix("export ").unwrap_or(line).trim_start();
        let (name, value) = line.split_once('=').ok_or_else(|| refused("has no '='"))?;
        let name = name.trim_end();
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if name.is_empty() || !name.chars().all(plain) || name.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(refused("does not begin with a variable's name"));
        }
        let value = unquote(value.trim()).ok_or_else(|| refused("has a quote that does not end"))?;
        if !is_reserved(name) {
            found.insert(name.to_owned(), value);
        }
    }
    Ok(found)
}

/// What a project's file never sets.
fn is_reserved(name: &str) -> bool {
    matches!(name, "PATH" | "HOME") || name.starts_with("LD_") || name.starts_with("MUR")
}

fn unquote(value: &str) -> Option<String> {
    let Some(quote) = value.chars().next().filter(|c| matches!(c, '"' | '\'')) else {
        // A comment needs white space before it: values may hold a '#'.
        let end = value.find(" #").unwrap_or(value.len());
        return Some(value[..end].trim_end().to_owned());
    };
    let mut text = String::new();
    let mut chars = value[1..].chars();
    loop {
        match chars.next()? {
            c if c == quote => break,
            '\\' if quote == '"' => match chars.next()? {
                'n' => text.push('\n'),
                't' => text.push('\t'),
                'r' => text.push('\r'),
                c => text.push(c),
            },
            c => text.push(c),
        }
    }
    let rest = chars.as_str().trim_start();
    (rest.is_empty() || rest.starts_with('#')).then_some(text)
}

/// Whether a name matches a pattern of the forms `X`, `X*`, `*X`, `*X*`.
fn matches_pattern(pattern: &str, name: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(_), Some(_)) => name.contains(pattern.trim_matches('*')),
        (Some(end), None) => name.ends_with(end),
        (None, Some(start)) => name.starts_with(start),
        (None, None) => name == pattern,
    }
}

/// The pattern by which a variable is kept from every guest and command: of credentials, or one of `strip_env`.
fn stripped_by<'a>(name: &str, strip: &'a [String]) -> Option<&'a str> {
    let mut patterns = CREDENTIAL_PATTERNS.into_iter().chain(strip.iter().map(String::as_str));
    patterns.find(|pattern| matches_pattern(pattern, name))
}

/// Refuses names that carry credentials, and warns of those that look like it.
pub fn check_allow(allow: &[String], strip: &[String]) -> Result<Vec<Diagnostic>> {
    let mut warnings = Vec::new();
    for name in allow {
        if let Some(pattern) = stripped_by(name, strip) {
            return Err(Diagnostic::new(
                codes::E_CAP_016,
                format!("capabilities.env.allow names '{name}', which is stripped from every guest (by '{pattern}')"),
            )
            .hint("remove it; a provider's key belongs in gateway.api_key of the artifact that needs it"));
        }
        if looks_secret(name) {
            warnings.push(Diagnostic::new(
                codes::W_SEC_024,
                format!(
                    "capabilities.env.allow hands '{name}' to every tool and driver, and its name reads like a secret's"
                ),
            ));
        }
    }
    Ok(warnings)
}

fn looks_secret(name: &str) -> bool {
    let lower = name.to_lowercase();
    ["api_key", "token", "secret", "password"].iter().any(|word| lower.contains(word))
        || name.split('_').any(|part| {
            ["KEY", "PASS", "CREDENTIALS", "DSN", "AUTH"].iter().any(|word| part.eq_ignore_ascii_case(word))
        })
}

/// What the runtime tells every tool and driver of a session.
#[derive(Clone, Debug, Default)]
pub struct RuntimeNames {
    /// Endpoint of the driver's gateway as a guest may address it; empty without one.
    pub endpoint: String,
    /// The model.
    pub model: String,
    /// The driver's full name.
    pub driver: String,
    /// Its configuration as compact JSON.
    pub driver_config: Option<String>,
    /// Capsule name.
    pub name: String,
    /// Capsule version.
    pub version: String,
    /// The session.
    pub session: String,
    /// `localhost:<port>`.
    pub url: String,
    /// The members it may call, at their virtual addresses.
    pub peers: Option<String>,
}

/// The environment of one tool or driver: allowed host names, then its own configuration, then the runtime's names; later
/// ones win and no name is there twice.
pub fn guest(
    host: &HostEnvironment,
    allow: &[String],
    config: Option<&str>,
    gateway: Option<&str>,
    runtime: &RuntimeNames,
) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = Vec::new();
    let mut set = |name: &str, value: String| {
        all.retain(|(known, _)| known != name);
        all.push((name.to_owned(), value));
    };
    for name in allow {
        let never = NEVER_FROM_HOST.contains(&name.as_str())
            || matches!(name.as_str(), "MURMUR_RUNTIME_DIR" | "MURMUR_RECORDS_DIR");
        if never || name.is_empty() || name.contains(['=', '\0']) {
            continue;
        }
        if let Some(value) = host.get(name) {
            set(name, value);
        }
    }
    if let Some(config) = config {
        set("MURMUR_ARTIFACT_CONFIG", config.to_owned());
    }
    set("MURMUR_INFERENCE_TRANSPORT", "http".to_owned());
    set("MURMUR_INFERENCE_ENDPOINT", runtime.endpoint.clone());
    set("MURMUR_INFERENCE_MODEL", runtime.model.clone());
    set("MURMUR_INFERENCE_DRIVER", runtime.driver.clone());
    if let Some(config) = &runtime.driver_config {
        set("MURMUR_INFERENCE_DRIVER_CONFIG", config.clone());
    }
    set("MURMUR_CAPSULE_NAME", runtime.name.clone());
    set("MURMUR_CAPSULE_VERSION", runtime.version.clone());
    set("MURMUR_SESSION_ID", runtime.session.clone());
    set("MURMUR_CAPSULE_URL", runtime.url.clone());
    if let Some(gateway) = gateway {
        set("MURMUR_GATEWAY_ENDPOINT", gateway.to_owned());
    }
    if let Some(peers) = &runtime.peers {
        set("MURMUR_FORMATION_PEERS", peers.clone());
    }
    all
}

/// The environment of one hook: nothing of the host's, and only what applies.
pub fn hook(
    config: Option<&str>,
    gateway: Option<&str>,
    otel: Option<&str>,
    formation: Option<&str>,
    peers: Option<&str>,
) -> Vec<(String, String)> {
    let all = [
        ("MURMUR_ARTIFACT_CONFIG", config),
        ("MURMUR_OTEL_ENDPOINT", otel),
        ("MURMUR_GATEWAY_ENDPOINT", gateway),
        ("MURMUR_FORMATION_ID", formation),
        ("MURMUR_FORMATION_PEERS", peers),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned()))).collect()
}

/// The address at which an artifact reaches its own gateway: nothing listens there, `mur` takes the requests.
pub fn gateway_address(path: &str) -> String {
    format!("http://127.0.0.1:9{}", path.trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<BTreeMap<String, String>> {
        parse_env_file(".env", text)
    }

    #[test]
    fn an_env_file_is_read_with_quotes_comments_and_exports() {
        let found = read("# c\n\nA=1\nexport B = two words # tail\nC='a # b'\nD=\"x\\ny\" # z\nE=\nF=a#b\n").unwrap();
        let expected = [("A", "1"), ("B", "two words"), ("C", "a # b"), ("D", "x\ny"), ("E", ""), ("F", "a#b")];
        assert_eq!(found.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn an_env_file_never_sets_what_steers_processes() {
        let found = read("PATH=/x\nHOME=/y\nLD_PRELOAD=z\nMURMUR_FORMATION_ID=frm\nMUR_X=1\nOK=1\n").unwrap();
        assert_eq!(found.into_keys().collect::<Vec<_>>(), ["OK"]);
    }

    #[test]
    fn a_bad_line_is_named_and_its_value_is_not() {
        for bad in ["A=1\nhunter2", "1A=hunter2", "=hunter2", "A='hunter2", "A=\"hunter2\\", "A='x'hunter2"] {
            let fault = read(bad).unwrap_err();
            assert_eq!(fault.code(), codes::E_IO_003);
            assert!(!fault.to_string().contains("hunter2"), "{fault}");
        }
        assert!(read("A=1\nhunter2").unwrap_err().message().contains("line 2"));
    }

    #[test]
    fn credentials_are_refused_and_likely_secrets_warned_of() {
        for bad in ["OPENAI_API_KEY", "AWS_PROFILE", "MY_API_KEY", "STRIPPED_ONE"] {
            let fault = check_allow(&[bad.to_owned()], &["STRIPPED_*".to_owned()]).unwrap_err();
            assert_eq!(fault.code(), codes::E_CAP_016, "{bad}");
        }
        let names = ["DB_PASSWORD", "SIGN_KEY", "PLAIN", "KEYBOARD"].map(str::to_owned);
        let warned = check_allow(&names, &[]).unwrap();
        assert_eq!(warned.len(), 2);
    }

    #[test]
    fn a_guest_sees_what_is_listed_and_the_runtime_has_the_last_word() {
        let host = HostEnvironment {
            file: [("ONE", "1"), ("MURMUR_INFERENCE_MODEL", "forged"), ("MURMUR_FORMATION_PEERS", "forged")]
                .map(|(k, v)| (k.to_owned(), v.to_owned()))
                .into(),
            path: PathBuf::from("/p/.env"),
        };
        let allow =
            ["ONE", "UNSET_NAME_OF_A_TEST", "MURMUR_INFERENCE_MODEL", "MURMUR_FORMATION_PEERS"].map(str::to_owned);
        let runtime = RuntimeNames { model: "m".into(), ..RuntimeNames::default() };
        let seen: BTreeMap<String, String> = guest(&host, &allow, Some("{}"), None, &runtime).into_iter().collect();
        assert_eq!(seen.get("ONE").map(String::as_str), Some("1"));
        assert_eq!(seen.get("MURMUR_INFERENCE_MODEL").map(String::as_str), Some("m"));
        assert_eq!(seen.get("MURMUR_ARTIFACT_CONFIG").map(String::as_str), Some("{}"));
        for absent in ["UNSET_NAME_OF_A_TEST", "MURMUR_FORMATION_PEERS", "MURMUR_GATEWAY_ENDPOINT", "PATH"] {
            assert!(!seen.contains_key(absent), "{absent}");
        }
    }

    #[test]
    fn a_gateway_keeps_its_path() {
        assert_eq!(gateway_address(""), "http://127.0.0.1:9");
        assert_eq!(gateway_address("/v1/"), "http://127.0.0.1:9/v1");
    }
}
