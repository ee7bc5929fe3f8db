use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::json;

use super::testing::{built, install, registry};
use super::*;
use crate::diagnostics::codes;
use crate::paths::MurmurHome;

fn entry(name: &str, version: &str) -> StoreEntry {
    StoreEntry {
        name: name.to_owned(),
        version: version.to_owned(),
        platform: None,
        sha256: "a".repeat(64),
        size: 0,
        media_type: "application/zip".to_owned(),
        metadata: String::new(),
    }
}

#[test]
fn the_first_party_store_works_through_the_loaded_library() {
    let home = tempfile::tempdir().unwrap();
    let mut registry = registry(home.path());
    let store = registry.store("directory", json!({ "root": home.path().join("a") })).unwrap();
    assert!(store.description().writable);
    assert_eq!(store.find("a/b", "1", None).unwrap(), None);
    store.write(&entry("a/b", "1"), Box::new(&b"payload"[..])).unwrap();
    let found = store.find("a/b", "1", Some("linux-x86_64")).unwrap().unwrap();
    assert_eq!(store.read(&found, 7).unwrap(), b"payload");
    assert_eq!(store.read(&found, 6).unwrap_err().code(), codes::E_IO_003);
    assert_eq!(store.list(None).unwrap(), [found]);
    // A second store of the same plugin is another object.
    let other = registry.store("directory", json!({ "root": home.path().join("b") })).unwrap();
    assert_eq!(other.list(None).unwrap(), []);
    assert!(store.remove("a/b", "1").unwrap());
}

#[test]
fn the_first_party_sink_works_through_the_loaded_library() {
    let home = tempfile::tempdir().unwrap();
    let mut sink = registry(home.path()).sink("jsonl", json!({})).unwrap();
    let session = SessionHeader { records_dir: home.path().to_owned(), ..SessionHeader::default() };
    sink.open(&session).unwrap();
    sink.write(&[Bytes::from_static(b"{\"a\":1}"), Bytes::from_static(b"{}")]).unwrap();
    sink.flush(Duration::from_secs(5)).unwrap();
    assert_eq!(fs::read_to_string(home.path().join("trace.jsonl")).unwrap(), "{\"a\":1}\n{}\n");
    assert_eq!(sink.write(&[Bytes::from_static(b"a\nb")]).unwrap_err().code(), codes::E_IO_003);
    // After a fault no further call reaches it.
    assert_eq!(sink.write(&[Bytes::from_static(b"{}")]).unwrap_err().code(), codes::E_PLG_005);
}

#[test]
fn every_first_party_plugin_passes_the_conformance_kit() {
    let home = tempfile::tempdir().unwrap();
    let registry = registry(home.path());
    let listed = registry.list().unwrap();
    assert_eq!(listed.len(), 6);
    for (index, one) in listed.iter().enumerate() {
        assert_eq!(one.trusted, Ok(Trusted::FirstParty), "{}", one.name);
        let scratch = home.path().join(format!("scratch{index}"));
        fs::create_dir(&scratch).unwrap();
        let (info, checks) = registry.check(&one.path, &scratch, None, false).unwrap();
        assert_eq!(info.name, one.name);
        assert!(checks.len() >= 6, "{}: {checks:?}", one.name);
        for check in checks {
            assert_eq!(check.outcome, Ok(()), "{}: {}", one.name, check.rule);
        }
    }
}

#[test]
fn a_library_that_changed_after_it_was_pinned_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let mut registry = registry(home.path());
    let path = home.path().join("lib/libmur_store_directory.so");
    fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"x").unwrap();
    let error = registry.store("directory", json!({})).err().unwrap();
    assert_eq!(error.code(), codes::E_PLG_001);
    assert!(error.message().contains(&path.display().to_string()), "{error}");
    assert_eq!(registry.store("elsewhere", json!({})).err().unwrap().code(), codes::E_PLG_006);
}

#[test]
fn a_containment_library_is_checked_for_its_class_and_handed_over() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("lib");
    install(&dir, &["libmur_containment_advisory.so"]);
    let settings =
        Settings { containment: BTreeMap::from([(Class::Scoped, "advisory".to_owned())]), ..Settings::default() };
    let registry = Registry::with_dir(&MurmurHome::at(home.path().to_owned()), &settings, Some(dir));
    let one = registry.containment_library(Class::Advisory).unwrap();
    let again = registry.containment_library(Class::Advisory).unwrap();
    let size = |fd: std::os::fd::OwnedFd| fs::File::from(fd).metadata().unwrap().len();
    assert_eq!(size(one), size(again));
    let error = registry.containment_library(Class::Scoped).unwrap_err();
    assert_eq!(error.code(), codes::E_PLG_006);
    assert!(error.message().contains("serves class 'advisory', not 'scoped'"), "{error}");
    assert_eq!(registry.containment_library(Class::Sealed).unwrap_err().code(), codes::E_PLG_006);
}

