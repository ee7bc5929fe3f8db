//! The host's side of a call: bindings, events, the environment.

use crate::provider::Events;
use crate::{Answer, Status};

/// Generated from `host/wit`. The world `tool` serves drivers too: an import that nothing calls is left out.
#[allow(missing_docs)]
pub mod bindings {
    wit_bindgen::generate!({
        path: "../../../host/wit",
        world: "murmur:runtime-guest/tool",
        generate_all,
        pub_export_macro: true,
        default_bindings_module: "mur_guest_kit::guest::bindings",
    });
}

use bindings::exports::murmur::tool::run;

impl From<Answer> for run::ToolResult {
    fn from(answer: Answer) -> Self {
        Self {
            status: match answer.status {
                Status::Passed => run::Status::Passed,
                Status::Failed => run::Status::Failed,
                Status::Error => run::Status::Error,
            },
            summary: None,
            data: Some(answer.data),
            data_path: None,
            truncated: answer.truncated,
            metadata: answer.metadata,
        }
    }
}

/// Events that go to the host.
pub struct HostEvents;

impl Events for HostEvents {
    fn text(&mut self, chunk: &str) {
        bindings::murmur::stream::events::emit_chunk(chunk);
    }

    fn thinking(&mut self, chunk: &str) {
        bindings::murmur::stream::events::emit_thinking_chunk(chunk);
    }

    fn call_started(&mut self, id: &str, name: &str) {
        bindings::murmur::stream::events::tool_call_started(id, name);
    }

    fn call_bytes(&mut self, id: &str, bytes: u64) {
        bindings::murmur::stream::events::tool_call_input_bytes(id, bytes);
    }
}

/// Asks for input in the middle of a task.
pub fn request_input(prompt: &str) -> String {
    bindings::murmur::task::task::request_input(prompt)
}

/// A variable of this artifact's environment; an empty one is none.
pub fn env(name: &str) -> Option<String> {
    environment().into_iter().find(|(key, value)| key == name && !value.is_empty()).map(|(_, value)| value)
}

/// The whole environment.
pub fn environment() -> Vec<(String, String)> {
    wasip2::cli::environment::get_environment()
}

/// Waits.
pub fn sleep_ms(millis: u64) {
    wasip2::clocks::monotonic_clock::subscribe_duration(millis.saturating_mul(1_000_000)).block();
}

/// Ids that differ from call to call.
pub fn random_u64() -> u64 {
    wasip2::random::random::get_random_u64()
}

/// Makes a panic say what happened on stderr before it traps.
pub fn report_panics() {
    std::panic::set_hook(Box::new(|info| {
        let text = format!("{info}\n");
        let stderr = wasip2::cli::stderr::get_stderr();
        for piece in text.as_bytes().chunks(4096) {
            if stderr.blocking_write_and_flush(piece).is_err() {
                break;
            }
        }
    }));
}
