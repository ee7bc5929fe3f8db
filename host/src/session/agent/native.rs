//! A tool that is a program: its input on standard input, its standard output the result.

use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::time::timeout;

use super::dispatch::Done;
use super::run::{Ended, TaskRun};
use super::wire::ToolCall;
use crate::diagnostics::codes;
use crate::manifest::Limits;
use crate::session::commands::capture::{self, Shown};
use crate::session::commands::run::Finish;
use crate::session::commands::{Call, NotStarted, scope};
use crate::session::context::Tool;

/// Bytes of each stream of a native tool that become its result; the rest is in a file.
const SHOWN: usize = 1 << 20;

impl TaskRun<'_> {
    /// Calls a native tool. It has the deadline of any tool's call.
    pub(super) async fn call_native(&mut self, tool: &Tool, call: &ToolCall) -> Result<Done, Ended> {
        let ctx = Arc::clone(&self.agent.ctx);
        let Some(native) = ctx.commands.natives.get(&tool.name) else {
            return Ok(Done::failed(format!("tool '{}' was not staged", tool.name)));
        };
        let wanted = Call {
            program: &native.program,
            argv: vec![tool.name.clone()],
            env: &[],
            stdin: Some(call.input.get().to_owned().into()),
            shown: SHOWN,
            logged: true,
            kind: "native tool",
        };
        let run = match ctx.commands.start(&native.profile, wanted).await {
            Ok(run) => run,
            Err(NotStarted::Refused(why)) => return Ok(Done::failed(why)),
            Err(NotStarted::Fatal(error)) => return Err(Ended::Fatal(error)),
        };
        let seconds = ctx.capsule.capabilities.limits.deadline_seconds.unwrap_or(Limits::DEADLINE_SECONDS);
        let waited = self.unless_ended("turn", timeout(Duration::from_secs(seconds), run.finished())).await;
        match waited {
            Ok(Ok(finish)) => Ok(self.native_result(tool, &finish, &run.capture.shown())),
            Ok(Err(_)) => {
                run.signal(Signal::SIGKILL);
                Ok(Done::failed(format!(
                    "[{}] tool '{}' was stopped: it ran longer than its deadline of {seconds} s",
                    codes::E_RUN_001,
                    tool.name
                )))
            }
            Err(ended) => {
                run.signal(Signal::SIGKILL);
                Err(ended)
            }
        }
    }

    fn native_result(&self, tool: &Tool, finish: &Finish, output: &Shown) -> Done {
        let mut text = capture::text(&output.stdout);
        let passed = finish.exit_code() == 0;
        if !passed {
            text.push_str(&format!("\nExit code: {}\nStderr:\n{}", finish.exit_code(), capture::text(&output.stderr)));
        }
        if output.truncated()
            && let Some(log) = &output.log
        {
            text.push_str(&format!("\n\nOutput truncated. {}", super::shell::written(log, output.log_cut)));
        }
        Done {
            is_error: !passed,
            truncated: Some(output.truncated()),
            exit_code: Some(finish.exit_code()),
            note: finish.limit.map(|limit| scope::note(limit, &tool.name, &self.agent.ctx.commands.resources)),
            ..Done::answered(text)
        }
    }
}