#[test]
fn an_operator_pins_a_library_of_another_name_and_never_one_of_mur_s_own() {
    let home = tempfile::tempdir().unwrap();
    let registry = registry(home.path());
    let copy = home.path().join("lib2.so");
    fs::copy(built("libmur_store_directory.so"), &copy).unwrap();
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(registry.trust(&copy).unwrap_err().code(), codes::E_PLG_001);
    assert_eq!(registry.check(&copy, home.path(), None, false).unwrap_err().code(), codes::E_PLG_001);
    // Without first-party plugins the name is free.
    let bare = Registry::with_dir(&MurmurHome::at(home.path().to_owned()), &Settings::default(), None);
    let pinned = bare.trust(&copy).unwrap();
    bare.trust(&copy).unwrap();
    assert_eq!(pinned.pin.name, "directory");
    let mut bare = Registry::with_dir(&MurmurHome::at(home.path().to_owned()), &Settings::default(), None);
    assert!(bare.store("directory", json!({ "root": home.path().join("a") })).is_ok());
    assert_eq!(bare.list().unwrap().len(), 1);
}

#[test]
fn a_lock_that_cannot_be_read_refuses_and_names_its_line() {
    let home = tempfile::tempdir().unwrap();
    let mut registry = registry(home.path());
    let lock = home.path().join("lib/plugins.lock");
    let text = fs::read_to_string(&lock).unwrap();
    fs::write(&lock, format!("{text}garbage\n")).unwrap();
    let error = registry.store("directory", json!({})).err().unwrap();
    assert_eq!(error.code(), codes::E_PLG_007);
    assert!(error.message().contains("line 8"), "{error}");
}

#[test]
fn a_cut_library_is_damaged_before_it_is_mapped() {
    let home = tempfile::tempdir().unwrap();
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let whole = fs::read(built("libmur_store_directory.so")).unwrap();
    let registry = Registry::with_dir(&MurmurHome::at(home.path().to_owned()), &Settings::default(), None);
    let path = home.path().join("cut.so");
    for keep in [4, 64, 4096, whole.len() / 2, whole.len() - 1] {
        fs::write(&path, &whole[..keep]).unwrap();
        let error = registry.trust(&path).unwrap_err();
        assert_eq!(error.code(), codes::E_PLG_003, "{keep}");
        assert!(error.message().lines().count() == 1, "{error}");
    }
    assert!(!Path::new(&home.path().join(".murmur/plugins.lock")).exists());
}

/// The suites' faulty store, opened with a fault.
fn faulty(home: &Path, fault: &str) -> crate::diagnostics::Result<std::sync::Arc<dyn Store>> {
    // A place of its own each time: what is loaded must never be written to.
    let dir = home.join(fault);
    install(&dir, &["libmur_test_plugin_faulty.so"]);
    let mut registry = Registry::with_dir(&MurmurHome::at(home.to_owned()), &Settings::default(), Some(dir));
    registry.store("faulty", json!({ "fault": fault }))
}

#[test]
fn a_plugin_that_panics_in_a_call_is_named_and_the_host_goes_on() {
    let home = tempfile::tempdir().unwrap();
    let error = faulty(home.path(), "panic-open").err().unwrap();
    assert_eq!(error.code(), codes::E_PLG_005);
    assert!(error.message().starts_with("store plugin 'faulty' 0.1.0 panicked in 'open': cannot open on purpose"));
    let store = faulty(home.path(), "panic-find").unwrap();
    let error = store.find("a/b", "1", None).unwrap_err();
    assert!(error.message().contains("at nowhere panicked in 'find': cannot find on purpose at "), "{error}");
    assert_eq!(store.list(None).unwrap(), []);
    // In a thread of its own it is the plugin's affair; the store still answers.
    assert_eq!(faulty(home.path(), "panic-thread").unwrap().find("a/b", "1", None).unwrap(), None);
}

#[test]
fn a_store_that_answers_with_something_else_is_at_fault() {
    let home = tempfile::tempdir().unwrap();
    for fault in ["other-name", "no-digest"] {
        let error = faulty(home.path(), fault).unwrap().find("a/b", "1", None).unwrap_err();
        assert_eq!(error.code(), codes::E_PLG_005, "{fault}");
    }
    let endless = faulty(home.path(), "endless").unwrap();
    let found = endless.find("a/b", "1", None).unwrap().unwrap();
    assert_eq!(endless.read(&found, 1 << 20).unwrap_err().code(), codes::E_IO_003);
    // What it returns is not compared here: the host hashes it where it knows what it must be.
    let other = faulty(home.path(), "other-bytes").unwrap();
    assert_eq!(other.read(&found, 1 << 20).unwrap(), b"other bytes");
}
