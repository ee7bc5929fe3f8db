//! The component: one function for each event.

#![allow(missing_docs)]

use std::cell::Cell;

use serde_json::{Value, json};

use crate::{Answer, Piece, answer, file};

wit_bindgen::generate!({
    path: "../../../host/wit",
    world: "murmur:runtime/hook",
    generate_all,
});

use exports::murmur::hook::lifecycle::{
    CompactionEvent, Guest, HookOutput, InferenceEvent, Message, SessionContext, SessionEndEvent, ShellEvent,
    StageEvent, TaskEndEvent, TaskStartEvent, ToolEvent,
};
use murmur::conversation::read as conversation;
use murmur::runtime::{inference, tokens};
use murmur::task_io::read as task_io;

thread_local! {
    /// Events so far: an instance that is kept goes on counting.
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

struct Hook;

/// Writes an event down and answers it. `text` is what a rule's `when` looks into.
fn handle(event: &str, text: &str, fields: Value) -> Result<HookOutput, String> {
    handle_about(event, text, fields, &[])
}

/// The same of an event about a conversation.
fn handle_about(event: &str, text: &str, fields: Value, messages: &[Message]) -> Result<HookOutput, String> {
    let count = COUNT.get();
    COUNT.set(count + 1);
    let config = config();
    let mut line = json!({"event": event, "count": count});
    if let (Value::Object(line), Value::Object(fields)) = (&mut line, fields) {
        line.extend(fields);
        line.extend(looked_up(&config, event));
    }
    let times = answered(event);
    let answer = answer(&config, event, text, times);
    if answer != Answer::None {
        note_answered(event);
    }
    file::append(&line.to_string());
    match answer {
        Answer::None => Ok(HookOutput::None),
        Answer::Deny(reason) => Ok(HookOutput::Deny(reason)),
        Answer::Reopen(reason) => Ok(HookOutput::ReopenTask(reason)),
        Answer::Seed(texts) => Ok(HookOutput::SeedContext(texts.into_iter().map(user).collect())),
        Answer::Replace(pieces) => {
            Ok(HookOutput::ReplaceContext(pieces.into_iter().filter_map(|piece| message(piece, messages)).collect()))
        }
        Answer::Artifact(text) => Ok(HookOutput::Artifact(text)),
        Answer::Fail(why) => Err(why),
        Answer::Trap => panic!("as configured"),
        Answer::Spin => loop {
            std::hint::spin_loop();
        },
    }
}

thread_local! {
    static ANSWERED: std::cell::RefCell<Vec<String>> = const { std::cell::RefCell::new(Vec::new()) };
}

fn answered(event: &str) -> u64 {
    ANSWERED.with_borrow(|all| all.iter().filter(|one| *one == event).count() as u64)
}

fn note_answered(event: &str) {
    ANSWERED.with_borrow_mut(|all| all.push(event.to_owned()));
}

fn config() -> Value {
    variable("MURMUR_ARTIFACT_CONFIG").and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
}

fn variable(name: &str) -> Option<String> {
    environment().into_iter().find(|(key, _)| key == name).map(|(_, value)| value)
}

fn environment() -> Vec<(String, String)> {
    wasip2::cli::environment::get_environment()
}

fn user(text: String) -> Message {
    Message { role: "user".into(), content: text, id: None, source_id: None, inserted_by: None }
}

/// The message a piece stands for; none where there is none at its place.
fn message(piece: Piece, messages: &[Message]) -> Option<Message> {
    match piece {
        Piece::New(role, content) => Some(Message { role, ..user(content) }),
        Piece::Kept(at, content) => {
            let place = if at < 0 { messages.len().checked_sub(at.unsigned_abs() as usize)? } else { at as usize };
            let mut kept = messages.get(place)?.clone();
            kept.content = content.unwrap_or(kept.content);
            Some(kept)
        }
    }
}

/// What the configuration has it look up at an event.
fn looked_up(config: &Value, event: &str) -> serde_json::Map<String, Value> {
    let mut found = serde_json::Map::new();
    let wanted = &config["look_up"][event];
    let wants = |what: &str| wanted.as_array().is_some_and(|all| all.iter().any(|one| one == what));
    if wants("environment") {
        let names: Vec<String> = environment().into_iter().map(|(name, _)| name).collect();
        found.insert("environment".into(), json!(names));
    }
    if wants("folders") {
        found.insert("folders".into(), json!(file::folders()));
        found.insert("above".into(), json!(file::try_write("../above.txt")));
    }
    if wants("tokens") {
        found.insert("tokens".into(), json!(tokens::count("hello world")));
    }
    if wants("task") {
        let input = |form| told(task_io::input_len(form).and_then(|len| task_io::read_input(form, 0, len)));
        found.insert("given".into(), input(task_io::TaskInputForm::AsGiven));
        found.insert("original".into(), input(task_io::TaskInputForm::Original));
        found.insert("output".into(), told(task_io::output_len().and_then(|len| task_io::read_output(0, len))));
    }
    if wants("conversation") {
        let page = conversation::read_messages(None, 2);
        let page = page.map(|page| {
            let texts: Vec<String> = page.messages.into_iter().map(|message| message.content).collect();
            json!({"messages": texts, "more": page.next_cursor.is_some(), "total": page.total})
        });
        found.insert("conversation".into(), page.unwrap_or_else(|why| json!({"error": why})));
    }
    if wants("inference") {
        let question = config["ask"].as_str().unwrap_or("?").to_owned();
        let message = murmur::hook::lifecycle::Message {
            role: "user".into(),
            content: question,
            id: None,
            source_id: None,
            inserted_by: None,
        };
        let request = inference::InferenceRequest { messages: vec![message], system_prompt: None, model: None };
        let answer = inference::run_inference(&request);
        let answer = answer.map(|answer| json!({"text": answer.text, "model": answer.model_used}));
        found.insert("inference".into(), answer.unwrap_or_else(|why| json!({"error": why})));
    }
    found
}

fn told(answer: Result<String, task_io::IoError>) -> Value {
    answer.map_or_else(|error| json!(format!("{error:?}")), Value::from)
}

impl Guest for Hook {
    fn on_stage(event: StageEvent) -> Result<HookOutput, String> {
        handle("on-stage", "", json!({"shell_allow": event.shell_allow}))
    }

    fn on_session_start(ctx: SessionContext) -> Result<HookOutput, String> {
        handle(
            "on-session-start",
            &ctx.capsule_name,
            json!({
                "capsule_name": ctx.capsule_name, "capsule_version": ctx.capsule_version,
                "session_id": ctx.session_id, "model": ctx.model, "capabilities": ctx.capabilities,
            }),
        )
    }

    fn on_task_start(event: TaskStartEvent) -> Result<HookOutput, String> {
        handle(
            "on-task-start",
            &event.source,
            json!({
                "task_id": event.task_id, "context_id": event.context_id, "source": event.source,
                "input_bytes": event.input_bytes, "budget_tokens": event.budget_tokens,
                "context_window": event.context_window, "prior_tokens": event.prior_tokens,
            }),
        )
    }

    fn on_inference(event: InferenceEvent) -> Result<HookOutput, String> {
        handle(
            "on-inference",
            event.output.as_deref().unwrap_or_default(),
            json!({
                "turn": event.turn, "input_tokens": event.input_tokens, "output_tokens": event.output_tokens,
                "decision": event.decision, "tool_name": event.tool_name, "output": event.output,
                "has_prompt": event.prompt.is_some(), "has_tools": event.tools.is_some(),
            }),
        )
    }

    fn on_tool_call(event: ToolEvent) -> Result<HookOutput, String> {
        let outcome = event.outcome.map(|outcome| {
            json!({"output_bytes": outcome.output_bytes, "duration_ms": outcome.duration_ms, "status": outcome.status})
        });
        handle(
            "on-tool-call",
            &format!("{} {}", event.tool_name, event.input),
            json!({
                "turn": event.turn, "tool_name": event.tool_name, "input": event.input,
                "input_bytes": event.input_bytes, "outcome": outcome,
            }),
        )
    }

    fn on_shell(event: ShellEvent) -> Result<HookOutput, String> {
        let outcome = event.outcome.map(|outcome| {
            json!({
                "exit_code": outcome.exit_code, "stdout": outcome.stdout, "stderr": outcome.stderr,
                "stdout_bytes": outcome.stdout_bytes, "stderr_bytes": outcome.stderr_bytes,
            })
        });
        handle(
            "on-shell",
            &format!("{} {}", event.binary, event.argv.join(" ")),
            json!({
                "turn": event.turn, "binary": event.binary, "command": event.command, "argv": event.argv,
                "script": event.script, "recipe": event.recipe, "outcome": outcome,
            }),
        )
    }

    fn on_compaction(event: CompactionEvent) -> Result<HookOutput, String> {
        let texts: Vec<&str> = event.messages.iter().map(|message| message.content.as_str()).collect();
        let inserted: Vec<bool> = event.messages.iter().map(|message| message.inserted_by.is_some()).collect();
        handle_about(
            "on-compaction",
            &texts.join("\n"),
            json!({
                "messages": texts, "inserted": inserted, "session_tokens": event.session_tokens,
                "threshold": event.threshold, "model": event.model, "system_prompt": event.system_prompt,
            }),
            &event.messages,
        )
    }

    fn on_task_end(event: TaskEndEvent) -> Result<HookOutput, String> {
        handle("on-task-end", &event.exit_status, json!({"task_id": event.task_id, "exit_status": event.exit_status}))
    }

    fn on_session_end(event: SessionEndEvent) -> Result<HookOutput, String> {
        handle(
            "on-session-end",
            &event.exit_status,
            json!({
                "total_turns": event.total_turns, "total_input_tokens": event.total_input_tokens,
                "total_output_tokens": event.total_output_tokens, "total_tool_calls": event.total_tool_calls,
                "total_shell_calls": event.total_shell_calls, "exit_status": event.exit_status,
            }),
        )
    }
}

export!(Hook);
