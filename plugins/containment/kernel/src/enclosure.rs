//! A session's enclosure: scope, namespaces and watcher, and the profiles of the processes that enter it.

use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mur_plugin_api::{
    Enclosure, EnclosureRequest, ErrorKind, HostReport, PluginError, ProcessKind, Profile, ProfileRequest, Spawned,
    Usage,
};

use crate::entry::{Entering, Entry};
use crate::namespaces::{self, Namespaces, Wanted};
use crate::root::RootPlan;
use crate::scope::Scope;
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

    fn inside(&self) -> Result<&Inside, PluginError> {
        self.inside.as_ref().ok_or_else(|| PluginError::new(ErrorKind::Missing, "the enclosure is closed"))
    }

    fn take_down(&mut self, within: Duration) -> bool {
        let Some(Inside { scope, namespaces, watcher, watched }) = self.inside.take() else { return true };
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
        let watched = watcher::of_scope(scope.directories());
        let (watcher, watched) = match watched {
            Ok(made) => made,
            Err(error) => {
                scope.directories().take_down(DROPPED);
                return Err(StepError::new("starting the scope's watcher", error));
            }
        };
        let wanted = Wanted { ports: request.ports.clone(), names: request.names };
        match namespaces::create(&scope.procs(), &wanted) {
            Ok(namespaces) => Ok(Self { scope, namespaces, watcher, watched }),
            Err(error) => {
                scope.directories().take_down(DROPPED);
                process::kill(watcher);
                Err(error)
            }
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
        if request.process == ProcessKind::Command {
            return Err(PluginError::new(ErrorKind::Unsupported, "this library starts no commands yet"));
        }
        let inside = self.inside()?;
        let ruleset = match self.tier {
            Tier::Advisory => None,
            Tier::Scoped | Tier::Sealed => Some(ruleset(self.tier, &request)?),
        };
        let root = match self.tier {
            Tier::Sealed => Some(
                RootPlan::new(&request.grants, request.tmp.as_deref(), request.home.as_deref())
                    .map_err(|error| failed(&error.within("sealed-root")))?,
            ),
            Tier::Advisory | Tier::Scoped => None,
        };
        let scope = inside.scope.procs();
        let entry =
            Entry { limits: request.limits, scope: scope.len(), namespaces: true, landlock: ruleset.is_some(), root };
        let bytes = serde_json::to_vec(&entry)
            .map_err(|error| PluginError::new(ErrorKind::Failed, format!("the profile: {error}")))?;
        let shared = scope.into_iter().chain(inside.namespaces.fds.iter().map(AsFd::as_fd));
        let mut fds = shared.map(copy).collect::<Result<Vec<OwnedFd>, PluginError>>()?;
        fds.extend(ruleset);
        Ok(Profile {
            request: bytes.into(),
            fds: fds.into_iter().map(IntoRawFd::into_raw_fd).collect::<Vec<_>>().into(),
        })
    }

    fn spawn(&mut self, _profile: &Profile, _command: &[u8], _stdio: [i32; 3]) -> Result<Spawned, PluginError> {
        Err(PluginError::new(ErrorKind::Unsupported, "this library starts no commands yet"))
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

/// The session's temporary folder and home are a process's only where its root has them.
fn ruleset(tier: Tier, request: &ProfileRequest) -> Result<OwnedFd, PluginError> {
    let mut grants = request.grants.clone();
    if tier == Tier::Sealed {
        let own = [&request.tmp, &request.home];
        grants.extend(own.into_iter().flatten().map(|path| mur_plugin_api::Grant::required(path, request.own)));
    }
    landlock::ruleset(request.process, &grants)
        .map_err(|ungranted| PluginError::io(ungranted.path.display(), &ungranted.error))
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
