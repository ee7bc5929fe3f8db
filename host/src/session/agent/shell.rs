//! A shell command of the model's: run in the foreground, moved to the background, asked about.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::command_event;
use super::dispatch::{Done, text};
use super::run::{Ended, TaskRun};
use super::wire::ToolCall;
use crate::session::commands::background::{self, Started, WAIT_MAX, Work, since};
use crate::session::commands::capture::{self, SHOWN, Shown};
use crate::session::commands::run::{Finish, Run};
use crate::session::commands::{Call, NotStarted, line, named, scope};

/// How often the session's folders are measured while a command runs.
const MEASURE: Duration = Duration::from_secs(10);

/// What a command leaves in the trace, after its `tool_call`.
#[derive(Debug)]
pub(super) struct ShellRecord {
    pub(super) event_type: &'static str,
    pub(super) keys: Map<String, Value>,
}

/// What became of a command in the foreground.
enum Waited {
    Ended(Finish),
    Grace,
    Canceled,
}

impl TaskRun<'_> {
    /// Runs a command of `capabilities.shell.allow`.
    pub(super) async fn run_shell(&mut self, binary: &str, call: &ToolCall) -> Result<Done, Ended> {
        let ctx = std::sync::Arc::clone(&self.agent.ctx);
        let commands = &ctx.commands;
        let input: Map<String, Value> = serde_json::from_str(call.input.get()).unwrap_or_default();
        let command = text(&input, "command").ok_or("the command is not text".to_owned());
        let parsed = command.and_then(|command| Ok((command, line::argv(binary, command)?)));
        let (command, argv) = match parsed {
            Ok(parsed) => parsed,
            Err(why) => return Ok(Done::failed(format!("shell command parsing failed: {why}"))),
        };
        let found = commands.program(binary).map(|program| program.to_owned());
        let (program, profile) = match (found, &commands.shell) {
            (Ok(program), Some(profile)) => (program, profile),
            (Err(why), _) => return Ok(Done::failed(why)),
            (Ok(_), None) => return Ok(Done::failed(format!("'{binary}' may not be run in this session"))),
        };
        let wanted = Call { program: &program, argv, env: &[], stdin: None, shown: SHOWN, logged: true, kind: "shell" };
        let run = match commands.start(profile, wanted).await {
            Ok(run) => run,
            Err(NotStarted::Refused(why)) => return Ok(Done::failed(why)),
            Err(NotStarted::Fatal(error)) => return Err(Ended::Fatal(error)),
        };
        let began = Began { binary, program, command, run };
        match self.wait_in_foreground(&began.run, commands.grace).await? {
            Waited::Ended(finish) => Ok(self.ended(&began, &finish)),
            Waited::Grace => self.detach(&began, None),
            Waited::Canceled => self.detach(&began, Some("shell")),
        }
    }

    /// Waits for the end, the grace or a cancel; the session's folders are measured meanwhile.
    async fn wait_in_foreground(&self, run: &Run, grace: Duration) -> Result<Waited, Ended> {
        let grace = tokio::time::sleep(grace);
        tokio::pin!(grace);
        let mut measure = tokio::time::interval(MEASURE);
        let lost = super::run::first_lost(self.agent.ctx.workers.lost());
        tokio::pin!(lost);
        loop {
            tokio::select! {
                biased;
                finish = run.finished() => return Ok(Waited::Ended(finish)),
                () = self.task.canceled.set() => return Ok(Waited::Canceled),
                lost = &mut lost => return Err(Ended::Fatal(lost.diagnostic())),
                () = &mut grace => return Ok(Waited::Grace),
                _ = measure.tick() => {
                    // A breach ends the session at the next turn; what runs goes on.
                    let _ = self.agent.ctx.folder_size.check();
                }
            }
        }
    }

    fn ended(&self, began: &Began<'_>, finish: &Finish) -> Done {
        let shown = began.run.capture.shown();
        let mut keys = named(&began.program, began.command);
        keys.insert("exit_code".into(), json!(finish.exit_code()));
        keys.insert("stdout_bytes".into(), json!(shown.stdout_bytes));
        keys.insert("stderr_bytes".into(), json!(shown.stderr_bytes));
        keys.insert("duration_ms".into(), json!(background::millis(finish.duration)));
        if let Some(limit) = finish.limit {
            keys.insert("resource_limit".into(), json!(limit));
        }
        let resources = &self.agent.ctx.commands.resources;
        Done {
            truncated: Some(shown.truncated()),
            exit_code: Some(finish.exit_code()),
            note: finish.limit.map(|limit| scope::note(limit, began.binary, resources)),
            shell: Some(ShellRecord { event_type: "shell", keys }),
            observed: Some(command_event::outcome(finish, &shown)),
            ..Done::answered(result(&line::shown(began.binary, began.command), finish.exit_code(), &shown))
        }
    }

    /// Moves the command to the background; `canceled` is the phase of a task that was cancelled meanwhile.
    fn detach(&self, began: &Began<'_>, canceled: Option<&'static str>) -> Result<Done, Ended> {
        let ctx = &self.agent.ctx;
        let started = Started {
            binary: began.binary,
            program: &began.program,
            command: began.command,
            owner: self.task.owner.clone(),
            task: self.task.id.clone(),
            context: self.task.context.clone(),
            trust: self.task.trust,
        };
        let work = ctx.commands.board.add(started, began.run.clone());
        tokio::spawn(background::follow(std::sync::Arc::clone(ctx), std::sync::Arc::clone(&work)));
        let ran_ms = since(began.run.began);
        let mut keys = work.record();
        keys.insert("grace_ms".into(), json!(ran_ms));
        if work.log.is_none() {
            let record = json!({
                "turn": self.turns.saturating_sub(1), "task_id": self.task.id, "work_id": work.id,
                "binary": began.program.to_string_lossy(), "reason": "the file for its output could not be made",
            });
            ctx.trace.record_aside("shell_detach_unrecorded", self.turn_node(), record);
        }
        Ok(Done {
            shell: Some(ShellRecord { event_type: "shell_detached", keys }),
            canceled,
            ..Done::answered(moved(&work, ran_ms))
        })
    }

    /// `background-command`.
    pub(super) async fn background_command(&mut self, input: &Map<String, Value>) -> Result<Done, Ended> {
        let (Some(operation), Some(id)) = (text(input, "operation"), text(input, "work_id")) else {
            return Ok(Done::failed("background-command takes two texts: operation and work_id".into()));
        };
        let Some(work) = self.agent.ctx.commands.board.find(&self.task.owner, id) else {
            return Ok(Done::failed(format!("background-command: no command of this session is '{id}'")));
        };
        let began = Instant::now();
        let waited = match operation {
            "status" => None,
            "wait" => {
                let asked = input.get("wait_secs").and_then(Value::as_u64).map(Duration::from_secs);
                let most = asked.unwrap_or(WAIT_MAX).min(WAIT_MAX);
                self.unless_ended("background_wait", work.wait(most)).await?;
                Some(began.elapsed())
            }
            "stop" => {
                self.unless_ended("background_wait", work.stop()).await?;
                None
            }
            other => {
                let why = format!("background-command: operation '{other}' is none of status, wait, stop");
                return Ok(Done::failed(why));
            }
        };
        let told = work.told(waited);
        self.record_background(&work, operation, waited);
        Ok(Done::answered(told))
    }

    fn record_background(&self, work: &Work, operation: &str, waited: Option<Duration>) {
        let mut record = json!({
            "task_id": self.task.id, "work_id": work.id, "operation": operation, "state": work.state(),
            "output_bytes": work.run.capture.total(),
        });
        if let Some(finish) = work.run.finish() {
            record["exit_code"] = json!(finish.exit_code());
        }
        if let Some(waited) = waited {
            record["waited_ms"] = json!(background::millis(waited));
        }
        self.agent.ctx.trace.record_aside("background_command", self.turn_node(), record);
    }

    /// The line of a command in the trace.
    pub(super) fn record_shell(&mut self, turn: u32, record: ShellRecord) -> Result<(), Ended> {
        self.sums.shell_calls += 1;
        let mut keys = Map::new();
        keys.insert("turn".into(), json!(turn));
        keys.insert("task_id".into(), json!(self.task.id));
        keys.extend(record.keys);
        self.agent.ctx.trace.record(record.event_type, self.turn_node(), keys)?;
        Ok(())
    }
}

