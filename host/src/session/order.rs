//! What a launch is surrounded by, read and refused in one fixed order before anything is created.

use std::ffi::OsString;
use std::io::{self, BufRead as _, Read as _};

use super::request::{RunRequest, Source};
use crate::artifacts::ArtifactName;
use crate::credentials::channel::{self, Channel, Membership};
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::ids::{DelegationId, FormationId, SessionId};
use crate::paths::MurmurHome;
use crate::process::Lifeline;

/// The formation this process belongs to.
pub const FORMATION_ID: &str = "MURMUR_FORMATION_ID";
/// The descriptor of the member's lifeline.
pub const FORMATION_LIFELINE: &str = "MURMUR_FORMATION_LIFELINE";
/// What a member's components are handed; never taken from outside.
pub const FORMATION_PEERS: &str = "MURMUR_FORMATION_PEERS";
/// Who delegated to this process.
pub const SPAWNER: &str = "MURMUR_SPAWNER";
/// The descriptor of a delegated child's lifeline.
pub const SPAWNER_LIFELINE: &str = "MURMUR_SPAWNER_LIFELINE";

/// Most bytes of a spawn approval.
const MAX_GRANT: u64 = 64 << 10;

/// Who delegated to this session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spawner {
    /// Its session.
    pub session: SessionId,
    /// The delegation, when it was named.
    pub delegation: Option<DelegationId>,
}

/// What the process was started with.
pub struct Surroundings {
    /// The operator's `~/.murmur`.
    pub home: MurmurHome,
    /// The formation it belongs to.
    pub formation: Option<FormationId>,
    /// Who delegated to it.
    pub spawner: Option<Spawner>,
    channel: Option<Channel>,
    formation_lifeline: Result<Option<Lifeline>>,
    spawner_lifeline: Result<Option<Lifeline>>,
}

/// The descriptors whose end of file ends the session.
#[derive(Debug, Default)]
pub struct Lifelines {
    /// The formation's.
    pub formation: Option<Lifeline>,
    /// The spawner's.
    pub spawner: Option<Lifeline>,
}

impl Surroundings {
    /// Reads the environment. Every inherited descriptor is adopted here, so that none is left for a child; a fault of a
    /// later check is kept until the checks before it have passed.
    pub fn read(request: &RunRequest) -> Result<Self> {
        if let Source::Capsule { name, .. } = &request.source {
            ArtifactName::parse_argument(name)?;
        }
        if request.spawn_grant_stdin {
            read_grant()?;
        }
        let home = MurmurHome::from_env()?;
        if !request.explain_scope {
            home.prepare()?;
        }
        let spawner = variable(SPAWNER).map(|value| parse_spawner(&value)).transpose()?;
        let formation = formation_id(std::env::var_os(FORMATION_ID))?;
        if std::env::var_os(FORMATION_PEERS).is_some() {
            return Err(Diagnostic::new(
                codes::E_RUN_046,
                format!("{FORMATION_PEERS} is set in the environment, and only the runtime of a member hands it out"),
            )
            .hint(format!("unset {FORMATION_PEERS}, or launch the formation with `mur run --roster`")));
        }
        let channel = Channel::from_env(formation.as_ref())?;
        let formation_lifeline = formation_lifeline(std::env::var_os(FORMATION_LIFELINE), formation.is_some());
        let spawner_lifeline = spawner_lifeline(std::env::var_os(SPAWNER_LIFELINE), spawner.is_some());
        Ok(Self { home, formation, spawner, channel, formation_lifeline, spawner_lifeline })
    }

    /// Takes the lifelines out so that they can be watched while the rest is read; faults stay for [`Self::join`].
    pub fn take_lifelines(&mut self) -> Lifelines {
        let take = |slot: &mut Result<Option<Lifeline>>| match slot {
            Ok(lifeline) => lifeline.take(),
            Err(_) => None,
        };
        Lifelines { formation: take(&mut self.formation_lifeline), spawner: take(&mut self.spawner_lifeline) }
    }

    /// Reads the channel's first line, then raises what is wrong with the lifelines.
    pub async fn join(self) -> Result<Joined> {
        let membership = match self.channel {
            Some(channel) => Some(channel.join().await?),
            None => None,
        };
        self.formation_lifeline?;
        self.spawner_lifeline?;
        Ok(Joined { home: self.home, formation: self.formation, spawner: self.spawner, membership })
    }
}

/// What the process belongs to, once all of it is read.
pub struct Joined {
    /// The operator's `~/.murmur`.
    pub home: MurmurHome,
    /// The formation it belongs to.
    pub formation: Option<FormationId>,
    /// Who delegated to it.
    pub spawner: Option<Spawner>,
    /// What the formation channel said of this member.
    pub membership: Option<Membership>,
}

/// The warning of a member that was started by hand: nothing ends it with its formation.
pub fn by_hand(joined: &Joined, holds_lifeline: bool) -> Option<Diagnostic> {
    let formation = joined.formation.as_ref()?;
    if holds_lifeline || joined.spawner.is_some() {
        return None;
    }
    Some(Diagnostic::new(
        codes::W_RUN_007,
        format!(
            "this session names the formation {formation} and holds no lifeline of it: it goes on when the formation \
             ends; end it with `mur stop`, or all of the formation with `mur stop {formation}`"
        ),
    ))
}

/// A variable that is set and not blank.
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.to_string_lossy().trim().is_empty())
}

