//! Publishers' signatures of plugin libraries.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = mur_plugin_api::signature::parse(bytes);
});
