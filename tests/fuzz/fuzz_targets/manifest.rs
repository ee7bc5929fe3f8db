//! Manifests, of capsules and of artifacts.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    mur::manifest::fuzz(bytes);
});
