//! Programs whose loader and libraries are found out.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    mur_plugin_api::elf::program::fuzz(bytes);
});
