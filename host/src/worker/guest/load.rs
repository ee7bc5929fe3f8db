//! Artifacts as a worker keeps them: linked once, instantiated for every call, a hook for all of its calls.

use std::fs::File;

use wasmtime::Engine;
use wasmtime::component::{Component, ComponentExportIndex, InstancePre, Linker};

use super::super::hook::{HookEvent, LIFECYCLE};
use super::super::protocol::{Fault, reason};
use super::super::types::{CallLimits, Kind};
use super::hook_call::Live;
use super::run::Load;
use super::state::State;
use super::{code, hook_imports, imports, state};

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
    /// A hook's instance, while no call of it runs.
    pub(super) live: tokio::sync::Mutex<Option<Live>>,
}

/// What is instantiated for a call.
pub(super) struct Linked {
    pub(super) pre: InstancePre<State>,
    pub(super) run: Option<ComponentExportIndex>,
    /// A hook's functions, in the order of [`HookEvent::FUNCTIONS`]; empty for anything else.
    pub(super) functions: Vec<Option<ComponentExportIndex>>,
}

impl Artifact {
    /// Why it can't be called.
    pub(super) fn fault(&self) -> Option<Fault> {
        self.linked.as_ref().err().cloned()
    }
}

/// Loads artifacts, with everything their kind may import.
pub(super) struct Loader {
    engine: Engine,
    kind: Kind,
    linker: Linker<State>,
}

impl Loader {
    pub(super) fn new(engine: &Engine, kind: Kind) -> Result<Self, String> {
        let mut linker = Linker::new(engine);
        link(&mut linker, kind).map_err(|error| format!("the host's interfaces cannot be linked: {error:#}"))?;
        Ok(Self { engine: engine.clone(), kind, linker })
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
        Artifact { folders, env: load.env, limits: load.limits, linked, live: tokio::sync::Mutex::default() }
    }

    fn link(&self, component: &Component) -> Result<Linked, Fault> {
        let pre = self.linker.instantiate_pre(component).map_err(|error| match self.missing_import(component) {
            Some(name) => Fault::MissingImport(reason(name)),
            None => Fault::Instantiate(reason(format!("{error:#}"))),
        })?;
        let export = |interface: &str, function: &str| {
            let interface = component.get_export_index(None, interface)?;
            component.get_export_index(Some(&interface), function)
        };
        if self.kind != Kind::Hooks {
            return Ok(Linked { pre, run: export(RUN_INTERFACE, "run"), functions: Vec::new() });
        }
        if component.get_export_index(None, LIFECYCLE).is_none() {
            return Err(Fault::MissingExport(LIFECYCLE.to_owned()));
        }
        let functions: Vec<_> = HookEvent::FUNCTIONS.iter().map(|(name, _)| export(LIFECYCLE, name)).collect();
        let mut missing = HookEvent::FUNCTIONS.iter().zip(&functions);
        match missing.find(|((_, required), function)| *required && function.is_none()) {
            Some(((name, _), _)) => Err(Fault::MissingExport(format!("{LIFECYCLE}#{name}"))),
            None => Ok(Linked { pre, run: None, functions }),
        }
    }

    /// The first import that no host interface serves.
    fn missing_import(&self, component: &Component) -> Option<String> {
        let served = if self.kind == Kind::Hooks { hook_imports::is_served } else { imports::is_served };
        let names = component.component_type();
        let mut names = names.imports(&self.engine).map(|(name, _)| name.to_owned());
        names.find(|name| !served(name))
    }
}

fn link(linker: &mut Linker<State>, kind: Kind) -> wasmtime::Result<()> {
    wasmtime_wasi::p2::add_to_linker_async(linker)?;
    wasmtime_wasi_http::p2::add_only_http_to_linker_async(linker)?;
    state::link_folders(linker)?;
    if kind == Kind::Hooks { hook_imports::link(linker) } else { imports::link(linker) }
}
