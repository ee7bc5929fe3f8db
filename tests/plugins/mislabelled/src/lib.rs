//! A library whose header says it is a store, while its root module is a sink's: the same interface version, other types.

#![allow(unsafe_code)]

use std::time::Duration;

use mur_plugin_api::abi_stable::library::{__call_root_module_loader, CheckTypeLayout, LibHeader, RootModuleResult};
use mur_plugin_api::abi_stable::std_types::RSlice;
use mur_plugin_api::sink::SinkModuleRef;
use mur_plugin_api::{About, Kind, Named, PluginError, PluginHeader, SessionHeader, TraceSink};

struct Nothing;

impl TraceSink for Nothing {
    const ABOUT: About = About { summary: "nothing", vendor: "the suites", config_schema: "{}" };

    fn new(_config: &str) -> Result<Self, PluginError> {
        Ok(Self)
    }

    fn open(&mut self, _session: &SessionHeader) -> Result<(), PluginError> {
        Ok(())
    }

    fn write(&mut self, _records: &[RSlice<'_, u8>]) -> Result<(), PluginError> {
        Ok(())
    }

    fn flush(&mut self, _within: Duration) -> Result<(), PluginError> {
        Ok(())
    }

    fn close(&mut self) -> Result<(), PluginError> {
        Ok(())
    }
}

struct Name;

impl Named for Name {
    const NAME: &'static str = "mislabelled";
    const VERSION: &'static str = "0.1.0";
}

// SAFETY: the names are those of the interface; a library exports one plugin.
#[doc(hidden)]
#[unsafe(export_name = "MUR_PLUGIN_HEADER")]
pub static HEADER: PluginHeader = PluginHeader::new(Kind::Store, "mislabelled", "0.1.0", "");

extern "C" fn load() -> RootModuleResult {
    __call_root_module_loader(SinkModuleRef::of::<Nothing, Name>)
}

#[doc(hidden)]
#[unsafe(export_name = "_1as_0lib_1header_0root_bmodule_bloader")]
// SAFETY: `load` returns the module type named here.
pub static ROOT: LibHeader = unsafe { LibHeader::from_constructor::<SinkModuleRef>(load, CheckTypeLayout::Yes) };
