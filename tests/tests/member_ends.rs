//! "How a formation ends" of the roster seed as one member sees it, on a member whose lifeline the test holds: every
//! order of lifeline, SIGTERM and deadline, at work, idle and while it is staged.

use std::fs;

use mur_tests::live::formation::{slow_worker, worker};
use mur_tests::live::member::{FORMATION, SPAWNER};
use mur_tests::live::stops::HeldThread;
use mur_tests::live::{Gate, Home, Member, Output, proc, run, trace};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

/// Longer than any test: a task that is still running when the formation ends.
const FOR_EVER: u64 = 600_000;

fn installed(capsule: mur_tests::live::Capsule) -> (Home, mur_tests::live::Capsule) {
    let home = Home::new();
    capsule.install(&home);
    (home, capsule)
}

fn records(home: &Home) -> Vec<Value> {
    trace::read(Member::session(home))
}

/// `session_end` is the last line, once, and says this.
#[track_caller]
fn assert_ended(home: &Home, status: &str, formation_ended: bool) {
    let records = records(home);
    let types = trace::types(&records);
    assert_eq!(types.iter().filter(|kind| **kind == "session_end").count(), 1, "{types:?}");
    assert_eq!(records.last().unwrap()["event_type"], "session_end", "{types:?}");
    assert_eq!(records.last().unwrap()["exit_status"], status, "{types:?}");
    let ended = trace::of(&records, "formation_ended");
    assert_eq!(ended.len(), usize::from(formation_ended), "{types:?}");
    for record in ended {
        assert_eq!(record["formation_id"], FORMATION);
        // It stands before everything its wind-down wrote.
        let before = types.iter().take_while(|kind| **kind != "formation_ended").count();
        for later in ["task_canceled", "task_rejected", "session_end"] {
            assert!(!types[..before].contains(&later), "{types:?}");
        }
        assert!(!trace::of(&records[..before], "task_end").iter().any(|end| end["exit_status"] == "canceled"));
    }
    assert!(home.running().is_empty(), "its running record is gone");
}

/// A member at work whose loop is held up before its wind-down goes on; whoever watches for its end is not.
fn held_up(home: &Home, capsule: &mur_tests::live::Capsule, flags: &[&str]) -> (Member, HeldThread) {
    let member = Member::start(home, capsule, flags);
    member.busy(home);
    let held = HeldThread::first_of(member.process.pid());
    (member, held)
}

/// Lets a held-up member go on, and returns its end and what it said.
fn let_go(member: Member, held: HeldThread) -> Output {
    held.let_go();
    member.process.finish()
}

#[test]
fn a_member_whose_lifeline_closes_while_idle_exits_zero() {
    let (home, capsule) = installed(worker());
    let mut member = Member::start(&home, &capsule, &[]);
    member.ready();
    member.close_lifeline();
    let output = member.process.finish().expect(0);
    assert_ended(&home, "ok", true);
    assert!(output.stderr.contains("formation lifeline closed — the formation has ended; "), "{}", output.stderr);
    assert!(!output.stderr.contains("error["), "{}", output.stderr);
    assert!(!output.stderr.contains("W-RUN-007"), "it was not started by hand: {}", output.stderr);
}

#[test]
fn a_member_whose_lifeline_closes_while_it_works_exits_zero_and_its_task_is_canceled() {
    let (home, capsule) = installed(slow_worker(FOR_EVER));
    let mut member = Member::start(&home, &capsule, &[]);
    let door = member.busy(&home);
    door.send("and this one waits");
    member.close_lifeline();
    let output = member.process.finish().expect(0);
    assert_ended(&home, "formation_ended", true);
    let records = records(&home);
    assert_eq!(trace::of(&records, "task_end")[0]["exit_status"], "canceled");
    assert_eq!(trace::of(&records, "task_rejected").len(), 1, "the queued task is refused");
    let result = fs::read_to_string(Member::session(&home).join("out/result.txt")).unwrap();
    assert!(result.starts_with("canceled:"), "{result}");
    assert!(!output.stderr.contains("error["), "{}", output.stderr);
}

