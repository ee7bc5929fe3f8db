//! The capsule of a launch: a project's manifest or an installed archive, with what flags replace of it.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use mur_plugin_api::{Class, IoHeld, IoStatus};

use super::{Part, Resumed, WorkPlace, bounds, class_of, commands, enclosure, folders};
use crate::artifacts::name::how_to_get;
use crate::artifacts::project::find_root;
use crate::artifacts::store::{Stores, Verified};
use crate::artifacts::{ArtifactName, Digest, Lock, Version};
use crate::config::Config;
use crate::containment::closure::Closure;
use crate::containment::{self, Helper, InForce, Prober, check_floor, check_namespaces, host};
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::ids::{ContextId, SessionId};
use crate::manifest::{self, Acceptance, AfterTask, Capsule, Prompt};
use crate::paths::{MurmurHome, resolve_through_existing, work_folder};
use crate::plugins::Registry;
use crate::session::agent::provided::RESERVED;
use crate::session::context::SystemPrompt;
use crate::session::environment::{self, HostEnvironment};
use crate::session::order::Joined;
use crate::session::request::{Place, RunRequest, Source};

/// Where a manifest came from and what is found relative to it.
pub struct Origin {
    /// The manifest's text.
    pub manifest: Vec<u8>,
    /// Its directory; of an installed capsule the project it runs in.
    pub dir: PathBuf,
    /// The archive of an installed capsule.
    pub archive: Option<Verified>,
    /// The project whose lock binds this launch.
    pub locked_by: Option<PathBuf>,
    /// Whether a lock is written when there is none.
    pub may_lock: bool,
}

/// A capsule that was read, and what was read along with it; `--explain-scope` needs no more.
pub struct Loaded {
    pub(super) session: SessionId,
    pub(super) source: Origin,
    /// The manifest as launched.
    pub capsule: Capsule,
    pub(super) config: Config,
    pub(super) registry: Registry,
    /// Open when the capsule itself came from one.
    pub(super) stores: Option<Stores>,
    pub(super) project: Option<PathBuf>,
    pub(super) host: HostEnvironment,
    /// What has to be warned of so far.
    pub warnings: Vec<Diagnostic>,
    /// The class in force.
    pub in_force: InForce,
    /// Holds the session's enclosure, which is open; none under `unconfined`.
    pub(super) helper: Option<Helper>,
    /// What became of the bound of reading and writing.
    pub io: IoStatus,
    /// The work folder.
    pub place: WorkPlace,
    /// The session that is resumed.
    pub(super) resumed: Option<Resumed>,
}

