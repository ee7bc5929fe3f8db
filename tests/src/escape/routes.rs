//! A route measured: its launches, and what each case came to.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::cases::{CASES, Case, Class, Expect, Launch, Route, Verdict};
use super::grade::{Graded, Result as Grade, grade};
use super::launch::{Bench, Ran, Seen};
use super::options::Routes;
use super::stage::Capsule;

/// Id of the look from outside, which fails a whole route.
pub const POSTURE: &str = "worker-posture";

/// How much of what `mur` said a refusal repeats: on another machine nobody can look it up.
const LAST_LINES: usize = 6;

/// The routes of a command line.
pub fn wanted(routes: Routes) -> Vec<Route> {
    match routes {
        Routes::Shell => vec![Route::Shell],
        Routes::NativeTool => vec![Route::NativeTool],
        Routes::WasmGuest => vec![Route::Tools, Route::Driver, Route::Hooks],
        Routes::All => vec![Route::Shell, Route::NativeTool, Route::Tools, Route::Driver, Route::Hooks],
    }
}

/// What was seen of a case, and where.
type Found = BTreeMap<&'static str, (Seen, PathBuf)>;

/// One run of the probe that must succeed: on a host where nothing can run, everything would read as refused.
///
/// # Errors
/// In words, when it did not.
pub fn preflight(bench: &Bench, class: Class, route: Route) -> Result<(), String> {
    let ran = bench.launch(&Capsule::new(route, class), &["preflight"], &[])?;
    let failed = |why: &str| {
        let reported = ran.seen.iter().map(|(case, seen)| format!("{case}: {}", seen.detail));
        let said: Vec<String> = ran.stderr.lines().map(str::to_owned).chain(reported).collect();
        let last = said[said.len().saturating_sub(LAST_LINES)..].join("; ");
        let place = ran.folder.display();
        Err(format!("{} at {}: {why}; status {:?}; {last} (see {place})", route.as_str(), class.as_str(), ran.status))
    };
    match (&ran.looked, ran.seen.get("preflight")) {
        (Err(why), _) => failed(why),
        (_, Some(seen)) if seen.verdict == Verdict::Success && ran.status == Some(0) => Ok(()),
        (_, Some(seen)) => failed(&format!("the probe reported {} ({})", seen.verdict.as_str(), seen.detail)),
        (_, None) => failed("the probe reported nothing"),
    }
}

/// Runs every wanted case of a route at a class and grades it; `control` is the same route at `unconfined`.
///
/// # Errors
/// When a launch cannot be staged.
pub fn measure(bench: &Bench, class: Class, route: Route, only: &[String]) -> Result<Vec<Graded>, String> {
    let cases: Vec<&'static Case> = CASES
        .iter()
        .filter(|case| case.expect(class, route).is_some())
        .filter(|case| only.is_empty() || only.iter().any(|id| id == case.id))
        .collect();
    let mut problems = Vec::new();
    let found = attempt(bench, class, route, &cases, &mut problems)?;
    let control = if class == Class::Unconfined {
        found.clone()
    } else {
        let boundary: Vec<&'static Case> =
            cases.iter().copied().filter(|case| case.by_class && controlled(case.launch)).collect();
        attempt(bench, Class::Unconfined, route, &boundary, &mut Vec::new())?
    };
    let mut graded: Vec<Graded> = cases
        .into_iter()
        .map(|case| {
            let missing = || (Seen::new(Verdict::Inconclusive, "-", "the probe reported nothing"), PathBuf::new());
            let (seen, folder) = found.get(case.id).cloned().unwrap_or_else(missing);
            let unconfined = control.get(case.id).map(|(seen, _)| seen.clone());
            let result = grade(case, class, route, &seen, unconfined.as_ref());
            let expected = case.expect(class, route).unwrap_or(Expect::NotAsserted);
            Graded { id: case.id, case: Some(case), route, expected, seen, unconfined, result, folder }
        })
        .collect();
    if route.worker().is_some() {
        graded.insert(0, posture(class, route, &problems));
    }
    Ok(graded)
}

/// Whether a launch is made at `unconfined` too.
fn controlled(launch: Launch) -> bool {
    matches!(launch, Launch::Main | Launch::Member)
}

fn posture(class: Class, route: Route, problems: &[String]) -> Graded {
    let claimed = class > Class::Unconfined;
    let (verdict, detail) = if problems.is_empty() {
        (Verdict::Success, "every worker was held as the class says".to_owned())
    } else {
        (Verdict::Inconclusive, problems.join("; "))
    };
    let result = match (claimed, problems.is_empty()) {
        (false, _) => Grade::NotAsserted,
        (true, true) => Grade::Pass,
        (true, false) => Grade::Fail,
    };
    Graded {
        id: POSTURE,
        case: None,
        route,
        expected: if claimed { Expect::Graded(Verdict::Success) } else { Expect::NotAsserted },
        seen: Seen::new(verdict, "-", detail),
        unconfined: None,
        result,
        folder: PathBuf::new(),
    }
}

