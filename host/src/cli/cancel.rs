//! `mur cancel`: stops one task of a running session, at its door.

use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use crate::cli::Outcome;
use crate::diagnostics::{Diagnostic, Result, codes, output};
use crate::paths::{MurmurHome, shell_word};
use crate::records::{address, probe, stop};

/// The variable whose token is presented with `--url`.
const TOKEN_VARIABLE: &str = "MURMUR_DOOR_TOKEN";
/// How long the door may take to answer.
const ANSWER_WAIT: Duration = Duration::from_secs(30);
/// The door's answer to a task that has ended.
const NOT_CANCELABLE: i64 = -32002;

/// Flags of `mur cancel`.
#[derive(clap::Args)]
#[command(override_usage = "mur cancel <SESSION> <TASK_ID>\n       mur cancel --url <HOST:PORT> <TASK_ID>")]
pub struct Args {
    /// A running session (@N, an id, or at least four last characters of one), then the task's id
    #[arg(value_names = ["SESSION", "TASK_ID"], num_args = 1..=2, required = true)]
    operands: Vec<String>,
    /// Address of the door, in place of a session; MURMUR_DOOR_TOKEN is presented when it is set
    #[arg(long, value_name = "HOST:PORT")]
    url: Option<String>,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let (door, task) = match (args.url, args.operands.as_slice()) {
        (Some(url), [task]) => (Door::at(&url), task),
        (None, [session, task]) => (Door::of(session)?, task),
        _ => {
            output::stderr_line(
                "error: name a task, and either a session or --url\n\nUsage: mur cancel <SESSION> <TASK_ID>\n       \
                 mur cancel --url <HOST:PORT> <TASK_ID>",
            );
            return Ok(2);
        }
    };
    let report = report(task, &door.cancel(task)?).map_err(|refusal| refusal.hint(door.tasks_hint()))?;
    let _ = output::stdout_text(&report);
    Ok(0)
}

/// A door and what opens it.
struct Door {
    address: String,
    token: Option<String>,
    /// The session's records, when it was named by its running record.
    records: Option<PathBuf>,
}

impl Door {
    fn at(url: &str) -> Self {
        let address = url.strip_prefix("http://").unwrap_or(url).trim_end_matches('/').to_owned();
        let token = std::env::var(TOKEN_VARIABLE).ok().filter(|token| !token.trim().is_empty());
        Self { address, token, records: None }
    }

    /// The door of a running session, once it has answered as that session.
    fn of(session: &str) -> Result<Self> {
        let record = address::running(&MurmurHome::from_env()?, Some(session))?;
        let silent = |why: String| {
            Diagnostic::new(codes::E_RUN_023, format!("{} runs, but its door does not answer: {why}", record.session_id))
                .hint("the process may be suspended; its running record was kept")
        };
        match probe::session_at(&record.url, record.door_token.as_deref()) {
            Ok(id) if id == record.session_id.as_str() => {
                let records = Some(record.records_dir.clone());
                Ok(Self { address: record.url.clone(), token: record.door_token.clone(), records })
            }
            Ok(_) => Err(silent(format!("another session answers at {}", record.url))),
            Err(error) => Err(silent(error.to_string())),
        }
    }

    /// Where the tasks of the door can be seen.
    fn tasks_hint(&self) -> String {
        match &self.records {
            Some(dir) => format!("its tasks: mur trace show {}", shell_word(&dir.to_string_lossy())),
            None => "ListTasks at that door names the tasks this token may see".to_owned(),
        }
    }

    fn cancel(&self, task: &str) -> Result<Value> {
        let authorization = self.token.as_ref().map(|token| format!("Bearer {}", token.trim()));
        let mut headers = vec![("Content-Type", "application/json"), ("A2A-Version", "1.0")];
        headers.extend(authorization.as_deref().map(|value| ("Authorization", value)));
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "CancelTask", "params": { "id": task } }).to_string();
        let failed = |why: String| Diagnostic::new(codes::E_IO_003, format!("{}: {why}", self.address));
        let answer = probe::request_within(ANSWER_WAIT, &self.address, "POST", "/", &headers, body.as_bytes());
        let (status, answer) = answer.map_err(|error: io::Error| {
            failed(error.to_string()).hint("mur ps lists the doors of running sessions; --url takes one as HOST:PORT")
        })?;
        let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
        if matches!(status, 401 | 403) {
            let said = answer["message"].as_str().unwrap_or("no reason given");
            return Err(failed(format!("the door answered {status}: {said}"))
                .hint(format!("set {TOKEN_VARIABLE} to a token of that door; `mur token` prints one")));
        }
        if status != 200 {
            return Err(failed(format!("the door answered {status}")).hint("is it the door of a session? mur ps lists them"));
        }
        Ok(answer)
    }
}

/// What is printed for a door's answer.
fn report(task: &str, answer: &Value) -> Result<String> {
    let mut report = format!("task:    {task}\n");
    let error = &answer["error"];
    if error["code"] == NOT_CANCELABLE {
        let state = word(error.pointer("/data/0/metadata/state"));
        let _ = write!(report, "state:   {state}\nnothing to cancel: the task had already ended\n");
        return Ok(report);
    }
    if let Some(said) = error["message"].as_str() {
        return Err(Diagnostic::new(codes::E_IO_003, format!("{task} was not canceled: {said}")));
    }
    let Some(state) = answer.pointer("/result/status/state") else {
        return Err(Diagnostic::new(codes::E_IO_003, format!("{task}: the door's answer is no task")));
    };
    let _ = writeln!(report, "state:   {}", word(Some(state)));
    let residue = answer.pointer("/result/artifacts/0/parts").and_then(Value::as_array).cloned().unwrap_or_default();
    let items: Vec<Value> = residue.iter().filter_map(|part| part.get("data").cloned()).collect();
    report.push_str(&stop::residue_lines(&items));
    Ok(report)
}

/// A state's name on the wire as the word it is printed with.
fn word(state: Option<&Value>) -> String {
    let name = state.and_then(Value::as_str).unwrap_or("unknown");
    name.trim_start_matches("TASK_STATE_").to_lowercase().replace('_', "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_canceled_task_is_reported_with_what_still_runs() {
        let answer = json!({ "result": { "status": { "state": "TASK_STATE_CANCELED" }, "artifacts": [{ "parts": [
            { "data": { "kind": "detached_shell", "work_id": "wrk_1", "command": "make" } },
        ] }] } });
        assert_eq!(
            report("tsk_1", &answer).unwrap(),
            "task:    tsk_1\nstate:   canceled\nrunning: wrk_1  detached shell  make\n"
        );
    }

    #[test]
    fn one_that_has_ended_is_no_error_and_any_other_refusal_is() {
        let ended = json!({ "error": { "code": -32002, "message": "x", "data": [{ "metadata": { "state": "TASK_STATE_COMPLETED" } }] } });
        assert_eq!(
            report("tsk_1", &ended).unwrap(),
            "task:    tsk_1\nstate:   completed\nnothing to cancel: the task had already ended\n"
        );
        let unknown = json!({ "error": { "code": -32001, "message": "Task not found" } });
        let refusal = report("tsk_1", &unknown).unwrap_err();
        assert_eq!((refusal.code(), refusal.message()), (codes::E_IO_003, "tsk_1 was not canceled: Task not found"));
        assert_eq!(report("tsk_1", &json!([])).unwrap_err().code(), codes::E_IO_003);
    }
}
