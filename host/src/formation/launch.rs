//! `mur run --roster`: admit, mint, start the peers, wait for their doors, hand out addresses, start the entry member,
//! wait for the end, end everybody.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Duration, Instant};

use crate::cli::Outcome;
use crate::containment;
use crate::credentials::channel::ProcessName;
use crate::diagnostics::{Diagnostic, Result, codes, output};
use crate::ids::FormationId;
use crate::paths::MurmurHome;
use crate::process::Exit;
use crate::process::limits;
use crate::records::formations::{self, Marker};
use crate::roster::admission::Admitted;
use crate::roster::admit::admit_in_child;

use super::announce::{self, Deadline, Peer};
use super::credentials::Credentials;

use super::end;
use super::member::{self, Member, Plan, Setting};
use super::project::Project;
use super::readiness::{self, NotReady, READY_WITHIN, Ready};
use super::refusal::{self, Failed};
use super::retention;

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
    let deadline = request.deadline.map(|secs| Deadline { at_ms: unix_ms() + secs.saturating_mul(1000), secs });
    let deadline_at = request.deadline.map(|secs| Instant::now() + Duration::from_secs(secs));
    refuse_inside_a_member()?;
    let project = Project::open(&request.path)?;
    let home = MurmurHome::from_env()?;
    home.prepare()?;
    let admitted = admit_in_child(&project.dir, &project.text)?;
    let members = admitted.members.len();
    limits::require_open_files(limits::for_members(members), &format!("a formation of {members} members"))?;
    for crowded in &admitted.warnings {
        let warning = Diagnostic::new(codes::W_ROS_001, crowded.message.clone());
        output::stderr_line(&format!("[mur run] {}", warning.warning_line()));
    }
    warn_of_the_host(&request, &project, &admitted);
    if let Some(warning) = crate::containment::host::warning_once() {
        output::runtime_warning(&warning);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| {
        Diagnostic::new(codes::E_IO_003, format!("the launcher could not start its event loop: {error}"))
    })?;
    let launch = Launch { id: FormationId::mint(), request, project, home, admitted, deadline, deadline_at };
    let outcome = tokio::task::LocalSet::new().block_on(&runtime, launch.run());
    retention::pass(&launch.home, &launch.project.dir, &launch.id, launch.admitted.retain.as_ref());
    outcome
}

