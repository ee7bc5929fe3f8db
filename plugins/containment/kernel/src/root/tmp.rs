//! A `/tmp` of the session's own, where the class composes no root: its folder for temporary files covers the host's `/tmp`
//! in a mount namespace in which, where the class holds files, all else is read only; what a process may write, or was granted below the host's
//! `/tmp`, is bound back at its own path.

use std::io;
use std::path::Path;

use mur_plugin_api::{Access, Grant};
use serde::{Deserialize, Serialize};

use super::mount;
use super::{Bind, OWN_MOUNTS, Opened, PRIVATE_MOUNTS, Part, place_for};
use crate::entry::Entering;
use crate::step::{Done, Step, StepError};

const TMP: &str = "/tmp";

/// What becomes of `/tmp`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TmpPlan {
    /// The session's folder first, then what is bound back, parents before what lies in them.
    pub binds: Vec<Bind>,
    /// Whether all else is read only.
    #[serde(default)]
    pub only: bool,
}

impl TmpPlan {
    /// The plan of a process with these grants; `None` when `/tmp` itself, or a folder above it, is granted for writing:
    /// then it stays the host's.
    pub fn new(grants: &[Grant], tmp: &Path, home: Option<&Path>, only: bool) -> Result<Option<Self>, StepError> {
        if grants.iter().any(|grant| grant.access.writes() && Path::new(TMP).starts_with(&grant.path)) {
            return Ok(None);
        }
        let own = Grant::required(tmp, Access::Write);
        let elsewhere = (only && !tmp.starts_with(TMP)).then(|| own.clone());
        let mut binds: Vec<Bind> = Bind::of(&own, TMP.into())?.into_iter().collect();
        let home = home.map(|home| Grant::required(home, Access::Write));
        let mut back = Vec::new();
        for grant in grants.iter().chain(&home).chain(&elsewhere) {
            // What the folder itself holds is not bound into itself. Of the rest what may be written is bound back: all else
            // is read only.
            let below = grant.path.starts_with(TMP) && grant.path != Path::new(TMP);
            if below || (only && grant.access.writes() && !grant.path.starts_with("/dev")) {
                back.extend(Bind::of(grant, grant.path.clone())?);
            }
        }
        super::in_order(&mut back);
        binds.extend(back);
        Ok(Some(Self { binds, only }))
    }
}

/// How it is done, in order.
pub const COVER: &[Step<Entering<'static>>] = &[
    OWN_MOUNTS,
    PRIVATE_MOUNTS,
    Step { name: "opening the folders", effect: "each is the one that was granted", run: open },
    Step {
        name: "making every mount read only",
        effect: "mode, owner, times and attributes of what is not granted for writing cannot be changed, which Landlock \
                 does not look at",
        run: |on| match &on.entry.tmp {
            Some(plan) if plan.only => Ok(mount::all_read_only()?),
            _ => Ok(Done::Enforced),
        },
    },
    Step {
        name: "bind-mounting over /tmp",
        effect: "/tmp is the session's, granted folders below it stay",
        run: attach,
    },
];

fn open(on: &mut Entering<'_>) -> Result<Done, StepError> {
    let plan = on.entry.tmp.as_ref().ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
    for bind in &plan.binds {
        on.parts.push(bind.open()?);
    }
    Ok(Done::Enforced)
}

fn attach(on: &mut Entering<'_>) -> Result<Done, StepError> {
    for Opened { target, tree } in on.parts.drain(..) {
        let at = |error: io::Error| StepError::new(target.display().to_string(), error);
        let Part::Tree(tree) = tree else { continue };
        place_for(&target, tree.is_directory().map_err(at)?).map_err(at)?;
        tree.attach(&target).map_err(at)?;
    }
    Ok(Done::Enforced)
}
