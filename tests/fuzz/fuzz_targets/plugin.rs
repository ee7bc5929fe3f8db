//! Plugin libraries, before anything of them runs.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = mur_plugin_api::elf::read_header(bytes, bytes.len() as u64);
});
