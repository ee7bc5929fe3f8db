//! Failed model calls against a provider that speaks real HTTP: which are made again, after how long, and what is told.

use mur_tests::{Agent, Answer, Done, Provider, Trace, World, anthropic};
use serde_json::json;

const KEY: &str = "sk-test-0123456789";

struct Ran {
    done: Done,
    trace: Trace,
    requests: usize,
    /// What was recorded lies in it.
    _world: World,
}

fn run(provider: &Provider, max_retries: u32) -> Ran {
    let world = World::new();
    let retry = json!({"max_retries": max_retries, "initial_delay_ms": 1, "max_delay_ms": 2000});
    let agent = Agent::anthropic("agent", &provider.url(), KEY).with(&["inference", "retry"], retry);
    let name = world.install(&agent);
    let done = world.mur(["run", "--capsule", &name, "--capsule-version", agent.version(), "--task", "go"]).run();
    let trace = world.traces().pop().unwrap_or_else(|| panic!("no trace\n{}", done.stderr));
    Ran { done, trace, requests: provider.seen().len(), _world: world }
}

#[test]
fn a_provider_that_recovers_is_asked_again_with_the_same_request() {
    let provider = Provider::play([
        anthropic::error(529, "overloaded_error", "Overloaded"),
        Answer::hang_up(),
        anthropic::stream_text(&["at ", "last"]),
    ]);
    let ran = run(&provider, 4);
    assert_eq!(ran.done.code(), Some(0), "{}", ran.done.stderr);
    assert_eq!((ran.trace.result().as_deref(), ran.requests), (Some("at last"), 3));
    let retries = ran.trace.all("inference_retry");
    assert_eq!(retries.len(), 2);
    assert_eq!(retries[0]["provider_status"], 529);
    assert_eq!(ran.trace.one("inference")["attempts"], 3);
    let seen = provider.seen();
    assert!(seen.iter().all(|request| request.body == seen[0].body), "the same payload each time");
}

#[test]
fn a_wait_the_provider_asks_for_is_kept_and_one_too_long_is_not() {
    let provider = Provider::play([
        anthropic::error(429, "rate_limit_error", "slow down").header("retry-after-ms", "300"),
        anthropic::stream_text(&["ok"]),
    ]);
    let ran = run(&provider, 2);
    assert_eq!(ran.done.code(), Some(0), "{}", ran.done.stderr);
    let retry = ran.trace.one("inference_retry");
    assert_eq!((&retry["delay_ms"], &retry["retry_after_ms"]), (&json!(300), &json!(300)));

    let provider =
        Provider::play([anthropic::error(429, "rate_limit_error", "slow down").header("retry-after", "3600")]);
    let ran = run(&provider, 2);
    assert_eq!((ran.done.code(), ran.requests), (Some(1), 1));
    assert_eq!(ran.trace.one("inference")["retry_stopped"], "retry_after");
    let reason = ran.trace.one("task_failed")["reason"].as_str().unwrap_or_default().to_owned();
    assert!(reason.ends_with(" (1 attempts; retry stopped: retry_after)"), "{reason}");
}

#[test]
fn what_would_fail_again_is_not_tried_again() {
    for status in [400, 403, 404, 501] {
        let provider = Provider::play([anthropic::error(status, "invalid_request_error", "no")]);
        let ran = run(&provider, 3);
        assert_eq!((ran.done.code(), ran.requests), (Some(1), 1), "{status}");
        assert_eq!(ran.trace.one("task_failed")["cause"], "driver_error");
        assert_eq!(ran.trace.one("inference")["provider_status"], status);
    }
}

#[test]
fn a_rejected_credential_has_its_own_cause_and_is_never_shown() {
    let provider = Provider::play([anthropic::error(401, "authentication_error", &format!("invalid x-api-key {KEY}"))]);
    let ran = run(&provider, 3);
    assert_eq!(ran.done.code(), Some(1));
    let failed = ran.trace.one("task_failed");
    assert_eq!(failed["cause"], "credential_rejected");
    assert!(failed["reason"].as_str().is_some_and(|reason| reason.contains("E-RUN-027")), "{failed:?}");
    assert_eq!(ran.trace.one("inference")["error_code"], "credential_rejected");
    assert!(ran.trace.all("inference_retry").is_empty());
    let texts = [
        std::fs::read_to_string(ran.trace.directory().join("trace.jsonl")).unwrap_or_default(),
        ran.trace.result().unwrap_or_default(),
        ran.done.stderr.clone(),
    ];
    assert!(texts.iter().all(|text| !text.contains(KEY)));
    assert!(texts[1].contains("[redacted]"), "{}", texts[1]);
}

#[test]
fn a_provider_that_is_not_there_is_asked_once() {
    let gone = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        format!("http://{}", listener.local_addr().expect("an address"))
    };
    let world = World::new();
    let agent = Agent::anthropic("agent", &gone, KEY);
    let name = world.install(&agent);
    let done = world.mur(["run", "--capsule", &name, "--capsule-version", agent.version(), "--task", "go"]).run();
    assert_eq!(done.code(), Some(1));
    let trace = world.traces().pop().expect("a trace");
    assert!(trace.all("inference_retry").is_empty(), "a refused connection is refused again");
}
