//! Commands in the background: listed under their `wrk_` ids until the session ends, asked about with
//! `background-command`, reported once.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Map, Value, json};

use super::capture::{self, SHOWN};
use super::line;
use super::run::{Finish, Run};
use crate::ids::{ContextId, TaskId, WorkId};
use crate::session::SessionContext;
use crate::session::agent::fenced;
use crate::session::tasks::{NewTask, Origin, Owner, RunningCommand, Source, Submitted, Trust};

/// Ended commands that can still be asked about.
const KEPT: usize = 1000;

/// How long `stop` waits between asking and killing.
const STOP: Duration = Duration::from_secs(2);

/// Longest wait for a command in one call, and the one that is meant when none is given.
pub const WAIT_MAX: Duration = Duration::from_secs(600);

/// A command in the background.
pub struct Work {
    /// Its id.
    pub id: WorkId,
    /// The bare name.
    pub binary: String,
    /// The program.
    pub program: PathBuf,
    /// Its arguments, or a shell's line.
    pub command: String,
    /// Whose task started it.
    pub owner: Owner,
    /// The task.
    pub task: TaskId,
    /// Its context.
    pub context: ContextId,
    /// Its trust.
    pub trust: Trust,
    /// The command.
    pub run: Run,
    /// The file with its output.
    pub log: Option<PathBuf>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// `stop` was asked for while it ran.
    stopped: bool,
    /// The model was told of its end.
    reported: bool,
    /// Calls that wait for its end and will tell.
    waiting: u32,
    /// Its ending stands in the trace, or will.
    recorded: bool,
}

/// The commands of a session that went to the background.
#[derive(Default)]
pub struct Board(Mutex<Vec<Arc<Work>>>);

/// What a task starts a [`Work`] with.
pub struct Started<'a> {
    /// The bare name.
    pub binary: &'a str,
    /// The program.
    pub program: &'a Path,
    /// Its arguments, or a shell's line.
    pub command: &'a str,
    /// Whose task started it.
    pub owner: Owner,
    /// The task.
    pub task: TaskId,
    /// Its context.
    pub context: ContextId,
    /// Its trust.
    pub trust: Trust,
}

impl Board {
    /// Lets a command go to the background.
    pub fn add(&self, started: Started<'_>, run: Run) -> Arc<Work> {
        let id = WorkId::mint();
        let log = run.capture.keep_as(&format!("{id}.log"));
        let work = Arc::new(Work {
            id,
            binary: started.binary.to_owned(),
            program: started.program.to_owned(),
            command: started.command.to_owned(),
            owner: started.owner,
            task: started.task,
            context: started.context,
            trust: started.trust,
            run,
            log,
            state: Mutex::default(),
        });
        let mut works = self.lock();
        let ended = works.iter().filter(|work| work.run.finish().is_some()).count();
        if ended >= KEPT
            && let Some(oldest) = works.iter().position(|work| work.run.finish().is_some())
        {
            works.remove(oldest);
        }
        works.push(Arc::clone(&work));
        work
    }

    /// A command this owner may ask about.
    pub fn find(&self, owner: &Owner, id: &str) -> Option<Arc<Work>> {
        self.lock().iter().find(|work| work.id.as_str() == id && owner.reaches(&work.owner)).cloned()
    }

    /// What a task left running, oldest first.
    pub fn running_of(&self, task: &TaskId) -> Vec<RunningCommand> {
        let works = self.lock();
        let running = works.iter().filter(|work| work.task == *task && work.run.finish().is_none());
        running
            .map(|work| RunningCommand {
                work_id: work.id.to_string(),
                binary: work.binary.clone(),
                command: work.command.clone(),
                running_ms: millis(work.run.began.elapsed()),
            })
            .collect()
    }

