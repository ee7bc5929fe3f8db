//! Trace sinks: the trait an author implements, its table of functions, and the object the host calls.

use std::marker::PhantomData;
use std::time::Duration;

use abi_stable::StableAbi;
use abi_stable::prefix_type::WithMetadata;
use abi_stable::staticref;
use abi_stable::std_types::{RResult, RSlice, RStr, RString, RVec};

use crate::error::{PluginError, guarded};
use crate::module::{About, Handle, Named, PluginDescription, root_module};

/// What a sink is told when a session begins.
#[derive(Clone, Debug, PartialEq, Eq, StableAbi)]
#[repr(C)]
pub struct SessionHeader {
    /// `ses_…`.
    pub session_id: RString,
    /// Capsule name.
    pub capsule: RString,
    /// Capsule version.
    pub version: RString,
    /// `frm_…` of a formation member; empty otherwise.
    pub formation_id: RString,
    /// The session's records directory; a path is bytes.
    pub records_dir: RVec<u8>,
}

/// A trace sink. Calls block and come one at a time: `open` once, then `write` and `flush`, then `close` once.
pub trait TraceSink: Send + Sized + 'static {
    /// About the plugin.
    const ABOUT: About;

    /// Makes a sink; `config` is one JSON object. Nothing is written yet.
    fn new(config: &str) -> Result<Self, PluginError>;

    /// A session begins.
    fn open(&mut self, session: &SessionHeader) -> Result<(), PluginError>;

    /// Complete JSON records, in order, each without a line end. When this returns, another process can read them as far
    /// as the place allows.
    fn write(&mut self, records: &[RSlice<'_, u8>]) -> Result<(), PluginError>;

    /// Brings everything written to its place within the time given.
    fn flush(&mut self, within: Duration) -> Result<(), PluginError>;

    /// The session ended.
    fn close(&mut self) -> Result<(), PluginError>;
}

/// The functions of a sink object.
#[derive(StableAbi)]
#[repr(C)]
#[sabi(kind(Prefix(prefix_ref = SinkVtableRef)))]
#[sabi(missing_field(panic))]
pub struct SinkVtable {
    drop: unsafe extern "C" fn(Handle),
    open: unsafe extern "C" fn(Handle, &SessionHeader) -> RResult<(), PluginError>,
    write: unsafe extern "C" fn(Handle, RSlice<'_, RSlice<'_, u8>>) -> RResult<(), PluginError>,
    flush: unsafe extern "C" fn(Handle, u64) -> RResult<(), PluginError>,
    #[sabi(last_prefix_field)]
    close: unsafe extern "C" fn(Handle) -> RResult<(), PluginError>,
}

struct SinkOf<T>(PhantomData<T>);

impl<T: TraceSink> SinkOf<T> {
    staticref!(const TABLE: WithMetadata<SinkVtable> = WithMetadata::new(SinkVtable {
        drop: Self::drop,
        open: Self::open,
        write: Self::write,
        flush: Self::flush,
        close: Self::close,
    }));

    // SAFETY of all of these: a SinkObject calls them through `&mut self` with the handle made beside this table from a T,
    // which is Send and is dropped once, with the object.

    unsafe extern "C" fn drop(handle: Handle) {
        let _ = guarded(|| {
            // SAFETY: see above.
            unsafe { handle.drop_as::<T>() };
            Ok(())
        });
    }

    unsafe extern "C" fn open(handle: Handle, session: &SessionHeader) -> RResult<(), PluginError> {
        // SAFETY: see above.
        guarded(|| unsafe { handle.get_mut::<T>() }.open(session))
    }

    unsafe extern "C" fn write(handle: Handle, records: RSlice<'_, RSlice<'_, u8>>) -> RResult<(), PluginError> {
        // SAFETY: see above.
        guarded(|| unsafe { handle.get_mut::<T>() }.write(records.as_slice()))
    }

    unsafe extern "C" fn flush(handle: Handle, within_nanos: u64) -> RResult<(), PluginError> {
        // SAFETY: see above.
        guarded(|| unsafe { handle.get_mut::<T>() }.flush(Duration::from_nanos(within_nanos)))
    }

    unsafe extern "C" fn close(handle: Handle) -> RResult<(), PluginError> {
        // SAFETY: see above.
        guarded(|| unsafe { handle.get_mut::<T>() }.close())
    }
}

/// A sink, as the host holds it.
#[derive(StableAbi)]
#[repr(C)]
pub struct SinkObject {
    handle: Handle,
    table: SinkVtableRef,
}

// SAFETY: the object behind the handle is a TraceSink, which is Send, and is used through `&mut self` only.
unsafe impl Send for SinkObject {}

impl SinkObject {
    /// Wraps a sink.
    pub fn new<T: TraceSink>(sink: T) -> Self {
        Self { handle: Handle::new(sink), table: SinkVtableRef(SinkOf::<T>::TABLE.as_prefix()) }
    }

    // SAFETY of all of these: handle and table were made together in `new` and live until drop; `&mut self` is exclusive.

    /// See [`TraceSink::open`].
    pub fn open(&mut self, session: &SessionHeader) -> Result<(), PluginError> {
        unsafe { self.table.open()(self.handle, session) }.into_result()
    }

    /// See [`TraceSink::write`].
    pub fn write(&mut self, records: &[RSlice<'_, u8>]) -> Result<(), PluginError> {
        unsafe { self.table.write()(self.handle, records.into()) }.into_result()
    }

    /// See [`TraceSink::flush`].
    pub fn flush(&mut self, within: Duration) -> Result<(), PluginError> {
        let nanos = u64::try_from(within.as_nanos()).unwrap_or(u64::MAX);
        unsafe { self.table.flush()(self.handle, nanos) }.into_result()
    }

    /// See [`TraceSink::close`].
    pub fn close(&mut self) -> Result<(), PluginError> {
        unsafe { self.table.close()(self.handle) }.into_result()
    }
}

impl Drop for SinkObject {
    fn drop(&mut self) {
        // SAFETY: the one drop of this object.
        unsafe { self.table.drop()(self.handle) };
    }
}

/// The root module of a sink plugin.
#[derive(StableAbi)]
#[repr(C)]
#[sabi(kind(Prefix(prefix_ref = SinkModuleRef)))]
#[sabi(missing_field(panic))]
pub struct SinkModule {
    /// What the plugin is.
    pub describe: extern "C" fn() -> RResult<PluginDescription, PluginError>,
    /// Makes a sink with a configuration of one JSON object.
    #[sabi(last_prefix_field)]
    pub open: extern "C" fn(RStr<'_>) -> RResult<SinkObject, PluginError>,
}

root_module!(SinkModuleRef, "mur sink plugin");

struct ModuleOf<T, N>(PhantomData<(T, N)>);

impl<T: TraceSink, N: Named + 'static> ModuleOf<T, N> {
    staticref!(const MODULE: WithMetadata<SinkModule> =
        WithMetadata::new(SinkModule { describe: Self::describe, open: Self::open }));

    extern "C" fn describe() -> RResult<PluginDescription, PluginError> {
        guarded(|| Ok(PluginDescription::new(N::NAME, N::VERSION, T::ABOUT)))
    }

    extern "C" fn open(config: RStr<'_>) -> RResult<SinkObject, PluginError> {
        guarded(|| T::new(config.as_str()).map(SinkObject::new))
    }
}

impl SinkModuleRef {
    /// The module of a sink type; for the export macro.
    pub fn of<T: TraceSink, N: Named + 'static>() -> Self {
        Self(ModuleOf::<T, N>::MODULE.as_prefix())
    }
}
