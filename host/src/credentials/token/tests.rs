use proptest::prelude::*;

use super::*;

fn name(text: &str) -> MemberName {
    MemberName::parse(text).unwrap()
}

fn key() -> SigningKey {
    SigningKey(ed25519_dalek::SigningKey::from_bytes(&[9; 32]))
}

fn formation() -> FormationId {
    FormationId::parse("frm_0199c4e2f1b7712a9d3e4f5061728394").unwrap()
}

fn verifier() -> Verifier {
    Verifier::new(formation(), name("coder"), key().verifying_key())
}

/// A token of `key` over any payload bytes, so that the payload reader alone is tried.
fn signed(payload: &str) -> String {
    let payload = URL_SAFE_NO_PAD.encode(payload);
    let signature = key().0.sign(&signed_bytes(&payload));
    format!("{TAG}{payload}.{}", URL_SAFE_NO_PAD.encode(signature.to_bytes()))
}

#[test]
fn an_edge_opens_the_door_it_names_and_no_other() {
    let token = key().sign_edge(&formation(), &name("planner"), &name("coder"));
    let verifier = verifier();
    for _ in 0..2 {
        assert_eq!(verifier.verify(token.expose()), Ok(name("planner")));
    }
    let other = key().sign_edge(&formation(), &name("planner"), &name("reviewer"));
    for _ in 0..2 {
        assert_eq!(verifier.verify(other.expose()), Err(Refusal::NotPermitted { from: name("planner") }));
    }
}

#[test]
fn another_formation_or_another_key_is_invalid_even_for_this_door() {
    let verifier = verifier();
    let foreign = key().sign_edge(&FormationId::mint(), &name("planner"), &name("coder"));
    assert_eq!(verifier.verify(foreign.expose()), Err(Refusal::Invalid));
    let forged = SigningKey::mint().unwrap().sign_edge(&formation(), &name("planner"), &name("coder"));
    assert_eq!(verifier.verify(forged.expose()), Err(Refusal::Invalid));
}