#[test]
fn a_sigterm_after_the_lifeline_closed_changes_nothing() {
    let (home, capsule) = installed(slow_worker(FOR_EVER));
    let (mut member, held) = held_up(&home, &capsule, &[]);
    member.close_lifeline();
    Member::recorded(&home, "formation_ended");
    member.terminate();
    let output = let_go(member, held).expect(0);
    assert_ended(&home, "formation_ended", true);
    assert!(!output.stderr.contains("SIGTERM received") && !output.stderr.contains("error["), "{}", output.stderr);
}

#[test]
fn a_lifeline_that_closes_after_a_sigterm_changes_nothing() {
    let (home, capsule) = installed(slow_worker(FOR_EVER));
    let (mut member, held) = held_up(&home, &capsule, &[]);
    member.terminate();
    member.close_lifeline();
    let output = let_go(member, held).expect(1);
    assert_ended(&home, "canceled", false);
    assert!(output.stderr.contains("error[E-RUN-040]"), "{}", output.stderr);
    assert!(!output.stderr.contains("lifeline closed"), "{}", output.stderr);
}

#[test]
fn a_second_sigterm_ends_a_member_at_once_with_143() {
    for lifeline_first in [false, true] {
        let (home, capsule) = installed(slow_worker(FOR_EVER));
        let (mut member, _held) = held_up(&home, &capsule, &[]);
        if lifeline_first {
            member.close_lifeline();
            Member::recorded(&home, "formation_ended");
        }
        member.terminate();
        member.terminate();
        let pid = member.process.pid();
        let others = proc::descendants(pid);
        member.process.finish().expect(143);
        proc::wait_gone(&others);
        let ended = trace::of(&records(&home), "session_end").len();
        assert_eq!(ended, 0, "it did not wait for its wind-down's bound");
    }
}

#[test]
fn twenty_seconds_after_its_lifeline_closed_a_member_is_ended_wherever_its_teardown_is() {
    let (home, capsule) = installed(slow_worker(FOR_EVER));
    let (mut member, _held) = held_up(&home, &capsule, &[]);
    let others = proc::descendants(member.process.pid());
    member.close_lifeline();
    let output = member.process.finish().expect(143);
    assert!(!output.stdout.contains("status"), "{}", output.stdout);
    let records = records(&home);
    let ends = trace::of(&records, "session_end");
    assert_eq!(ends.len(), 1, "{:?}", trace::types(&records));
    assert_eq!(ends[0]["exit_status"], "formation_ended", "the task it ran was cut short by the formation's end");
    let at = |event: &str| trace::of(&records, event)[0]["timestamp"].as_u64().unwrap();
    let took = at("session_end") - at("formation_ended");
    assert!((19_900..25_000).contains(&took), "session_end is written at the bound, not {took} ms after the lifeline");
    proc::wait_gone(&others);
}

#[test]
fn twenty_seconds_after_a_sigterm_a_member_is_ended_too() {
    let (home, capsule) = installed(slow_worker(FOR_EVER));
    let (member, _held) = held_up(&home, &capsule, &[]);
    member.terminate();
    member.process.finish().expect(143);
    let records = records(&home);
    assert_eq!(trace::of(&records, "session_end")[0]["exit_status"], "canceled");
    assert!(trace::of(&records, "formation_ended").is_empty());
}

#[test]
fn a_lifeline_that_closes_a_moment_after_the_deadline_ends_deadline_reached() {
    let (home, capsule) = installed(slow_worker(FOR_EVER));
    let (mut member, held) = held_up(&home, &capsule, &["--deadline", "20"]);
    Member::recorded(&home, "deadline_reached");
    member.close_lifeline();
    let output = let_go(member, held).expect(1);
    assert_ended(&home, "deadline_reached", false);
    assert!(output.stderr.contains("error[E-RUN-053]") && !output.stderr.contains("E-RUN-040"), "{}", output.stderr);
}

