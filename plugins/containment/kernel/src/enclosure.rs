//! A session's enclosure: scope, namespaces and watcher, and the profiles of the processes that enter it.

use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mur_plugin_api::{
    Access, Enclosure, EnclosureBounds, EnclosureRequest, ErrorKind, Grant, HostReport, IoStatus, PluginError,
    ProcessKind, Profile, ProfileRequest, Spawned, Usage,
};

use crate::entry::{Entering, Entry};
use crate::namespaces::{self, Namespaces, Wanted};
use crate::root::{ETC, RootPlan, SYSTEM, TmpPlan};
use crate::scope::Scope;
use crate::server::{Answer, Server};
use crate::step::StepError;
use crate::{Tier, landlock, probe, process, sequence, watcher};

/// How long an enclosure that is dropped has to end what is inside it.
const DROPPED: Duration = Duration::from_secs(2);

/// The enclosure of one session.
#[derive(Debug)]
pub struct KernelEnclosure {
    tier: Tier,
    inside: Option<Inside>,
    /// What was seen of the host meanwhile.
    readings: String,
}

#[derive(Debug)]
struct Inside {
    scope: Scope,
    namespaces: Namespaces,
    watcher: libc::pid_t,
    watched: OwnedFd,
    commands: Vec<Commands>,
    io: IoStatus,
}

/// What one kind of command enters, and the server that starts such once the first is asked for.
#[derive(Debug)]
struct Commands {
    entry: Entry,
    ruleset: Option<OwnedFd>,
    server: Option<Server>,
}

/// A step's error in the interface's words.
pub fn failed(error: &StepError) -> PluginError {
    let kind = match error.errno() {
        libc::EPERM | libc::EACCES | libc::EROFS => ErrorKind::Denied,
        _ => ErrorKind::Failed,
    };
    PluginError::new(kind, error.to_string())
}

/// A request's own fault.
pub fn unreadable(error: &serde_json::Error) -> PluginError {
    PluginError::new(ErrorKind::Invalid, format!("the request cannot be read: {error}"))
}

impl KernelEnclosure {
    /// Makes scope and namespaces. What was made is taken down again when a step fails.
    pub fn open(tier: Tier, request: &[u8]) -> Result<Self, PluginError> {
        let request: EnclosureRequest = serde_json::from_slice(request).map_err(|error| unreadable(&error))?;
        let inside = Inside::new(&request).map_err(|error| failed(&error))?;
        let mut made = Self { tier, inside: Some(inside), readings: String::new() };
        // Dropped, it is taken down again.
        let namespaces = &made.inside()?.namespaces;
        made.readings =
            probe::while_opening(tier, namespaces, request.rehearse_root).map_err(|error| failed(&error))?;
        Ok(made)
    }

    /// Makes ready what commands enter whose root a program composes: an [`Entry`] as for a worker, with its descriptors.
    pub fn prepare_wrapped(&self, request: &ProfileRequest) -> Result<(Entry, Vec<OwnedFd>), PluginError> {
        self.inside()?.prepare_alone(self.tier, request)
    }

    fn inside(&self) -> Result<&Inside, PluginError> {
        self.inside.as_ref().ok_or_else(|| PluginError::new(ErrorKind::Missing, "the enclosure is closed"))
    }

    fn inside_mut(&mut self) -> Result<&mut Inside, PluginError> {
        self.inside.as_mut().ok_or_else(|| PluginError::new(ErrorKind::Missing, "the enclosure is closed"))
    }

    fn take_down(&mut self, within: Duration) -> bool {
        let Some(Inside { scope, namespaces, watcher, watched, commands, .. }) = self.inside.take() else {
            return true;
        };
        // Commands are reaped by their server, which is outside the process namespace: its end comes before theirs does.
        drop(commands);
        // The scope first: relays are outside the process namespace, whose end waits for them.
        scope.directories().kill();
        drop(namespaces);
        let gone = scope.directories().take_down(within);
        if gone {
            process::kill(watcher);
        }
        // What is left is left to the watcher, which sees the end of its pipe.
        drop(watched);
        gone
    }
}

impl Inside {
    fn new(request: &EnclosureRequest) -> Result<Self, StepError> {
        let scope = Scope::create(&scope_name(&request.session), &request.scope)?;
        let io = scope.limit_io(request.io.as_ref());
        let watched = watcher::of_scope(scope.directories());
        let (watcher, watched) = match watched {
            Ok(made) => made,
            Err(error) => {
                scope.directories().take_down(DROPPED);
                return Err(StepError::new("starting the scope's watcher", error));
            }
        };
        let wanted = Wanted { ports: request.ports.clone(), names: request.names };
        match namespaces::create(&scope.procs(), scope.tree(), &wanted) {
            Ok(namespaces) => Ok(Self { scope, namespaces, watcher, watched, commands: Vec::new(), io }),
            Err(error) => {
                scope.directories().take_down(DROPPED);
                process::kill(watcher);
                Err(error)
            }
        }
    }

