//! Artifacts as a worker keeps them: linked once, instantiated for every call.

use std::fs::File;

use wasmtime::Engine;
use wasmtime::component::{Component, ComponentExportIndex, InstancePre, Linker};

use super::super::protocol::{Fault, reason};
use super::super::types::CallLimits;
use super::run::Load;
use super::state::State;
use super::{code, imports, state};

/// What tools and http drivers export.
pub(super) const RUN_INTERFACE: &str = "murmur:tool/run@0.1.0";

/// A folder an artifact sees.
pub(super) struct Folder {
    pub(super) file: File,
    pub(super) guest: String,
    pub(super) write: bool,
}

/// A loaded artifact. One that does not load or link keeps its fault, which every call of it gets.
pub(super) struct Artifact {
    pub(super) folders: Vec<Folder>,
    pub(super) env: Vec<(String, String)>,
    pub(super) limits: CallLimits,
    pub(super) linked: Result<Linked, Fault>,
}

/// What is instantiated for a call.
pub(super) struct Linked {
    pub(super) pre: InstancePre<State>,
    pub(super) run: Option<ComponentExportIndex>,
}

impl Artifact {
    /// Why it can't be called.
    pub(super) fn fault(&self) -> Option<Fault> {
        self.linked.as_ref().err().cloned()
    }
}

/// Loads artifacts, with everything a tool or http driver may import.
pub(super) struct Loader {
    engine: Engine,
    linker: Linker<State>,
}

impl Loader {
    pub(super) fn new(engine: &Engine) -> Result<Self, String> {
        let mut linker = Linker::new(engine);
        link(&mut linker).map_err(|error| format!("the host's interfaces cannot be linked: {error:#}"))?;
        Ok(Self { engine: engine.clone(), linker })
    }

    pub(super) fn load(&self, load: Load) -> Artifact {
        let (folders, opened) = match load.folders {
            Ok(folders) => (folders, Ok(())),
            Err(why) => (Vec::new(), Err(why)),
        };
        let folders = folders.into_iter().map(|(fd, guest, write)| Folder { file: fd.into(), guest, write }).collect();
        let linked = opened
            .and_then(|()| code::load(&self.engine, &load.code))
            .map_err(|why| Fault::Instantiate(reason(format!("{} cannot be loaded: {why}", load.full))))
            .and_then(|component| self.link(&component));
        Artifact { folders, env: load.env, limits: load.limits, linked }
    }

    fn link(&self, component: &Component) -> Result<Linked, Fault> {
        let run = component
            .get_export_index(None, RUN_INTERFACE)
            .and_then(|interface| component.get_export_index(Some(&interface), "run"));
        match self.linker.instantiate_pre(component) {
            Ok(pre) => Ok(Linked { pre, run }),
            Err(error) => Err(match self.missing_import(component) {
                Some(name) => Fault::MissingImport(reason(name)),
                None => Fault::Instantiate(reason(format!("{error:#}"))),
            }),
        }
    }

    /// The first import that no host interface serves.
    fn missing_import(&self, component: &Component) -> Option<String> {
        let names = component.component_type();
        let mut names = names.imports(&self.engine).map(|(name, _)| name.to_owned());
        names.find(|name| !imports::is_served(name))
    }
}

fn link(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    wasmtime_wasi::p2::add_to_linker_async(linker)?;
    wasmtime_wasi_http::p2::add_only_http_to_linker_async(linker)?;
    state::link_folders(linker)?;
    imports::link(linker)
}
