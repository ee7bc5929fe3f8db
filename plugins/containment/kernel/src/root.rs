//! The composed root of `sealed`: a tmpfs that holds system folders read only, a small `/dev`, a masked `/proc`, the
//! session's `/tmp` and home, and the granted folders at their own paths. Everything else is absent.
//!
//! Each part is cloned as a detached mount before anything is covered, so a granted folder may lie anywhere, below the
//! directory the root is built on too. It is made in a mount namespace inside the session's user namespace: a further
//! user namespace would not be allowed to mount `/proc`.

mod dev;
mod mount;
mod proc;
mod tmp;

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use mur_plugin_api::{Access, Grant};
use serde::{Deserialize, Serialize};

use crate::entry::Entering;
use crate::namespaces::unshare;
use crate::probe::in_a_child;
use crate::step::{Done, Step, StepError, run};
use mount::Tree;
pub use proc::{MASKED, READ_ONLY};
pub use tmp::{COVER, TmpPlan};

/// Where the root is built: the first of these that is there.
const BASES: [&str; 5] = ["/tmp", "/run", "/var/tmp", "/mnt", "/media"];

/// Host folders that programs need, read only.
pub const SYSTEM: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];

/// Entries of the host's `/etc` that hold nothing about its accounts, read only.
pub const ETC: [&str; 14] = [
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "alternatives",
    "ssl",
    "pki",
    "ca-certificates",
    "ca-certificates.conf",
    "resolv.conf",
    "hosts",
    "nsswitch.conf",
    "localtime",
    "timezone",
    "terminfo",
];

const OLD_ROOT: &str = ".mur-oldroot";

/// What a root is composed of beside the system's folders.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootPlan {
    /// Folders and where they appear, parents before what lies in them.
    pub binds: Vec<Bind>,
    /// The home folder of the one account the root knows.
    #[serde(default, with = "mur_plugin_api::request::optional_path")]
    pub home: Option<PathBuf>,
}

/// A folder of the host in the root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bind {
    /// Where it is on the host.
    #[serde(with = "mur_plugin_api::request::path")]
    pub source: PathBuf,
    /// Where it appears.
    #[serde(with = "mur_plugin_api::request::path")]
    pub target: PathBuf,
    /// Whether it can be changed there.
    pub write: bool,
    /// Its device and inode when the plan was made: another one is refused.
    pub identity: (u64, u64),
}

/// A part of the root, cloned and not yet attached.
#[derive(Debug)]
pub(crate) struct Opened {
    target: PathBuf,
    tree: Part,
}

#[derive(Debug)]
enum Part {
    Tree(Tree),
    Link(PathBuf),
}

impl RootPlan {
    /// The plan of a kind of process: its grants at their own paths, `tmp` as `/tmp`, `home` at its own path. A path that
    /// is not there is left out, unless it is required.
    pub fn new(grants: &[Grant], tmp: Option<&Path>, home: Option<&Path>) -> Result<Self, StepError> {
        let mut binds = Vec::new();
        let folder = |path: &Path| Grant::required(path, Access::Write);
        if let Some(tmp) = tmp {
            binds.extend(Bind::of(&folder(tmp), "/tmp".into())?);
        }
        let own = grants.iter().cloned().chain(home.map(folder));
        for grant in
            own.filter(|grant| (grant.access.writes() && !grant.path.starts_with("/dev")) || !is_common(&grant.path))
        {
            let target = grant.path.clone();
            binds.extend(Bind::of(&grant, target)?);
        }
        in_order(&mut binds);
        Ok(Self { binds, home: home.map(Path::to_owned) })
    }
}

/// Parents before what lies in them, one bind a target, and none that an earlier one shows already.
fn in_order(binds: &mut Vec<Bind>) {
    // Stable: of one target's binds the first is the one asked for first.
    binds.sort_by(|one, other| one.target.components().cmp(other.target.components()));
    binds.dedup_by(|later, first| {
        let same = later.target == first.target;
        first.write |= same && later.write;
        same
    });
    binds.sort_by_key(|bind| bind.target.components().count());
    let mut kept: Vec<Bind> = Vec::with_capacity(binds.len());
    for bind in binds.drain(..) {
        // The nearest one above it: a tree is cloned with whatever lies in it.
        let above = kept.iter().rev().find(|above| bind.target.starts_with(&above.target));
        let below = above.and_then(|above| Some((above, bind.target.strip_prefix(&above.target).ok()?)));
        if !below.is_some_and(|(above, rest)| above.write == bind.write && above.source.join(rest) == bind.source) {
            kept.push(bind);
        }
    }
    *binds = kept;
}

