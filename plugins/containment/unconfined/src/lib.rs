//! Containment class `unconfined`: installs nothing. Everything runs as the invoking user.

use mur_plugin_api::{
    About, BackendInfo, Class, ContainmentBackend, HostReport, NoEnclosure, PluginError, export_plugin,
};

struct Unconfined;

impl ContainmentBackend for Unconfined {
    const ABOUT: About = About {
        summary: "installs nothing: commands and workers run as the invoking user",
        vendor: "murmur",
        config_schema: r#"{"type":"object","additionalProperties":false,"examples":[{}]}"#,
    };
    type Enclosure = NoEnclosure;

    fn new(_config: &str) -> Result<Self, PluginError> {
        Ok(Self)
    }

    fn info(&self) -> BackendInfo {
        BackendInfo { class: Class::Unconfined.as_str().into(), mechanism: "none".into(), needs: "nothing".into() }
    }

    fn probe(&self) -> Result<HostReport, PluginError> {
        Ok(HostReport::backed())
    }

    fn open(&self, _request: &[u8]) -> Result<NoEnclosure, PluginError> {
        Ok(NoEnclosure)
    }

    fn enter(_request: &[u8], _fds: &[i32]) -> Result<(), PluginError> {
        Ok(())
    }
}

export_plugin!(containment "unconfined", env!("CARGO_PKG_VERSION"), Unconfined, class Unconfined);