/// Reads the capsule and makes every check that needs no artifact.
pub fn load(request: &RunRequest, joined: &Joined) -> Result<Loaded> {
    let current = std::env::current_dir()
        .map_err(|error| Diagnostic::new(codes::E_IO_003, format!("the current directory cannot be read: {error}")))?;
    let project = project_of(request, &current);
    let resumed = resumed(request, joined, project.as_deref().unwrap_or(&current))?;
    let variables = match (&project, request.no_env_file) {
        (Some(project), false) => HostEnvironment::with_file_near(project)?,
        _ => HostEnvironment::default(),
    };
    let config = Config::load(&joined.home, &current)?;
    for line in &config.warnings {
        crate::diagnostics::output::stderr_line(line);
    }
    let mut registry = Registry::new(&joined.home, &config.plugins);
    let (source, stores) = match &request.source {
        Source::Manifest(path) => (project_manifest(path, project.as_deref().unwrap_or(&current))?, None),
        Source::Capsule { name, version, sha256, store_root } => {
            let stores = Stores::open(&joined.home, project.as_deref(), &config, &mut registry)?;
            let archive = installed(name, version, sha256.as_deref(), &stores)?;
            let dir = project.as_deref().unwrap_or(&current);
            (installed_manifest(archive, dir, store_root.is_some())?, Some(stores))
        }
    };
    let (mut capsule, mut warnings) = manifest::read_capsule(&source.manifest, manifest::FILE_NAME)?;
    for note in &capsule.notes {
        crate::diagnostics::output::stderr_line(note);
    }
    warnings.extend(manifest::gateway_warnings(&capsule));
    warnings.extend(environment::check_allow(&capsule.capabilities.env.allow, strip(&capsule))?);
    apply_lifecycle(&mut capsule, request)?;
    check_names(&capsule)?;
    check_flags(&capsule, request)?;
    let place = work_place(request, &source.dir)?;
    check_place(&joined.home, request, &place)?;
    let inside = is_inside(&joined.home, place.root());
    // What is refused whatever the host is comes before anything is tried on it.
    if let Some(fault) = folders::faults(&capsule).into_iter().find(|fault| fault.code() == codes::E_CAP_002) {
        return Err(fault);
    }
    bounds::check(&capsule)?;
    let session = SessionId::mint();
    let mut prober = Prober::opening(&registry, enclosure::request(&capsule, &session, place.root())?);
    let in_force = class_of(request, &capsule, config.containment, inside, &mut prober)
        .map_err(|fault| bounds::named(fault, &capsule.capabilities.resources))?;
    check_name(&joined.home, &place, in_force.class)?;
    let helper = prober.into_opened();
    let io = match &helper {
        Some(helper) => helper.io_status().map_err(|why| Diagnostic::new(codes::E_RUN_066, why))?,
        None => IoStatus { status: not_bounded(&capsule, &in_force), reason: None },
    };
    if !request.explain_scope {
        check_floor(&in_force)?;
    }
    warnings.extend(commands::check(&capsule, in_force.declared, in_force.class, &search_path())?);
    if capsule.starts_processes() && !request.explain_scope {
        check_namespaces(&in_force)?;
    }
    warnings.extend(folders::check(&capsule)?);
    warnings.extend(containment::warnings(&in_force));
    warnings.extend(not_bounded_warning(&io).filter(|_| capsule.grants_commands()));
    warnings.extend(host::warning_once());
    if inside {
        warnings.push(Diagnostic::new(
            codes::W_SEC_033,
            format!(
                "the work folder {} holds ~/.murmur, so what runs in it can change the records of sessions",
                place.root().display()
            ),
        ));
    }
    Ok(Loaded {
        session,
        source,
        capsule,
        config,
        registry,
        stores,
        project,
        host: variables,
        warnings,
        in_force,
        helper,
        io,
        place,
        resumed,
    })
}

/// Why there is no bound of reading and writing in a session without an enclosure.
fn not_bounded(capsule: &Capsule, in_force: &InForce) -> IoHeld {
    match in_force.class == Class::Unconfined || !capsule.starts_processes() {
        true => IoHeld::NotRequired,
        false => IoHeld::NotProbed,
    }
}

/// `W-SEC-021`.
fn not_bounded_warning(io: &IoStatus) -> Option<Diagnostic> {
    (io.status == IoHeld::Unavailable).then(|| {
        let why = io.reason.as_deref().unwrap_or("this host cannot bound it");
        Diagnostic::new(
            codes::W_SEC_021,
            format!("capabilities.resources.cgroup_io_bytes_per_sec is not applied: {why}"),
        )
        .hint("the other bounds hold; use a work folder on a disk whose controller is delegated, or ignore this")
    })
}

/// Where programs are found.
pub(super) fn search_path() -> std::ffi::OsString {
    std::env::var_os("PATH").unwrap_or_default()
}

impl Loaded {
    /// What the capsule's commands would use of the host, said line by line where an interpreter does not tell. Asks
    /// interpreters, so it blocks; nothing without a grant of commands.
    pub fn closure(&self, home: &MurmurHome) -> Option<Closure> {
        let granted = &self.capsule.capabilities;
        let shell = granted.shell.as_ref()?;
        // Programs a session could have written are not run to ask them.
        let writable = [self.place.root().clone(), home.records(), home.state()];
        let closure = Closure::derive(shell, &search_path(), &writable, !granted.network.allow.is_empty());
        for note in &closure.notes {
            crate::diagnostics::output::stderr_line(note);
        }
        Some(closure)
    }
}

/// The session `--resume` names, by the records of the workdir root this launch will have.
fn resumed(request: &RunRequest, joined: &Joined, dir: &Path) -> Result<Option<Resumed>> {
    let Some(resume) = &request.resume else { return Ok(None) };
    if request.context.is_some() {
        return Err(Diagnostic::new(codes::E_RUN_015, "--resume names a context itself, so --context cannot be given")
            .hint("pass one of the two"));
    }
    let root = match &request.place {
        Some(place) => place.dir.clone(),
        None => dir.join("workdir"),
    };
    Resumed::find(&joined.home, resume, &root).map(Some)
}

