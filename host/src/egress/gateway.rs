//! The credential gateway: an artifact's requests to `127.0.0.1:9` go to its provider with the key attached here.
//!
//! Nothing listens at that address. A key is in no environment and in no worker; it is read where it is kept, put into
//! the one header that carries it, and remembered only to be taken out of texts.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::{HeaderMap, HeaderName, HeaderValue, Uri};

use super::Secret;
use crate::config;
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::manifest::{self, ApiKey, UpstreamAuth};
use crate::paths::MurmurHome;

/// The authority artifacts send to.
pub const AUTHORITY: &str = "127.0.0.1:9";

/// Most values of one key that are remembered for taking them out of texts: it is rotated by hand.
const MAX_SEEN: usize = 16;

/// A variable's value, and where it stands.
pub struct Variable {
    /// Its value.
    pub value: String,
    /// In words, such as `the environment variable X`.
    pub place: String,
}

/// Reads a key again by its credential name; `None` when it cannot be read.
pub type ReadKey = Arc<dyn Fn(&str) -> Option<Secret> + Send + Sync>;

/// Where a gateway's key comes from.
#[derive(Clone)]
pub enum KeySource {
    /// The endpoint takes no key.
    Keyless,
    /// Written in the manifest; read once.
    Literal(Secret),
    /// From an environment variable; read once.
    Environment {
        /// The variable.
        name: String,
        /// Its value at launch.
        key: Secret,
    },
    /// `credentials.<NAME>` of the global configuration: read again before each request and after a 401. `last` is what
    /// staging read, kept for as long as nothing newer can be read.
    Configured {
        /// The credential's name.
        name: String,
        /// What staging read.
        last: Secret,
        /// Reads it again.
        read: ReadKey,
    },
}

impl KeySource {
    /// Finds the key of an entry: the configured credential, then the environment and `.env`. The warning is `W-SEC-027`, for a
    /// key that is read only at launch.
    ///
    /// # Errors
    /// `E-MAN-003` naming the places a named key was looked for in.
    pub fn find(
        artifact: &str,
        key: &ApiKey,
        credentials: &BTreeMap<String, Secret>,
        variable: impl Fn(&str) -> Option<Variable>,
        read: ReadKey,
    ) -> Result<(Self, Option<Diagnostic>)> {
        match key {
            ApiKey::Keyless => Ok((Self::Keyless, None)),
            ApiKey::Literal(text) => {
                Ok((Self::Literal(Secret::new(text.clone())), Some(read_once(artifact, "is written in the manifest"))))
            }
            ApiKey::Named(name) => {
                if let Some(found) = credentials.get(name).filter(|found| !found.expose().is_empty()) {
                    return Ok((Self::Configured { name: name.clone(), last: found.clone(), read }, None));
                }
                if let Some(found) = variable(name).filter(|found| !found.value.is_empty()) {
                    let warning = read_once(artifact, &format!("comes from {}", found.place));
                    return Ok((
                        Self::Environment { name: name.clone(), key: Secret::new(found.value) },
                        Some(warning),
                    ));
                }
                Err(missing(artifact, name))
            }
        }
    }

    /// `none`, `literal`, `environment` or `config`: for the record of a run.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Keyless => "none",
            Self::Literal(_) => "literal",
            Self::Environment { .. } => "environment",
            Self::Configured { .. } => "config",
        }
    }

    /// What to do about a key that the provider rejects.
    fn remedy(&self) -> String {
        match self {
            Self::Keyless => "the endpoint asks for a key: set gateway.api_key in place of keyless".to_owned(),
            Self::Literal(_) => "correct gateway.api_key in murmur.yaml and run the capsule again".to_owned(),
            Self::Environment { name, .. } => format!("set {name} to a valid key and run the capsule again"),
            Self::Configured { name, .. } => {
                format!("store a valid key with 'mur config set -g credentials.{name} <key>'")
            }
        }
    }
}

fn read_once(artifact: &str, how: &str) -> Diagnostic {
    let message = format!("the gateway key of '{artifact}' {how}: it is read at launch only");
    Diagnostic::new(codes::W_SEC_027, message)
        .hint("a key under credentials: of ~/.murmur/config.yaml can be replaced while the capsule runs")
}

fn missing(artifact: &str, name: &str) -> Diagnostic {
    let message = format!(
        "murmur.yaml: gateway.api_key of '{artifact}' names {name}, which is neither at credentials.{name} of \
         ~/.murmur/config.yaml nor in the environment or the project's .env"
    );
    Diagnostic::new(codes::E_MAN_003, message)
        .hint(format!("store it with 'mur config set -g credentials.{name} <key>'"))
}

/// Reads keys from the operator's configuration as it is at that moment.
pub fn read_from(home: MurmurHome) -> ReadKey {
    Arc::new(move |name| config::credential_now(&home, name))
}