    /// Every command whose end is not recorded yet; from here on it is recorded as abandoned.
    pub fn abandon(&self) -> Vec<Arc<Work>> {
        let works = self.lock();
        works.iter().filter(|work| work.claim_record()).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Work>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Work {
    /// The keys every record of it has.
    pub fn record(&self) -> Map<String, Value> {
        let mut record = Map::new();
        record.insert("work_id".into(), json!(self.id));
        record.extend(super::named(&self.program, &self.command));
        record
    }

    /// Its `shell_abandoned`.
    pub fn abandoned(&self) -> Map<String, Value> {
        let mut record = self.record();
        record.insert("running_ms".into(), json!(millis(self.run.began.elapsed())));
        if let (Some(finish), Some(log)) = (self.run.finish(), &self.log) {
            record.insert("exit_code".into(), json!(finish.exit_code()));
            record.insert("output_path".into(), json!(log.to_string_lossy()));
            record.insert("output_bytes".into(), json!(self.run.capture.total()));
        }
        record
    }

    /// `running`, `exited` or `stopped`.
    pub fn state(&self) -> &'static str {
        match (self.run.finish(), self.lock().stopped) {
            (None, _) => "running",
            (Some(_), true) => "stopped",
            (Some(_), false) => "exited",
        }
    }

    /// Waits for its end for so long.
    pub async fn wait(&self, most: Duration) -> Option<Finish> {
        self.lock().waiting += 1;
        let waiting = Waiting(self);
        let finish = tokio::time::timeout(most, self.run.finished()).await.ok();
        if finish.is_some() {
            self.lock().reported = true;
        }
        drop(waiting);
        finish
    }

    /// Ends it: asked first, killed after [`STOP`]. One that has ended is left alone.
    pub async fn stop(&self) -> Finish {
        if self.run.finish().is_none() {
            self.lock().stopped = true;
            self.run.signal(Signal::SIGTERM);
            if let Some(finish) = self.wait(STOP).await {
                return finish;
            }
            self.run.signal(Signal::SIGKILL);
        }
        match self.wait(WAIT_MAX).await {
            Some(finish) => finish,
            None => self.run.finished().await,
        }
    }

    /// The lines of `background-command`, and the end of the output. One whose end they tell is reported with it.
    pub fn told(&self, waited: Option<Duration>) -> String {
        let finish = self.run.finish();
        if finish.is_some() {
            self.lock().reported = true;
        }
        let mut lines = vec![
            format!("work_id: {}", self.id),
            format!("command: {}", line::shown(&self.binary, &self.command)),
            format!("state: {}", self.state()),
        ];
        let elapsed = finish.as_ref().map_or_else(|| self.run.began.elapsed(), |finish| finish.duration);
        lines.push(format!("elapsed_secs: {}", elapsed.as_secs()));
        lines.extend(waited.map(|waited| format!("waited_secs: {}", waited.as_secs())));
        self.lines(finish.as_ref(), lines)
    }

    fn lines(&self, finish: Option<&Finish>, mut lines: Vec<String>) -> String {
        if let Some(finish) = finish {
            lines.push(format!("exit_code: {}", finish.exit_code()));
            lines.push(format!("status: {}", self.status(finish)));
        }
        let (tail, bytes) = self.output();
        match &self.log {
            Some(log) => lines.push(format!("output: {}", log.display())),
            None => lines.push("output: (its file could not be made)".to_owned()),
        }
        lines.push(format!("output_bytes: {bytes}"));
        let all = bytes <= tail.len() as u64;
        lines.push(format!("output_shown: {}", if all { "all".to_owned() } else { format!("last {SHOWN} bytes") }));
        format!("{}\n\n{}", lines.join("\n"), capture::text(&tail))
    }

    /// The end of its output, and how much there is.
    fn output(&self) -> (Vec<u8>, u64) {
        match self.log.as_deref().map(capture::tail) {
            Some(Ok(read)) => read,
            _ => {
                let shown = self.run.capture.shown();
                ([shown.stdout, shown.stderr].concat(), shown.stdout_bytes + shown.stderr_bytes)
            }
        }
    }

    /// `ok`, `failed` or `stopped`.
    fn status(&self, finish: &Finish) -> &'static str {
        match finish.exit_code() {
            _ if self.lock().stopped => "stopped",
            0 => "ok",
            _ => "failed",
        }
    }

    /// Whether whoever asks is the one that records the ending.
    fn claim_record(&self) -> bool {
        !std::mem::replace(&mut self.lock().recorded, true)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that waits for a command's end; one that is dropped half way tells nobody.
struct Waiting<'a>(&'a Work);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.lock().waiting -= 1;
    }
}

/// Records the end of a background command, and tells the model of it in a task where the session takes one.
pub async fn follow(ctx: Arc<SessionContext>, work: Arc<Work>) {
    let finish = work.run.finished().await;
    if !work.claim_record() {
        return;
    }
    let told = {
        let state = work.lock();
        state.reported || state.waiting > 0
    };
    let task = if !told && ctx.capsule.lifecycle.goes_on() { submit(&ctx, &work, &finish) } else { None };
    let mut record = work.record();
    record.insert("exit_code".into(), json!(finish.exit_code()));
    record.insert("duration_ms".into(), json!(millis(finish.duration)));
    record.insert("output_path".into(), json!(work.log.as_ref().map(|log| log.to_string_lossy().into_owned())));
    record.insert("output_bytes".into(), json!(work.run.capture.total()));
    if let Some(limit) = finish.limit {
        record.insert("resource_limit".into(), json!(limit));
    }
    record.insert("status".into(), json!(work.status(&finish)));
    if let Some(task) = task {
        record.insert("completion_task_id".into(), json!(task));
    }
    ctx.trace.record_aside("shell_completed", None, record);
}

fn submit(ctx: &SessionContext, work: &Work, finish: &Finish) -> Option<TaskId> {
    let lines = work.lines(
        Some(finish),
        vec![format!("work_id: {}", work.id), format!("command: {}", line::shown(&work.binary, &work.command))],
    );
    let (head, tail) = lines.split_once("\n\n").unwrap_or((&lines, ""));
    let mut text = format!("A command you had moved to the background has ended.\n{head}\n\n");
    text.push_str(&fenced(&format!("tool:{}", work.binary), tail));
    if let Some(limit) = finish.limit {
        text.push_str(&format!("\n{}", super::scope::note(limit, &work.binary, &ctx.commands.resources)));
    }
    let submitted = ctx.tasks.submit(NewTask {
        origin: Origin::Completion,
        trust: work.trust,
        source: Source::DetachedShell,
        owner: work.owner.clone(),
        ..NewTask::of_launch(text, Some(work.context.clone()))
    });
    match submitted {
        Submitted::Accepted { view, .. } => Some(view.id),
        Submitted::Rejected(_) => None,
    }
}

/// Milliseconds for records.
pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// How long it has been.
pub fn since(began: Instant) -> u64 {
    millis(began.elapsed())
}