/// The project stores, lock and `.env` are resolved from.
fn project_of(request: &RunRequest, current: &Path) -> Option<PathBuf> {
    match &request.source {
        Source::Manifest(path) => {
            let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
            Some(resolve_through_existing(dir))
        }
        Source::Capsule { store_root: Some(root), .. } => Some(resolve_through_existing(root)),
        Source::Capsule { store_root: None, .. } => find_root(current),
    }
}

fn project_manifest(path: &Path, dir: &Path) -> Result<Origin> {
    let manifest = manifest::read_file(path)?;
    Ok(Origin { manifest, archive: None, locked_by: Some(dir.to_path_buf()), dir: dir.to_path_buf(), may_lock: true })
}

/// `bound`: the project's lock binds the capsule's own dependencies, as for a formation's member.
fn installed_manifest(archive: Verified, dir: &Path, bound: bool) -> Result<Origin> {
    let text = archive.archive.manifest_text().map_err(|error| error.diagnostic(&archive.reference()))?;
    Ok(Origin {
        manifest: text.into_bytes(),
        archive: Some(archive),
        dir: dir.to_path_buf(),
        locked_by: bound.then(|| dir.to_path_buf()),
        may_lock: false,
    })
}

/// The archive of an installed capsule, its bytes compared with what admission bound.
fn installed(name: &str, version: &str, sha256: Option<&str>, stores: &Stores) -> Result<Verified> {
    let name = ArtifactName::parse_argument(name)?;
    let version = Version::parse(version).map_err(|fault| fault.diagnostic())?;
    let found = stores.find(&name, &version)?.ok_or_else(|| {
        Diagnostic::new(
            codes::E_RUN_008,
            format!(
                "missing artifacts: {name}@{version} (looked in {}{})",
                stores.searched(&name),
                stores.others(&name)
            ),
        )
        .hint(format!("correct the name or --capsule-version, or {}", how_to_get(&name, &version)))
    })?;
    let verified = stores.read(&found)?;
    if let Some(text) = sha256 {
        let bound = Digest::parse(text)
            .ok_or_else(|| Diagnostic::new(codes::E_IO_003, format!("--capsule-sha256: '{text}' is not a SHA-256")))?;
        if bound != verified.sha256 {
            return Err(Diagnostic::new(
                codes::E_RUN_047,
                format!(
                    "{name}@{version} changed since admission: it was bound to {bound}, and is now {}",
                    verified.sha256
                ),
            )
            .hint("launch the formation again"));
        }
    }
    Ok(verified)
}

pub(super) fn strip(capsule: &Capsule) -> &[String] {
    capsule.capabilities.shell.as_ref().map(|shell| shell.strip_env.as_slice()).unwrap_or_default()
}

/// The two keys a launch may replace.
fn apply_lifecycle(capsule: &mut Capsule, request: &RunRequest) -> Result<()> {
    let bad = |flag: &str, text: &str, expected: &str| {
        Diagnostic::new(codes::E_IO_003, format!("{flag}: '{text}' is none of {expected}"))
    };
    if let Some(text) = &request.task_acceptance {
        capsule.lifecycle.task_acceptance =
            Acceptance::parse(text).ok_or_else(|| bad("--lifecycle-task-acceptance", text, "none, single, queue"))?;
    }
    if let Some(text) = &request.after_task {
        capsule.lifecycle.after_task =
            AfterTask::parse(text).ok_or_else(|| bad("--lifecycle-after-task", text, "exit, sleep"))?;
    }
    if capsule.lifecycle.task_acceptance == Acceptance::Queue && capsule.lifecycle.queue_depth == 0 {
        return Err(Diagnostic::new(
            codes::E_MAN_003,
            "murmur.yaml: invalid lifecycle config for 'lifecycle.queue_depth': 0 holds no waiting task, and \
             task_acceptance is queue",
        )
        .hint("set lifecycle.queue_depth to 1 or more"));
    }
    Ok(())
}

