//! Both provider drivers, from `mur run` down to the bytes on the wire, against a provider that behaves well and badly.

use std::time::Duration;

use mur_tests::{Agent, Answer, Done, Provider, Seen, Trace, World, anthropic, openai};
use serde_json::{Value, json};

const KEY: &str = "sk-of-the-test";

/// One of the two APIs.
#[derive(Clone, Copy)]
struct Api {
    name: &'static str,
    agent: fn(&str, &str, &str) -> Agent,
    path: &'static str,
    key: (&'static str, &'static str),
    text: fn(&str) -> Answer,
    stream_text: fn(&[&str]) -> Answer,
    stream_call: fn(&str, &str, &[&str]) -> Answer,
    error: fn(u16, &str, &str) -> Answer,
}

const APIS: [Api; 2] = [
    Api {
        name: "anthropic",
        agent: Agent::anthropic,
        path: "/v1/messages",
        key: ("x-api-key", KEY),
        text: anthropic::text,
        stream_text: anthropic::stream_text,
        stream_call: anthropic::stream_call,
        error: anthropic::error,
    },
    Api {
        name: "openai",
        agent: Agent::openai,
        path: "/chat/completions",
        key: ("authorization", "Bearer sk-of-the-test"),
        text: openai::text,
        stream_text: openai::stream_text,
        stream_call: openai::stream_call,
        error: openai::error,
    },
];

struct Ran {
    // The records are read from its home.
    _world: World,
    done: Done,
    trace: Trace,
    seen: Vec<Seen>,
}

impl Ran {
    #[track_caller]
    fn result(&self) -> String {
        self.trace.result().unwrap_or_else(|| panic!("no result: {}", self.done.stderr))
    }
}

/// Runs one task against a provider.
#[track_caller]
fn run(api: Api, provider: Provider) -> Ran {
    run_with(api, provider, |agent| agent)
}

#[track_caller]
fn run_with(api: Api, provider: Provider, change: impl FnOnce(Agent) -> Agent) -> Ran {
    let world = World::new();
    world.write("notes.txt", "one two three\n");
    let retry = json!({"max_retries": 2, "initial_delay_ms": 1, "max_delay_ms": 2000});
    let agent = (api.agent)(&format!("asks-{}", api.name), &provider.url(), KEY)
        .tool("read-file")
        .with(&["inference", "retry"], retry)
        .with(&["inference", "system_prompt"], "Be brief.");
    let agent = change(agent);
    let name = world.install(&agent);
    let done = world
        .mur(["run", "--capsule", &name, "--capsule-version", "0.1.0", "--task", "What is in notes.txt?", "--workdir"])
        .arg(world.project())
        .run();
    let trace = world.trace(agent.name());
    Ran { _world: world, done, trace, seen: provider.seen() }
}

#[track_caller]
fn each(test: impl Fn(Api)) {
    for api in APIS {
        test(api);
    }
}

#[test]
fn a_streamed_text_is_the_answer_and_the_key_is_attached_outside_the_guest() {
    each(|api| {
        let ran = run(api, Provider::play([(api.stream_text)(&["Three ", "wor", "ds: häuser"])]));
        assert_eq!(ran.result().trim_end(), "Three words: häuser", "{}", ran.done.stderr);
        assert_eq!(ran.done.code(), Some(0));
        let [request] = ran.seen.as_slice() else { panic!("{} requests", ran.seen.len()) };
        assert_eq!((request.method.as_str(), request.path.as_str()), ("POST", api.path));
        assert_eq!(request.header(api.key.0), Some(api.key.1));
        assert_eq!(request.body["stream"], true);
        assert!(request.body.to_string().contains("Be brief."));
        let inference = ran.trace.one("inference");
        let counts = ["input_tokens_actual", "output_tokens_actual", "cached_tokens"].map(|key| inference[key].clone());
        assert_eq!(counts, [json!(11), json!(7), json!(3)], "{inference:?}");
    });
}