    /// Makes ready what commands enter.
    fn prepare_commands(&mut self, tier: Tier, request: &ProfileRequest) -> Result<Profile, PluginError> {
        let mut entry = self.entry(tier, request)?;
        let ruleset = ruleset_of(tier, request)?;
        if let (Some(tmp), true) = (&request.tmp, tier != Tier::Sealed && probe::private_tmp(&self.namespaces)) {
            let plan = TmpPlan::new(&request.grants, tmp, request.home.as_deref(), tier == Tier::Scoped);
            entry.tmp = plan.map_err(|error| failed(&error.within("private /tmp")))?;
        }
        let tmp_mapped = request.tmp.is_some() && (entry.root.is_some() || entry.tmp.is_some());
        self.commands.push(Commands { entry, ruleset, server: None });
        let number = u32::try_from(self.commands.len() - 1).unwrap_or(u32::MAX);
        Ok(Profile { request: number.to_le_bytes().to_vec().into(), tmp_mapped, ..Profile::default() })
    }

    /// Makes ready what a process enters that no server starts.
    fn prepare_alone(&self, tier: Tier, request: &ProfileRequest) -> Result<(Entry, Vec<OwnedFd>), PluginError> {
        let entry = self.entry(tier, request)?;
        let ruleset = ruleset_of(tier, request)?;
        let shared = self.scope.procs().into_iter().chain(self.namespaces.fds.iter().map(AsFd::as_fd));
        let mut fds = shared.map(copy).collect::<Result<Vec<OwnedFd>, PluginError>>()?;
        fds.extend(ruleset);
        Ok((entry, fds))
    }

    /// The part of a profile that workers and commands share; its ruleset is made apart.
    fn entry(&self, tier: Tier, request: &ProfileRequest) -> Result<Entry, PluginError> {
        let root = match tier {
            Tier::Sealed => Some(
                RootPlan::new(&request.grants, request.tmp.as_deref(), request.home.as_deref())
                    .map_err(|error| failed(&error.within("sealed-root")))?,
            ),
            Tier::Advisory | Tier::Scoped => None,
        };
        Ok(Entry {
            scope: self.scope.procs().len(),
            namespaces: true,
            landlock: tier != Tier::Advisory,
            root,
            unix_sockets: request.unix_sockets,
            ..Entry::of(request.limits)
        })
    }

    fn spawn(&mut self, tier: Tier, profile: &[u8], command: &[u8], fds: [i32; 4]) -> Result<Spawned, PluginError> {
        let unknown = || PluginError::new(ErrorKind::Invalid, "the profile is none of this enclosure's commands");
        let number = <[u8; 4]>::try_from(profile).map_err(|_| unknown())?;
        let kind = self.commands.get_mut(u32::from_le_bytes(number) as usize).ok_or_else(unknown)?;
        let server = match &kind.server {
            Some(server) => server,
            None => {
                let scope = self.scope.procs().into_iter();
                let shared: Vec<BorrowedFd<'_>> = scope.chain(self.namespaces.fds.iter().map(AsFd::as_fd)).collect();
                let made = Server::start(tier, &kind.entry, &shared, kind.ruleset.as_ref());
                kind.server.insert(made.map_err(|error| failed(&error))?)
            }
        };
        // SAFETY: the caller of `spawn` owns these descriptors and keeps them open until it returns.
        let fds = fds.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) });
        match server.spawn(command, &fds) {
            Answer::Started(pid) => Ok(Spawned { pid, ..Spawned::default() }),
            Answer::Program(errno) => Ok(Spawned { errno, ..Spawned::default() }),
            Answer::Step(error) => Err(failed(&error)),
            Answer::Gone => Err(PluginError::new(ErrorKind::Missing, "the server of commands has ended")),
        }
    }
}

/// One path segment, told apart by the maker's pid and a count.
fn scope_name(session: &str) -> String {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let count = MADE.fetch_add(1, Ordering::Relaxed);
    let kept = |letter: &char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-');
    let session: String = session.chars().filter(kept).take(64).collect();
    format!("murmur-{session}-{}-{count}", std::process::id())
}

impl Enclosure for KernelEnclosure {
    fn prepare(&mut self, request: &[u8]) -> Result<Profile, PluginError> {
        let request: ProfileRequest = serde_json::from_slice(request).map_err(|error| unreadable(&error))?;
        let tier = self.tier;
        let inside = self.inside_mut()?;
        if request.process == ProcessKind::Command {
            return inside.prepare_commands(tier, &request);
        }
        let (entry, fds) = inside.prepare_alone(tier, &request)?;
        let bytes = serde_json::to_vec(&entry)
            .map_err(|error| PluginError::new(ErrorKind::Failed, format!("the profile: {error}")))?;
        Ok(Profile {
            request: bytes.into(),
            fds: fds.into_iter().map(IntoRawFd::into_raw_fd).collect::<Vec<_>>().into(),
            tmp_mapped: entry.root.is_some() && request.tmp.is_some(),
        })
    }

