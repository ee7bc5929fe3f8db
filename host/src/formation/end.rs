//! How a formation ends: every lifeline is closed, members wind down by themselves, and what is still there after 25
//! seconds is killed. The launcher sends no member SIGTERM.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use nix::sys::signal::Signal;
use tokio::time::Instant;

use crate::diagnostics::output;
use crate::process::Exit;

use super::launch::Signals;
use super::member::Member;

/// How long a member may take from the closing of its lifeline to its end.
const KILL_AFTER: Duration = Duration::from_secs(25);
/// How long the relays of ended members may take to drain.
const DRAIN: Duration = Duration::from_secs(2);

/// Ends every member that still runs and returns those that were stopped, in roster order, as `name (pid N), …` or
/// `none`. A further signal to the launcher kills at once.
pub async fn stop_all(members: &mut [Option<Member>], signals: &mut Signals) -> String {
    let mut stopped = Vec::new();
    for member in members.iter_mut().flatten() {
        if member.try_reap().is_none() {
            stopped.push(member.label());
        }
        member.channel = None;
        member.lifeline = None;
    }
    wait_for_all(members, Instant::now() + KILL_AFTER, signals).await;
    for member in members.iter_mut().flatten() {
        if member.try_reap().is_none() {
            kill(member);
            member.exit = member.pidfd.reap().ok();
        }
    }
    drain_relays(members).await;
    if stopped.is_empty() { "none".to_owned() } else { stopped.join(", ") }
}

async fn wait_for_all(members: &mut [Option<Member>], until: Instant, signals: &mut Signals) {
    let running: FuturesUnordered<_> = members
        .iter()
        .flatten()
        .filter(|member| member.exit.is_none())
        .map(|member| {
            let pidfd = member.pidfd.clone();
            async move { pidfd.ended().await }
        })
        .collect();
    tokio::select! {
        () = running.for_each(|_| async {}) => {}
        () = tokio::time::sleep_until(until) => {}
        signal = signals.next() => {
            output::stderr_line(&format!("[mur run] {signal} again: killing the members that are still there"));
        }
    }
}

/// A peer by its process group, before its leader is reaped; the entry member, which shares the launcher's group, alone.
fn kill(member: &Member) {
    let result = if member.plan.entry {
        member.pidfd.signal(Signal::SIGKILL)
    } else {
        member.pidfd.signal_group(Signal::SIGKILL)
    };
    if result.is_ok() {
        output::stderr_line(&format!("[mur run] {} did not wind down in time and was killed", member.label()));
    }
}

async fn drain_relays(members: &mut [Option<Member>]) {
    let relays = members.iter_mut().flatten().filter_map(|member| member.relay.take());
    let all = futures_util::future::join_all(relays);
    let _ = tokio::time::timeout(DRAIN, all).await;
}

/// What a peer's end in a running formation says: the formation goes on.
pub fn peer_ended(label: &str, exit: Exit) -> String {
    format!("[mur run] peer {label} ended with {exit}; the formation goes on, and calls to it find nobody")
}
