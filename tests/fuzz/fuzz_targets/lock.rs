//! The lock of a project.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    mur::artifacts::lock::fuzz_lock(bytes);
});
