//! Trying a plugin: loading it as a session would, and running the conformance kit against it.

use std::path::Path;

use mur_plugin_api::conformance::{self, Check, Report};
use mur_plugin_api::containment::ContainmentModuleRef;
use mur_plugin_api::sink::SinkModuleRef;
use mur_plugin_api::store::StoreModuleRef;
use mur_plugin_api::{Kind, PluginDescription, PluginError};

use super::library::Library;
use crate::diagnostics::Result;

/// Runs the kit for the library's kind; `scratch` is an empty directory, `config` replaces the schema's example.
pub(super) fn run(library: &Library, scratch: &Path, config: Option<&str>) -> Result<Vec<Check>> {
    let mut report = Report::default();
    match library.info.kind {
        Kind::Store => {
            let module: StoreModuleRef = library.module()?;
            let config = describe(&mut report, library, module.describe()().into_result(), scratch, config);
            conformance::store(&mut report, &|| module.open()(config.as_str().into()).into_result());
        }
        Kind::Sink => {
            let module: SinkModuleRef = library.module()?;
            let config = describe(&mut report, library, module.describe()().into_result(), scratch, config);
            conformance::sink(&mut report, &|| module.open()(config.as_str().into()).into_result());
        }
        Kind::Containment => {
            let module: ContainmentModuleRef = library.module()?;
            let config = describe(&mut report, library, module.describe()().into_result(), scratch, config);
            conformance::containment(
                &mut report,
                &library.info.class,
                &|| module.open()(config.as_str().into()).into_result(),
                &|request, fds| module.enter()(request.into(), fds.into()).into_result(),
            );
        }
    }
    Ok(report.checks().to_vec())
}

/// Checks the description and returns the configuration to try the plugin with.
fn describe(
    report: &mut Report,
    library: &Library,
    described: std::result::Result<PluginDescription, PluginError>,
    scratch: &Path,
    config: Option<&str>,
) -> String {
    let example = described.as_ref().ok().and_then(|described| {
        conformance::example_config(described.config_schema.as_str(), &scratch.to_string_lossy()).ok()
    });
    conformance::description(report, &library.info, described);
    config.map(str::to_owned).or(example).unwrap_or_else(|| "{}".to_owned())
}