/// No tool name twice, none the runtime answers itself.
pub(super) fn check_names(capsule: &Capsule) -> Result<()> {
    for (index, entry) in capsule.artifacts.iter().enumerate() {
        let bare = entry.bare();
        if RESERVED.contains(&bare) {
            return Err(Diagnostic::new(
                codes::E_CAP_013,
                format!("artifact '{}' would be called '{bare}', which the runtime answers itself", entry.name),
            )
            .hint(format!("rename or drop it; reserved are {}", RESERVED.join(", "))));
        }
        if let Some(other) = capsule.artifacts[..index].iter().find(|other| other.bare() == bare) {
            return Err(Diagnostic::new(
                codes::E_CAP_020,
                format!("'{}' and '{}' would both be called '{bare}'", other.name, entry.name),
            )
            .hint("declare one of them"));
        }
    }
    Ok(())
}

/// The record's folder is one path segment.
pub(super) fn check_record_store(capsule: &Capsule) -> Result<()> {
    match &capsule.context.record_store {
        Some(store) if ContextId::parse(store).is_none() => {
            Err(Diagnostic::new(codes::E_CAP_011, format!("context.record_store: '{store}' is not one path segment"))
                .hint("leave it out, or name a folder: no '/', no leading '.', not empty"))
        }
        _ => Ok(()),
    }
}

/// Flags that need an agent capsule, or a certain form.
fn check_flags(capsule: &Capsule, request: &RunRequest) -> Result<()> {
    if let Some(context) = &request.context
        && ContextId::parse(context).is_none()
    {
        return Err(Diagnostic::new(codes::E_CAP_011, format!("--context: '{context}' is not one path segment"))
            .hint("a context id holds no '/', does not begin with '.', and is not empty"));
    }
    check_record_store(capsule)?;
    if request.forget_session {
        return Err(Diagnostic::new(
            codes::E_RUN_039,
            "--forget-session is of use only under inference.transport: process",
        )
        .hint("leave it out"));
    }
    if capsule.inference.is_none() {
        for (flag, given) in
            [("--system-prompt", request.system_prompt.is_some()), ("--deadline", request.deadline.is_some())]
        {
            if given {
                return Err(Diagnostic::new(
                    codes::E_IO_003,
                    format!("{flag} needs a capsule with an inference: block"),
                ));
            }
        }
    }
    Ok(())
}

fn work_place(request: &RunRequest, dir: &Path) -> Result<WorkPlace> {
    let Some(Place { dir: given, identity }) = &request.place else {
        return Ok(WorkPlace::Under(resolve_through_existing(&dir.join("workdir"))));
    };
    let refused = |why: &str| {
        Diagnostic::new(codes::E_IO_003, format!("--workdir: '{}' {why}", given.display()))
            .hint("name a directory that is there")
    };
    let resolved = fs::canonicalize(given).map_err(|error| refused(&format!("cannot be used: {error}")))?;
    let meta = fs::metadata(&resolved).map_err(|error| refused(&format!("cannot be used: {error}")))?;
    if !meta.is_dir() {
        return Err(refused("is not a directory"));
    }
    if let Some(expected) = identity {
        let found = format!("{}:{}", meta.dev(), meta.ino());
        if found != *expected {
            return Err(Diagnostic::new(
                codes::E_RUN_051,
                format!("--workdir: '{}' is {found}, and {expected} was meant", given.display()),
            )
            .hint("nothing was written"));
        }
    }
    Ok(WorkPlace::Given(resolved))
}

/// Nobody works where the host, the kernel or `mur` keeps its own.
fn check_place(home: &MurmurHome, request: &RunRequest, place: &WorkPlace) -> Result<()> {
    let named = match &request.place {
        Some(Place { dir, .. }) => format!("--workdir: '{}'", dir.display()),
        None => format!("'{}', where this launch would make its work folder,", place.root().display()),
    };
    work_folder::check(home, place.root(), &named)
}

/// The composed root names the session's home folder, whose path holds the work folder's, in a file of accounts.
fn check_name(home: &MurmurHome, place: &WorkPlace, class: Class) -> Result<()> {
    let group = home.records_group(place.root());
    let bytes = group.as_os_str().as_encoded_bytes();
    if class != Class::Sealed || !(bytes.contains(&b':') || bytes.contains(&b'\n')) {
        return Ok(());
    }
    Err(Diagnostic::new(
        codes::E_IO_003,
        format!(
            "'{}' cannot be a work folder under class 'sealed': its path, or that of ~/.murmur, holds a ':' or the end of a \
             line, which separate what /etc/passwd says of the session's account",
            place.root().display()
        ),
    )
    .hint("name it otherwise, or declare a floor below 'sealed'; nothing was written"))
}

