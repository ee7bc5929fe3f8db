//! Containment classes: the traits an author implements, their tables of functions, and the objects the host calls.
//!
//! A backend serves one class. `mur` says *what* (folders and rights, limits, whether there is network) as one JSON
//! request; the backend decides *how*. `enter` confines the calling process for good and is all that a worker needs;
//! `open` makes what a whole session shares and runs in `mur __enclosure`.

use std::marker::PhantomData;
use std::time::Duration;

use abi_stable::StableAbi;
use abi_stable::prefix_type::WithMetadata;
use abi_stable::staticref;
use abi_stable::std_types::{ROption, RResult, RSlice, RStr, RString, RVec};

use crate::error::{ErrorKind, PluginError, guarded};
use crate::module::{About, Handle, Named, PluginDescription, root_module};
use crate::request::EnclosureBounds;

/// What a backend says of itself.
#[derive(Clone, Debug, PartialEq, Eq, StableAbi)]
#[repr(C)]
pub struct BackendInfo {
    /// The class it serves, as a word.
    pub class: RString,
    /// What it holds with, as `enforcement_tier` shows it.
    pub mechanism: RString,
    /// What it needs of the host, one line.
    pub needs: RString,
}

/// Why something cannot be had on this host: the step that failed, and the one thing to do about it.
#[derive(Clone, Debug, Default, PartialEq, Eq, StableAbi)]
#[repr(C)]
pub struct Shortfall {
    /// A word for the cause, for records and machines.
    pub blocker: RString,
    /// The step that failed.
    pub step: RString,
    /// Its error number; 0 when there is none.
    pub errno: i32,
    /// What it means, one sentence.
    pub cause: RString,
    /// One remedy.
    pub remedy: RString,
}

/// What a host can back, found by trying.
#[derive(Clone, Debug, PartialEq, Eq, StableAbi)]
#[repr(C)]
pub struct HostReport {
    /// Why the class cannot be had here.
    pub class: ROption<Shortfall>,
    /// Why a session cannot have namespaces of its own here; a capsule whose processes need them is refused.
    pub namespaces: ROption<Shortfall>,
    /// Why a session cannot have a cgroup scope here; likewise.
    pub scope: ROption<Shortfall>,
    /// Readings worth recording, as one JSON object.
    pub readings: RString,
}

impl HostReport {
    /// A host that backs the class and whatever a session needs for it.
    pub fn backed() -> Self {
        Self { class: ROption::RNone, namespaces: ROption::RNone, scope: ROption::RNone, readings: "{}".into() }
    }

    /// Whatever is short.
    pub fn shortfalls(&self) -> impl Iterator<Item = &Shortfall> {
        [&self.class, &self.namespaces, &self.scope].into_iter().filter_map(|short| short.as_ref().into_option())
    }

    /// Whether the class can be had here.
    pub fn is_backed(&self) -> bool {
        self.class.is_none()
    }
}

/// Resources used by what an enclosure holds, so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, StableAbi)]
#[repr(C)]
pub struct Usage {
    /// Bytes of memory in use.
    pub memory: u64,
    /// Processor time, in nanoseconds.
    pub cpu_nanos: u64,
    /// Processes alive.
    pub pids: u64,
}

/// What one kind of process is confined with, made ahead by [`Enclosure::prepare`].
#[derive(Clone, Debug, Default, PartialEq, Eq, StableAbi)]
#[repr(C)]
pub struct Profile {
    /// Handed to `enter` as its request.
    pub request: RVec<u8>,
    /// Descriptors handed to `enter`, owned by the receiver.
    pub fds: RVec<i32>,
    /// Whether `/tmp` is the session's folder for temporary files for what enters.
    pub tmp_mapped: bool,
}

/// A command an enclosure started, or how to start it.
#[derive(Clone, Debug, Default, PartialEq, Eq, StableAbi)]
#[repr(C)]
pub struct Spawned {
    /// The command's process number, as the host counts; 0 when nothing was started.
    pub pid: i32,
    /// Why the program could not be executed, or its folder not be entered: an error number, 0 when it was.
    pub errno: i32,
    /// For a backend that is a program: what goes before `mur __enter` and the command, which the host then starts with
    /// the profile's descriptors. The backend itself has started nothing.
    pub wrap: RVec<RVec<u8>>,
    /// With [`Spawned::wrap`]: the request that the forked process hands to `enter`, with the profile's descriptors, before
    /// it becomes the program. What `mur __enter` enters afterwards is the profile's own request.
    pub outside: RVec<u8>,
}

