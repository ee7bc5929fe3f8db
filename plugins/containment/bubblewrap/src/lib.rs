//! Containment class `sealed` with an installed `bwrap`: it composes the root of each command and makes its process
//! namespace. Everything else (the session's namespaces and scope, Landlock, filter, limits) is the kernel classes' own, and
//! so is the root of workers, which never execute a program.

mod arguments;
mod trial;

use std::path::PathBuf;
use std::time::Duration;

use mur_containment_kernel::enclosure::{self, unreadable};
use mur_containment_kernel::wrapped::{Side, given, text};
use mur_containment_kernel::{KernelEnclosure, Tier, probe};
use mur_plugin_api::{
    About, BackendInfo, ContainmentBackend, Enclosure, EnclosureBounds, ErrorKind, HostReport, PluginError,
    ProcessKind, Profile, ProfileRequest, Shortfall, Spawned, Usage, export_plugin,
};
use std::os::fd::{AsRawFd, OwnedFd};

/// Where `bwrap` is looked for; the environment names no folder here.
const PLACES: [&str; 3] = ["/usr/bin/bwrap", "/bin/bwrap", "/usr/local/bin/bwrap"];

/// The program, where it can be executed.
fn installed() -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let runs = |path: &PathBuf| {
        std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    PLACES.iter().map(PathBuf::from).find(runs)
}

struct Bubblewrap;

impl ContainmentBackend for Bubblewrap {
    const ABOUT: About = About {
        summary: "class sealed with an installed bubblewrap, which composes the root of commands",
        vendor: "murmur",
        config_schema: r#"{"type":"object","additionalProperties":false,"examples":[{}]}"#,
    };
    type Enclosure = Wrapping;

    fn new(_config: &str) -> Result<Self, PluginError> {
        Ok(Self)
    }

    fn info(&self) -> BackendInfo {
        BackendInfo {
            class: Tier::Sealed.class().as_str().into(),
            mechanism: "bubblewrap+landlock+seccomp".into(),
            needs: "all that sealed needs, and an installed bwrap (Debian package bubblewrap)".into(),
        }
    }

    fn probe(&self) -> Result<HostReport, PluginError> {
        let mut report = probe(Tier::Sealed);
        if report.class.is_none() {
            report.class = shortfall(installed()).into();
        }
        Ok(report)
    }

    fn open(&self, request: &[u8]) -> Result<Wrapping, PluginError> {
        let program = installed().ok_or_else(|| {
            PluginError::new(
                ErrorKind::Failed,
                "executing bwrap failed: it is not installed; apt-get install bubblewrap",
            )
        })?;
        let kernel = KernelEnclosure::open(Tier::Sealed, request)?;
        trial::of(&kernel, &program)
            .map_err(|why| PluginError::new(ErrorKind::Failed, format!("a trial of bwrap failed: {why}")))?;
        Ok(Wrapping { kernel, program, texts: Vec::new() })
    }

    fn enter(request: &[u8], fds: &[i32]) -> Result<(), PluginError> {
        match serde_json::from_slice::<Side>(request) {
            Ok(side) => side.enter(fds),
            Err(_) => enclosure::enter(Tier::Sealed, request, fds),
        }
    }
}

/// Why the program cannot be used here.
fn shortfall(program: Option<PathBuf>) -> Option<Shortfall> {
    let Some(program) = program else {
        return Some(Shortfall {
            blocker: "bubblewrap_missing".into(),
            step: "executing bwrap".into(),
            errno: 2,
            cause:
                "The backend of class sealed that the configuration names drives bubblewrap, which is not installed."
                    .into(),
            remedy: "install it: apt-get install bubblewrap".into(),
        });
    };
    // What the trial enclosure itself lacks is told by the probe of namespaces and scope.
    let kernel = KernelEnclosure::open(Tier::Sealed, &trial::request()).ok()?;
    let why = trial::of(&kernel, &program).err()?;
    Some(Shortfall {
        blocker: "bubblewrap_refused".into(),
        step: "a trial of bwrap".into(),
        errno: 0,
        cause: format!("{} cannot compose a root here; it said: {why}.", program.display()).into(),
        remedy: "remove plugins.containment.sealed from ~/.murmur/config.yaml: sealed needs no bubblewrap then".into(),
    })
}

/// A session's enclosure, whose commands the host starts by `bwrap`.
struct Wrapping {
    kernel: KernelEnclosure,
    program: PathBuf,
    /// Texts the last command's arguments name by number, until they were inherited.
    texts: Vec<OwnedFd>,
}

impl Enclosure for Wrapping {
    fn prepare(&mut self, request: &[u8]) -> Result<Profile, PluginError> {
        let asked: ProfileRequest = serde_json::from_slice(request).map_err(|error| unreadable(&error))?;
        if asked.process != ProcessKind::Command {
            return self.kernel.prepare(request);
        }
        let (entry, fds) = self.kernel.prepare_wrapped(&asked)?;
        Ok(Profile {
            request: encoded(&Side::Inside(entry))?.into(),
            fds: given(fds).into(),
            tmp_mapped: asked.tmp.is_some(),
        })
    }

    fn spawn(&mut self, profile: &Profile, _command: &[u8], _fds: [i32; 4]) -> Result<Spawned, PluginError> {
        // Says whether the enclosure is still there.
        self.kernel.watched()?;
        let side = serde_json::from_slice(&profile.request).map_err(|error| unreadable(&error))?;
        let Side::Inside(entry) = side else {
            return Err(PluginError::new(ErrorKind::Invalid, "the profile is none of this enclosure's commands"));
        };
        let plan = entry.root.clone().unwrap_or_default();
        let made = mur_containment_kernel::root::accounts_of(Some(&plan))
            .and_then(|(passwd, group)| Ok([text(&passwd)?, text(group.as_bytes())?]));
        let texts = made.map_err(|error| PluginError::io("the accounts of a root", &error))?;
        let numbers = [texts[0].as_raw_fd(), texts[1].as_raw_fd()];
        self.texts = texts.into();
        Ok(Spawned {
            wrap: arguments::of(&self.program, &plan, numbers).into_iter().map(Into::into).collect::<Vec<_>>().into(),
            outside: encoded(&Side::Outside(entry))?.into(),
            ..Spawned::default()
        })
    }

    fn watched(&mut self) -> Result<Vec<i32>, PluginError> {
        self.kernel.watched()
    }

    fn bounds(&mut self) -> Result<EnclosureBounds, PluginError> {
        self.kernel.bounds()
    }

    fn network(&mut self) -> Result<Vec<i32>, PluginError> {
        self.kernel.network()
    }

    fn usage(&mut self) -> Result<Usage, PluginError> {
        self.kernel.usage()
    }

    fn report(&mut self) -> Result<HostReport, PluginError> {
        self.kernel.report()
    }

    fn close(&mut self, within: Duration) -> Result<(), PluginError> {
        self.texts.clear();
        self.kernel.close(within)
    }
}

fn encoded(side: &Side) -> Result<Vec<u8>, PluginError> {
    serde_json::to_vec(side).map_err(|error| PluginError::new(ErrorKind::Failed, format!("the profile: {error}")))
}

export_plugin!(containment "bubblewrap", env!("CARGO_PKG_VERSION"), Bubblewrap, class Sealed);