/// Whether the work folder holds the runtime's own records or session directories.
fn is_inside(home: &MurmurHome, root: &Path) -> bool {
    [home.sessions(), home.records()].iter().any(|dir| resolve_through_existing(dir).starts_with(root))
}

impl Origin {
    /// The lock that binds the launch.
    pub fn lock(&self) -> Result<Option<Lock>> {
        self.locked_by.as_deref().map(Lock::read).transpose().map(Option::flatten)
    }

    /// The prompt of the launch.
    pub fn prompt(&self, capsule: &Capsule, request: &RunRequest, parts: &[Part]) -> Result<SystemPrompt> {
        if let Some(text) = &request.system_prompt {
            let text = text.trim();
            return Ok(SystemPrompt { text: (!text.is_empty()).then(|| text.to_owned()), from_cli: true });
        }
        let prompt = capsule.inference.as_ref().map(|inference| &inference.system_prompt);
        let text = match prompt {
            None | Some(Prompt::None) => None,
            Some(Prompt::Inline(text)) => Some(text.clone()),
            Some(Prompt::File(path)) => Some(self.prompt_file("inference", path)?),
            Some(Prompt::Artifact(name)) => Some(prompt_artifact(name, parts)?),
        };
        Ok(SystemPrompt { text, from_cli: false })
    }

    /// The prompt of a compaction; `None` leaves it to the hook.
    pub fn compaction_prompt(&self, capsule: &Capsule) -> Result<Option<String>> {
        match capsule.inference.as_ref().map(|inference| &inference.compaction.system_prompt) {
            Some(Prompt::Inline(text)) => Ok(Some(text.clone())),
            Some(Prompt::File(path)) => self.prompt_file("inference.compaction", path).map(Some),
            // The manifest's reader takes no artifact here.
            Some(Prompt::None | Prompt::Artifact(_)) | None => Ok(None),
        }
    }

    fn prompt_file(&self, block: &str, path: &str) -> Result<String> {
        let refused = |why: &dyn std::fmt::Display| {
            Diagnostic::new(codes::E_RUN_009, format!("{block}.system_prompt_file '{path}' cannot be read: {why}"))
                .hint("the path is relative to the manifest; pack the file with requires_files")
        };
        let bytes = match &self.archive {
            Some(verified) => {
                let name: PathBuf = Path::new(path).components().filter(|part| *part != Component::CurDir).collect();
                let read = verified.archive.read(&name.to_string_lossy()).map_err(|error| refused(&error))?;
                read.ok_or_else(|| refused(&"it is not in the archive"))?.to_vec()
            }
            None => fs::read(self.dir.join(path)).map_err(|error| refused(&error))?,
        };
        String::from_utf8(bytes).map_err(|_| refused(&"it is not UTF-8"))
    }
}

fn prompt_artifact(name: &str, parts: &[Part]) -> Result<String> {
    let part = parts.iter().find(|part| part.entry.name == name || part.entry.bare() == name);
    part.and_then(|part| part.skill.clone()).ok_or_else(|| {
        Diagnostic::new(codes::E_RUN_009, format!("inference.system_prompt_artifact '{name}' holds no skill text"))
            .hint("declare the skill in artifacts: with prompt_payload: true")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_work_folder_is_resolved_and_its_identity_compared() {
        let dir = tempfile::tempdir().unwrap();
        let real = fs::canonicalize(dir.path()).unwrap();
        let link = real.join("link");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let meta = fs::metadata(&real).unwrap();
        let mut request = crate::session::request::testing::request();
        request.place = Some(Place { dir: link, identity: Some(format!("{}:{}", meta.dev(), meta.ino())) });
        assert_eq!(work_place(&request, &real).unwrap(), WorkPlace::Given(real.clone()));
        request.place = Some(Place { dir: real.clone(), identity: Some("1:1".into()) });
        assert_eq!(work_place(&request, &real).unwrap_err().code(), codes::E_RUN_051);
        request.place = Some(Place { dir: real.join("none"), identity: None });
        assert_eq!(work_place(&request, &real).unwrap_err().code(), codes::E_IO_003);
        request.place = None;
        assert_eq!(work_place(&request, &real).unwrap(), WorkPlace::Under(real.join("workdir")));
    }
}
