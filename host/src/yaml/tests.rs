use proptest::prelude::*;

use super::*;

const MAX: u64 = 1 << 20;

fn root(text: &str) -> Node {
    parse("f.yaml", text.as_bytes(), MAX).unwrap_or_else(|fault| panic!("{text}: {}", fault.message())).root.clone()
}

fn fault(text: &str) -> (String, usize, usize) {
    let fault = parse("f.yaml", text.as_bytes(), MAX).expect_err(text);
    let place = fault.place.expect("a place");
    (fault.message, place.line, place.column)
}

#[test]
fn a_reference_without_quotes_in_braces_is_explained() {
    let (message, line, _) = fault("a: 1\ngateway: { keyless: x, api_key: ${NAME} }\n");
    assert!(line == 2 && message.ends_with("a value such as ${NAME} has to stand in quotes"), "{message}");
    assert!(!fault("gateway: { api_key: \"${NAME}\", x: [ }\n").0.contains("quotes"));
}

#[test]
fn a_scalar_keeps_the_text_it_was_written_with() {
    for text in ["1.20", "1e3", "0x10", "010", "1_0", ".5", "12:30", "2026-01-01", "true", "+1", "0o7", "1.", "-.5"] {
        let doc = root(&format!("version: {text}\n"));
        assert_eq!(doc.get("version").unwrap().text(), Some(text));
    }
}

#[test]
fn words_that_old_yaml_took_for_booleans_are_strings() {
    for text in ["no", "on", "off", "y", "yes", "True", "1_0", "12:30", "0b1", "1e", "e5", ".", "-", "--1", "1-2"] {
        let doc = root(&format!("k: {}\n", if text == "-" { "'-'" } else { text }));
        assert_eq!(doc.get("k").unwrap().string(), Some(text), "{text}");
    }
    for (text, found) in [
        ("true", "a boolean"),
        ("null", "an empty block"),
        ("~", "an empty block"),
        ("", "an empty block"),
        ("1", "a number"),
        ("1.5e3", "a number"),
        ("[]", "a sequence"),
        ("{}", "a mapping"),
        ("'1'", "a string"),
        ("!!str 1", "a string"),
    ] {
        assert_eq!(root(&format!("k: {text}\n")).get("k").unwrap().found(), found, "{text}");
    }
}

#[test]
fn a_key_without_a_value_is_told_from_a_written_null() {
    for text in ["k:\n", "k: \nl: 1\n", "{k: }", "{k}", "k: # nothing\n", "k: !!null\n"] {
        assert!(root(text).get("k").unwrap().is_valueless(), "{text}");
    }
    for text in ["k: ~\n", "k: null\n", "{k: ~}"] {
        let root = root(text);
        let node = root.get("k").unwrap();
        assert!(node.is_null() && !node.is_valueless(), "{text}");
    }
    assert_eq!(root("k: ''\n").get("k").unwrap().string(), Some(""));
    assert_eq!(root("").found(), "an empty block");
    assert_eq!(root("# nothing\n").found(), "an empty block");
}

#[test]
fn a_repeated_key_is_refused_with_both_lines() {
    assert_eq!(fault("a: 1\nb: 2\na: 1\n"), ("key 'a' is written twice, on lines 1 and 3".into(), 3, 1));
    assert_eq!(fault("x:\n  - {p: 1, p: 1}\n").0, "key 'p' is written twice, on lines 2 and 2");
    assert_eq!(fault("a: 1\n\"a\": 2\n").0, "key 'a' is written twice, on lines 1 and 2");
    let many: String = (0..40).map(|n| format!("k{n}: 1\n")).collect();
    assert_eq!(fault(&format!("{many}k39: 1\n")).0, "key 'k39' is written twice, on lines 40 and 41");
    assert_eq!(fault(&format!("{many}k3: 1\n")).0, "key 'k3' is written twice, on lines 4 and 41");
}

#[test]
fn what_makes_a_file_mean_something_else_is_refused() {
    for (text, word) in [
        ("a: &x 1\nb: *x\n", "anchors"),
        ("a: &x [1]\n", "anchors"),
        ("a: *x\n", "aliases"),
        ("<<: {a: 1}\n", "merge keys"),
        ("a: !thing 1\n", "tagged value"),
        ("a: !!timestamp 2026-01-01\n", "tagged value"),
        ("a: !!int x\n", "!!int"),
        ("a: !!map [1]\n", "!!map"),
        ("a: 1\n---\nb: 2\n", "second document"),
        ("? [1]\n: 2\n", "key must be text"),
        ("{[1]: 2}\n", "key must be text"),
    ] {
        let (message, _, _) = fault(text);
        assert!(message.contains(word), "{text}: {message}");
    }
    assert_eq!(root("'<<': 1\n").map().unwrap().len(), 1);
}

