//! `mur stop`: ends a running session, or a whole formation by its launcher.

use std::time::Duration;

use crate::cli::Outcome;
use crate::diagnostics::{Diagnostic, codes, output};
use crate::ids::FormationId;
use crate::paths::MurmurHome;
use crate::records::stop::{self, Stopped};

/// Flags of `mur stop`.
#[derive(clap::Args)]
pub struct Args {
    /// A session (@N, id or suffix) or a formation (frm_…)
    address: String,
    /// Seconds from SIGTERM to SIGKILL [default: 10 for a session, 30 for a formation]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
}

/// How long a session has by default.
const SESSION_GRACE: u64 = 10;
/// How long a formation has by default: members have 20 seconds, their launcher 25.
const FORMATION_GRACE: u64 = 30;

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let home = MurmurHome::from_env()?;
    if args.address.starts_with(FormationId::PREFIX) {
        let Some(formation) = FormationId::parse(&args.address) else {
            return Err(Diagnostic::new(codes::E_RUN_022, format!("'{}' is no formation id", args.address))
                .hint("a formation id is frm_ and 32 hex digits; mur ps lists the running ones"));
        };
        let grace = Duration::from_secs(args.timeout.unwrap_or(FORMATION_GRACE));
        let (report, result) = stop::formation(&home, &formation, grace)?;
        let _ = output::stdout_text(&report);
        return result.map(|()| 0);
    }
    let record = crate::records::address::running(&home, Some(&args.address))?;
    let grace = Duration::from_secs(args.timeout.unwrap_or(SESSION_GRACE));
    let Stopped { report } = stop::session(&home, &record, grace)?;
    let _ = output::stdout_text(&report);
    Ok(0)
}
