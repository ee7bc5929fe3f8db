//! Attempts only a guest worker is put to: on records, secrets, other kinds' folders, and its own core.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use crate::files::work_control;
use crate::outcome::{Outcome, Verdict, all, judge, words};
use crate::plan::Plan;

pub(crate) fn attempt(case: &str, plan: &Plan) -> Option<Outcome> {
    Some(match case {
        "worker-read-records" => each(plan, "records"),
        "worker-read-secrets" => each(plan, "secret"),
        "worker-read-other-store" => other_store(plan),
        "worker-runtime-dir" => runtime_dir(plan),
        "worker-records-hooks" => records_hooks(plan),
        "worker-core-dump" => dump(plan),
        _ => return None,
    })
}

/// Opens a file, or lists a folder, by its exact path.
fn open(path: &str) -> io::Result<()> {
    if fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some()) {
        return Ok(());
    }
    File::open(path)?.read(&mut [0; 1]).map(|_| ())
}

fn each(plan: &Plan, key: &str) -> Outcome {
    let tried = plan.all(key).map(|path| judge(&format!("open({path})"), open(path), plan.sealed()));
    all(tried).controlled("work folder", work_control(plan))
}

fn other_store(plan: &Plan) -> Outcome {
    let own = plan.one("own-store").map(|path| {
        let file = Path::new(path).join("ec-control");
        fs::write(&file, "x").and_then(|()| fs::remove_file(&file))
    });
    each(plan, "other-store").controlled("its own state store", own.unwrap_or(Err(io::ErrorKind::NotFound.into())))
}

/// Tools read the runtime folder and do not write it; other kinds do neither.
fn runtime_dir(plan: &Plan) -> Outcome {
    let Some(folder) = plan.one("runtime") else { return Outcome::inconclusive("the plan names no runtime folder") };
    let task = Path::new(folder).join("task.md");
    let read = fs::read(&task);
    let write = File::options().append(true).open(&task);
    let mut outcome = judge("open(task.md, O_WRONLY)", write, plan.sealed());
    let tools = plan.one("route") == Some("wasm-guest/tools");
    match (tools, read) {
        (true, Ok(_)) => outcome.detail.push_str("; read: ok, as a tool's"),
        (true, Err(error)) => {
            return Outcome::inconclusive(format!("a tool cannot read task.md: {}", words(&error)));
        }
        (false, read) => outcome = all([outcome, judge("open(task.md)", read, plan.sealed())]),
    }
    outcome.controlled("work folder", work_control(plan))
}

/// A hook that was granted `hooks/` writes there, and not beside it.
fn records_hooks(plan: &Plan) -> Outcome {
    let Some(records) = plan.one("records-dir") else {
        return Outcome::inconclusive("the plan names no records folder");
    };
    let (inside, beside) = (Path::new(records).join("hooks/ec"), Path::new(records).join("ec"));
    let granted = fs::write(&inside, "x").and_then(|()| fs::remove_file(&inside));
    let made = File::options().write(true).create_new(true).open(&beside);
    let _ = fs::remove_file(&beside);
    judge("creat(records/ec)", made, plan.sealed()).controlled("records/hooks", granted)
}

/// Ends the process in the way that leaves a core. The harness looks for one.
fn dump(plan: &Plan) -> Outcome {
    plan.report(&Outcome::new(Verdict::Inconclusive, "the process was to abort, and lived").line("worker-core-dump"));
    std::process::abort()
}
