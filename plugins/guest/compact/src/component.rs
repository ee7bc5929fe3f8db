//! The component: only the event of a compaction does something.

#![allow(missing_docs)]

use crate::{Entry, PROMPT, Settings, cut, pieces, request, summary};

wit_bindgen::generate!({
    path: "../../../host/wit",
    world: "murmur:runtime/hook",
    generate_all,
});

use exports::murmur::hook::lifecycle::{
    CompactionEvent, ContextInsertion, Guest, HookOutput, InferenceEvent, Message, SessionContext, SessionEndEvent,
    ShellEvent, StageEvent, TaskEndEvent, TaskStartEvent, ToolEvent,
};
use murmur::runtime::{inference, tokens};

struct Hook;

fn settings() -> Result<Settings, String> {
    let variables = wasip2::cli::environment::get_environment();
    let config = variables.into_iter().find(|(name, _)| name == "MURMUR_ARTIFACT_CONFIG").map(|(_, value)| value);
    Settings::read(config.as_deref())
}

/// A user's message.
fn user(content: String) -> Message {
    Message { role: "user".into(), content, id: None, source_id: None, inserted_by: None }
}

/// The summary of the pieces, each asked for with that of those before it; `None` when the model says nothing.
fn summarise(event: &CompactionEvent, pieces: &[String]) -> Result<Option<String>, String> {
    let mut summary: Option<String> = None;
    for piece in pieces {
        let message = murmur::hook::lifecycle::Message {
            role: "user".into(),
            content: request(summary.as_deref(), piece),
            id: None,
            source_id: None,
            inserted_by: None,
        };
        let request = inference::InferenceRequest {
            messages: vec![message],
            system_prompt: Some(event.system_prompt.clone().unwrap_or_else(|| PROMPT.to_owned())),
            model: event.model.clone(),
        };
        let text = inference::run_inference(&request)?.text;
        if text.trim().is_empty() {
            return Ok(None);
        }
        summary = Some(text);
    }
    Ok(summary)
}

impl Guest for Hook {
    fn on_compaction(event: CompactionEvent) -> Result<HookOutput, String> {
        let settings = settings()?;
        let entry = |message: &Message| Entry {
            role: message.role.clone(),
            content: message.content.clone(),
            tokens: tokens::count(&message.content),
            inserted: message.inserted_by == Some(ContextInsertion::ReplaceContext),
        };
        let entries: Vec<Entry> = event.messages.iter().map(entry).collect();
        // Message sizes are counted here as there; a fraction of their sum is far below 2^52.
        let most = (event.session_tokens as f64 * settings.keep) as u64;
        let Some(begin) = cut(&entries, most) else { return Ok(HookOutput::None) };
        let pieces = pieces(&entries[..begin], settings.piece_tokens, tokens::count);
        let Some(text) = summarise(&event, &pieces)? else { return Ok(HookOutput::None) };
        // The task's own message is put back before the summary by whoever runs the session.
        let mut left = vec![user(summary(&text))];
        left.extend(event.messages.into_iter().skip(begin));
        Ok(HookOutput::ReplaceContext(left))
    }

    fn on_stage(_: StageEvent) -> Result<HookOutput, String> {
        Ok(HookOutput::None)
    }

    fn on_session_start(_: SessionContext) -> Result<HookOutput, String> {
        Ok(HookOutput::None)
    }

    fn on_task_start(_: TaskStartEvent) -> Result<HookOutput, String> {
        Ok(HookOutput::None)
    }

    fn on_inference(_: InferenceEvent) -> Result<HookOutput, String> {
        Ok(HookOutput::None)
    }

    fn on_tool_call(_: ToolEvent) -> Result<HookOutput, String> {
        Ok(HookOutput::None)
    }

    fn on_shell(_: ShellEvent) -> Result<HookOutput, String> {
        Ok(HookOutput::None)
    }

    fn on_task_end(_: TaskEndEvent) -> Result<HookOutput, String> {
        Ok(HookOutput::None)
    }

    fn on_session_end(_: SessionEndEvent) -> Result<HookOutput, String> {
        Ok(HookOutput::None)
    }
}

export!(Hook);
