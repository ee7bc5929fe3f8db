//! Artifact stores: the trait an author implements, its table of functions, and the object the host calls.

use std::io::{self, Read};
use std::marker::PhantomData;

use abi_stable::StableAbi;
use abi_stable::prefix_type::WithMetadata;
use abi_stable::staticref;
use abi_stable::std_types::{RNone, ROption, RResult, RSliceMut, RSome, RStr, RString, RVec};

use crate::error::{ErrorKind, PluginError, guarded};
use crate::module::{About, Handle, Named, PluginDescription, root_module};

/// One payload a store holds, or is to hold.
#[derive(Clone, Debug, PartialEq, Eq, StableAbi)]
#[repr(C)]
pub struct StoredEntry {
    /// `<scope>/<name>`.
    pub name: RString,
    /// Version, exact text.
    pub version: RString,
    /// Platform tag; empty for an untagged payload.
    pub platform: RString,
    /// SHA-256 of the payload, 64 lowercase hex digits.
    pub sha256: RString,
    /// Size of the payload in bytes.
    pub size: u64,
    /// Media type of the payload.
    pub media_type: RString,
    /// Metadata as one JSON object; empty when there is none.
    pub metadata: RString,
}

/// What an opened store says of itself.
#[derive(Clone, Debug, PartialEq, Eq, StableAbi)]
#[repr(C)]
pub struct StoreInfo {
    /// Where it keeps things, for messages.
    pub location: RString,
    /// Whether `write` and `remove` can work.
    pub writable: bool,
}

/// An artifact store. Calls block and may come from several threads at once.
pub trait ArtifactStore: Send + Sync + Sized + 'static {
    /// About the plugin.
    const ABOUT: About;

    /// Opens a store; `config` is one JSON object.
    fn open(config: &str) -> Result<Self, PluginError>;

    /// Where it is and whether it can be written.
    fn info(&self) -> Result<StoreInfo, PluginError>;

    /// The payload of a name and version. With a platform (not empty) the tagged payload first, then the untagged one.
    fn find(&self, name: &str, version: &str, platform: &str) -> Result<Option<StoredEntry>, PluginError>;

    /// All payloads, or those of one scope (not empty).
    fn list(&self, scope: &str) -> Result<Vec<StoredEntry>, PluginError>;

    /// A reader of an entry's payload.
    fn read(&self, entry: &StoredEntry) -> Result<Box<dyn Read + Send>, PluginError>;

    /// Files a payload, replacing one of the same name, version and platform. Atomic: another reader sees the old state
    /// or the whole new one, and a payload that fails to arrive changes nothing.
    fn write(&self, entry: &StoredEntry, payload: &mut dyn Read) -> Result<(), PluginError>;

    /// Removes a version with all its platforms; `false` when there is none.
    fn remove(&self, name: &str, version: &str) -> Result<bool, PluginError>;
}

