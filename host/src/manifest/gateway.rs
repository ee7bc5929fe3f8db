//! `artifacts[].gateway`: where an artifact's provider lives, and which key its requests carry.

use std::fmt;

use super::fields::Field;
use super::{Capabilities, Capsule, FILE_NAME, NetworkRule, Role};
use crate::diagnostics::{Diagnostic, Result, codes};

/// A checked gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// `http` or `https`.
    pub scheme: String,
    /// Lower-cased; IPv6 literals keep their brackets.
    pub host: String,
    /// Written or the scheme's own.
    pub port: u16,
    /// Path without a trailing `/`; empty for the root.
    pub path: String,
    /// The endpoint as written.
    pub endpoint: String,
    /// The key its requests carry.
    pub api_key: ApiKey,
}

/// The key of a gateway.
#[derive(Clone, PartialEq, Eq)]
pub enum ApiKey {
    /// `keyless: true`: none is attached.
    Keyless,
    /// `${NAME}`: looked up at staging, first in the configured credentials, then in the environment.
    Named(String),
    /// Written out in the manifest.
    Literal(String),
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keyless => f.write_str("Keyless"),
            Self::Named(name) => write!(f, "Named({name})"),
            Self::Literal(_) => f.write_str("Literal(***)"),
        }
    }
}

impl Gateway {
    /// `host:port` as an allow entry or `Host` header would name it.
    pub fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// The first network rule that names this gateway's host: what it lets through has not this gateway's key. Without a
    /// key there is nothing to miss.
    fn bypass(&self, capabilities: &Capabilities) -> Option<NetworkRule> {
        if self.api_key == ApiKey::Keyless {
            return None;
        }
        capabilities.network_rules().ok()?.into_iter().find(|rule| rule.host == self.host)
    }
}

/// What is worth knowing of a capsule's gateways, from the manifest alone (`W-SEC-025`, `W-SEC-030`).
pub fn gateway_warnings(capsule: &Capsule) -> Vec<Diagnostic> {
    let mut warnings = Vec::new();
    for entry in &capsule.artifacts {
        let Some(gateway) = &entry.gateway else { continue };
        if let Some(rule) = gateway.bypass(&capsule.capabilities) {
            let message = format!(
                "capabilities.network.allow names '{rule}', the host of the gateway of '{}': requests to it outside the \
                 gateway carry no key",
                entry.name
            );
            let warning = Diagnostic::new(codes::W_SEC_025, message);
            warnings.push(warning.hint("remove the entry; a gateway's requests need none"));
        }
        if entry.runtime != Role::Driver {
            let message = format!("what '{}' sends through its gateway is not metered", entry.name);
            let warning = Diagnostic::new(codes::W_SEC_030, message);
            warnings.push(warning.hint("only the inference driver's tokens are counted"));
        }
    }
    warnings
}

/// Reads one `gateway` block, which is present; a value-less one has no endpoint.
pub(super) fn read(field: &Field<'_>) -> Result<Gateway> {
    let block = field.block_or_empty()?;
    let endpoint_field = block.key("endpoint");
    let Some(endpoint) = endpoint_field.text()? else { return Err(endpoint_field.fault("is required")) };
    let parsed = parse_endpoint(&endpoint).map_err(|why| endpoint_field.fault(&why))?;
    let keyless_field = block.key("keyless");
    let keyless = match keyless_field.value() {
        None => false,
        Some(node) => node.boolean().ok_or_else(|| keyless_field.fault("must be true or false"))?,
    };
    let key_field = block.key("api_key");
    let key = key_field.text()?.filter(|key| !key.trim().is_empty());
    let api_key = match (keyless, key_field.is_written(), key) {
        (true, true, _) => return Err(keyless_field.fault("cannot stand beside api_key")),
        (true, false, _) => ApiKey::Keyless,
        (false, _, Some(key)) => key_of(&key),
        (false, _, None) => {
            let message = format!(
                "{}: {}: a gateway needs a key, and neither api_key nor keyless: true is set",
                FILE_NAME,
                field.path()
            );
            return Err(field
                .place_on(Diagnostic::new(codes::E_CAP_018, message))
                .hint("set api_key: ${NAME}, or keyless: true for an endpoint that takes no key"));
        }
    };
    let Endpoint { scheme, host, port, path } = parsed;
    Ok(Gateway { scheme, host, port, path, endpoint, api_key })
}

/// Whether a text is the name of a credential: `[A-Z_][A-Z0-9_]*`.
pub(crate) fn is_credential_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_uppercase() || b == b'_')
        && bytes.all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
}

fn key_of(text: &str) -> ApiKey {
    let trimmed = text.trim();
    match trimmed.strip_prefix("${").and_then(|rest| rest.strip_suffix('}')) {
        Some(name) if is_credential_name(name) => ApiKey::Named(name.to_owned()),
        _ => ApiKey::Literal(text.to_owned()),
    }
}

struct Endpoint {
    scheme: String,
    host: String,
    port: u16,
    path: String,
}

/// Checks a gateway endpoint; the reason never repeats a password written into the URL.
pub(crate) fn check_endpoint(text: &str) -> std::result::Result<(), String> {
    parse_endpoint(text).map(|_| ())
}

fn parse_endpoint(text: &str) -> std::result::Result<Endpoint, String> {
    let shown = masked(text);
    if text.contains("${") {
        return Err(format!("'{shown}' holds '${{', and an endpoint is not interpolated"));
    }
    let Some((scheme, rest)) = text.split_once("://") else { return Err(format!("'{shown}' is not a URL")) };
    let scheme = scheme.to_ascii_lowercase();
    if scheme != "http" && scheme != "https" {
        return Err(format!("'{shown}' must begin https:// (or http:// on this machine)"));
    }
    if text.chars().any(|c| c.is_whitespace() || c.is_control() || c == '\\') {
        return Err(format!("'{shown}' is not a URL"));
    }
    if rest.contains('?') {
        return Err(format!("'{shown}' holds a query"));
    }
    if rest.contains('#') {
        return Err(format!("'{shown}' holds a fragment"));
    }
    let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    if authority.contains('@') {
        return Err(format!("'{shown}' holds a user name or password"));
    }
    let (host, port) = super::network_rule::split_authority(authority).map_err(|why| format!("'{shown}' {why}"))?;
    if scheme == "http" && !is_loopback(&host) {
        return Err(format!("'{shown}' is plain http and not to this machine's loopback; write https://"));
    }
    let port = port.unwrap_or(if scheme == "https" { 443 } else { 80 });
    Ok(Endpoint { scheme, host, port, path: path.trim_end_matches('/').to_owned() })
}

fn is_loopback(host: &str) -> bool {
    host == "localhost"
        || host == "[::1]"
        || host.parse::<std::net::Ipv4Addr>().is_ok_and(|address| address.is_loopback())
        || host
            .strip_prefix('[')
            .and_then(|h| h.strip_suffix(']'))
            .and_then(|h| h.parse::<std::net::Ipv6Addr>().ok())
            .is_some_and(|address| address.is_loopback())
}

/// The text with whatever stands before an `@` of its authority replaced.
fn masked(text: &str) -> String {
    let start = text.find("://").map_or(0, |at| at + 3);
    let end = text[start..].find(['/', '?', '#']).map_or(text.len(), |at| start + at);
    match text[start..end].rfind('@') {
        Some(at) => format!("{}***{}", &text[..start], &text[start + at..]),
        None => text.to_owned(),
    }
}
