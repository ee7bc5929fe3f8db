//! A store whose root module panics while it is made.

#![allow(unsafe_code)]

use mur_plugin_api::abi_stable::library::{__call_root_module_loader, CheckTypeLayout, LibHeader, RootModuleResult};
use mur_plugin_api::store::StoreModuleRef;
use mur_plugin_api::{Kind, PluginHeader, initialise};

// SAFETY: the names are those of the interface; a library exports one plugin.
#[doc(hidden)]
#[unsafe(export_name = "MUR_PLUGIN_HEADER")]
pub static HEADER: PluginHeader = PluginHeader::new(Kind::Store, "load-panic", "0.1.0", "");

extern "C" fn load() -> RootModuleResult {
    fn module() -> StoreModuleRef {
        initialise("load-panic", || panic!("cannot load on purpose"))
    }
    __call_root_module_loader(module)
}

#[doc(hidden)]
#[unsafe(export_name = "_1as_0lib_1header_0root_bmodule_bloader")]
// SAFETY: `load` returns the module type named here.
pub static ROOT: LibHeader = unsafe { LibHeader::from_constructor::<StoreModuleRef>(load, CheckTypeLayout::Yes) };
