use std::io::Write;

use proptest::prelude::*;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use super::super::build::tests::archive_of;
use super::*;

fn open(bytes: Vec<u8>) -> Result<Archive> {
    Archive::open_with(bytes.into(), DEFAULT_CEILING)
}

fn refusal(bytes: Vec<u8>) -> String {
    open(bytes).unwrap_err().to_string()
}

/// Replaces every occurrence of `from`, in local headers and the directory alike.
fn patched(mut bytes: Vec<u8>, from: &[u8], to: &[u8]) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let mut at = 0;
    while let Some(found) = bytes[at..].windows(from.len()).position(|window| window == from) {
        bytes[at + found..at + found + to.len()].copy_from_slice(to);
        at += found + to.len();
    }
    bytes
}

/// Replaces the first occurrence only: the local header.
fn patched_once(mut bytes: Vec<u8>, from: &[u8], to: &[u8]) -> Vec<u8> {
    let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
    bytes[at..at + to.len()].copy_from_slice(to);
    bytes
}

const MINIMAL: &str = "name: x\nversion: '1'\nruntime: capsule\nexecution: static\n";

#[test]
fn a_sound_archive_reads_back() {
    let archive = open(archive_of(&[("murmur.yaml", MINIMAL.as_bytes()), ("a/b.txt", b"text")])).unwrap();
    assert_eq!(archive.manifest_text().unwrap(), MINIMAL);
    assert_eq!(archive.read("a/b.txt").unwrap().unwrap(), "text");
    assert_eq!(archive.read("a").unwrap(), None);
}

#[test]
fn names_that_no_folder_can_hold_are_refused() {
    let named = |name: &[u8]| {
        let placeholder = vec![b'Q'; name.len()];
        let text = String::from_utf8(placeholder.clone()).unwrap();
        refusal(patched(archive_of(&[(&text, b"x")]), &placeholder, name))
    };
    for (name, why) in [
        (&b"../murmur.yaml"[..], "'..'"),
        (b"a/../../b", "'..'"),
        (b"a/..", "'..'"),
        (b"/etc/passwd", "absolute"),
        (b"//x", "absolute"),
        (b"a\\b", "backslash"),
        (b"..\\b", "backslash"),
        (b"a\0b", "NUL"),
        (b"C:/x", "drive prefix"),
        (b"a//b", "empty component"),
        (b"./a", "empty component"),
        (b".", "empty component"),
        (b"a\xff", "not UTF-8"),
    ] {
        let text = named(name);
        assert!(text.contains(why), "{name:?}: {text}");
    }
}

#[test]
fn links_and_special_files_are_refused() {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    zip.add_symlink("link", "/etc/passwd", SimpleFileOptions::default()).unwrap();
    assert!(refusal(zip.finish().unwrap().into_inner()).contains("link or special file"));
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    zip.start_file("fifo", SimpleFileOptions::default().unix_permissions(0o644)).unwrap();
    let bytes = zip.finish().unwrap().into_inner();
    // External attributes of the one directory entry: a regular file becomes a pipe.
    let at = bytes.windows(4).position(|window| window == b"PK\x01\x02").unwrap() + 38;
    let mut pipe = bytes;
    pipe[at + 2..at + 4].copy_from_slice(&0o010_644_u16.to_le_bytes());
    assert!(refusal(pipe).contains("link or special file"));
}

#[test]
fn an_entry_listed_twice_is_refused() {
    let bytes = archive_of(&[("aa.txt", b"one"), ("ab.txt", b"two")]);
    assert!(refusal(patched(bytes, b"ab.txt", b"aa.txt")).contains("twice"));
}

#[test]
fn a_directory_that_disagrees_with_local_headers_is_refused() {
    let bytes = archive_of(&[("murmur.yaml", MINIMAL.as_bytes())]);
    let renamed = patched_once(bytes.clone(), b"murmur.yaml", b"murmur.yaMl");
    assert!(refusal(renamed).contains("not a sound zip archive"));
    // The local header's method: stored instead of deflated.
    let mut method = bytes;
    method[8..10].copy_from_slice(&[0, 0]);
    assert!(refusal(method).contains("not a sound zip archive"));
}

#[test]
fn what_hides_before_behind_or_between_is_refused() {
    let sound = archive_of(&[("murmur.yaml", MINIMAL.as_bytes())]);
    let mut before = b"#!/bin/sh\n".to_vec();
    before.extend(&sound);
    refusal(before);
    let mut behind = sound.clone();
    behind.extend(b"tail");
    refusal(behind);
    // A second archive behind the first: only the last end record counts, and it does not describe the whole.
    let mut two = sound.clone();
    two.extend(&sound);
    refusal(two);
}

