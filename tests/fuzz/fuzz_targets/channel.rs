//! Lines of the formation channel.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    mur::credentials::channel::fuzz_channel_line(bytes);
});