/// Serves one containment class.
pub trait ContainmentBackend: Send + Sized + 'static {
    /// About the plugin.
    const ABOUT: About;
    /// What [`ContainmentBackend::open`] makes; [`NoEnclosure`] for a class that shares nothing in a session.
    type Enclosure: Enclosure;

    /// Makes the backend; `config` is one JSON object.
    fn new(config: &str) -> Result<Self, PluginError>;

    /// The class, its mechanism, what it needs.
    fn info(&self) -> BackendInfo;

    /// Tries what the class needs on this host, without leaving a trace in this process.
    fn probe(&self) -> Result<HostReport, PluginError>;

    /// Makes what a session shares; the request is an [`EnclosureRequest`](crate::EnclosureRequest) as JSON.
    fn open(&self, request: &[u8]) -> Result<Self::Enclosure, PluginError>;

    /// Confines the calling, single-threaded process for good, or fails: nothing runs half confined. May return in a forked
    /// child. Request and descriptors are a [`Profile`]'s; the descriptors belong to the caller.
    fn enter(request: &[u8], fds: &[i32]) -> Result<(), PluginError>;
}

/// What a session shares: namespaces, scope, root.
pub trait Enclosure: Send + Sized + 'static {
    /// Makes ready what one kind of process is confined with; the request is a [`ProfileRequest`](crate::ProfileRequest)
    /// as JSON.
    fn prepare(&mut self, request: &[u8]) -> Result<Profile, PluginError>;
    /// Starts a command, a [`CommandRequest`](crate::CommandRequest) as JSON, or says how. The first three descriptors are
    /// its standard streams; the fourth is one end of a `SOCK_SEQPACKET` connection whose other end the session holds, for
    /// as long as it has an interest in the command. All four are the caller's.
    ///
    /// The command leads a process group of its own. A message of four bytes on the connection, a signal's number in the
    /// machine's order, is a signal for that group. When the command has ended, one message of eight bytes is sent: 0 and
    /// an exit status, or 1 and a signal's number. Until the session's end of the connection is closed the command is not
    /// reaped, so that its group's number stays its own. An error of kind [`ErrorKind::Missing`] says that the enclosure has
    /// ended or is closed; any other, that a step of the confinement failed, in words that begin with the step's name.
    fn spawn(&mut self, profile: &Profile, command: &[u8], fds: [i32; 4]) -> Result<Spawned, PluginError>;
    /// Descriptors of the enclosure's own that become readable when it is lost and has to be closed. They may differ after
    /// each call of another function.
    fn watched(&mut self) -> Result<Vec<i32>, PluginError> {
        Ok(Vec::new())
    }
    /// What became of its bounds.
    fn bounds(&mut self) -> Result<EnclosureBounds, PluginError> {
        Ok(EnclosureBounds::default())
    }
    /// Listening sockets inside the session's network namespace, owned by the receiver; none when it has no network.
    fn network(&mut self) -> Result<Vec<i32>, PluginError>;
    /// Resources used so far.
    fn usage(&mut self) -> Result<Usage, PluginError>;
    /// Kills everything inside and removes what was made. May be called again.
    fn close(&mut self, within: Duration) -> Result<(), PluginError>;
    /// What was seen of the host while the enclosure was made; that it was made says that the class can be had. Readings
    /// as of a probe.
    fn report(&mut self) -> Result<HostReport, PluginError> {
        Ok(HostReport::backed())
    }
}

/// For a class that shares nothing in a session: `enter` gets the profile's request as it is, and commands are refused.
#[derive(Debug)]
pub struct NoEnclosure;

impl Enclosure for NoEnclosure {
    fn prepare(&mut self, request: &[u8]) -> Result<Profile, PluginError> {
        Ok(Profile { request: request.to_vec().into(), ..Profile::default() })
    }

    fn spawn(&mut self, _profile: &Profile, _command: &[u8], _fds: [i32; 4]) -> Result<Spawned, PluginError> {
        Err(PluginError::new(ErrorKind::Unsupported, "this class makes no enclosure"))
    }

    fn network(&mut self) -> Result<Vec<i32>, PluginError> {
        Ok(Vec::new())
    }

    fn usage(&mut self) -> Result<Usage, PluginError> {
        Ok(Usage::default())
    }