    fn spawn(&mut self, profile: &Profile, command: &[u8], fds: [i32; 4]) -> Result<Spawned, PluginError> {
        let tier = self.tier;
        self.inside_mut()?.spawn(tier, &profile.request, command, fds)
    }

    fn watched(&mut self) -> Result<Vec<i32>, PluginError> {
        let commands = self.inside()?.commands.iter();
        Ok(commands.filter_map(|kind| kind.server.as_ref()).map(Server::pidfd).collect())
    }

    fn bounds(&mut self) -> Result<EnclosureBounds, PluginError> {
        let inside = self.inside()?;
        Ok(EnclosureBounds { events: inside.scope.events(), io: inside.io.clone() })
    }

    fn network(&mut self) -> Result<Vec<i32>, PluginError> {
        let listeners = self.inside()?.namespaces.listeners.iter();
        let copies = listeners.map(|fd| copy(fd.as_fd())).collect::<Result<Vec<_>, _>>()?;
        Ok(copies.into_iter().map(IntoRawFd::into_raw_fd).collect())
    }

    fn usage(&mut self) -> Result<Usage, PluginError> {
        Ok(self.inside()?.scope.usage())
    }

    fn report(&mut self) -> Result<HostReport, PluginError> {
        Ok(HostReport { readings: self.readings.clone().into(), ..HostReport::backed() })
    }

    fn close(&mut self, within: Duration) -> Result<(), PluginError> {
        if self.take_down(within) {
            return Ok(());
        }
        Err(PluginError::new(ErrorKind::Failed, format!("processes are left after {} s", within.as_secs())))
    }
}

impl Drop for KernelEnclosure {
    fn drop(&mut self) {
        self.take_down(DROPPED);
    }
}

fn ruleset_of(tier: Tier, request: &ProfileRequest) -> Result<Option<OwnedFd>, PluginError> {
    if tier == Tier::Advisory {
        return Ok(None);
    }
    let made = landlock::ruleset(request.process, &granted(tier, request));
    made.map(Some).map_err(|ungranted| PluginError::io(ungranted.path.display(), &ungranted.error))
}

/// Devices that commands have in a composed root, beside those everybody has.
const SEALED_DEVICES: [(&str, Access); 3] =
    [("/dev/full", Access::Device), ("/dev/tty", Access::Device), ("/dev/random", Access::ReadFiles)];

/// The session's temporary folder and home are a worker's only where its root has them; what a composed root holds of the
/// system can be read by commands.
fn granted(tier: Tier, request: &ProfileRequest) -> Vec<Grant> {
    let mut grants = request.grants.clone();
    let command = request.process == ProcessKind::Command;
    if command || tier == Tier::Sealed {
        let own = [&request.tmp, &request.home];
        grants.extend(own.into_iter().flatten().map(|path| Grant::required(path, request.own)));
    }
    if command && tier == Tier::Sealed {
        let etc = ETC.iter().map(|name| format!("/etc/{name}"));
        let system = SYSTEM.iter().map(|path| (*path).to_owned()).chain(etc);
        grants.extend(system.map(|path| Grant::optional(path, Access::Read)));
        grants.extend(SEALED_DEVICES.map(|(path, access)| Grant::optional(path, access)));
    }
    grants
}

fn copy(fd: BorrowedFd<'_>) -> Result<OwnedFd, PluginError> {
    fd.try_clone_to_owned().map_err(|error| PluginError::io("a descriptor of the enclosure", &error))
}

/// Enters a profile of a class in the calling, single-threaded process.
pub fn enter(tier: Tier, request: &[u8], fds: &[i32]) -> Result<(), PluginError> {
    let entry: Entry = serde_json::from_slice(request).map_err(|error| unreadable(&error))?;
    let whole = entry.namespaces
        && entry.scope > 0
        && entry.landlock == (tier != Tier::Advisory)
        && entry.root.is_some() == (tier == Tier::Sealed);
    if !whole {
        return Err(PluginError::new(ErrorKind::Invalid, format!("the profile is none of class '{}'", tier.class())));
    }
    // Leaked, as the process is confined by them to its end.
    let (entry, fds): (&'static Entry, &'static [i32]) = (Box::leak(Box::new(entry)), fds.to_vec().leak());
    let entering = Entering::new(entry, fds)
        .ok_or_else(|| PluginError::new(ErrorKind::Invalid, "the profile and its descriptors do not match"))?;
    let absent = sequence::enter(sequence::of_worker(tier), entering).map_err(|error| failed(&error))?;
    match absent.first() {
        None => Ok(()),
        Some(step) => Err(PluginError::new(ErrorKind::Failed, format!("{step}: this kernel does not have it"))),
    }
}
