//! The probe: it tries to leave the process it runs in and says what the kernel answered.
//!
//! One body of code for every route. In a guest worker it is linked into a test build of `mur` and runs on the thread of a
//! call; an interpreter loads it as a library; a native tool is its binary. It knows no class's expectation: it attempts,
//! makes a control attempt on something permitted, and reports. Attempts are made one after another by one thread.

#![allow(unsafe_code)]

mod files;
mod outcome;
mod plan;
mod processes;
mod programs;
mod resources;
mod sockets;
mod syscalls;
mod tokens;
mod worker;

pub use outcome::{Outcome, Verdict};
pub use plan::{MARKER, Plan};

/// Cases that only the host of the probe can attempt, such as those on a worker's own connection.
pub type Extra<'a> = &'a mut dyn FnMut(&str, &Plan) -> Option<Outcome>;

/// Runs the plan a text names, and gives one line a case. Nothing when the text names no plan.
///
/// Each line is written to the plan's report as soon as it is known, so that an attempt that ends the process loses none.
pub fn run(text: &str, extra: Extra<'_>) -> Option<String> {
    let plan = Plan::named_in(text)?;
    Some(match plan.and_then(Plan::begin) {
        Ok(plan) => attempt_all(&plan, extra),
        Err(why) => format!("plan\tINCONCLUSIVE\t-\t{why}\n"),
    })
}

fn attempt_all(plan: &Plan, extra: Extra<'_>) -> String {
    let mut lines = String::new();
    for case in plan.cases() {
        let outcome = extra(case, plan).or_else(|| attempt(case, plan));
        let outcome = outcome.unwrap_or_else(|| Outcome::inconclusive("the probe knows no such case"));
        let line = outcome.line(case);
        plan.report(&line);
        lines.push_str(&line);
    }
    plan.report("done\n");
    lines
}

fn attempt(case: &str, plan: &Plan) -> Option<Outcome> {
    files::attempt(case, plan)
        .or_else(|| programs::attempt(case, plan))
        .or_else(|| sockets::attempt(case, plan))
        .or_else(|| syscalls::attempt(case, plan))
        .or_else(|| processes::attempt(case, plan))
        .or_else(|| worker::attempt(case, plan))
        .or_else(|| tokens::attempt(case, plan))
        .or_else(|| resources::attempt(case, plan))
}

/// Entry for an interpreter's foreign function interface: the text that names the plan. 0 when the plan was run.
///
/// # Safety
/// `text` is a terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mur_escape_probe(text: *const libc::c_char) -> libc::c_int {
    // SAFETY: the caller's word.
    let text = unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy();
    match run(&text, &mut |_, _| None) {
        Some(_) => 0,
        None => 2,
    }
}
