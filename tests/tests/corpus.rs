//! The committed corpus of every fuzz target, through the same functions, in the ordinary suite.

use std::path::Path;
use std::time::{Duration, Instant};

type Reader = fn(&[u8]);

const TARGETS: &[(&str, Reader)] = &[
    ("channel", mur::credentials::channel::fuzz_channel_line),
    ("config", mur::config::fuzz),
    ("dns", mur::egress::proxy::dns::fuzz),
    ("envelope", mur::door::fuzz_envelope),
    ("frame", mur::worker::protocol::fuzz),
    ("lock", mur::artifacts::lock::fuzz_lock),
    ("manifest", mur::manifest::fuzz),
    ("message", mur::door::fuzz_message),
    ("plugin", |bytes| drop(mur_plugin_api::elf::read_header(bytes, bytes.len() as u64))),
    ("plugin-lock", |bytes| drop(mur_plugin_api::lock::parse(bytes))),
    ("plugin-signature", |bytes| drop(mur_plugin_api::signature::parse(bytes))),
    ("program", mur_plugin_api::elf::program::fuzz),
    ("roster", mur::roster::fuzz),
    ("token", mur::credentials::token::fuzz_token),
    ("worker", mur::worker::supervisor::fuzz),
    ("zip", mur::artifacts::archive::fuzz_zip),
];

/// No small input may keep a reader busy for this long, even on a loaded machine and unoptimised.
const LONG: Duration = Duration::from_secs(5);

#[test]
fn every_reader_of_outside_bytes_survives_its_corpus() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    for (target, read) in TARGETS {
        let mut count = 0;
        for entry in std::fs::read_dir(fuzz.join("corpus").join(target)).expect("every target has a corpus") {
            let path = entry.expect("it is listed").path();
            let bytes = std::fs::read(&path).expect("it is there");
            let start = Instant::now();
            // Each input as it is, and cut off at places a broken sender might.
            for end in [bytes.len(), bytes.len() / 2, bytes.len().saturating_sub(1)] {
                read(&bytes[..end]);
            }
            assert!(start.elapsed() < LONG, "{} takes {:?}", path.display(), start.elapsed());
            count += 1;
        }
        assert!(count > 0, "{target} has an empty corpus");
    }
}

#[test]
fn every_fuzz_target_is_in_the_suite() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/fuzz_targets");
    let mut targets: Vec<String> = std::fs::read_dir(folder)
        .expect("there are targets")
        .map(|entry| entry.expect("it is listed").path().file_stem().expect("a name").to_string_lossy().into_owned())
        .collect();
    targets.sort();
    let known: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
    assert_eq!(targets, known);
}
