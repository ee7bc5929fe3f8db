//! JSON-RPC requests at a door.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    mur::door::fuzz_envelope(bytes);
});