/// A command that was started.
struct Began<'a> {
    binary: &'a str,
    program: PathBuf,
    command: &'a str,
    run: Run,
}

/// What the model reads of a command that has ended.
fn result(shown: &str, exit_code: i32, output: &Shown) -> String {
    let mut text = format!(
        "$ {shown}\nExit code: {exit_code}\nStdout:\n{}\nStderr:\n{}",
        capture::text(&output.stdout),
        capture::text(&output.stderr)
    );
    if output.truncated() {
        text.push_str("\n\n");
        text.push_str(&match &output.log {
            Some(log) => format!("Output truncated. {}", written(log, output.log_cut)),
            None => "Output truncated. The file for all of it could not be made".to_owned(),
        });
    }
    text
}

/// Where all of a command's output is, or as much of it as is kept.
pub(super) fn written(log: &Path, cut: bool) -> String {
    match cut {
        false => format!("Full output written to {}", log.display()),
        true => format!("Its beginning was written to {}, whose last line says why not more", log.display()),
    }
}

/// What it reads of one that goes on in the background.
fn moved(work: &Work, ran_ms: u64) -> String {
    let mut text = format!(
        "$ {}\nStill running after {} s: it goes on in the background as {}.\n",
        line::shown(&work.binary, &work.command),
        ran_ms / 1000,
        work.id
    );
    if let Some(log) = &work.log {
        text.push_str(&format!("Its output is written to {}\n", log.display()));
    }
    text.push_str("Ask about it, wait for it or stop it with background-command.");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_shows_both_streams_and_where_the_rest_is() {
        let mut output = Shown { stdout: b"out\n".to_vec(), stdout_bytes: 4, ..Shown::default() };
        assert_eq!(result("ls", 0, &output), "$ ls\nExit code: 0\nStdout:\nout\n\nStderr:\n");
        output.stdout_bytes = 5;
        output.log = Some("/r/logs/x.log".into());
        assert!(
            result("ls", 1, &output).ends_with("Stderr:\n\n\nOutput truncated. Full output written to /r/logs/x.log")
        );
        output.log_cut = true;
        assert!(result("ls", 1, &output).contains("Its beginning was written to /r/logs/x.log, whose last line"));
    }
}