fn formation_id(value: Option<OsString>) -> Result<Option<FormationId>> {
    let Some(value) = value else { return Ok(None) };
    let refused = |rule: &str| {
        Diagnostic::new(codes::E_RUN_044, format!("{FORMATION_ID} is not a formation id: {rule}"))
            .hint(format!("unset {FORMATION_ID}; `mur run --roster` sets it for each member"))
    };
    let Some(text) = value.to_str() else { return Err(refused("it is not UTF-8")) };
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    if let Some(id) = FormationId::parse(text) {
        return Ok(Some(id));
    }
    Err(refused(match text.strip_prefix(FormationId::PREFIX) {
        None => "it does not begin with 'frm_'",
        Some(hex) if hex.len() != 32 => "after 'frm_' there are not exactly 32 characters",
        Some(_) => "after 'frm_' there is something else than 0-9 and a-f",
    }))
}

fn formation_lifeline(value: Option<OsString>, member: bool) -> Result<Option<Lifeline>> {
    let Some(value) = value else { return Ok(None) };
    let refused = |reason: &str| {
        Diagnostic::new(codes::E_RUN_046, format!("{FORMATION_LIFELINE} is not this member's lifeline: {reason}"))
            .hint(format!("unset {FORMATION_LIFELINE}, or launch the formation with `mur run --roster`"))
    };
    if !member {
        return Err(refused(&format!("it is set without {FORMATION_ID}")));
    }
    Lifeline::adopt(&value.to_string_lossy()).map(Some).map_err(|reason| refused(&reason))
}

fn spawner_lifeline(value: Option<OsString>, spawned: bool) -> Result<Option<Lifeline>> {
    let Some(value) = value else { return Ok(None) };
    let refused = |reason: &str| {
        Diagnostic::new(codes::E_RUN_020, format!("{SPAWNER_LIFELINE} is not this session's lifeline: {reason}"))
            .hint(format!("unset {SPAWNER_LIFELINE}"))
    };
    if !spawned {
        return Err(refused(&format!("it is set without {SPAWNER}")));
    }
    Lifeline::adopt(&value.to_string_lossy()).map(Some).map_err(|reason| refused(&reason))
}

/// `<ses_id>`, or `<ses_id>:<dlg_id>`.
fn parse_spawner(value: &OsString) -> Result<Spawner> {
    let refused = || {
        Diagnostic::new(codes::E_RUN_020, format!("{SPAWNER} is not a spawner's handle"))
            .hint(format!("unset {SPAWNER}"))
    };
    let text = value.to_str().ok_or_else(refused)?.trim();
    let (session, delegation) = match text.split_once(':') {
        Some((session, delegation)) => (session, Some(DelegationId::parse(delegation).ok_or_else(refused)?)),
        None => (text, None),
    };
    Ok(Spawner { session: SessionId::parse(session).ok_or_else(refused)?, delegation })
}

/// Delegation is not served by this version: an approval is read, so that the spawner does not block, and refused.
fn read_grant() -> Result<()> {
    let mut line = String::new();
    let read = io::BufReader::new(io::stdin().lock().take(MAX_GRANT)).read_line(&mut line);
    let what = match read {
        Ok(_) if line.trim().is_empty() => "the spawn grant on stdin is empty",
        Ok(_) => "this mur does not run delegated children yet",
        Err(_) => "the spawn grant on stdin cannot be read",
    };
    Err(Diagnostic::new(codes::E_RUN_019, what).hint("start the capsule without --spawn-grant-stdin"))
}

/// Names of this module that no guest is ever handed from the host's environment.
pub const NEVER_FROM_HOST: [&str; 6] =
    ["MURMUR_ARTIFACT_CONFIG", FORMATION_PEERS, channel::VARIABLE, FORMATION_LIFELINE, SPAWNER_LIFELINE, SPAWNER];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_formation_id_is_trimmed_blank_or_refused_without_an_echo() {
        let id = FormationId::mint();
        assert_eq!(formation_id(Some(format!(" {id}\n").into())).unwrap(), Some(id.clone()));
        assert_eq!(formation_id(Some("  ".into())).unwrap(), None);
        assert_eq!(formation_id(None).unwrap(), None);
        for bad in
            ["frm_secret", "ses_0", &id.as_str().to_uppercase(), &format!("{id}0"), &id.as_str().replace('_', "_G")]
        {
            let fault = formation_id(Some(bad.into())).unwrap_err();
            assert_eq!(fault.code(), codes::E_RUN_044);
            assert!(!fault.to_string().contains(bad), "{fault}");
        }
    }

    #[test]
    fn a_lifeline_needs_an_id_and_a_pipe() {
        let fault = formation_lifeline(Some("7".into()), false).unwrap_err();
        assert_eq!(fault.code(), codes::E_RUN_046);
        assert!(fault.message().contains("set without"), "{fault}");
        for bad in ["", "x", "-1", "0", "2", "99999"] {
            assert_eq!(formation_lifeline(Some(bad.into()), true).unwrap_err().code(), codes::E_RUN_046, "{bad}");
            assert_eq!(spawner_lifeline(Some(bad.into()), true).unwrap_err().code(), codes::E_RUN_020, "{bad}");
        }
        assert!(formation_lifeline(None, false).unwrap().is_none());
    }

    #[test]
    fn a_spawner_is_a_session_and_perhaps_a_delegation() {
        let (session, delegation) = (SessionId::mint(), DelegationId::mint());
        let both = parse_spawner(&format!("{session}:{delegation}").into()).unwrap();
        assert_eq!(both, Spawner { session: session.clone(), delegation: Some(delegation) });
        assert_eq!(parse_spawner(&session.as_str().into()).unwrap().delegation, None);
        for bad in ["x", "ses_", &format!("{session}:"), &format!("{session}:x")] {
            assert_eq!(parse_spawner(&bad.into()).unwrap_err().code(), codes::E_RUN_020);
        }
    }
}
