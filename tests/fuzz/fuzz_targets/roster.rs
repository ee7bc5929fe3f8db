//! Rosters.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    mur::roster::fuzz(bytes);
});
