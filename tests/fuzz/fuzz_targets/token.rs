//! Formation tokens, as a door receives them.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    mur::credentials::token::fuzz_token(bytes);
});