#[test]
fn a_lifeline_and_a_sigterm_seen_only_after_the_deadline_are_the_deadline() {
    let (home, capsule) = installed(worker());
    let mut member = Member::start(&home, &capsule, &["--deadline", "20"]);
    member.ready();
    let begun = trace::now();
    let pid = member.process.pid();
    member.process.signal(Signal::SIGSTOP);
    run::until("it is stopped", || proc::is_stopped(pid));
    run::until("the deadline has passed", || trace::now() > begun + 21);
    member.process.signal(Signal::SIGTERM);
    member.close_lifeline();
    member.process.signal(Signal::SIGCONT);
    let output = member.process.finish().expect(1);
    assert_ended(&home, "deadline_reached", false);
    assert!(output.stderr.contains("error[E-RUN-053]"), "{}", output.stderr);
}

#[test]
fn a_stopped_member_winds_down_when_it_goes_on() {
    let (home, capsule) = installed(slow_worker(FOR_EVER));
    let mut member = Member::start(&home, &capsule, &[]);
    member.busy(&home);
    let pid = member.process.pid();
    member.process.signal(Signal::SIGSTOP);
    run::until("it is stopped", || proc::is_stopped(pid));
    member.close_lifeline();
    member.process.signal(Signal::SIGCONT);
    member.process.finish().expect(0);
    assert_ended(&home, "formation_ended", true);
}

#[test]
fn a_stopped_worker_does_not_hold_the_end_up() {
    let (home, capsule) = installed(slow_worker(FOR_EVER));
    let mut member = Member::start(&home, &capsule, &[]);
    member.busy(&home);
    let below: Vec<i32> =
        proc::descendants(member.process.pid()).into_iter().filter(|pid| *pid != member.process.pid()).collect();
    assert!(!below.is_empty());
    for pid in &below {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(*pid), Signal::SIGSTOP).unwrap();
    }
    member.close_lifeline();
    member.process.finish().expect(0);
    assert_ended(&home, "formation_ended", true);
    proc::wait_gone(&below);
}

/// What a member that never came up left: an empty trace, if any, and nothing that runs.
#[track_caller]
fn assert_abandoned(home: &Home) {
    for session in trace::sessions(home.murmur().join("records")) {
        assert!(fs::read(session.join("trace.jsonl")).unwrap_or_default().is_empty(), "something was recorded");
    }
    assert!(home.running().is_empty());
    run::until("nothing of it runs", || proc::of_home(&home.home()).is_empty());
}

/// A member that is being staged for as long as the gate is closed.
fn staged(home: &Home, capsule: &mur_tests::live::Capsule, flags: &[&str]) -> Member {
    let member = Member::start(home, capsule, flags);
    // Signals are watched for before anything is staged.
    run::until("it catches SIGTERM", || proc::catches(member.process.pid(), Signal::SIGTERM as i32));
    member
}

#[test]
fn a_member_whose_lifeline_closes_while_it_is_staged_exits_zero_and_records_nothing() {
    let (home, capsule) = installed(worker());
    let _gate = Gate::close(&home);
    let mut member = staged(&home, &capsule, &[]);
    member.close_lifeline();
    let output = member.process.finish().expect(0);
    assert!(output.stdout.is_empty(), "{}", output.stdout);
    assert_abandoned(&home);
}

#[test]
fn a_sigterm_while_a_member_is_staged_exits_143_and_records_nothing() {
    let (home, capsule) = installed(worker());
    let _gate = Gate::close(&home);
    let member = staged(&home, &capsule, &[]);
    member.process.signal(Signal::SIGTERM);
    member.process.finish().expect(143);
    assert_abandoned(&home);
}

