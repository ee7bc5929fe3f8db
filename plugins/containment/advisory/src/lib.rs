//! Containment class `advisory`: what any Linux host can give, with no kernel claim on files.
//!
//! A worker gets a process group of its own, no capability, no new privileges, limits on files and core dumps, no
//! descriptor that survives an exec, and the system call filter. Landlock is never installed here: that is `scoped`.

use mur_containment_kernel as kernel;
use mur_plugin_api::{
    About, BackendInfo, Class, ContainmentBackend, ErrorKind, HostReport, NoEnclosure, PluginError, export_plugin,
};

struct Advisory;

impl ContainmentBackend for Advisory {
    const ABOUT: About = About {
        summary: "own process group, no privileges, limits and a system call filter; no kernel claim on files",
        vendor: "murmur",
        config_schema: r#"{"type":"object","additionalProperties":false,"examples":[{}]}"#,
    };
    type Enclosure = NoEnclosure;

    fn new(_config: &str) -> Result<Self, PluginError> {
        Ok(Self)
    }

    fn info(&self) -> BackendInfo {
        BackendInfo {
            class: Class::Advisory.as_str().into(),
            mechanism: "seccomp-only".into(),
            needs: "Linux 5.11 or newer with seccomp".into(),
        }
    }

    fn probe(&self) -> Result<HostReport, PluginError> {
        Ok(HostReport::backed())
    }

    fn open(&self, _request: &[u8]) -> Result<NoEnclosure, PluginError> {
        Ok(NoEnclosure)
    }

    fn enter(request: &[u8], _fds: &[i32]) -> Result<(), PluginError> {
        let settings: kernel::Settings = serde_json::from_slice(request)
            .map_err(|error| PluginError::new(ErrorKind::Invalid, format!("the request cannot be read: {error}")))?;
        let absent = kernel::enter(kernel::ADVISORY_WORKER, &settings)
            .map_err(|error| PluginError::new(ErrorKind::Failed, error.to_string()))?;
        debug_assert!(absent.is_empty(), "no step of this class may be missing");
        Ok(())
    }
}

export_plugin!(containment "advisory", env!("CARGO_PKG_VERSION"), Advisory, class Advisory);
