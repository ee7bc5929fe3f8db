//! Containment class `sealed`: all of `scoped`, inside a composed root in which what was not granted is absent.

use mur_containment_kernel::enclosure::enter;
use mur_containment_kernel::{KernelEnclosure, Tier, probe};
use mur_plugin_api::{About, BackendInfo, ContainmentBackend, HostReport, PluginError, export_plugin};

struct Sealed;

impl ContainmentBackend for Sealed {
    const ABOUT: About = About {
        summary: "all of scoped, inside a composed root: what was not granted is absent",
        vendor: "murmur",
        config_schema: r#"{"type":"object","additionalProperties":false,"examples":[{}]}"#,
    };
    type Enclosure = KernelEnclosure;

    fn new(_config: &str) -> Result<Self, PluginError> {
        Ok(Self)
    }

    fn info(&self) -> BackendInfo {
        let tier = Tier::Sealed;
        BackendInfo {
            class: tier.class().as_str().into(),
            mechanism: tier.mechanism().into(),
            needs: "all that scoped needs, and a mount namespace that may mount and pivot_root".into(),
        }
    }

    fn probe(&self) -> Result<HostReport, PluginError> {
        Ok(probe(Tier::Sealed))
    }

    fn open(&self, request: &[u8]) -> Result<KernelEnclosure, PluginError> {
        KernelEnclosure::open(Tier::Sealed, request)
    }

    fn enter(request: &[u8], fds: &[i32]) -> Result<(), PluginError> {
        enter(Tier::Sealed, request, fds)
    }
}

export_plugin!(containment "sealed", env!("CARGO_PKG_VERSION"), Sealed, class Sealed);
