//! One entry of a `network.allow` list: parsing, matching and covering. Nothing is resolved here.

use std::fmt;

use crate::diagnostics::{Diagnostic, Result, codes};

/// A scheme, host and port a request may have; what is absent matches any.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NetworkRule {
    /// `http` or `https`; absent = either.
    pub scheme: Option<String>,
    /// Lower-cased, compared whole; IPv6 literals keep their brackets.
    pub host: String,
    /// Absent = every port, or, under a scheme, the scheme's own was filled in.
    pub port: Option<u16>,
}

impl NetworkRule {
    /// Parses `scheme://host[:port]`, `host:port` or `host`.
    ///
    /// # Errors
    /// `E-CAP-001` naming the entry.
    pub fn parse(entry: &str) -> Result<Self> {
        Self::read(entry)
            .map_err(|why| Diagnostic::new(codes::E_CAP_001, format!("invalid network allow entry '{entry}': {why}")))
    }

    fn read(entry: &str) -> std::result::Result<Self, String> {
        if entry.is_empty() {
            return Err("it is empty".to_owned());
        }
        if entry.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err("it holds white space or a control character".to_owned());
        }
        let (scheme, rest) = match entry.split_once("://") {
            Some((scheme, rest)) => (Some(scheme.to_ascii_lowercase()), rest),
            None => (None, entry),
        };
        if let Some(scheme) = &scheme
            && scheme != "http"
            && scheme != "https"
        {
            return Err(format!("scheme '{scheme}' is neither http nor https"));
        }
        if rest.contains('?') || rest.contains('#') {
            return Err("a query or fragment names no destination".to_owned());
        }
        let authority = match rest.split_once('/') {
            Some((authority, "")) => authority,
            Some(_) => return Err("a path names no destination".to_owned()),
            None => rest,
        };
        if authority.contains('@') {
            return Err("it holds a user name".to_owned());
        }
        let (host, port) = split_authority(authority)?;
        let port = port.or(match scheme.as_deref() {
            Some("http") => Some(80),
            Some(_) => Some(443),
            None => None,
        });
        Ok(Self { scheme, host, port })
    }

    /// Whether a request to this scheme, host and port is allowed. The host is compared lower-cased and whole; the port
    /// is the request's own or its scheme's default.
    pub fn matches(&self, scheme: &str, host: &str, port: u16) -> bool {
        self.scheme.as_deref().is_none_or(|own| own.eq_ignore_ascii_case(scheme))
            && self.port.is_none_or(|own| own == port)
            && self.host.eq_ignore_ascii_case(host)
    }

    /// Whether a connection to this host and port is allowed, whatever is spoken on it. A final dot of the rule's host
    /// is not compared: a resolver drops it.
    pub fn matches_address(&self, host: &str, port: u16) -> bool {
        let own = self.host.strip_suffix('.').unwrap_or(&self.host);
        self.port.is_none_or(|own| own == port) && own.eq_ignore_ascii_case(host)
    }

    /// Whether everything `narrower` allows is allowed by this rule too.
    pub fn covers(&self, narrower: &Self) -> bool {
        self.host == narrower.host
            && (self.scheme.is_none() || self.scheme == narrower.scheme)
            && (self.port.is_none() || self.port == narrower.port)
    }
}

impl fmt::Display for NetworkRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(scheme) = &self.scheme {
            write!(f, "{scheme}://")?;
        }
        f.write_str(&self.host)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

/// Whether a list reaches a member's door: `http` to `localhost` at a port nobody knows beforehand.
pub fn covers_loopback_http(rules: &[NetworkRule]) -> bool {
    rules.iter().any(|rule| {
        rule.port.is_none() && rule.scheme.as_deref().is_none_or(|scheme| scheme == "http") && rule.host == "localhost"
    })
}

/// Splits `host[:port]`, lower-casing the host. The reason reads after the thing's name.
pub(super) fn split_authority(authority: &str) -> std::result::Result<(String, Option<u16>), String> {
    let (host, port) = if authority.starts_with('[') {
        let Some(end) = authority.find(']') else { return Err("has no ']' after its IPv6 address".to_owned()) };
        let (host, rest) = authority.split_at(end + 1);
        let inner = &host[1..end];
        if inner.parse::<std::net::Ipv6Addr>().is_err() {
            return Err(format!("'{inner}' is no IPv6 address"));
        }
        match rest.strip_prefix(':') {
            Some(port) => (host, Some(port)),
            None if rest.is_empty() => (host, None),
            None => return Err("has text after its IPv6 address".to_owned()),
        }
    } else {
        match authority.split_once(':') {
            Some((_, port)) if port.contains(':') => {
                return Err("has several colons; an IPv6 address needs brackets".to_owned());
            }
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        }
    };
    if host.is_empty() {
        return Err("has no host".to_owned());
    }
    let plain = |c: char| !c.is_whitespace() && !c.is_control() && !"\"#%/<>?@[\\]^`{|}".contains(c);
    if !host.starts_with('[') && !host.chars().all(plain) {
        return Err(format!("'{host}' is no host name"));
    }
    // `*` by itself is the name of a host, one nothing is called by.
    if host.contains('*') && host != "*" {
        return Err(format!("'{host}' holds a wildcard, and hosts are compared whole: name each"));
    }
    let port = match port {
        None => None,
        Some(text) if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) => {
            Some(text.parse().map_err(|_| format!("'{text}' is no port"))?)
        }
        Some(text) => return Err(format!("'{text}' is no port")),
    };
    Ok((host.to_lowercase(), port))
}