/// The launches of a route at a class.
fn attempt(
    bench: &Bench,
    class: Class,
    route: Route,
    cases: &[&'static Case],
    problems: &mut Vec<String>,
) -> Result<Found, String> {
    let ids = |launch: Launch| cases.iter().filter(move |case| case.launch == launch).map(|case| case.id);
    let mut found = Found::new();
    let capsule = Capsule::new(route, class);
    let main: Vec<&str> = ids(Launch::Main).collect();
    let hits = bench.listeners.hits();
    if !main.is_empty() {
        let ran = bench.launch(&capsule, &main, &[])?;
        note(&ran, problems);
        if ran.status != Some(0) || !ended(&ran) {
            problems.push(format!("the session did not end as it should: status {:?}", ran.status));
        }
        take(&mut found, cases, &ran);
        from_outside(&mut found, cases, &ran);
    }
    if class == Class::Scoped && main.contains(&"worker-exec-any") {
        // The manifest that lets commands execute what they wrote cannot declare a floor above advisory.
        let ran = bench.launch(&Capsule { workdir_exec: true, ..capsule }, &["worker-exec-any"], &[])?;
        note(&ran, problems);
        merge(&mut found, "worker-exec-any", "workdir_exec", &ran);
    }
    for id in ids(Launch::Second) {
        let ran = bench.launch(&capsule, &[], &[id])?;
        note(&ran, problems);
        insert(&mut found, cases, id, (out_of_call(&ran), ran.folder.clone()));
    }
    if bench.listeners.hits() > hits && class >= Class::Scoped {
        problems.push("the harness's listeners on the host were reached".to_owned());
    }
    for id in ids(Launch::Alone) {
        let ran = bench.launch(&capsule, &[id], &[])?;
        note(&ran, problems);
        insert(&mut found, cases, id, (dumped(&ran), ran.folder.clone()));
    }
    let member: Vec<&str> = ids(Launch::Member).collect();
    if !member.is_empty() {
        let ran = bench.launch(&Capsule { member: true, ..capsule }, &member, &[])?;
        note(&ran, problems);
        take(&mut found, cases, &ran);
        also_in_memory(&mut found, &ran);
    }
    let limited: Vec<&str> = ids(Launch::Limited).collect();
    let tight = Capsule { tight: true, ..capsule };
    if !limited.is_empty() {
        let ran = bench.launch(&tight, &limited, &[])?;
        note(&ran, problems);
        take(&mut found, cases, &ran);
    }
    for id in ids(Launch::LimitedAlone) {
        let slow = id == "resource-disk-filler-aggregate";
        let once = [id];
        let later: &[&str] = if slow { &once } else { &[] };
        let ran = bench.launch(&Capsule { slow, ..tight }, &once, later)?;
        note(&ran, problems);
        let seen = if slow { filled(&ran) } else { hogged(&ran, route) };
        insert(&mut found, cases, id, (seen, ran.folder.clone()));
    }
    Ok(found)
}

fn note(ran: &Ran, problems: &mut Vec<String>) {
    match &ran.looked {
        Ok(looked) => problems.extend(looked.posture.iter().map(|what| format!("{what} ({})", ran.folder.display()))),
        Err(why) => problems.push(format!("{why} ({})", ran.folder.display())),
    }
}

fn take(found: &mut Found, cases: &[&'static Case], ran: &Ran) {
    for case in cases {
        if let Some(seen) = ran.seen.get(case.id) {
            found.insert(case.id, (seen.clone(), ran.folder.clone()));
        }
    }
}

fn insert(found: &mut Found, cases: &[&'static Case], id: &str, seen: (Seen, PathBuf)) {
    if let Some(case) = cases.iter().find(|case| case.id == id) {
        found.insert(case.id, seen);
    }
}

/// A second launch of a case: refused only when it was refused in both.
fn merge(found: &mut Found, id: &str, name: &str, ran: &Ran) {
    let Some((seen, _)) = found.get_mut(id) else { return };
    let other = ran.seen.get(id).cloned();
    let other = other.unwrap_or_else(|| Seen::new(Verdict::Inconclusive, "-", "the probe reported nothing"));
    seen.detail = format!("{}; under {name}: {}", seen.detail, other.detail);
    if seen.verdict == Verdict::Refused {
        seen.verdict = other.verdict;
    }
}

/// What the probe cannot see itself.
fn from_outside(found: &mut Found, cases: &[&'static Case], ran: &Ran) {
    let memory = match ran.looked.as_ref().map(|looked| &looked.memory) {
        Ok(Ok(memory)) if !memory.canary => {
            Seen::new(Verdict::Inconclusive, "canary: not found", "the search finds nothing")
        }
        Ok(Ok(memory)) if memory.secrets.is_empty() => {
            let detail = format!("{} bytes of the worker hold neither key nor token", memory.searched);
            Seen::new(Verdict::Refused, "canary: found", detail)
        }
        Ok(Ok(memory)) => Seen::new(Verdict::Allowed, "canary: found", format!("found: {}", memory.secrets.join(", "))),
        Ok(Err(why)) | Err(why) => Seen::new(Verdict::Inconclusive, "-", why.clone()),
    };
    insert(found, cases, "worker-key-in-memory", (memory, ran.folder.clone()));
}

/// A worker that holds a member's token has it in its memory, whatever the probe sees.
fn also_in_memory(found: &mut Found, ran: &Ran) {
    let Some((seen, _)) = found.get_mut("token-in-own-process") else { return };
    if let Ok(looked) = &ran.looked
        && let Ok(memory) = &looked.memory
        && !memory.secrets.is_empty()
    {
        *seen = Seen::new(Verdict::Allowed, "canary: found", format!("in memory: {}", memory.secrets.join(", ")));
    }
}

/// Whether the trace has its end.
fn ended(ran: &Ran) -> bool {
    ran.trace.as_ref().is_some_and(|trace| trace.first("session_end").is_some())
}

/// Whether a run ended as one whose worker was lost has to: by code, with all three ends in its trace.
fn lost(ran: &Ran) -> Result<(), String> {
    let has = |kind: &str| ran.trace.as_ref().is_some_and(|trace| trace.first(kind).is_some());
    let missing: Vec<&str> = ["task_failed", "task_end", "session_end"].into_iter().filter(|kind| !has(kind)).collect();
    if ran.status != Some(1) || !ran.stderr.contains("error[E-RUN-065]") {
        return Err(format!("the run ended with {:?} and without E-RUN-065", ran.status));
    }
    if missing.is_empty() { Ok(()) } else { Err(format!("the trace has no {}", missing.join(", "))) }
}

/// Speaking of a call that does not run breaks the worker's protocol: `mur` answers by ending the worker. A probe that
/// lives to report says whether it was answered.
fn out_of_call(ran: &Ran) -> Seen {
    if let Some(seen) = ran.seen.get("worker-call-outside-call") {
        return seen.clone();
    }
    match lost(ran) {
        Ok(()) if ran.stderr.contains("it broke the worker protocol") => {
            let detail = "mur took it for a breach, opened no connection, and ended the worker with E-RUN-065";
            Seen::new(Verdict::Refused, "E-RUN-065 and three ends", detail)
        }
        Ok(()) => Seen::new(Verdict::Inconclusive, "-", "the worker was lost for another reason"),
        Err(why) => Seen::new(Verdict::Inconclusive, "-", why),
    }
}

fn dumped(ran: &Ran) -> Seen {
    if let Err(why) = lost(ran) {
        return Seen::new(Verdict::Inconclusive, "-", why);
    }
    let mut cores = Vec::new();
    for folder in [PathBuf::from("/"), ran.folder.clone(), ran.folder.join("project"), ran.folder.join("project/work")]
    {
        let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        let named = entries.filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            entry.file_type().is_ok_and(|kind| kind.is_file()) && (name == "core" || name.starts_with("core."))
        });
        cores.extend(named.map(|entry| entry.path().display().to_string()));
    }
    if cores.is_empty() {
        Seen::new(Verdict::Refused, "E-RUN-065 and three ends", "SIGABRT, and no core file")
    } else {
        Seen::new(Verdict::Allowed, "E-RUN-065 and three ends", format!("core files: {}", cores.join(", ")))
    }
}

fn filled(ran: &Ran) -> Seen {
    if ran.stderr.contains("error[E-RUN-013]") && ran.stderr.contains("workdir_max_bytes") {
        return Seen::new(Verdict::Contained, "-", "a later call was refused with E-RUN-013, naming workdir_max_bytes");
    }
    let seen = ran.seen.get("resource-disk-filler-aggregate").cloned();
    seen.unwrap_or_else(|| Seen::new(Verdict::Inconclusive, "-", "the probe reported nothing"))
}

/// A worker that was killed has to surface as a lost one; a command that was, by its status, in a session that goes on.
fn hogged(ran: &Ran, route: Route) -> Seen {
    let seen = ran.seen.get("resource-memory-hog").cloned();
    let mut seen = seen.unwrap_or_else(|| Seen::new(Verdict::Inconclusive, "-", "the probe reported nothing"));
    if seen.verdict != Verdict::Contained {
        return seen;
    }
    let surfaced = if route.worker().is_some() { lost(ran) } else { killed(ran, route) };
    match surfaced {
        Ok(()) if route.worker().is_some() => {
            seen.detail = "the worker was killed, and the run ended with E-RUN-065".to_owned();
        }
        Ok(()) => seen.detail = "the command was killed, and the session went on".to_owned(),
        Err(why) => seen = Seen::new(Verdict::Inconclusive, "-", why),
    }
    seen
}

fn killed(ran: &Ran, route: Route) -> Result<(), String> {
    let trace = ran.trace.as_ref().ok_or("there is no trace")?;
    if ran.status != Some(0) || trace.first("session_end").is_none() {
        return Err(format!("the session ended with {:?}", ran.status));
    }
    match trace.first("shell").map(|record| record["exit_code"].clone()) {
        Some(code) if code != 137 => Err(format!("the command's status is {code}, not 137")),
        None if route == Route::Shell => Err("the trace has no command".to_owned()),
        _ => Ok(()),
    }
}