/// Whether two keys are one.
fn same(one: &Secret, other: &Secret) -> bool {
    one.expose() == other.expose()
}

/// One artifact's gateway.
pub struct Gateway {
    endpoint: manifest::Gateway,
    header: Option<(HeaderName, UpstreamAuth)>,
    source: KeySource,
    seen: Mutex<Vec<Secret>>,
}

impl Gateway {
    /// From the entry's block, what the artifact says of its provider's header, and the key.
    ///
    /// # Errors
    /// `E-RUN-025` when a key is to be attached and the artifact does not say how.
    pub fn new(
        artifact: &str,
        endpoint: manifest::Gateway,
        auth: Option<&UpstreamAuth>,
        source: KeySource,
    ) -> Result<Self> {
        let unusable = |why: &str| {
            Diagnostic::new(codes::E_RUN_025, format!("'{artifact}' has a gateway, and its upstream_auth: {why}"))
                .hint("install a newer release of the artifact, or remove gateway: from its entry")
        };
        let header = match auth {
            Some(auth) => {
                let name = HeaderName::from_bytes(auth.header.as_bytes());
                Some((name.map_err(|_| unusable("names no header"))?, auth.clone()))
            }
            None if matches!(source, KeySource::Keyless) => None,
            None => return Err(unusable("is missing")),
        };
        let gateway = Self { endpoint, header, source, seen: Mutex::default() };
        match &gateway.source {
            KeySource::Keyless => {}
            KeySource::Literal(key) | KeySource::Environment { key, .. } => gateway.note(key),
            KeySource::Configured { last, .. } => gateway.note(last),
        }
        if let Some(key) = gateway.key()
            && gateway.value(&key).is_none()
        {
            return Err(unusable("cannot carry this key: it holds a character that no header may"));
        }
        Ok(gateway)
    }

    /// What the artifact is told: `MURMUR_GATEWAY_ENDPOINT`.
    pub fn guest_endpoint(&self) -> String {
        format!("http://{AUTHORITY}{}", self.endpoint.path)
    }

    /// The provider's host and port.
    pub fn endpoint(&self) -> &manifest::Gateway {
        &self.endpoint
    }

    /// Where the key comes from.
    pub fn source(&self) -> &KeySource {
        &self.source
    }

    /// Every value of the key seen so far, to be taken out of texts.
    pub fn secrets(&self) -> Vec<Secret> {
        self.lock().clone()
    }

    /// The account of a provider that keeps rejecting the key: `E-RUN-027`.
    pub fn rejected(&self, artifact: &str) -> Diagnostic {
        let message = format!(
            "the provider of '{artifact}' ({}) rejects the credential with 401, also after it was read again",
            self.endpoint.authority()
        );
        Diagnostic::new(codes::E_RUN_027, message).hint(self.source.remedy())
    }

    /// Whether the key can change while a session runs.
    pub(super) fn is_rotating(&self) -> bool {
        matches!(self.source, KeySource::Configured { .. })
    }

    /// The key as it is now, when it is another one than the one that was sent.
    pub(super) fn other_key(&self, sent: Option<&Secret>) -> Option<Secret> {
        self.key().filter(|now| !sent.is_some_and(|sent| same(sent, now)))
    }

    /// The key as it is now.
    pub(super) fn key(&self) -> Option<Secret> {
        match &self.source {
            KeySource::Keyless => None,
            KeySource::Literal(key) | KeySource::Environment { key, .. } => Some(key.clone()),
            KeySource::Configured { name, read, .. } => {
                if let Some(now) = read(name).filter(|now| !now.expose().is_empty()) {
                    self.note(&now);
                }
                self.lock().last().cloned()
            }
        }
    }

    /// The provider's address for a request to the gateway: scheme, host and port change, path and query stay.
    pub(super) fn address(&self, request: &Uri) -> Option<Uri> {
        let mut parts = request.clone().into_parts();
        parts.scheme = Some(self.endpoint.scheme.parse().ok()?);
        parts.authority = Some(self.endpoint.authority().parse().ok()?);
        Uri::from_parts(parts).ok()
    }

    /// Leaves exactly the key in the header it belongs in, whatever the artifact put there.
    pub(super) fn attach(&self, headers: &mut HeaderMap, key: Option<&Secret>) {
        let Some((name, _)) = &self.header else { return };
        headers.remove(name);
        if let Some(value) = key.and_then(|key| self.value(key)) {
            headers.insert(name.clone(), value);
        }
    }

    fn value(&self, key: &Secret) -> Option<HeaderValue> {
        let (_, auth) = self.header.as_ref()?;
        let text = zeroize::Zeroizing::new(auth.value_with(key.expose()));
        let mut value = HeaderValue::from_str(&text).ok()?;
        value.set_sensitive(true);
        Some(value)
    }