#[test]
fn an_entry_that_inflates_past_the_ceiling_is_refused_whatever_it_says() {
    let zeros = vec![0; 1 << 20];
    let bytes = archive_of(&[("murmur.yaml", MINIMAL.as_bytes()), ("bomb", &zeros)]);
    assert!(bytes.len() < 10_000);
    let archive = Archive::open_with(bytes.clone().into(), 1000).unwrap();
    let text = archive.read("bomb").unwrap_err().to_string();
    assert_eq!(text, "zip entry 'bomb' exceeds the 1000-byte decompression ceiling");
    // The size is said to be small in both places: what really comes is what counts.
    let lying = patched(bytes, &(1_u32 << 20).to_le_bytes(), &5_u32.to_le_bytes());
    if let Ok(archive) = Archive::open_with(lying.into(), 1000) {
        assert!(archive.read("bomb").is_err());
    }
}

#[test]
fn more_entries_than_the_bound_are_refused_before_they_are_read() {
    let mut bytes = archive_of(&[]);
    let count = u16::try_from(MAX_ENTRIES + 1).unwrap().to_le_bytes();
    let end = bytes.len() - 22;
    bytes[end + 8..end + 10].copy_from_slice(&count);
    bytes[end + 10..end + 12].copy_from_slice(&count);
    assert!(refusal(bytes).contains("more than"));
}

#[test]
fn a_cut_archive_is_refused_at_every_length() {
    let bytes = archive_of(&[("murmur.yaml", MINIMAL.as_bytes()), ("a/b.txt", b"text")]);
    for length in 0..bytes.len() {
        assert!(open(bytes[..length].to_vec()).is_err(), "{length}");
    }
}

#[test]
fn the_payload_is_selected_by_kind() {
    let names = |list: &[&'static str]| select_wasm(list.iter().copied()).map_err(|error| error.to_string());
    assert_eq!(names(&["b.wasm", "capsule.wasm"]), Ok("capsule.wasm"));
    assert_eq!(names(&["only.wasm", "dir/other.wasm"]), Ok("only.wasm"));
    assert_eq!(names(&["b.wasm", "a.wasm"]), Err("multiple root .wasm files found: a.wasm, b.wasm".into()));
    assert_eq!(names(&["dir/a.wasm", ".wasm"]), Err(MISSING_WASM.into()));
    let skill = open(archive_of(&[("skill.md", b"# do"), ("bin/x", b"ELF")])).unwrap();
    assert_eq!(skill.payload(Execution::Static, "skill", "x").unwrap(), Payload::Static(Some("# do".into())));
    assert_eq!(skill.payload(Execution::Static, "capsule", "x").unwrap(), Payload::Static(None));
    assert_eq!(skill.payload(Execution::Native, "tool", "x").unwrap(), Payload::Native("ELF".into()));
    assert!(skill.payload(Execution::Native, "tool", "y").is_err());
}

#[test]
fn text_must_be_utf8_and_the_label_a_number() {
    let bytes = archive_of(&[("murmur.yaml", b"\xff"), ("murmur-build.json", b"{\"built_at_level\":-1}")]);
    let archive = open(bytes).unwrap();
    assert!(archive.manifest_text().unwrap_err().to_string().contains("not UTF-8"));
    assert!(archive.built_at_level().is_err());
    let labelled = open(archive_of(&[("murmur-build.json", b"{\"built_at_level\":7,\"other\":1}\n")])).unwrap();
    assert_eq!(labelled.built_at_level().unwrap(), Some(7));
}

#[test]
fn directories_are_passed_over() {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    zip.add_directory("bin", SimpleFileOptions::default()).unwrap();
    zip.start_file("bin/x", SimpleFileOptions::default()).unwrap();
    zip.write_all(b"ELF").unwrap();
    let archive = open(zip.finish().unwrap().into_inner()).unwrap();
    assert_eq!(archive.entries().iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>(), ["bin/x"]);
}

proptest! {
    #[test]
    fn hostile_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        fuzz_zip(&bytes);
    }

    #[test]
    fn a_sound_archive_with_any_byte_changed_never_panics(at in 0_usize..400, value in any::<u8>()) {
        let mut bytes = archive_of(&[("murmur.yaml", MINIMAL.as_bytes()), ("skill.md", b"# do"), ("a.wasm", b"\0asm")]);
        let length = bytes.len();
        bytes[at % length] = value;
        fuzz_zip(&bytes);
    }
}
