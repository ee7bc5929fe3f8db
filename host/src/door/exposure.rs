//! What an open door off loopback lets anybody do, said once at launch.

use std::net::IpAddr;

use super::CapsuleFacts;
use super::methods::Method;
use crate::diagnostics::{Diagnostic, codes};

/// The warning of a public door that others than this host reach; `None` for a door on loopback. The same for a launch
/// and for `mur doctor`.
pub fn exposure_warning(address: &str, capsule: &CapsuleFacts, accepts_tasks: bool) -> Option<Diagnostic> {
    if is_loopback(address) {
        return None;
    }
    let methods: Vec<&str> = Method::served(accepts_tasks, false).map(Method::name).collect();
    let tools = if capsule.tools.is_empty() { "none".to_owned() } else { capsule.tools.join(", ") };
    let planes = match (capsule.exports_files, capsule.exports_peer_files) {
        (true, true) => "files, peer_files",
        (true, false) => "files",
        (false, true) => "peer_files",
        (false, false) => "none",
    };
    let message = format!(
        "the door is bound to {address} and network.authentication is not declared: whoever reaches it may call {}; \
         tools: {tools}; shell: {}; network: {}; planes: {planes}",
        methods.join(", "),
        yes_no(capsule.shell),
        yes_no(capsule.network),
    );
    Some(Diagnostic::new(codes::W_SEC_032, message))
}

fn is_loopback(address: &str) -> bool {
    let bare = address.trim_start_matches('[').trim_end_matches(']');
    if bare.eq_ignore_ascii_case("localhost") {
        return true;
    }
    match bare.parse::<IpAddr>() {
        Ok(IpAddr::V4(v4)) => v4.is_loopback(),
        Ok(IpAddr::V6(v6)) => v6.is_loopback() || v6.to_ipv4_mapped().is_some_and(|v4| v4.is_loopback()),
        Err(_) => false,
    }
}

fn yes_no(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capsule() -> CapsuleFacts {
        CapsuleFacts {
            name: "tally".to_owned(),
            version: "1".to_owned(),
            tools: vec!["fetch".to_owned()],
            shell: false,
            network: true,
            exports_files: false,
            exports_peer_files: false,
        }
    }

    #[test]
    fn only_a_door_off_loopback_is_warned_of() {
        for address in ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "::ffff:127.0.0.1"] {
            assert!(exposure_warning(address, &capsule(), true).is_none(), "{address}");
        }
        for address in ["0.0.0.0", "::", "10.0.0.1", "example.org", "128.0.0.1"] {
            let line = exposure_warning(address, &capsule(), true).unwrap().warning_line();
            let start = format!(
                "warning[W-SEC-032]: the door is bound to {address} and network.authentication is not declared"
            );
            assert!(line.starts_with(&start), "{line}");
            assert!(line.contains("SendMessage") && line.contains("tools: fetch") && line.contains("network: yes"));
        }
    }
}