/// What holds for every member alike is said here, once.
fn warn_of_the_host(request: &Request, project: &Project, admitted: &Admitted) {
    let flag = request.containment.as_deref().and_then(|class| containment::parse_flag(class).ok());
    let mut warnings = containment::formation_warnings(flag, admitted.has_edges());
    if project.dir.join(".murmur/artifacts").is_dir() {
        warnings.push(Diagnostic::new(
            codes::W_SEC_037,
            "the entry member works in the project directory, so its tools could rewrite the artifacts in .murmur, the \
             lock and the roster there; install members with mur install -g",
        ));
    }
    for warning in warnings {
        output::runtime_warning(&warning);
    }
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

/// The signals that end a formation.
pub struct Signals(Vec<(&'static str, u8, Signal)>);

impl Signals {
    fn catch() -> Result<Self> {
        let kinds = [
            ("SIGINT", 2, SignalKind::interrupt()),
            ("SIGTERM", 15, SignalKind::terminate()),
            ("SIGHUP", 1, SignalKind::hangup()),
        ];
        let caught = kinds.into_iter().map(|(name, number, kind)| Ok((name, number, signal(kind)?)));
        caught.collect::<std::io::Result<_>>().map(Self).map_err(|error| {
            Diagnostic::new(codes::E_IO_003, format!("the launcher could not catch its signals: {error}"))
        })
    }

    async fn next_numbered(&mut self) -> (&'static str, u8) {
        let waits = self.0.iter_mut().map(|(name, number, signal)| {
            Box::pin(async move {
                signal.recv().await;
                (*name, *number)
            })
        });
        futures_util::future::select_all(waits).await.0
    }

    /// Waits for the next signal and returns its name.
    pub async fn next(&mut self) -> &'static str {
        self.next_numbered().await.0
    }
}

struct Launch {
    id: FormationId,
    request: Request,
    project: Project,
    home: MurmurHome,
    admitted: Admitted,
    deadline: Option<Deadline>,
    deadline_at: Option<Instant>,
}

/// Why the peers are not all ready.
enum Unready {
    Failed(Vec<(usize, NotReady)>),
    Signal(&'static str, u8),
}

impl Launch {
    async fn run(&self) -> Outcome {
        let mut signals = Signals::catch()?;
        let credentials = Credentials::mint(&self.id, &self.admitted, &own_name())?;
        let mut members: Vec<Option<Member>> = self.admitted.members.iter().map(|_| None).collect();
        let plans = match self.plans() {
            Ok(plans) => plans,
            Err((index, why)) => return Err(self.refuse(&mut members, vec![(index, why)], &mut signals).await),
        };
        let started = self.start_peers(&plans, &credentials, &mut members);
        if !started.is_empty() {
            return Err(self.refuse(&mut members, started, &mut signals).await);
        }
        let ready = match self.wait_for_doors(&mut members, &mut signals).await {
            Ok(ready) => ready,
            Err(Unready::Failed(failed)) => return Err(self.refuse(&mut members, failed, &mut signals).await),
            Err(Unready::Signal(name, number)) => {
                let stopped = end::stop_all(&mut members, &mut signals).await;
                output::stderr_line(&format!(
                    "[mur run] {name}: the launch was interrupted before every member was ready; stopped: {stopped}"
                ));
                return Ok(128 + number);
            }
        };
        self.hand_out(&credentials, &ready, &mut members);
        self.relay_stdout(&mut members);
        self.announce(&plans, &members, &ready);
        let entry = self.admitted.entry();
        match self.start_one(entry, &plans, &credentials, Some(&ready)) {
            Ok(member) => members[entry] = Some(member),
            Err(why) => return Err(self.refuse(&mut members, vec![(entry, why)], &mut signals).await),
        }
        Ok(self.until_the_end(entry, &mut members, &mut signals).await)
    }

    /// What each member runs and where. Makes the formation's directory, its marker and the peers' directories.
    fn plans(&self) -> std::result::Result<Vec<Plan>, (usize, NotReady)> {
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

    fn start_one(
        &self,
        index: usize,
        plans: &[Plan],
        credentials: &Credentials,
        ready: Option<&[Option<Ready>]>,
    ) -> std::result::Result<Member, NotReady> {
        let setting = Setting {
            id: &self.id,
            project: &self.project.dir,
            request: &self.request,
            deadline_ms: self.deadline.map(|deadline| deadline.at_ms),
        };
        let mut lines = credentials.first_line(index);
        if let Some(ready) = ready {
            lines.extend_from_slice(credentials.urls_line(index, ready).as_bytes());
        }
        let mut member = member::start(plans[index].clone(), &setting, lines).map_err(NotReady::NotStarted)?;
        // Nothing follows for the entry member, nor for one that may call nobody.
        if (ready.is_some() || !credentials.has_callees(index))
            && let Some(channel) = member.channel.take()
        {
            channel.finish();
        }
        Ok(member)
    }

    /// Starts every peer; returns those that could not be started.
    fn start_peers(
        &self,
        plans: &[Plan],
        credentials: &Credentials,
        members: &mut [Option<Member>],
    ) -> Vec<(usize, NotReady)> {
        let mut failed = Vec::new();
        for index in (0..plans.len()).filter(|index| !plans[*index].entry) {
            match self.start_one(index, plans, credentials, None) {
                Ok(member) => members[index] = Some(member),
                Err(why) => {
                    failed.push((index, why));
                    break;
                }
            }
        }
        failed
    }

    async fn wait_for_doors(
        &self,
        members: &mut [Option<Member>],
        signals: &mut Signals,
    ) -> std::result::Result<Vec<Option<Ready>>, Unready> {
        let own = Instant::now() + READY_WITHIN;
        let until = self.deadline_at.map_or(own, |deadline| deadline.min(own));
        let mut ready: Vec<Option<Ready>> = members.iter().map(|_| None).collect();
        let mut waits: FuturesUnordered<_> = members
            .iter_mut()
            .enumerate()
            .filter_map(|(index, member)| Some((index, member.as_mut()?)))
            .map(|(index, member)| {
                let id = &self.id;
                async move {
                    let pidfd = member.pidfd.clone();
                    (index, readiness::wait(pidfd, &mut member.stdout, id, until, until != own).await)
                }
            })
            .collect();
        let mut failed = Vec::new();
        loop {
            // The first failure refuses the launch; those that failed by then are named with it.
            let next = if failed.is_empty() {
                tokio::select! {
                    next = waits.next() => next,
                    (name, number) = signals.next_numbered() => return Err(Unready::Signal(name, number)),
                }
            } else {
                futures_util::FutureExt::now_or_never(waits.next()).flatten()
            };
            match next {
                Some((index, Ok(one))) => ready[index] = Some(one),
                Some((index, Err(why))) => failed.push((index, why)),
                None => break,
            }
        }
        failed.sort_by_key(|(index, _)| *index);
        if failed.is_empty() { Ok(ready) } else { Err(Unready::Failed(failed)) }
    }

    /// Sends each peer that may call others their door URLs, and closes its channel.
    fn hand_out(&self, credentials: &Credentials, ready: &[Option<Ready>], members: &mut [Option<Member>]) {
        for (index, member) in members.iter_mut().enumerate() {
            let Some(mut channel) = member.as_mut().and_then(|member| member.channel.take()) else { continue };
            if let Err(error) = channel.push(credentials.urls_line(index, ready).as_bytes()) {
                let name = &self.admitted.members[index].name;
                output::stderr_line(&format!(
                    "[mur run] note: '{name}' could not be sent its callees' addresses: {error}"
                ));
            }
            channel.finish();
        }
    }

    /// Whatever a peer prints on stdout after its readiness line goes to stderr behind its prefix.
    fn relay_stdout(&self, members: &mut [Option<Member>]) {
        for member in members.iter_mut().flatten() {
            if let Some(lines) = member.stdout.take() {
                tokio::task::spawn_local(super::relay::relay(
                    member.plan.name.clone(),
                    lines,
                    super::relay::LastLines::default(),
                ));
            }
        }
    }

    fn announce(&self, plans: &[Plan], members: &[Option<Member>], ready: &[Option<Ready>]) {
        let peers: Vec<Peer<'_>> = plans
            .iter()
            .zip(members)
            .zip(ready)
            .filter_map(|((plan, member), ready)| {
                Some(Peer { plan, pid: member.as_ref()?.pidfd.pid(), ready: ready.as_ref()? })
            })
            .collect();
        announce::print(self.request.json, &self.id, &plans[self.admitted.entry()], self.deadline, &peers);
    }

    async fn until_the_end(&self, entry: usize, members: &mut [Option<Member>], signals: &mut Signals) -> u8 {
        let signalled = self.wait_for_an_end(entry, members, signals).await;
        let stopped = end::stop_all(members, signals).await;
        if let Some((name, number)) = signalled {
            output::stderr_line(&format!("[mur run] {name}: the formation was stopped; stopped: {stopped}"));
            return 128 + number;
        }
        let exit = members[entry].as_ref().and_then(|member| member.exit).unwrap_or(Exit::Status(1));
        u8::try_from(exit.shell_status()).unwrap_or(1)
    }

    /// Returns when the entry member has ended or a signal came; peers that end meanwhile are named.
    async fn wait_for_an_end(
        &self,
        entry: usize,
        members: &mut [Option<Member>],
        signals: &mut Signals,
    ) -> Option<(&'static str, u8)> {
        let mut ends: FuturesUnordered<_> = members
            .iter()
            .enumerate()
            .filter_map(|(index, member)| {
                let pidfd = member.as_ref()?.pidfd.clone();
                Some(async move {
                    let _ = pidfd.ended().await;
                    index
                })
            })
            .collect();
        // Members end themselves at the deadline and are bounded by 20 s; this is for one that does not.
        let overdue = self.deadline_at.map(|deadline| deadline + Duration::from_secs(25));
        loop {
            tokio::select! {
                biased;
                Some(index) = ends.next() => {
                    if index == entry {
                        return None;
                    }
                    if let Some(member) = &mut members[index]
                        && let Some(exit) = member.try_reap()
                        && self.deadline_at.is_none_or(|deadline| Instant::now() < deadline)
                    {
                        output::stderr_line(&end::peer_ended(&member.label(), exit));
                    }
                }
                signal = signals.next_numbered() => return Some(signal),
                () = sleep_until_some(overdue) => return None,
            }
        }
    }

    async fn refuse(
        &self,
        members: &mut [Option<Member>],
        failed: Vec<(usize, NotReady)>,
        signals: &mut Signals,
    ) -> Diagnostic {
        let mut named = Vec::new();
        for (index, reason) in failed {
            let admitted = &self.admitted.members[index];
            let mut last_lines = Vec::new();
            if let Some(member) = &mut members[index] {
                if let NotReady::ExitedBefore(exit) | NotReady::ExitedAfter(exit) = &reason {
                    member.exit = Some(*exit);
                }
                // What it wrote last is still on its way through the relay.
                if member.exit.is_some()
                    && let Some(relay) = member.relay.take()
                {
                    let _ = tokio::time::timeout(Duration::from_secs(2), relay).await;
                }
                last_lines = member.last_lines.take();
            }
            named.push(Failed {
                member: admitted.name.clone(),
                coordinate: format!("{}@{}", admitted.capsule, admitted.version),
                reason,
                last_lines,
            });
        }
        let stopped = end::stop_all(members, signals).await;
        refusal::diagnostic(&named, self.id.as_str(), &stopped, self.request.deadline)
    }
}

async fn sleep_until_some(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

fn own_name() -> ProcessName {
    let pid = std::process::id();
    ProcessName { pid, process_start: crate::process::process_start(pid.cast_signed()).unwrap_or_default() }
}