#[test]
fn a_tool_call_runs_and_its_result_goes_back() {
    each(|api| {
        let call = (api.stream_call)("call_1", "read-file", &["{\"pa", "th\": \"notes", ".txt\"}"]);
        let ran = run(api, Provider::play([call, (api.stream_text)(&["It says one two three."])]));
        assert_eq!(ran.result().trim_end(), "It says one two three.", "{}", ran.done.stderr);
        let second = ran.seen[1].body.to_string();
        assert!(second.contains("one two three") && second.contains("call_1"), "{second}");
        assert_eq!(ran.trace.one("tool_call")["tool_name"], "read-file");
    });
}

#[test]
fn an_answer_in_one_piece_serves_as_well() {
    each(|api| {
        let ran = run(api, Provider::play([(api.text)("whole")]));
        assert_eq!(ran.result().trim_end(), "whole", "{}", ran.done.stderr);
    });
}

#[test]
fn a_slow_provider_is_waited_for() {
    each(|api| {
        let slow = (api.stream_text)(&["slow ", "and ", "steady"]).in_pieces(40).slowly(Duration::from_millis(20));
        let ran = run(api, Provider::play([slow.after(Duration::from_millis(300))]));
        assert_eq!(ran.result().trim_end(), "slow and steady", "{}", ran.done.stderr);
        assert_eq!(ran.seen.len(), 1);
    });
}

#[test]
fn a_stream_cut_in_the_middle_is_asked_for_again() {
    each(|api| {
        let whole = || (api.stream_text)(&["first ", "second ", "third"]);
        for broken in [whole().cut_after(3), whole().end_after(3), Answer::hang_up()] {
            let ran = run(api, Provider::play([broken, whole()]));
            assert_eq!(ran.result().trim_end(), "first second third", "{}: {}", api.name, ran.done.stderr);
            assert_eq!(ran.seen.len(), 2);
            assert_eq!(ran.seen[0].body, ran.seen[1].body, "the same request is sent again");
        }
    });
}

#[test]
fn a_provider_that_never_gets_through_fails_the_task_after_the_retries() {
    each(|api| {
        let ran = run(api, Provider::play([(api.stream_text)(&["a", "b"]).cut_after(2)]));
        assert_eq!(ran.seen.len(), 3, "one attempt and two retries");
        ran.done.refused("E-RUN-040");
        assert!(ran.result().starts_with("error: "), "{}", ran.result());
        assert_eq!(ran.trace.one("task_failed")["cause"], "driver_error");
    });
}

#[test]
fn busy_providers_are_asked_again_when_they_say_so() {
    each(|api| {
        let busy = (api.error)(429, "rate_limit_error", "slow down").header("retry-after-ms", "5");
        let down = (api.error)(503, "overloaded_error", "busy");
        let ran = run(api, Provider::play([busy, down, (api.stream_text)(&["at last"])]));
        assert_eq!(ran.result().trim_end(), "at last", "{}", ran.done.stderr);
        assert_eq!(ran.seen.len(), 3);
    });
}

#[test]
fn a_request_the_provider_refuses_is_not_sent_again() {
    each(|api| {
        for (status, kind) in [(400, "invalid_request_error"), (404, "not_found_error"), (501, "api_error")] {
            let ran = run(api, Provider::play([(api.error)(status, kind, "no such thing as that")]));
            assert_eq!(ran.seen.len(), 1, "{status}");
            ran.done.refused("E-RUN-040");
            assert!(ran.result().contains("no such thing as that"), "{}", ran.result());
        }
    });
}

