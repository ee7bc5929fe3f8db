//! What a request claims about where its task comes from and how far its text is to be trusted.

use http::HeaderMap;

use super::authorize::Caller;
use crate::session::tasks::{Origin, Trust};

/// Header: where the task comes from.
pub(super) const ORIGIN: &str = "x-murmur-task-origin";
/// Header: how far its text is trusted.
pub(super) const TRUST: &str = "x-murmur-task-trust";

/// The origin a request claims; only `peer` and `completion` can be claimed from outside. Of several header lines, one
/// that says `peer` counts, so that consent cannot be passed by saying more.
pub(super) fn origin(headers: &HeaderMap) -> Origin {
    let mut claimed = Origin::Event;
    for line in headers.get_all(ORIGIN) {
        match line.to_str().map(str::trim) {
            Ok(text) if text.eq_ignore_ascii_case("peer") => return Origin::Peer,
            Ok(text) if text.eq_ignore_ascii_case("completion") => claimed = Origin::Completion,
            _ => {}
        }
    }
    claimed
}

/// The trust of a task of this origin: the header's word, from a caller whose word counts.
pub(super) fn trust(headers: &HeaderMap, origin: Origin, caller: &Caller) -> Trust {
    let mut lines = headers.get_all(TRUST).iter();
    let word = lines.next().and_then(|line| line.to_str().ok()).map(str::trim);
    let one = lines.next().is_none();
    let claimed = one && word.is_some_and(|word| word.eq_ignore_ascii_case("trusted"));
    let may_claim = matches!(origin, Origin::Peer | Origin::Completion) && caller.may_vouch();
    if claimed && may_claim { Trust::Trusted } else { Trust::Untrusted }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::credentials::MemberName;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in lines {
            map.append(*name, HeaderValue::from_static(value));
        }
        map
    }

    #[test]
    fn only_peer_and_completion_are_taken_from_the_wire() {
        for (value, expected) in [
            ("peer", Origin::Peer),
            ("PEER", Origin::Peer),
            ("completion", Origin::Completion),
            ("user", Origin::Event),
            ("schedule", Origin::Event),
            ("system", Origin::Event),
            ("nonsense", Origin::Event),
        ] {
            assert_eq!(origin(&headers(&[(ORIGIN, value)])), expected, "{value}");
        }
        assert_eq!(origin(&headers(&[])), Origin::Event);
        assert_eq!(origin(&headers(&[(ORIGIN, "user"), (ORIGIN, "peer")])), Origin::Peer);
    }

    #[test]
    fn a_claim_of_trust_counts_from_members_and_the_operator_only() {
        let claim = headers(&[(TRUST, "Trusted")]);
        let member = Caller::Member(MemberName::parse("a").unwrap());
        let credential = Caller::Credential { name: "c".into(), scopes: [].into() };
        for (caller, expected) in [
            (&member, Trust::Trusted),
            (&Caller::Operator, Trust::Trusted),
            (&credential, Trust::Untrusted),
            (&Caller::Anybody, Trust::Untrusted),
        ] {
            assert_eq!(trust(&claim, Origin::Peer, caller), expected, "{caller:?}");
            assert_eq!(trust(&claim, Origin::Event, caller), Trust::Untrusted);
            assert_eq!(trust(&headers(&[]), Origin::Peer, caller), Trust::Untrusted);
        }
        let twice = headers(&[(TRUST, "trusted"), (TRUST, "untrusted")]);
        assert_eq!(trust(&twice, Origin::Peer, &member), Trust::Untrusted);
    }
}