    /// Keeps a value; the last is the one in use.
    fn note(&self, key: &Secret) {
        let mut seen = self.lock();
        if !seen.last().is_some_and(|last| same(last, key)) {
            seen.retain(|known| !same(known, key));
            if seen.len() == MAX_SEEN {
                seen.remove(0);
            }
            seen.push(key.clone());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Secret>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint() -> manifest::Gateway {
        manifest::Gateway {
            scheme: "https".into(),
            host: "api.example".into(),
            port: 8443,
            path: "/v1".into(),
            endpoint: "https://api.example:8443/v1".into(),
            api_key: ApiKey::Named("KEY".into()),
        }
    }

    fn auth() -> UpstreamAuth {
        UpstreamAuth { header: "X-Api-Key".into(), value: "Bearer {key}".into() }
    }

    #[test]
    fn exactly_one_header_carries_the_key_and_the_address_keeps_path_and_query() {
        let source = KeySource::Literal(Secret::new("sk-1".into()));
        let gateway = Gateway::new("a", endpoint(), Some(&auth()), source).unwrap();
        assert_eq!(gateway.guest_endpoint(), "http://127.0.0.1:9/v1");
        let address = gateway.address(&"http://127.0.0.1:9/v1/chat?x=1".parse().unwrap()).unwrap();
        assert_eq!(address.to_string(), "https://api.example:8443/v1/chat?x=1");
        let mut headers = HeaderMap::new();
        headers.append("x-api-key", "mine".parse().unwrap());
        headers.append("X-API-KEY", "mine too".parse().unwrap());
        gateway.attach(&mut headers, gateway.key().as_ref());
        assert_eq!(headers.get_all("x-api-key").iter().collect::<Vec<_>>(), ["Bearer sk-1"]);
        gateway.attach(&mut headers, None);
        assert!(headers.is_empty());
    }

    #[test]
    fn a_key_is_looked_for_in_the_configuration_and_then_in_the_environment() {
        let nothing = || -> ReadKey { Arc::new(|_| None) };
        let named = ApiKey::Named("KEY".into());
        let mut credentials = BTreeMap::new();
        let variable = |value: &str| Variable { value: value.to_owned(), place: "KEY in /p/.env".to_owned() };
        let find = |credentials: &BTreeMap<String, Secret>, value: Option<&str>| {
            KeySource::find("a", &named, credentials, |_| value.map(variable), nothing())
        };
        let error = find(&credentials, None).err().unwrap().to_string();
        assert!(error.contains("credentials.KEY") && error.contains("environment or the project's .env"), "{error}");
        assert!(find(&credentials, Some("")).is_err());
        let (source, warning) = find(&credentials, Some("sk-env")).unwrap();
        let warning = warning.unwrap();
        assert_eq!((source.kind(), warning.code()), ("environment", codes::W_SEC_027));
        assert!(warning.message().contains("comes from KEY in /p/.env"), "{warning}");
        credentials.insert("KEY".into(), Secret::new("sk-file".into()));
        let (source, warning) = find(&credentials, Some("sk-env")).unwrap();
        assert_eq!((source.kind(), warning), ("config", None));
    }

    #[test]
    fn a_configured_key_follows_its_file_and_survives_its_removal() {
        let dir = tempfile::tempdir().unwrap();
        let home = MurmurHome::at(dir.path().to_owned());
        std::fs::create_dir(home.root()).unwrap();
        let write = |key: &str| std::fs::write(home.config(), format!("credentials:\n  KEY: {key}\n")).unwrap();
        write("one");
        let last = Secret::new("one".into());
        let source = KeySource::Configured { name: "KEY".into(), last, read: read_from(home.clone()) };
        let gateway = Gateway::new("a", endpoint(), Some(&auth()), source).unwrap();
        let key = || gateway.key().unwrap().expose().to_owned();
        assert_eq!(key(), "one");
        write("second");
        assert_eq!(key(), "second");
        std::fs::remove_file(home.config()).unwrap();
        assert_eq!(key(), "second");
        assert_eq!(gateway.secrets().len(), 2);
    }

    #[test]
    fn a_keyed_gateway_needs_to_know_its_header_and_a_key_must_fit_it() {
        let key = |text: &str| KeySource::Literal(Secret::new(text.to_owned()));
        let refused = |auth: Option<&UpstreamAuth>, source| Gateway::new("a", endpoint(), auth, source).err().unwrap();
        assert_eq!(refused(None, key("sk")).code(), codes::E_RUN_025);
        let error = refused(Some(&auth()), key("sk\nInjected: 1"));
        assert!(!error.to_string().contains("Injected"), "{error}");
        assert!(Gateway::new("a", endpoint(), None, KeySource::Keyless).is_ok());
    }
}