#[test]
fn a_rejected_key_fails_the_task_and_is_never_shown() {
    each(|api| {
        let ran = run(api, Provider::play([(api.error)(401, "authentication_error", &format!("bad key {KEY}"))]));
        assert_eq!(ran.trace.one("task_failed")["cause"], "credential_rejected", "{}", ran.done.stderr);
        assert_eq!(ran.seen.len(), 1);
        let texts = [&ran.done.stdout, &ran.done.stderr, &ran.result()].map(|text| text.contains(KEY));
        assert_eq!(texts, [false; 3], "{}\n{}", ran.done.stderr, ran.result());
        assert!(!ran.trace.records().iter().any(|record| record.0.to_string().contains(KEY)));
    });
}

#[test]
fn a_key_from_a_file_that_others_may_read_is_warned_of() {
    for (mode, warned) in [(0o600, false), (0o644, true)] {
        let world = World::new();
        world.config(&format!("credentials: {{PROVIDER_KEY: {KEY}}}\n"));
        let file = world.murmur().join("config.yaml");
        std::fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        let provider = Provider::play([(APIS[0].stream_text)(&["fine"])]);
        let name = world.install(&(APIS[0].agent)("asks", &provider.url(), "${PROVIDER_KEY}"));
        let done = world.mur(["run", "--capsule", &name, "--capsule-version", "0.1.0", "--task", "Hello"]).run();
        assert_eq!(done.code(), Some(0), "{}", done.stderr);
        assert_eq!(provider.seen()[0].header(APIS[0].key.0), Some(APIS[0].key.1));
        assert_eq!(done.stderr.contains("warning[W-SEC-028]: "), warned, "{mode:o}: {}", done.stderr);
    }
}

#[test]
fn a_spent_quota_is_not_asked_for_again() {
    let refusal = openai::error(429, "insufficient_quota", "pay first");
    let ran = run(APIS[1], Provider::play([refusal]));
    assert_eq!(ran.seen.len(), 1);
    assert!(ran.result().contains("pay first"), "{}", ran.result());
}

#[test]
fn an_error_inside_a_stream_is_read_as_what_it_is() {
    let passing = anthropic::stream_error("overloaded_error", "busy");
    let ran = run(APIS[0], Provider::play([passing, anthropic::stream_text(&["fine"])]));
    assert_eq!(ran.result().trim_end(), "fine", "{}", ran.done.stderr);
    let lasting = anthropic::stream_error("invalid_request_error", "the prompt is too long");
    let ran = run(APIS[0], Provider::play([lasting]));
    assert_eq!(ran.seen.len(), 1);
    assert!(ran.result().contains("the prompt is too long"), "{}", ran.result());
}

#[test]
fn nonsense_fails_the_task_in_words() {
    each(|api| {
        for (kind, body) in [
            ("text/html", "<html>gateway</html>"),
            ("application/json", "[]"),
            ("application/json", "{\"content\": 7, \"choices\": 7}"),
            ("text/event-stream", "data: {\"half\n\n"),
        ] {
            let ran = run(api, Provider::play([Answer::text(200, kind, body)]));
            assert_eq!(ran.done.code(), Some(1), "{kind} {body}");
            assert!(ran.result().starts_with("error: "), "{kind} {body}: {}", ran.result());
        }
    });
}

#[test]
fn settings_reach_the_wire_and_unknown_ones_are_refused() {
    each(|api| {
        let config = json!({"stream": false, "body": {"temperature": 0.25}});
        let provider = Provider::play([(api.text)("set")]);
        let ran = run_with(api, provider, |agent| agent.with(&["inference", "driver", "config"], config));
        assert_eq!(ran.result().trim_end(), "set", "{}", ran.done.stderr);
        assert_eq!(
            (&ran.seen[0].body["stream"], &ran.seen[0].body["temperature"]),
            (&Value::from(false), &json!(0.25))
        );
        let provider = Provider::play([(api.text)("never")]);
        let ran = run_with(api, provider, |agent| agent.with(&["inference", "driver", "config", "steam"], true));
        assert!(ran.seen.is_empty() && ran.result().contains("'steam'"), "{}", ran.result());
    });
}
