//! What all kinds share: a plugin's description of itself, the opaque handle, and how a root module is made and found.

use abi_stable::StableAbi;
use abi_stable::marker_type::ErasedObject;
use abi_stable::std_types::RString;

/// What an author says about a plugin besides name and version.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// One line on what it does.
    pub summary: &'static str,
    /// Who made it.
    pub vendor: &'static str,
    /// JSON Schema of its configuration. An `examples` list lets `mur plugin check` try it: `{scratch}` in the first
    /// example's texts is replaced by an empty directory.
    pub config_schema: &'static str,
}

/// A plugin's description of itself, as `mur plugin list` shows it.
#[derive(Clone, Debug, PartialEq, Eq, StableAbi)]
#[repr(C)]
pub struct PluginDescription {
    /// Its name, as in the header.
    pub name: RString,
    /// Its version, as in the header.
    pub version: RString,
    /// One line on what it does.
    pub summary: RString,
    /// Who made it.
    pub vendor: RString,
    /// JSON Schema of its configuration.
    pub config_schema: RString,
}

impl PluginDescription {
    /// For the export macro.
    pub fn new(name: &str, version: &str, about: About) -> Self {
        let About { summary, vendor, config_schema } = about;
        Self {
            name: name.into(),
            version: version.into(),
            summary: summary.into(),
            vendor: vendor.into(),
            config_schema: config_schema.into(),
        }
    }
}

/// An object of the plugin's, as the host holds it: only the functions that came with it know what it is.
#[derive(Clone, Copy, Debug, StableAbi)]
#[repr(transparent)]
pub struct Handle(*mut ErasedObject);

impl Handle {
    /// Gives an object away; [`Handle::drop_as`] takes it back.
    pub(crate) fn new<T>(value: T) -> Self {
        Self(Box::into_raw(Box::new(value)).cast())
    }

    /// The object.
    ///
    /// # Safety
    ///
    /// The handle was made by [`Handle::new`] with this `T`, was not dropped, and nobody holds the object exclusively.
    pub(crate) unsafe fn get<'a, T>(self) -> &'a T {
        // SAFETY: the caller's promise.
        unsafe { &*self.0.cast::<T>() }
    }

    /// The object, exclusively.
    ///
    /// # Safety
    ///
    /// As [`Handle::get`], and nobody else holds the object at all.
    pub(crate) unsafe fn get_mut<'a, T>(self) -> &'a mut T {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.0.cast::<T>() }
    }

    /// Drops the object.
    ///
    /// # Safety
    ///
    /// As [`Handle::get_mut`], and the handle is not used again.
    pub(crate) unsafe fn drop_as<T>(self) {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(self.0.cast::<T>()) });
    }
}

/// The name under which a library exports its root module; the export macro needs it as a literal.
pub const ROOT_SYMBOL: &str = abi_stable::library::ROOT_MODULE_LOADER_NAME;

/// Implements `RootModule` for a kind's module.
macro_rules! root_module {
    ($module:ty, $name:literal) => {
        impl abi_stable::library::RootModule for $module {
            abi_stable::declare_root_module_statics! {$module}
            const BASE_NAME: &'static str = $name;
            const NAME: &'static str = $name;
            // The kind's interface version in the header decides; this one is never compared.
            const VERSION_STRINGS: abi_stable::sabi_types::VersionStrings =
                abi_stable::sabi_types::VersionStrings::new("1.0.0");
        }
    };
}
pub(crate) use root_module;

/// Exports a plugin: its header, and its root module whose functions catch every panic.
///
/// ```ignore
/// mur_plugin_api::export_plugin!(store "directory", env!("CARGO_PKG_VERSION"), DirectoryStore);
/// mur_plugin_api::export_plugin!(containment "advisory", env!("CARGO_PKG_VERSION"), Advisory, class Advisory);
/// ```
///
/// The type implements [`ArtifactStore`](crate::ArtifactStore), [`TraceSink`](crate::TraceSink) or
/// [`ContainmentBackend`](crate::ContainmentBackend).
#[macro_export]
macro_rules! export_plugin {
    (store $name:literal, $version:expr, $plugin:ty) => {
        $crate::export_plugin!(@export Store, $name, $version, "", $plugin, store::StoreModuleRef);
    };
    (sink $name:literal, $version:expr, $plugin:ty) => {
        $crate::export_plugin!(@export Sink, $name, $version, "", $plugin, sink::SinkModuleRef);
    };
    (containment $name:literal, $version:expr, $plugin:ty, class $class:ident) => {
        $crate::export_plugin!(
            @export Containment, $name, $version, $crate::Class::$class.as_str(), $plugin,
            containment::ContainmentModuleRef
        );
    };
    (@export $kind:ident, $name:literal, $version:expr, $class:expr, $plugin:ty, $($module:ident)::+) => {
        #[doc(hidden)]
        #[allow(unsafe_code)]
        // SAFETY: the name is this interface's own; a library exports one plugin.
        #[unsafe(export_name = "MUR_PLUGIN_HEADER")]
        pub static MUR_PLUGIN_HEADER: $crate::PluginHeader =
            $crate::PluginHeader::new($crate::Kind::$kind, $name, $version, $class);

        const _: () = {
            struct Exported;

            impl $crate::Named for Exported {
                const NAME: &'static str = $name;
                const VERSION: &'static str = $version;
            }

            extern "C" fn load() -> $crate::abi_stable::library::RootModuleResult {
                fn module() -> $crate::$($module)::+ {
                    $crate::initialise($name, $crate::$($module)::+::of::<$plugin, Exported>)
                }
                // Catches a panic of `module` and reports it as a failed load.
                $crate::abi_stable::library::__call_root_module_loader(module)
            }

            #[allow(unsafe_code)]
            // SAFETY: the name is abi_stable's own for the one root module of a library.
            #[unsafe(export_name = "_1as_0lib_1header_0root_bmodule_bloader")]
            pub static ROOT: $crate::abi_stable::library::LibHeader =
                // SAFETY: `load` returns the module type named here.
                unsafe {
                    $crate::abi_stable::library::LibHeader::from_constructor::<$crate::$($module)::+>(
                        load,
                        $crate::abi_stable::library::CheckTypeLayout::Yes,
                    )
                };
        };
    };
}

/// The name and version a plugin is exported under; implemented by the export macro.
pub trait Named {
    /// Name.
    const NAME: &'static str;
    /// Version.
    const VERSION: &'static str;
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_root_symbol_is_the_one_the_macro_exports() {
        assert_eq!(super::ROOT_SYMBOL, "_1as_0lib_1header_0root_bmodule_bloader");
    }
}
