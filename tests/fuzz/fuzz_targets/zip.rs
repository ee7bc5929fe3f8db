//! Archives of artifacts.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    mur::artifacts::archive::fuzz_zip(bytes);
});
