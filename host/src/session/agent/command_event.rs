//! What hooks are told of a command: before it runs, to those that decide, and after it ended, to those that watch.

use std::sync::Arc;

use serde_json::json;

use super::recipe;
use super::run::{Ended, TaskRun};
use super::wire::{Message, ToolCall, cut};
use crate::manifest::HookBinding;
use crate::session::SessionContext;
use crate::session::commands::background::millis;
use crate::session::commands::capture::{SHOWN, Shown, text};
use crate::session::commands::line;
use crate::session::commands::run::Finish;
use crate::session::context::{Tool, ToolKind};
use crate::session::hooks::{Denial, Hooks, Scene};
use crate::worker::LostWorker;
use crate::worker::hook::{HookEvent, ShellEvent, ShellOutcome};

/// Characters of the arguments that are there to be shown.
const COMMAND_SHOWN: usize = 200;

/// The event of a command; `argv` begins with its name.
pub(super) fn event(ctx: &SessionContext, turn: u32, argv: &[String], outcome: Option<ShellOutcome>) -> HookEvent {
    let (name, args) = argv.split_first().map_or(("", &[][..]), |(name, args)| (name.as_str(), args));
    let program = ctx.commands.program(name).ok();
    let whole = args.join(" ");
    HookEvent::Shell(ShellEvent {
        turn,
        binary: program.map_or_else(|| name.to_owned(), |program| program.to_string_lossy().into_owned()),
        command: whole.chars().take(COMMAND_SHOWN).collect(),
        argv: args.to_vec(),
        script: line::is_shell(name).then(|| script(args)).flatten(),
        recipe: recipe::of(&ctx.dirs.work, name, args),
        outcome,
    })
}

/// How a command ended; of each stream what a result shows.
pub(super) fn outcome(finish: &Finish, shown: &Shown) -> ShellOutcome {
    let stream = |bytes: &[u8]| cut(&text(bytes), SHOWN).to_owned();
    ShellOutcome {
        exit_code: finish.exit_code(),
        stdout: stream(&shown.stdout),
        stderr: stream(&shown.stderr),
        stdout_bytes: shown.stdout_bytes,
        stderr_bytes: shown.stderr_bytes,
        duration_ms: millis(finish.duration),
    }
}

/// Asks those who decide; a refusal stands in the trace.
pub(super) async fn decide(
    ctx: &Arc<SessionContext>,
    scene: &Scene,
    argv: &[String],
) -> Result<Option<Denial>, LostWorker> {
    if !ctx.hooks.decide_about(HookBinding::OnShell) {
        return Ok(None);
    }
    let denial = Hooks::decide(ctx, event(ctx, scene.turn, argv, None), scene).await?;
    if let Some(Denial { hook, reason }) = &denial {
        let record = json!({
            "turn": scene.turn, "event": "on-shell", "hook_name": hook, "target": argv.first(), "reason": reason,
        });
        ctx.trace.record_aside("call_denied", scene.parent.as_ref(), record);
    }
    Ok(denial)
}

/// Tells those who watch.
pub(super) async fn observe(
    ctx: &Arc<SessionContext>,
    scene: &Scene,
    argv: &[String],
    outcome: ShellOutcome,
) -> Result<(), LostWorker> {
    if !ctx.hooks.any_for(HookBinding::OnShell) {
        return Ok(());
    }
    Hooks::dispatch(ctx, event(ctx, scene.turn, argv, Some(outcome)), scene).await.map(drop)
}

/// The body behind a shell's `-c`, alone or among other letters; a shell that runs a file has none.
fn script(args: &[String]) -> Option<String> {
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let letters = arg.strip_prefix(['-', '+']).filter(|letters| !letters.is_empty())?;
        if !letters.starts_with('-') && letters.contains('c') {
            return args.next().cloned();
        }
        // The name of an option follows.
        if matches!(letters, "o" | "O" | "-rcfile" | "-init-file") {
            args.next();
        }
    }
    None
}

impl TaskRun<'_> {
    /// Before a command runs: whether it may. A line that cannot be read is refused where it would be run.
    pub(super) async fn ask_about_command(
        &self,
        turn: u32,
        tool: &Tool,
        call: &ToolCall,
    ) -> Result<Option<Message>, Ended> {
        let ctx = &self.agent.ctx;
        let Some(argv) = argv(tool, call).filter(|_| ctx.hooks.decide_about(HookBinding::OnShell)) else {
            return Ok(None);
        };
        let scene = self.scene(turn, true, None);
        let asked = self.unless_ended("turn", decide(ctx, &scene, &argv)).await?;
        let denial = asked.map_err(|lost| Ended::Fatal(lost.diagnostic()))?;
        Ok(denial.map(|Denial { hook, reason }| {
            let told = format!("command '{}' was not run: hook '{hook}' denied it: {reason}", tool.name);
            Message::tool(&call.id, true, &told)
        }))
    }

    /// After a command ended: how it went.
    pub(super) async fn tell_command(
        &self,
        turn: u32,
        tool: &Tool,
        call: &ToolCall,
        outcome: ShellOutcome,
    ) -> Result<(), Ended> {
        let Some(argv) = argv(tool, call) else { return Ok(()) };
        let scene = self.scene(turn, true, None);
        let told = self.unless_ended("turn", observe(&self.agent.ctx, &scene, &argv, outcome)).await?;
        told.map_err(|lost| Ended::Fatal(lost.diagnostic()))
    }
}

/// The argument vector of a call that is a command.
fn argv(tool: &Tool, call: &ToolCall) -> Option<Vec<String>> {
    if tool.kind != ToolKind::Shell {
        return None;
    }
    let input: serde_json::Map<String, serde_json::Value> = serde_json::from_str(call.input.get()).ok()?;
    line::argv(&tool.name, input.get("command")?.as_str()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shells_script_is_what_stands_behind_its_c() {
        let of = |args: &[&str]| script(&args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>());
        assert_eq!(of(&["-c", "echo hi"]).as_deref(), Some("echo hi"));
        assert_eq!(of(&["-e", "-o", "pipefail", "-xc", "a; b", "c"]).as_deref(), Some("a; b"));
        assert_eq!(of(&["--norc", "-c", "x"]).as_deref(), Some("x"));
        for none in [&["run.sh", "-c", "x"][..], &["-c"], &[], &["-"], &["--command", "x"]] {
            assert_eq!(of(none), None, "{none:?}");
        }
    }
}
