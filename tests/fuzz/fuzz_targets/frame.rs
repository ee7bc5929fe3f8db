//! Frames from a guest worker.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    mur::worker::protocol::fuzz(bytes);
});
