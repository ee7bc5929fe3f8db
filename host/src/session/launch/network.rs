//! The way out of a session's network namespace, for what runs in it: served from the launch to the session's end.

use crate::diagnostics::{Diagnostic, Result, codes, output};
use crate::egress::proxy::{self, Proxy, Resolver, Sockets};
use crate::session::staging::Plan;
use crate::worker::WorkerSet;

/// Serves the sockets inside the session's network by the capsule's list; nothing where the list is empty or no class holds
/// the session.
pub fn serve(plan: &Plan, workers: &WorkerSet) -> Result<Option<Proxy>> {
    let rules = plan.networks.capsule.clone();
    let Some(enclosure) = workers.enclosure().filter(|_| !rules.rules().is_empty()) else { return Ok(None) };
    let failed = |why: String| {
        Diagnostic::new(codes::E_RUN_066, format!("the session's network could not be served: {why}"))
            .hint("nothing was run; 'mur doctor' says what this host can back")
    };
    let mut sockets = enclosure.network().map_err(failed)?;
    let listeners = proxy::ports(&rules).len();
    if sockets.len() != listeners + 1 {
        return Err(failed(format!("{} sockets were asked for, and {} came", listeners + 1, sockets.len())));
    }
    let names = sockets.pop();
    // A component's requests are resolved when they are made; only a command could have used what is looked up at launch.
    let warns = plan.starts_commands();
    let say = move |line: &str| {
        if warns {
            output::stderr_line(line);
            output::log(line);
        }
    };
    Proxy::start(Sockets { listeners: sockets, names }, rules, Resolver::of_host(), say)
        .map(Some)
        .map_err(|error| failed(error.to_string()))
}
