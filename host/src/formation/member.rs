//! One member of a launch: how its process is started and what the launcher holds of it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::ids::FormationId;
use crate::process::{Exit, LifelineHolder, Pidfd, Spawn, Stream, lifeline};

use super::channel::{self, Line, Writer};
use super::launch::Request;
use super::relay::{LastLines, Lines, relay};

/// The descriptor a member reads its channel from.
const CHANNEL_FD: i32 = 3;
/// The descriptor of its lifeline.
const LIFELINE_FD: i32 = 4;
/// Variables a member gets from its launcher alone.
const NOT_INHERITED: &[&str] = &[
    "MURMUR_FORMATION_ID",
    "MURMUR_FORMATION_CHANNEL",
    "MURMUR_FORMATION_LIFELINE",
    "MURMUR_FORMATION_PEERS",
    "MURMUR_SPAWNER",
    "MURMUR_SPAWNER_LIFELINE",
    "MURMUR_HOST_WARNINGS_REPORTED",
];

/// A member as the roster and admission describe it.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Roster name.
    pub name: String,
    /// `<scope>/<name>`.
    pub capsule: String,
    /// Exact version.
    pub version: String,
    /// SHA-256 of the admitted artifact, lowercase hex.
    pub sha256: String,
    /// Whether it is the entry member.
    pub entry: bool,
    /// Its work folder.
    pub dir: PathBuf,
}

/// What every member's command line has in common.
pub struct Setting<'a> {
    /// The formation.
    pub id: &'a FormationId,
    /// The roster's project directory.
    pub project: &'a Path,
    /// The launch's flags.
    pub request: &'a Request,
    /// The formation's deadline, Unix milliseconds.
    pub deadline_ms: Option<u64>,
}

/// A started member.
pub struct Member {
    /// What it runs.
    pub plan: Plan,
    /// Its process.
    pub pidfd: Rc<Pidfd>,
    /// The only write end of its lifeline; dropping it tells the member that the formation has ended.
    pub lifeline: Option<LifelineHolder>,
    /// Its channel, until the last line is written.
    pub channel: Option<Writer>,
    /// A peer's stdout.
    pub stdout: Option<Lines>,
    /// The last lines of a peer's stderr.
    pub last_lines: LastLines,
    /// The task relaying its stderr.
    pub relay: Option<tokio::task::JoinHandle<()>>,
    /// How it ended, once it was reaped.
    pub exit: Option<Exit>,
}

impl Member {
    /// `name (pid N)`, as the launcher's reports name it.
    pub fn label(&self) -> String {
        format!("{} (pid {})", self.plan.name, self.pidfd.pid())
    }

    /// Reaps it if it has ended.
    pub fn try_reap(&mut self) -> Option<Exit> {
        if self.exit.is_none() {
            self.exit = self.pidfd.try_reap().ok().flatten();
        }
        self.exit
    }
}

/// Starts a member whose channel already holds `first_lines`. The words say why it could not be started.
pub fn start(plan: Plan, setting: &Setting<'_>, first_lines: Line) -> Result<Member, String> {
    let could_not = |what: &str, error: std::io::Error| format!("{what}: {error}");
    let (channel_end, writer) =
        channel::open(first_lines).map_err(|error| could_not("its channel could not be made", error))?;
    let (lifeline_end, holder) =
        lifeline::pair().map_err(|error| could_not("its lifeline could not be made", error))?;
    let mut spawn = Spawn::mur()
        .args(arguments(&plan, setting))
        .env("MURMUR_FORMATION_ID", setting.id.as_str())
        .env("MURMUR_FORMATION_CHANNEL", CHANNEL_FD.to_string())
        .env("MURMUR_FORMATION_LIFELINE", LIFELINE_FD.to_string())
        .env("MURMUR_HOST_WARNINGS_REPORTED", "1")
        .inherit_env(NOT_INHERITED)
        .pass(channel_end, CHANNEL_FD)
        .pass(lifeline_end, LIFELINE_FD);
    spawn = if plan.entry {
        spawn.stdio(Stream::Null, Stream::Inherit, Stream::Inherit)
    } else {
        spawn.stdio(Stream::Null, Stream::Pipe, Stream::Pipe).own_group()
    };
    let child = spawn.spawn().map_err(|error| could_not("its process could not be started", error))?;
    let last_lines = LastLines::default();
    let read = |fd: Option<_>| fd.and_then(|fd| Lines::new(fd).ok());
    let relay =
        read(child.stderr).map(|lines| tokio::task::spawn_local(relay(plan.name.clone(), lines, last_lines.clone())));
    Ok(Member {
        pidfd: Rc::new(child.pidfd),
        lifeline: Some(holder),
        channel: Some(writer),
        stdout: read(child.stdout),
        last_lines,
        relay,
        exit: None,
        plan,
    })
}

/// The member's command line after `mur`.
fn arguments(plan: &Plan, setting: &Setting<'_>) -> Vec<OsString> {
    let request = setting.request;
    let mut args: Vec<OsString> = Vec::new();
    let mut add = |parts: &[&std::ffi::OsStr]| args.extend(parts.iter().map(|part| (*part).to_owned()));
    add(&["run".as_ref(), "--capsule".as_ref(), plan.capsule.as_ref()]);
    add(&["--capsule-version".as_ref(), plan.version.as_ref()]);
    add(&["--capsule-sha256".as_ref(), plan.sha256.as_ref()]);
    add(&["--workdir".as_ref(), plan.dir.as_os_str()]);
    add(&["--store-root".as_ref(), setting.project.as_os_str()]);
    if plan.entry {
        let (acceptance, after) = if request.task.is_some() { ("single", "exit") } else { ("queue", "sleep") };
        add(&["--lifecycle-task-acceptance".as_ref(), acceptance.as_ref()]);
        add(&["--lifecycle-after-task".as_ref(), after.as_ref()]);
        if let Some(task) = &request.task {
            // One argument, so that a task that starts with a dash stays a value.
            let mut flag = OsString::from("--task=");
            flag.push(task);
            add(&[&flag]);
        }
        if request.json {
            add(&["--json".as_ref()]);
        }
        if request.verbose {
            add(&["--verbose".as_ref()]);
        }
    } else {
        add(&["--json".as_ref(), "--readiness-tokens".as_ref(), "--bind".as_ref(), "127.0.0.1".as_ref()]);
    }
    if request.no_env_file {
        add(&["--no-env-file".as_ref()]);
    }
    if let Some(class) = &request.containment {
        add(&["--containment".as_ref(), class.as_ref()]);
    }
    if let Some(at) = setting.deadline_ms {
        add(&["--inherited-deadline".as_ref(), at.to_string().as_ref()]);
    }
    args
}
