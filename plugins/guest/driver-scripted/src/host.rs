//! The real world around a turn.

use mur_guest_kit::provider::Events;
use mur_guest_kit::{Answer, files, guest, http};

use crate::play::Stage;

/// How much of a response a script may look at.
const MAX_RESPONSE: usize = 1024 * 1024;

/// One call.
pub fn call(request: &str) -> Answer {
    let script = guest::env("MURMUR_INFERENCE_DRIVER_CONFIG").or_else(|| guest::env("MURMUR_ARTIFACT_CONFIG"));
    crate::run(request, script.as_deref(), &mut Host(guest::HostEvents))
}

struct Host(guest::HostEvents);

impl Events for Host {
    fn text(&mut self, chunk: &str) {
        self.0.text(chunk);
    }

    fn thinking(&mut self, chunk: &str) {
        self.0.thinking(chunk);
    }

    fn call_started(&mut self, id: &str, name: &str) {
        self.0.call_started(id, name);
    }

    fn call_bytes(&mut self, id: &str, bytes: u64) {
        self.0.call_bytes(id, bytes);
    }
}

impl Stage for Host {
    fn wait(&mut self, millis: u64) {
        guest::sleep_ms(millis);
    }

    fn http(
        &mut self,
        method: &str,
        url: &str,
        headers: &[(String, String)],
        body: &str,
    ) -> Result<(u16, String), String> {
        let headers: Vec<(&str, &str)> = headers.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let request = http::Request { method, url, headers: &headers, body: body.as_bytes(), patience_secs: 0 };
        let mut response = http::send(&request)?;
        let (body, _) = response.read_up_to(MAX_RESPONSE)?;
        Ok((response.status, String::from_utf8_lossy(&body).into_owned()))
    }

    fn count(&mut self, path: &str) -> Result<u64, String> {
        let before = match files::read(path, 0, 32) {
            Ok((bytes, _)) => String::from_utf8_lossy(&bytes).trim().parse().unwrap_or(0),
            Err(_) => 0,
        };
        files::write(path, (before + 1).to_string().as_bytes())?;
        Ok(before)
    }

    fn ask(&mut self, prompt: &str) -> String {
        guest::request_input(prompt)
    }

    fn env(&self) -> Vec<(String, String)> {
        guest::environment()
    }

    fn spin(&mut self) {
        let mut turns = 0u64;
        loop {
            turns = std::hint::black_box(turns.wrapping_add(1));
        }
    }

    fn grow(&mut self, mebibytes: u64) {
        let mut taken: Vec<Vec<u8>> = Vec::new();
        for _ in 0..mebibytes {
            taken.push(std::hint::black_box(vec![1; 1024 * 1024]));
        }
    }
}