#[test]
fn nested_anchors_are_refused_before_anything_expands() {
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for n in 1..200 {
        bomb.push_str(&format!("a{n}: &a{n} [{}]\n", format!("*a{}, ", n - 1).repeat(10)));
    }
    let start = std::time::Instant::now();
    assert!(fault(&bomb).0.contains("anchors"));
    assert!(start.elapsed().as_millis() < 100);
}

#[test]
fn depth_is_bounded() {
    assert!(fault(&"[".repeat(100_000)).0.len() < 200);
    assert!(fault(&format!("{}a: 1", "- ".repeat(1000))).0.len() < 200);
}

#[test]
fn every_line_end_gives_the_same_tree_and_the_same_columns() {
    let lf = "a: 1\nlist:\n  - x\n  - 'y'\nbad: [\n";
    let good = "a: 1\nlist:\n  - x\n  - 'y'\nb: z";
    for end in ["\r\n", "\r"] {
        assert_eq!(fault(&lf.replace('\n', end)), fault(lf), "{end:?}");
        assert_eq!(root(&good.replace('\n', end)), root(good), "{end:?}");
    }
    let mixed = "a: 1\r\nlist:\r  - x\n  - 'y'\r\nb: z";
    assert_eq!(root(mixed), root(good));
    let doubled = parse("f", b"a: 1\r\nb: 2\rb: 3\n", MAX).unwrap_err();
    let place = doubled.place.unwrap();
    assert_eq!((place.line, place.column, place.text.as_str()), (3, 1, "b: 3"));
}

#[test]
fn a_byte_order_mark_is_accepted_and_other_encodings_are_named() {
    let mut bytes = vec![0xef, 0xbb, 0xbf];
    bytes.extend_from_slice(b"a: 1\n");
    assert_eq!(parse("f", &bytes, MAX).unwrap().root().get("a").unwrap().integer(), Some(1));
    let utf16: Vec<u8> = "a: 1\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    assert!(parse("f", &utf16, MAX).unwrap_err().message.contains("UTF-16"));
    let with_mark: Vec<u8> = [0xfe, 0xff].into_iter().chain(utf16.iter().copied()).collect();
    assert!(parse("f", &with_mark, MAX).unwrap_err().message.contains("UTF-16"));
    let latin = parse("f", b"a: 1\nb: \xe9\n", MAX).unwrap_err();
    let place = latin.place.unwrap();
    assert_eq!((place.line, place.column), (2, 4));
}

#[test]
fn a_line_that_may_hold_a_credential_is_not_shown() {
    let shown = |text: &str| parse("f", text.as_bytes(), MAX).unwrap_err().place.unwrap().text;
    for text in [
        "g: {api_key: sk-live, a: [}\n",
        "'api_key' : sk-live]\n a: b: c\n",
        "api_key:\n  sk-live: x: y\n",
        "access_token: a: b\n",
        "e: https://u:sk-live@x.test/: b: c\n",
    ] {
        assert_eq!(shown(text), "", "{text}");
    }
    for text in ["max_tokens: a: b\n", "token-counter: a: b\n", "e: https://x.test/a@b: c: d\n"] {
        assert_eq!(shown(text), text.trim_end(), "{text}");
    }
}

#[test]
fn a_text_over_the_limit_is_refused_unparsed() {
    assert!(parse("f", &[b'a'; 11], 10).unwrap_err().message.contains("larger than 10"));
}

#[test]
fn json_keeps_order_and_kinds() {
    let doc = root("z: 1\na: 1.5\nt: 'x'\nn: ~\nb: true\nl: [0x10, 18446744073709551615, .inf]\n");
    assert_eq!(
        doc.to_json().to_string(),
        r#"{"z":1,"a":1.5,"t":"x","n":null,"b":true,"l":[16,18446744073709551615,".inf"]}"#
    );
}

#[test]
fn a_pipe_in_the_files_place_is_refused_without_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(matches!(read_file(&path, 10), Err(ReadFault::Other(_))));
    assert!(matches!(read_file(&dir.path().join("none"), 10), Err(ReadFault::Missing)));
}

proptest! {
    #[test]
    fn any_bytes_are_a_tree_or_a_fault(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = parse("f", &bytes, MAX).map(|doc| doc.root().to_json());
    }

    #[test]
    fn any_yaml_like_text_is_a_tree_or_a_fault(text in "[-:,\\[\\]{}&*!|>'\"#%@ \n\r\ta-c0-9?~<.]{0,200}") {
        let _ = parse("f", text.as_bytes(), MAX).map(|doc| doc.root().to_json());
    }

    #[test]
    fn quoted_text_comes_back_as_it_was(text in "[ -~]{0,40}") {
        let quoted = format!("k: '{}'\n", text.replace('\'', "''"));
        let root = root(&quoted);
        prop_assert_eq!(root.get("k").unwrap().string(), Some(text.as_str()));
    }
}