    fn close(&mut self, _within: Duration) -> Result<(), PluginError> {
        Ok(())
    }
}

/// The functions of a backend object.
#[derive(StableAbi)]
#[repr(C)]
#[sabi(kind(Prefix(prefix_ref = BackendVtableRef)))]
#[sabi(missing_field(panic))]
pub struct BackendVtable {
    drop: unsafe extern "C" fn(Handle),
    info: unsafe extern "C" fn(Handle) -> RResult<BackendInfo, PluginError>,
    probe: unsafe extern "C" fn(Handle) -> RResult<HostReport, PluginError>,
    #[sabi(last_prefix_field)]
    open: unsafe extern "C" fn(Handle, RSlice<'_, u8>) -> RResult<EnclosureObject, PluginError>,
}

/// The functions of an enclosure object.
#[derive(StableAbi)]
#[repr(C)]
#[sabi(kind(Prefix(prefix_ref = EnclosureVtableRef)))]
#[sabi(missing_field(panic))]
pub struct EnclosureVtable {
    drop: unsafe extern "C" fn(Handle),
    prepare: unsafe extern "C" fn(Handle, RSlice<'_, u8>) -> RResult<Profile, PluginError>,
    spawn: unsafe extern "C" fn(Handle, &Profile, RSlice<'_, u8>, &[i32; 4]) -> RResult<Spawned, PluginError>,
    network: unsafe extern "C" fn(Handle) -> RResult<RVec<i32>, PluginError>,
    usage: unsafe extern "C" fn(Handle) -> RResult<Usage, PluginError>,
    close: unsafe extern "C" fn(Handle, u64) -> RResult<(), PluginError>,
    /// Absent in a plugin built before it was added.
    #[sabi(missing_field(option))]
    report: unsafe extern "C" fn(Handle) -> RResult<HostReport, PluginError>,
    #[sabi(missing_field(panic))]
    watched: unsafe extern "C" fn(Handle) -> RResult<RVec<i32>, PluginError>,
    #[sabi(missing_field(panic))]
    bounds: unsafe extern "C" fn(Handle) -> RResult<RString, PluginError>,
}

struct BackendOf<T>(PhantomData<T>);

impl<T: ContainmentBackend> BackendOf<T> {
    staticref!(const TABLE: WithMetadata<BackendVtable> = WithMetadata::new(BackendVtable {
        drop: Self::drop,
        info: Self::info,
        probe: Self::probe,
        open: Self::open,
    }));

    // SAFETY of all of these: a BackendObject calls them through `&mut self` with the handle made beside this table from a
    // T, which is Send and is dropped once, with the object.

    unsafe extern "C" fn drop(handle: Handle) {
        let _ = guarded(|| {
            // SAFETY: see above.
            unsafe { handle.drop_as::<T>() };
            Ok(())
        });
    }

    unsafe extern "C" fn info(handle: Handle) -> RResult<BackendInfo, PluginError> {
        // SAFETY: see above.
        guarded(|| Ok(unsafe { handle.get::<T>() }.info()))
    }

    unsafe extern "C" fn probe(handle: Handle) -> RResult<HostReport, PluginError> {
        // SAFETY: see above.
        guarded(|| unsafe { handle.get::<T>() }.probe())
    }

    unsafe extern "C" fn open(handle: Handle, request: RSlice<'_, u8>) -> RResult<EnclosureObject, PluginError> {
        // SAFETY: see above.
        guarded(|| unsafe { handle.get::<T>() }.open(request.as_slice()).map(EnclosureObject::new))
    }
}

struct EnclosureOf<T>(PhantomData<T>);

impl<T: Enclosure> EnclosureOf<T> {
    staticref!(const TABLE: WithMetadata<EnclosureVtable> = WithMetadata::new(EnclosureVtable {
        drop: Self::drop,
        prepare: Self::prepare,
        spawn: Self::spawn,
        network: Self::network,
        usage: Self::usage,
        close: Self::close,
        watched: Self::watched,
        bounds: Self::bounds,
        report: Self::report,
    }));

    // SAFETY of all of these: as for BackendOf.

    unsafe extern "C" fn drop(handle: Handle) {
        let _ = guarded(|| {
            // SAFETY: see above.
            unsafe { handle.drop_as::<T>() };
            Ok(())
        });
    }

    unsafe extern "C" fn prepare(handle: Handle, request: RSlice<'_, u8>) -> RResult<Profile, PluginError> {
        // SAFETY: see above.
        guarded(|| unsafe { handle.get_mut::<T>() }.prepare(request.as_slice()))
    }

    unsafe extern "C" fn spawn(
        handle: Handle,
        profile: &Profile,
        command: RSlice<'_, u8>,
        fds: &[i32; 4],
    ) -> RResult<Spawned, PluginError> {
        // SAFETY: see above.
        guarded(|| unsafe { handle.get_mut::<T>() }.spawn(profile, command.as_slice(), *fds))
    }

    unsafe extern "C" fn network(handle: Handle) -> RResult<RVec<i32>, PluginError> {
        // SAFETY: see above.
        guarded(|| Ok(unsafe { handle.get_mut::<T>() }.network()?.into()))
    }

    unsafe extern "C" fn usage(handle: Handle) -> RResult<Usage, PluginError> {
        // SAFETY: see above.
        guarded(|| unsafe { handle.get_mut::<T>() }.usage())
    }

    unsafe extern "C" fn close(handle: Handle, within_nanos: u64) -> RResult<(), PluginError> {
        // SAFETY: see above.
        guarded(|| unsafe { handle.get_mut::<T>() }.close(Duration::from_nanos(within_nanos)))
    }

    unsafe extern "C" fn report(handle: Handle) -> RResult<HostReport, PluginError> {
        // SAFETY: see above.
        guarded(|| unsafe { handle.get_mut::<T>() }.report())
    }

    unsafe extern "C" fn watched(handle: Handle) -> RResult<RVec<i32>, PluginError> {
        // SAFETY: see above.
        guarded(|| Ok(unsafe { handle.get_mut::<T>() }.watched()?.into()))
    }

    unsafe extern "C" fn bounds(handle: Handle) -> RResult<RString, PluginError> {
        guarded(|| {
            // SAFETY: see above.
            let bounds = unsafe { handle.get_mut::<T>() }.bounds()?;
            let text = serde_json::to_string(&bounds);
            text.map(RString::from).map_err(|error| PluginError::new(ErrorKind::Failed, error.to_string()))
        })
    }
}

/// A backend, as the host holds it.
#[derive(StableAbi)]
#[repr(C)]
pub struct BackendObject {
    handle: Handle,
    table: BackendVtableRef,
}

// SAFETY: the object behind the handle is a ContainmentBackend, which is Send, and is used through `&mut self` only.
unsafe impl Send for BackendObject {}

impl BackendObject {
    /// Wraps a backend.
    pub fn new<T: ContainmentBackend>(backend: T) -> Self {
        Self { handle: Handle::new(backend), table: BackendVtableRef(BackendOf::<T>::TABLE.as_prefix()) }
    }

    // SAFETY of all of these: handle and table were made together in `new` and live until drop; `&mut self` is exclusive.

    /// See [`ContainmentBackend::info`].
    pub fn info(&mut self) -> Result<BackendInfo, PluginError> {
        unsafe { self.table.info()(self.handle) }.into_result()
    }

    /// See [`ContainmentBackend::probe`].
    pub fn probe(&mut self) -> Result<HostReport, PluginError> {
        unsafe { self.table.probe()(self.handle) }.into_result()
    }

    /// See [`ContainmentBackend::open`].
    pub fn open(&mut self, request: &[u8]) -> Result<EnclosureObject, PluginError> {
        unsafe { self.table.open()(self.handle, request.into()) }.into_result()
    }
}

impl Drop for BackendObject {
    fn drop(&mut self) {
        // SAFETY: the one drop of this object.
        unsafe { self.table.drop()(self.handle) };
    }
}

/// An enclosure, as the host holds it.
#[derive(StableAbi)]
#[repr(C)]
pub struct EnclosureObject {
    handle: Handle,
    table: EnclosureVtableRef,
}

// SAFETY: the object behind the handle is an Enclosure, which is Send, and is used through `&mut self` only.
unsafe impl Send for EnclosureObject {}

impl EnclosureObject {
    /// Wraps an enclosure.
    pub fn new<T: Enclosure>(enclosure: T) -> Self {
        Self { handle: Handle::new(enclosure), table: EnclosureVtableRef(EnclosureOf::<T>::TABLE.as_prefix()) }
    }

    // SAFETY of all of these: as for BackendObject.

    /// See [`Enclosure::prepare`].
    pub fn prepare(&mut self, request: &[u8]) -> Result<Profile, PluginError> {
        unsafe { self.table.prepare()(self.handle, request.into()) }.into_result()
    }

    /// See [`Enclosure::spawn`].
    pub fn spawn(&mut self, profile: &Profile, command: &[u8], fds: [i32; 4]) -> Result<Spawned, PluginError> {
        unsafe { self.table.spawn()(self.handle, profile, command.into(), &fds) }.into_result()
    }

    /// See [`Enclosure::watched`].
    pub fn watched(&mut self) -> Result<Vec<i32>, PluginError> {
        unsafe { self.table.watched()(self.handle) }.into_result().map(RVec::into_vec)
    }

    /// See [`Enclosure::bounds`].
    pub fn bounds(&mut self) -> Result<EnclosureBounds, PluginError> {
        let text = unsafe { self.table.bounds()(self.handle) }.into_result()?;
        serde_json::from_str(&text).map_err(|error| {
            PluginError::new(ErrorKind::Invalid, format!("its account of its bounds cannot be read: {error}"))
        })
    }

    /// See [`Enclosure::network`].
    pub fn network(&mut self) -> Result<Vec<i32>, PluginError> {
        unsafe { self.table.network()(self.handle) }.into_result().map(RVec::into_vec)
    }

    /// See [`Enclosure::usage`].
    pub fn usage(&mut self) -> Result<Usage, PluginError> {
        unsafe { self.table.usage()(self.handle) }.into_result()
    }

    /// See [`Enclosure::report`].
    pub fn report(&mut self) -> Result<HostReport, PluginError> {
        match self.table.report() {
            Some(report) => unsafe { report(self.handle) }.into_result(),
            None => Ok(HostReport::backed()),
        }
    }

    /// See [`Enclosure::close`].
    pub fn close(&mut self, within: Duration) -> Result<(), PluginError> {
        let nanos = u64::try_from(within.as_nanos()).unwrap_or(u64::MAX);
        unsafe { self.table.close()(self.handle, nanos) }.into_result()
    }
}

impl Drop for EnclosureObject {
    fn drop(&mut self) {
        // SAFETY: the one drop of this object.
        unsafe { self.table.drop()(self.handle) };
    }
}

/// The root module of a containment plugin.
#[derive(StableAbi)]
#[repr(C)]
#[sabi(kind(Prefix(prefix_ref = ContainmentModuleRef)))]
#[sabi(missing_field(panic))]
pub struct ContainmentModule {
    /// What the plugin is.
    pub describe: extern "C" fn() -> RResult<PluginDescription, PluginError>,
    /// Makes the backend with a configuration of one JSON object.
    pub open: extern "C" fn(RStr<'_>) -> RResult<BackendObject, PluginError>,
    /// Confines the calling process; see [`ContainmentBackend::enter`].
    #[sabi(last_prefix_field)]
    pub enter: extern "C" fn(RSlice<'_, u8>, RSlice<'_, i32>) -> RResult<(), PluginError>,
}

root_module!(ContainmentModuleRef, "mur containment plugin");

struct ModuleOf<T, N>(PhantomData<(T, N)>);

impl<T: ContainmentBackend, N: Named + 'static> ModuleOf<T, N> {
    staticref!(const MODULE: WithMetadata<ContainmentModule> = WithMetadata::new(ContainmentModule {
        describe: Self::describe,
        open: Self::open,
        enter: Self::enter,
    }));

    extern "C" fn describe() -> RResult<PluginDescription, PluginError> {
        guarded(|| Ok(PluginDescription::new(N::NAME, N::VERSION, T::ABOUT)))
    }

    extern "C" fn open(config: RStr<'_>) -> RResult<BackendObject, PluginError> {
        guarded(|| T::new(config.as_str()).map(BackendObject::new))
    }

    extern "C" fn enter(request: RSlice<'_, u8>, fds: RSlice<'_, i32>) -> RResult<(), PluginError> {
        guarded(|| T::enter(request.as_slice(), fds.as_slice()))
    }
}

impl ContainmentModuleRef {
    /// The module of a backend type; for the export macro.
    pub fn of<T: ContainmentBackend, N: Named + 'static>() -> Self {
        Self(ModuleOf::<T, N>::MODULE.as_prefix())
    }
}