#[test]
fn a_lifeline_that_closes_after_the_deadline_while_a_member_is_staged_is_the_deadline() {
    let (home, capsule) = installed(worker());
    let _gate = Gate::close(&home);
    let begun = trace::now();
    let mut member = staged(&home, &capsule, &["--deadline", "1"]);
    run::until("the deadline has passed", || trace::now() > begun + 2);
    member.close_lifeline();
    let output = member.process.finish().refused("E-RUN-053");
    assert!(output.stdout.is_empty() || output.stdout.contains("deadline_reached"), "{}", output.stdout);
    assert_abandoned(&home);
}

#[test]
fn a_member_that_is_staged_past_its_deadline_is_waited_for_one_bound() {
    let (home, capsule) = installed(worker());
    let _gate = Gate::close(&home);
    let member = staged(&home, &capsule, &["--deadline", "1"]);
    member.process.finish().refused("E-RUN-053");
    assert_abandoned(&home);
}

#[test]
fn interrupts_and_hangups_mean_nothing_to_a_member_and_a_thousand_of_them_close_no_lifeline() {
    let (home, capsule) = installed(worker());
    let mut member = Member::start(&home, &capsule, &[]);
    let door = member.door(&home);
    // Caught signals: every one interrupts whatever waits.
    for _ in 0..500 {
        for signal in [Signal::SIGINT, Signal::SIGHUP] {
            member.process.signal(signal);
        }
    }
    let task = door.ended(&door.send("still there"));
    assert_eq!(task["status"]["state"], "TASK_STATE_COMPLETED", "{task}");
    assert!(trace::of(&records(&home), "formation_ended").is_empty());
    member.close_lifeline();
    member.process.finish().expect(0);
    assert_ended(&home, "ok", true);
}

#[test]
fn bytes_on_a_lifeline_are_no_end() {
    let (home, capsule) = installed(worker());
    let mut member = Member::start(&home, &capsule, &[]);
    let door = member.door(&home);
    for _ in 0..100 {
        member.write_on_lifeline(b"nothing is ever written here\n");
    }
    let task = door.ended(&door.send("still there"));
    assert_eq!(task["status"]["state"], "TASK_STATE_COMPLETED", "{task}");
    member.close_lifeline();
    member.process.finish().expect(0);
    assert_ended(&home, "ok", true);
}

#[test]
fn a_member_started_by_hand_is_warned_and_goes_on_when_nothing_holds_it() {
    let (mut home, capsule) = installed(worker());
    home.set("MURMUR_FORMATION_ID", FORMATION);
    let by_hand = home.start(capsule.run_flags().into_iter().chain(["--json".to_owned()]));
    by_hand.json_line("session_id");
    by_hand.signal(Signal::SIGTERM);
    let output = by_hand.finish().expect(0);
    assert_eq!(output.stderr.matches("W-RUN-007").count(), 1, "{}", output.stderr);
    let records = records(&home);
    assert!(trace::of(&records, "formation_ended").is_empty());
    assert_eq!(records[0]["formation_id"], json!(FORMATION));
}

#[test]
fn a_members_delegated_child_is_not_warned_and_winds_down_when_its_spawner_ends() {
    for (at_work, exit, status) in [(false, 0, "ok"), (true, 1, "canceled")] {
        let (home, capsule) = installed(slow_worker(FOR_EVER));
        let mut child = Member::start_delegated(&home, &capsule, &[]);
        child.ready();
        if at_work {
            child.busy(&home);
        }
        child.close_lifeline();
        let output = child.process.finish().expect(exit);
        assert!(output.stderr.contains("spawner lifeline closed — "), "{}", output.stderr);
        assert!(!output.stderr.contains("W-RUN-007"), "{}", output.stderr);
        assert_ended(&home, status, false);
        let records = records(&home);
        assert_eq!(records[0]["formation_id"], json!(FORMATION));
        let ended = trace::of(&records, "spawner_ended");
        assert_eq!(ended.len(), 1, "{:?}", trace::types(&records));
        assert_eq!(ended[0]["spawned_by"], json!(SPAWNER));
    }
}
