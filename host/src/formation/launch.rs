//! `mur run --roster`: admit, mint, then drive the formation from its first member to its end, and clean up after it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::time::{Duration, Instant};

use crate::cli::Outcome;
use crate::containment;
use crate::credentials::channel::ProcessName;
use crate::diagnostics::{Diagnostic, Result, codes, output};
use crate::ids::FormationId;
use crate::paths::{MurmurHome, work_folder};
use crate::process::{limits, wiping};
use crate::records::formations::{self, Marker};
use crate::roster::admission::Admitted;
use crate::roster::admit::admit_in_child;

use super::announce::Deadline;
use super::credentials::Credentials;
use super::drive::Drive;
use super::member::Plan;
use super::project::Project;
use super::readiness::NotReady;
use super::retention;
use super::signals::Signals;

/// The flags of a launch.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// A directory that holds `roster.yaml`, or the file itself.
    pub path: PathBuf,
    /// The entry member's one task; without it tasks come in at its door.
    pub task: Option<OsString>,
    /// Seconds from the launcher's start to the one moment every member ends at.
    pub deadline: Option<u64>,
    /// One JSON line instead of the text announcement.
    pub json: bool,
    /// The entry member's start lines.
    pub verbose: bool,
    /// Members read no `.env` file.
    pub no_env_file: bool,
    /// A containment floor for every member.
    pub containment: Option<String>,
}

/// Admits and launches a roster, and returns when the formation has ended: the entry member's exit status, or 128 + N
/// when signal N ended it.
///
/// # Errors
/// Admission's code, `E-RUN-045`, `E-RUN-046`, `E-RUN-053`, `E-IO-004`; nothing is left running.
pub fn run(request: Request) -> Outcome {
    let started = Instant::now();
    let deadline = request.deadline.map(|secs| Deadline { at_ms: unix_ms() + secs.saturating_mul(1000), secs });
    let deadline_at = request.deadline.map(|secs| started + Duration::from_secs(secs));
    refuse_inside_a_member()?;
    let project = Project::open(&request.path)?;
    let home = MurmurHome::from_env()?;
    home.prepare()?;
    // The entry member works there.
    work_folder::check(&home, &project.dir, &format!("'{}'", request.path.display()))?;
    let admitted = admit_in_child(&project.dir, &project.text)?;
    let members = admitted.members.len();
    limits::require_open_files(limits::for_members(members), &format!("a formation of {members} members"))?;
    for crowded in &admitted.warnings {
        let warning = Diagnostic::new(codes::W_ROS_001, crowded.message.clone());
        output::stderr_line(&format!("[mur run] {}", warning.warning_line()));
    }
    for stale in &admitted.stale {
        let line = stale.warning_line();
        output::stderr_line(&format!("[mur run] {line}; {}", stale.hint_text().unwrap_or_default()));
    }
    for warning in warnings(request.containment.as_deref(), &project.dir, admitted.has_edges()) {
        output::runtime_warning(&warning);
    }
    if let Some(warning) = crate::containment::host::warning_once() {
        output::runtime_warning(&warning);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| {
        Diagnostic::new(codes::E_IO_003, format!("the launcher could not start its event loop: {error}"))
    })?;
    let launch = Launch { id: FormationId::mint(), request, project, home, admitted, started, deadline, deadline_at };
    let outcome = tokio::task::LocalSet::new().block_on(&runtime, launch.run());
    retention::pass(&launch.home, &launch.project.dir, &launch.id, launch.admitted.retain.as_ref());
    outcome
}

/// What holds for every member alike, said once; `class` is the launch's flag.
pub(crate) fn warnings(class: Option<&str>, project: &Path, has_edges: bool) -> Vec<Diagnostic> {
    let flag = class.and_then(|class| containment::parse_flag(class).ok());
    let mut warnings = containment::formation_warnings(flag, has_edges);
    if project.join(".murmur/artifacts").is_dir() {
        warnings.push(Diagnostic::new(
            codes::W_SEC_037,
            "the entry member works in the project directory, so its tools could rewrite the artifacts in .murmur, the \
             lock and the roster there; install members with mur install -g",
        ));
    }
    warnings
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn refuse_inside_a_member() -> Result<()> {
    for name in ["MURMUR_FORMATION_ID", "MURMUR_FORMATION_PEERS"] {
        // A blank id is none; the other variable is the runtime's alone, whatever is in it.
        let blank = name == "MURMUR_FORMATION_ID";
        let set = std::env::var_os(name).is_some_and(|value| !(blank && value.to_string_lossy().trim().is_empty()));
        if set {
            return Err(Diagnostic::new(
                codes::E_RUN_046,
                format!("{name} is set, so this process is a member of a formation and cannot launch another"),
            )
            .hint(format!("unset {name} to launch a formation from here")));
        }
    }
    Ok(())
}

/// An admitted roster that is being launched.
pub struct Launch {
    /// The formation.
    pub id: FormationId,
    /// The flags.
    pub request: Request,
    /// Where the roster lies.
    pub project: Project,
    /// What admission answered.
    pub admitted: Admitted,
    /// When the launcher started.
    pub started: Instant,
    /// The one moment every member ends at, as they are told it.
    pub deadline: Option<Deadline>,
    /// The same, to be waited for.
    pub deadline_at: Option<Instant>,
    home: MurmurHome,
}

impl Launch {
    async fn run(&self) -> Outcome {
        let signals = Signals::catch()?;
        // Tokens are handed out and operator tokens read once; then the launcher lives on without them.
        wiping::wipe_what_is_freed();
        let credentials = Credentials::mint(&self.id, &self.admitted, &own_name())?;
        Drive::new(self, credentials).run(signals).await
    }

    /// What each member runs and where. Makes the formation's directory, its marker and the peers' directories.
    pub fn plans(&self) -> std::result::Result<Vec<Plan>, (usize, NotReady)> {
        let entry = self.admitted.entry();
        let first_peer = (0..self.admitted.members.len()).find(|index| *index != entry);
        let mut formation_dir = None;
        if let Some(first) = first_peer {
            let (dir, marked) =
                formations::make(&self.home, &self.id, &Marker::own(&self.project.dir)).map_err(|error| {
                    (first, NotReady::NotStarted(format!("the formation's directory could not be made: {error}")))
                })?;
            if let Err(error) = marked {
                output::stderr_line(&format!(
                    "[mur run] warning: formation {} has no ownership marker ({error}); its directory will never be \
                     removed automatically",
                    self.id
                ));
            }
            formation_dir = Some(dir);
        }
        let mut plans = Vec::new();
        for (index, member) in self.admitted.members.iter().enumerate() {
            let dir = match &formation_dir {
                Some(formation) if index != entry => {
                    formations::make_peer(formation, &member.name).map_err(|why| (index, NotReady::NotStarted(why)))?
                }
                _ => self.project.dir.clone(),
            };
            plans.push(Plan {
                name: member.name.clone(),
                capsule: member.capsule.clone(),
                version: member.version.clone(),
                sha256: member.sha256.clone(),
                entry: index == entry,
                dir,
            });
        }
        Ok(plans)
    }
}

fn own_name() -> ProcessName {
    let pid = std::process::id();
    ProcessName { pid, process_start: crate::process::process_start(pid.cast_signed()).unwrap_or_default() }
}