#[test]
fn r025_only_the_exact_payload_the_signer_writes_is_one() {
    let verifier = verifier();
    let id = formation();
    let good = payload_text(id.as_str(), "planner", "coder");
    assert_eq!(verifier.verify(&signed(&good)), Ok(name("planner")));
    for bad in [
        format!(r#"{{"from":"planner","formation":"{id}","to":"coder"}}"#),
        format!(r#"{{"formation":"{id}","from":"planner","to":"coder","x":"y"}}"#),
        format!(r#"{{"formation":"{id}","from":"planner","from":"planner","to":"coder"}}"#),
        format!(r#"{{"formation":"{id}","fr\u006fm":"planner","to":"coder"}}"#),
        format!(r#"{{"formation":"{id}","from":"pl\u0061nner","to":"coder"}}"#),
        format!(r#"{{"formation":"{id}","from":"planner","to":"coder" }}"#),
        format!(r#"{{"formation":"{id}","from":"Planner","to":"coder"}}"#),
        format!(r#"{{"formation":"{id}","from":"planner"}}"#),
        format!(r#"{{"formation":"{id}","from":1,"to":"coder"}}"#),
        format!("{good}\n"),
        "null".to_owned(),
        String::new(),
    ] {
        assert_eq!(verifier.verify(&signed(&bad)), Err(Refusal::Invalid), "{bad}");
    }
}

#[test]
fn r025_other_spellings_of_a_good_token_are_invalid() {
    let token = key().sign_edge(&formation(), &name("planner"), &name("coder"));
    let good = token.expose();
    let verifier = verifier();
    // The last character of 64 bytes in base64 carries four unused bits: another value decodes to the same bytes
    // where a reader is lenient.
    let last = good.bytes().last().unwrap();
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let at = alphabet.iter().position(|b| *b == last).unwrap();
    let twin = format!("{}{}", &good[..good.len() - 1], alphabet[at ^ 1] as char);
    let (head, signature) = good.rsplit_once('.').unwrap();
    for bad in [
        twin,
        format!("{good}="),
        format!("{good}=="),
        format!("{good}."),
        format!("{good} "),
        format!(" {good}"),
        good.replace("mft1", "MFT1"),
        good.replace("mft1", "mft2"),
        format!("{head}=.{signature}"),
        head.to_owned(),
        format!("{head}."),
        format!("{head}.{}", URL_SAFE_NO_PAD.encode([0; 64])),
        "x".repeat(MAX_TOKEN + 1),
    ] {
        assert_eq!(verifier.verify(&bad), Err(Refusal::Invalid), "{bad}");
    }
    assert_eq!(verifier.verify(good), Ok(name("planner")));
}

#[test]
fn r025_a_signature_with_the_group_order_added_is_invalid() {
    // L, little endian: S and S + L are congruent, and only a strict verifier tells them apart.
    const L: [u8; 32] = [
        0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
    ];
    let token = key().sign_edge(&formation(), &name("planner"), &name("coder"));
    let (head, signature) = token.expose().rsplit_once('.').unwrap();
    let mut bytes = URL_SAFE_NO_PAD.decode(signature).unwrap();
    let mut carry = 0_u16;
    for (byte, add) in bytes[32..].iter_mut().zip(L) {
        carry += u16::from(*byte) + u16::from(add);
        *byte = carry.to_le_bytes()[0];
        carry >>= 8;
    }
    let altered = format!("{head}.{}", URL_SAFE_NO_PAD.encode(bytes));
    assert_eq!(verifier().verify(&altered), Err(Refusal::Invalid));
}

#[test]
fn r025_a_small_order_key_is_no_key() {
    let mut identity = [0_u8; 32];
    identity[0] = 1;
    for weak in [identity, [0; 32]] {
        assert!(VerifyingKey::parse(&URL_SAFE_NO_PAD.encode(weak)).is_none());
    }
    let good = key().verifying_key();
    assert_eq!(VerifyingKey::parse(&good.to_text()), Some(good));
    assert!(VerifyingKey::parse(&format!("{}=", good.to_text())).is_none());
}

#[test]
fn a_full_table_forgets_and_verifies_again() {
    let verifier = verifier();
    let token = key().sign_edge(&formation(), &name("planner"), &name("coder"));
    for index in 0..REMEMBERED {
        let outcome = Ok(name("planner"));
        verifier.seen.lock().unwrap().insert(Seen(Zeroizing::new(index.to_string())), outcome);
    }
    assert_eq!(verifier.verify(token.expose()), Ok(name("planner")));
    assert_eq!(verifier.seen.lock().unwrap().len(), 1);
}

proptest! {
    #[test]
    fn any_text_is_refused_without_a_panic(text in any::<String>(), bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        fuzz_token(text.as_bytes());
        fuzz_token(&bytes);
        fuzz_token(format!("{TAG}{}.{}", URL_SAFE_NO_PAD.encode(&bytes), URL_SAFE_NO_PAD.encode(text)).as_bytes());
    }

    #[test]
    fn one_changed_byte_is_invalid(at in 0_usize..1000, to in any::<u8>()) {
        let token = key().sign_edge(&formation(), &name("planner"), &name("coder"));
        let mut bytes = token.expose().as_bytes().to_vec();
        let at = at % bytes.len();
        prop_assume!(bytes[at] != to);
        bytes[at] = to;
        if let Ok(text) = String::from_utf8(bytes) {
            prop_assert_eq!(verifier().verify(&text), Err(Refusal::Invalid));
        }
    }

    #[test]
    fn every_edge_round_trips(from in "[a-z][a-z0-9-]{0,31}", to in "[a-z][a-z0-9-]{0,31}") {
        let token = key().sign_edge(&formation(), &name(&from), &name(&to));
        let claims = key().verifying_key().open(token.expose()).unwrap();
        prop_assert_eq!(claims, Claims { formation: formation(), from: name(&from), to: name(&to) });
    }
}