/// The functions of a store object.
#[derive(StableAbi)]
#[repr(C)]
#[sabi(kind(Prefix(prefix_ref = StoreVtableRef)))]
#[sabi(missing_field(panic))]
pub struct StoreVtable {
    drop: unsafe extern "C" fn(Handle),
    info: unsafe extern "C" fn(Handle) -> RResult<StoreInfo, PluginError>,
    find: unsafe extern "C" fn(Handle, RStr<'_>, RStr<'_>, RStr<'_>) -> RResult<ROption<StoredEntry>, PluginError>,
    list: unsafe extern "C" fn(Handle, RStr<'_>) -> RResult<RVec<StoredEntry>, PluginError>,
    read: unsafe extern "C" fn(Handle, &StoredEntry) -> RResult<ReaderObject, PluginError>,
    write: unsafe extern "C" fn(Handle, &StoredEntry, ReaderObject) -> RResult<(), PluginError>,
    #[sabi(last_prefix_field)]
    remove: unsafe extern "C" fn(Handle, RStr<'_>, RStr<'_>) -> RResult<bool, PluginError>,
}

struct StoreOf<T>(PhantomData<T>);

impl<T: ArtifactStore> StoreOf<T> {
    staticref!(const TABLE: WithMetadata<StoreVtable> = WithMetadata::new(StoreVtable {
        drop: Self::drop,
        info: Self::info,
        find: Self::find,
        list: Self::list,
        read: Self::read,
        write: Self::write,
        remove: Self::remove,
    }));

    // SAFETY of all of these: a StoreObject calls them with the handle made beside this table from a T, which is Sync and
    // is dropped once, with the object.

    unsafe extern "C" fn drop(handle: Handle) {
        // SAFETY: see above; a panic in T's drop ends here.
        let _ = guarded(|| {
            unsafe { handle.drop_as::<T>() };
            Ok(())
        });
    }

    unsafe extern "C" fn info(handle: Handle) -> RResult<StoreInfo, PluginError> {
        // SAFETY: see above.
        guarded(|| unsafe { handle.get::<T>() }.info())
    }

    unsafe extern "C" fn find(
        handle: Handle,
        name: RStr<'_>,
        version: RStr<'_>,
        platform: RStr<'_>,
    ) -> RResult<ROption<StoredEntry>, PluginError> {
        guarded(|| {
            // SAFETY: see above.
            let found = unsafe { handle.get::<T>() }.find(name.as_str(), version.as_str(), platform.as_str())?;
            Ok(found.map_or(RNone, RSome))
        })
    }

    unsafe extern "C" fn list(handle: Handle, scope: RStr<'_>) -> RResult<RVec<StoredEntry>, PluginError> {
        // SAFETY: see above.
        guarded(|| Ok(unsafe { handle.get::<T>() }.list(scope.as_str())?.into()))
    }

    unsafe extern "C" fn read(handle: Handle, entry: &StoredEntry) -> RResult<ReaderObject, PluginError> {
        // SAFETY: see above.
        guarded(|| Ok(ReaderObject::new(unsafe { handle.get::<T>() }.read(entry)?)))
    }

    unsafe extern "C" fn write(
        handle: Handle,
        entry: &StoredEntry,
        mut payload: ReaderObject,
    ) -> RResult<(), PluginError> {
        // SAFETY: see above.
        guarded(|| unsafe { handle.get::<T>() }.write(entry, &mut payload))
    }

    unsafe extern "C" fn remove(handle: Handle, name: RStr<'_>, version: RStr<'_>) -> RResult<bool, PluginError> {
        // SAFETY: see above.
        guarded(|| unsafe { handle.get::<T>() }.remove(name.as_str(), version.as_str()))
    }
}

/// An opened store, as the host holds it.
#[derive(StableAbi)]
#[repr(C)]
pub struct StoreObject {
    handle: Handle,
    table: StoreVtableRef,
}

// SAFETY: the object behind the handle is an ArtifactStore, which is Send and Sync.
unsafe impl Send for StoreObject {}
// SAFETY: as above.
unsafe impl Sync for StoreObject {}

impl StoreObject {
    /// Wraps a store.
    pub fn new<T: ArtifactStore>(store: T) -> Self {
        Self { handle: Handle::new(store), table: StoreVtableRef(StoreOf::<T>::TABLE.as_prefix()) }
    }

    // SAFETY of all of these: handle and table were made together in `new` and live until drop.

    /// See [`ArtifactStore::info`].
    pub fn info(&self) -> Result<StoreInfo, PluginError> {
        unsafe { self.table.info()(self.handle) }.into_result()
    }

    /// See [`ArtifactStore::find`].
    pub fn find(&self, name: &str, version: &str, platform: &str) -> Result<Option<StoredEntry>, PluginError> {
        let found = unsafe { self.table.find()(self.handle, name.into(), version.into(), platform.into()) };
        found.into_result().map(ROption::into_option)
    }

    /// See [`ArtifactStore::list`].
    pub fn list(&self, scope: &str) -> Result<RVec<StoredEntry>, PluginError> {
        unsafe { self.table.list()(self.handle, scope.into()) }.into_result()
    }

    /// See [`ArtifactStore::read`].
    pub fn read(&self, entry: &StoredEntry) -> Result<ReaderObject, PluginError> {
        unsafe { self.table.read()(self.handle, entry) }.into_result()
    }

    /// See [`ArtifactStore::write`].
    pub fn write(&self, entry: &StoredEntry, payload: ReaderObject) -> Result<(), PluginError> {
        unsafe { self.table.write()(self.handle, entry, payload) }.into_result()
    }

    /// See [`ArtifactStore::remove`].
    pub fn remove(&self, name: &str, version: &str) -> Result<bool, PluginError> {
        unsafe { self.table.remove()(self.handle, name.into(), version.into()) }.into_result()
    }
}

impl Drop for StoreObject {
    fn drop(&mut self) {
        // SAFETY: the one drop of this object.
        unsafe { self.table.drop()(self.handle) };
    }
}

/// The functions of a reader object.
#[derive(StableAbi)]
#[repr(C)]
#[sabi(kind(Prefix(prefix_ref = ReaderVtableRef)))]
#[sabi(missing_field(panic))]
pub struct ReaderVtable {
    drop: unsafe extern "C" fn(Handle),
    #[sabi(last_prefix_field)]
    read: unsafe extern "C" fn(Handle, RSliceMut<'_, u8>) -> RResult<usize, PluginError>,
}

/// Bytes pulled across the boundary, either way: the side that reads brings the buffer.
#[derive(StableAbi)]
#[repr(C)]
pub struct ReaderObject {
    handle: Handle,
    table: ReaderVtableRef,
}

// SAFETY: the object behind the handle is a `Box<dyn Read + Send>`, used through `&mut self` only.
unsafe impl Send for ReaderObject {}

impl ReaderVtable {
    staticref!(const TABLE: WithMetadata<Self> = WithMetadata::new(Self { drop: drop_reader, read: read_reader }));
}

unsafe extern "C" fn drop_reader(handle: Handle) {
    let _ = guarded(|| {
        // SAFETY: made in ReaderObject::new from this type, dropped once.
        unsafe { handle.drop_as::<Box<dyn Read + Send>>() };
        Ok(())
    });
}

unsafe extern "C" fn read_reader(handle: Handle, mut buffer: RSliceMut<'_, u8>) -> RResult<usize, PluginError> {
    guarded(|| {
        // SAFETY: made in ReaderObject::new from this type; the object is held exclusively by its one owner.
        let reader = unsafe { handle.get_mut::<Box<dyn Read + Send>>() };
        loop {
            match reader.read(buffer.as_mut_slice()) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other.map_err(|error| PluginError::io("reading", &error)),
            }
        }
    })
}

impl ReaderObject {
    /// Wraps a reader.
    pub fn new(reader: Box<dyn Read + Send>) -> Self {
        Self { handle: Handle::new(reader), table: ReaderVtableRef(ReaderVtable::TABLE.as_prefix()) }
    }

    /// Fills part of the buffer; 0 at the end.
    pub fn pull(&mut self, buffer: &mut [u8]) -> Result<usize, PluginError> {
        let size = buffer.len();
        // SAFETY: handle and table were made together in `new` and live until drop; `&mut self` is exclusive.
        let read = unsafe { self.table.read()(self.handle, buffer.into()) }.into_result()?;
        // A reader that claims more than the buffer holds must not make the other side index past it.
        if read > size {
            return Err(PluginError::new(ErrorKind::Corrupt, "a reader returned more than was asked for"));
        }
        Ok(read)
    }
}

impl Read for ReaderObject {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.pull(buffer).map_err(|error| io::Error::other(error.message().to_owned()))
    }
}

impl Drop for ReaderObject {
    fn drop(&mut self) {
        // SAFETY: the one drop of this object.
        unsafe { self.table.drop()(self.handle) };
    }
}

/// The root module of a store plugin.
#[derive(StableAbi)]
#[repr(C)]
#[sabi(kind(Prefix(prefix_ref = StoreModuleRef)))]
#[sabi(missing_field(panic))]
pub struct StoreModule {
    /// What the plugin is.
    pub describe: extern "C" fn() -> RResult<PluginDescription, PluginError>,
    /// Opens a store with a configuration of one JSON object.
    #[sabi(last_prefix_field)]
    pub open: extern "C" fn(RStr<'_>) -> RResult<StoreObject, PluginError>,
}

root_module!(StoreModuleRef, "mur store plugin");

struct ModuleOf<T, N>(PhantomData<(T, N)>);

impl<T: ArtifactStore, N: Named + 'static> ModuleOf<T, N> {
    staticref!(const MODULE: WithMetadata<StoreModule> =
        WithMetadata::new(StoreModule { describe: Self::describe, open: Self::open }));

    extern "C" fn describe() -> RResult<PluginDescription, PluginError> {
        guarded(|| Ok(PluginDescription::new(N::NAME, N::VERSION, T::ABOUT)))
    }

    extern "C" fn open(config: RStr<'_>) -> RResult<StoreObject, PluginError> {
        guarded(|| T::open(config.as_str()).map(StoreObject::new))
    }
}

impl StoreModuleRef {
    /// The module of a store type; for the export macro.
    pub fn of<T: ArtifactStore, N: Named + 'static>() -> Self {
        Self(ModuleOf::<T, N>::MODULE.as_prefix())
    }
}
