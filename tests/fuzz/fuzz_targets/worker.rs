//! A guest worker's side of its connection, as `mur` acts on it.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    mur::worker::supervisor::fuzz(bytes);
});
