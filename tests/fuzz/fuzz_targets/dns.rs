//! Queries from inside a session's network namespace, and answers of name servers.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    mur::egress::proxy::dns::fuzz(bytes);
});