/// What every composed root holds already.
fn is_common(path: &Path) -> bool {
    let etc = || path.strip_prefix("/etc").ok().is_some_and(|rest| ETC.iter().any(|name| rest.starts_with(name)));
    SYSTEM.iter().any(|dir| path.starts_with(dir)) || path.starts_with("/dev") || etc()
}

impl Bind {
    fn of(grant: &Grant, target: PathBuf) -> Result<Option<Self>, StepError> {
        let failed = |error| StepError::new(format!("opening {}", grant.path.display()), error);
        let plain = target.is_absolute() && target.components().all(|part| part != Component::ParentDir);
        if !plain || target == Path::new("/") {
            return Err(failed(io::Error::from_raw_os_error(libc::EINVAL)));
        }
        match fs::metadata(&grant.path) {
            Ok(meta) => Ok(Some(Self {
                source: grant.path.clone(),
                target,
                write: grant.access.writes(),
                identity: grant.identity.unwrap_or((meta.dev(), meta.ino())),
            })),
            Err(_) if !grant.required => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    /// Its tree, which must be the one that was granted.
    fn open(&self) -> Result<Opened, StepError> {
        let at = |error: io::Error| StepError::new(self.source.display().to_string(), error);
        let tree = Tree::clone(&self.source, self.write).map_err(at)?;
        if tree.identity().map_err(at)? != self.identity {
            return Err(at(io::Error::from_raw_os_error(libc::ESTALE)));
        }
        Ok(Opened { target: self.target.clone(), tree: Part::Tree(tree) })
    }
}

const OWN_MOUNTS: Step<Entering<'static>> = Step {
    name: "unshare(CLONE_NEWNS)",
    effect: "mounts made from here on are the process's own",
    run: |_| unshare(libc::CLONE_NEWNS),
};
const PRIVATE_MOUNTS: Step<Entering<'static>> = Step {
    name: "making / MS_REC|MS_PRIVATE",
    effect: "no mount is passed on to the host or from it",
    run: |_| Ok(mount::make_private()?),
};

/// How a root is composed, in order.
pub const COMPOSE: &[Step<Entering<'static>>] = &[
    OWN_MOUNTS,
    PRIVATE_MOUNTS,
    Step { name: "opening what the root is made of", effect: "each folder is the one that was granted", run: open },
    Step {
        name: "mounting the composed root's tmpfs",
        effect: "an empty root",
        run: |_| {
            mount::tmpfs(base()?, libc::MS_NOSUID | libc::MS_NODEV, "mode=0755")?;
            Ok(Done::Enforced)
        },
    },
    Step { name: "making /dev", effect: "a few harmless devices", run: |_| dev::make(base()?) },
    Step {
        name: "mounting /proc",
        effect: "the session's own processes, with the kernel's switches masked and read only",
        run: |_| proc::make(base()?),
    },
    Step { name: "writing /etc", effect: "one account and no name of the host's", run: accounts },
    Step { name: "attaching the folders", effect: "system folders read only, granted ones as granted", run: attach },
    Step {
        name: "creating the old root's parking directory and entering the root",
        effect: "",
        run: |_| {
            let parking = base()?.join(OLD_ROOT);
            fs::DirBuilder::new().mode(0o700).create(&parking)?;
            std::env::set_current_dir(base()?)?;
            Ok(Done::Enforced)
        },
    },
    Step {
        name: "pivot_root(2)",
        effect: "the composed root is the root",
        run: |_| {
            nix::unistd::pivot_root(".", OLD_ROOT)?;
            Ok(Done::Enforced)
        },
    },
    Step {
        name: "detaching the old root",
        effect: "the host's files are out of reach",
        run: |_| {
            std::env::set_current_dir("/")?;
            mount::detach(Path::new(OLD_ROOT))?;
            fs::remove_dir(OLD_ROOT)?;
            Ok(Done::Enforced)
        },
    },
    Step {
        name: "making the root read only",
        effect: "nothing is added to it",
        run: |_| Ok(mount::read_only(Path::new("/"))?),
    },
];

