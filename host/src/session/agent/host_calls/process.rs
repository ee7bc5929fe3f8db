//! `murmur:process/exec`: a program an artifact asks for, decided here and run as a shell command is run.

use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Map, json};

use super::ArtifactCall;
use crate::containment::Ended;
use crate::manifest::HookBinding;
use crate::session::agent::{command_event, read_only};
use crate::session::commands::background::millis;
use crate::session::commands::capture::Shown;
use crate::session::commands::run::{Finish, Run};
use crate::session::commands::{Call, NotStarted, named};
use crate::session::hooks::Denial;
use crate::worker::{ProcessOutcome, ProcessRequest};

/// Bytes of each stream a program gives back.
const SHOWN: usize = 8 << 20;

impl ArtifactCall {
    /// Runs a program to its end.
    ///
    /// # Errors
    /// In words: a refusal begins `not-granted:`, a program that ran too long `timed-out:`.
    pub(super) async fn run_process(&self, artifact: &str, request: ProcessRequest) -> Result<ProcessOutcome, String> {
        self.check(artifact, &request)?;
        let argv: Vec<String> = std::iter::once(&request.binary).chain(&request.args).cloned().collect();
        self.ask_hooks(&argv).await?;
        let commands = &self.ctx.commands;
        let program = commands.program(&request.binary)?.to_owned();
        let profile = commands.shell.as_ref().ok_or("nothing may be run in this session")?;
        let wanted = Call {
            program: &program,
            argv: argv.clone(),
            env: &request.env,
            stdin: request.stdin,
            shown: SHOWN,
            logged: false,
            kind: "shell",
        };
        let run = match commands.start(profile, wanted).await {
            Ok(run) => run,
            Err(NotStarted::Refused(why)) => return Err(why),
            Err(NotStarted::Fatal(error)) => return Err(format!("[{}] {}", error.code(), error.message())),
        };
        // Whoever asked may stop waiting: its call ended, or was cancelled.
        let kept = KilledWithCall(run);
        let most = request.timeout_ms.map_or(Duration::MAX, Duration::from_millis);
        let finish = tokio::time::timeout(most, kept.0.finished()).await.map_err(|_| {
            format!("timed-out: '{}' ran longer than {} ms", request.binary, request.timeout_ms.unwrap_or_default())
        })?;
        let shown = kept.0.capture.shown();
        let mut keys = named(&program, &request.args.join(" "));
        keys.insert("artifact".into(), json!(artifact));
        self.record_process(keys, &finish, &shown);
        if let Some(scene) = &self.scene {
            let ended = command_event::outcome(&finish, &shown);
            command_event::observe(&self.ctx, scene, &argv, ended).await.map_err(|lost| lost.to_string())?;
        }
        outcome(&finish, shown)
    }

    /// The grants: the capsule's, the artifact's own where it has one, and what is read only.
    fn check(&self, artifact: &str, request: &ProcessRequest) -> Result<(), String> {
        let ctx = &self.ctx;
        let binary = &request.binary;
        if !ctx.commands.allow.contains(binary) {
            return Err(format!("not-granted: '{binary}' is not in capabilities.shell.allow"));
        }
        let entry = ctx.capsule.artifacts.iter().find(|entry| entry.bare() == artifact);
        let own = entry.and_then(|entry| entry.capabilities.as_ref()).and_then(|own| own.shell_allow.as_ref());
        if own.is_some_and(|own| !own.contains(binary)) {
            return Err(format!("not-granted: '{binary}' is not in capabilities.shell.allow of '{artifact}'"));
        }
        let argv: Vec<String> = std::iter::once(binary).chain(&request.args).cloned().collect();
        let read_only = &ctx.capsule.capabilities.filesystem.read_only;
        match read_only::denied_command(read_only, &ctx.dirs.work, &argv) {
            None => Ok(()),
            Some(denied) => Err(format!(
                "not-granted: '{binary}' would write to '{}', and '{}' is read-only here",
                denied.path, denied.rule
            )),
        }
    }

    /// Those that decide about commands. A hook that waits for this very call cannot be asked, so where one decides, what
    /// a hook asked the driver for runs nothing.
    async fn ask_hooks(&self, argv: &[String]) -> Result<(), String> {
        let binary = argv.first().map(String::as_str).unwrap_or_default();
        let Some(scene) = &self.scene else {
            if self.ctx.hooks.decide_about(HookBinding::OnShell) {
                return Err(format!(
                    "not-granted: '{binary}' is not run for a hook, while hooks decide about commands"
                ));
            }
            return Ok(());
        };
        match command_event::decide(&self.ctx, scene, argv).await {
            Ok(None) => Ok(()),
            Ok(Some(Denial { hook, reason })) => {
                Err(format!("not-granted: '{binary}' was not run: hook '{hook}' denied it: {reason}"))
            }
            Err(lost) => Err(lost.to_string()),
        }
    }

    fn record_process(&self, named: Map<String, serde_json::Value>, finish: &Finish, shown: &Shown) {
        self.input.commands.fetch_add(1, Ordering::Relaxed);
        let mut record = Map::new();
        record.insert("turn".into(), json!(self.input.turn.load(Ordering::Relaxed)));
        record.insert("task_id".into(), json!(self.stream.as_ref().map(|stream| stream.task())));
        record.extend(named);
        record.insert("exit_code".into(), json!(finish.exit_code()));
        record.insert("stdout_bytes".into(), json!(shown.stdout_bytes));
        record.insert("stderr_bytes".into(), json!(shown.stderr_bytes));
        record.insert("duration_ms".into(), json!(millis(finish.duration)));
        if let Some(limit) = finish.limit {
            record.insert("resource_limit".into(), json!(limit));
        }
        self.ctx.trace.record_aside("shell", self.parent.as_ref(), record);
    }
}

/// A command that does not outlive the call that asked for it.
struct KilledWithCall(Run);

impl Drop for KilledWithCall {
    fn drop(&mut self) {
        if self.0.finish().is_none() {
            self.0.signal(Signal::SIGKILL);
        }
    }
}

fn outcome(finish: &Finish, shown: Shown) -> Result<ProcessOutcome, String> {
    let (exit_code, signal) = match &finish.ended {
        Ended::Exited(status) => (Some(*status), None),
        Ended::Signalled(signal) => (None, Some(*signal)),
        Ended::Lost(why) => return Err(format!("how the program ended is not known: {why}")),
    };
    let truncated = shown.truncated();
    Ok(ProcessOutcome { exit_code, signal, stdout: shown.stdout.into(), stderr: shown.stderr.into(), truncated })
}