/// Composes the root of a process that stays outside the session's process namespace, where no `/proc` of it could be
/// mounted: a child inside does it, and the root of every process in its mount namespace changes with it.
pub(crate) fn compose_from_outside(on: &mut Entering<'static>) -> Result<Done, StepError> {
    let (unshare, rest) = COMPOSE.split_at(1);
    run(unshare, on)?;
    in_a_child(|| run(rest, on).map(drop))?;
    std::env::set_current_dir("/")?;
    Ok(Done::Enforced)
}

/// Whether every folder of the plan, as a program has attached it, is the one that was granted.
pub(crate) fn verify(on: &mut Entering<'static>) -> Result<Done, StepError> {
    for bind in on.entry.root.iter().flat_map(|plan| &plan.binds) {
        let at = |error: io::Error| StepError::new(bind.source.display().to_string(), error);
        let meta = fs::metadata(&bind.target).map_err(at)?;
        if (meta.dev(), meta.ino()) != bind.identity {
            return Err(at(io::Error::from_raw_os_error(libc::ESTALE)));
        }
    }
    Ok(Done::Enforced)
}

fn base() -> io::Result<&'static Path> {
    let found = BASES.iter().map(Path::new).find(|path| path.is_dir());
    found.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
}

/// Clones every part while the host's files are still where they were.
fn open(on: &mut Entering<'_>) -> Result<Done, StepError> {
    let plan = on.entry.root.as_ref().ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
    let etc = ETC.iter().map(|name| Path::new("/etc").join(name));
    for path in SYSTEM.iter().map(PathBuf::from).chain(etc) {
        let at = |error: io::Error| StepError::new(path.display().to_string(), error);
        let Ok(meta) = fs::symlink_metadata(&path) else { continue };
        // A link of the host's is a link here too: what it leads to is another entry, or absent.
        let tree = if meta.file_type().is_symlink() && path.parent() == Some(Path::new("/")) {
            Part::Link(fs::read_link(&path).map_err(at)?)
        } else if path.exists() {
            Part::Tree(Tree::clone(&path, false).map_err(at)?)
        } else {
            continue;
        };
        on.parts.push(Opened { target: path, tree });
    }
    for bind in &plan.binds {
        on.parts.push(bind.open()?);
    }
    Ok(Done::Enforced)
}

fn attach(on: &mut Entering<'_>) -> Result<Done, StepError> {
    let base = base()?;
    for part in on.parts.drain(..) {
        let at = |error: io::Error| StepError::new(part.target.display().to_string(), error);
        let target = base.join(part.target.strip_prefix("/").unwrap_or(&part.target));
        match &part.tree {
            Part::Link(to) => std::os::unix::fs::symlink(to, &target).map_err(at)?,
            Part::Tree(tree) => {
                place_for(&target, tree.is_directory().map_err(at)?).map_err(at)?;
                tree.attach(&target).map_err(at)?;
            }
        }
    }
    Ok(Done::Enforced)
}

/// Makes what a mount is attached to, where nothing is there yet.
fn place_for(target: &Path, directory: bool) -> io::Result<()> {
    if fs::symlink_metadata(target).is_ok() {
        return Ok(());
    }
    if directory {
        return fs::create_dir_all(target);
    }
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::File::create_new(target).map(drop)
}

/// `/etc/passwd` and `/etc/group` with the one account of this process.
fn accounts(on: &mut Entering<'_>) -> Result<Done, StepError> {
    let (passwd, group) = accounts_of(on.entry.root.as_ref())?;
    let etc = base()?.join("etc");
    fs::create_dir_all(&etc)?;
    fs::write(etc.join("passwd"), passwd)?;
    fs::write(etc.join("group"), group)?;
    Ok(Done::Enforced)
}

/// The text of both files.
pub fn accounts_of(plan: Option<&RootPlan>) -> io::Result<(Vec<u8>, String)> {
    // SAFETY: no arguments.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    let home = plan.and_then(|plan| plan.home.as_deref()).unwrap_or(Path::new("/"));
    // A name may be any bytes but these, which end a field and a line.
    let home = home.as_os_str().as_encoded_bytes();
    if home.contains(&b':') || home.contains(&b'\n') {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let (before, group) = if uid == 0 {
        (format!("root:x:0:{gid}:root:"), format!("root:x:{gid}:\n"))
    } else {
        (
            format!("root:x:0:0:root:/root:/bin/sh\ncapsule:x:{uid}:{gid}:Murmur capsule:"),
            format!("root:x:0:\ncapsule:x:{gid}:\n"),
        )
    };
    Ok(([before.as_bytes(), home, b":/bin/sh\n"].concat(), group))
}
