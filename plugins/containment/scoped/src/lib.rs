//! Containment class `scoped`: the granted folders only, over the host's file system.
//!
//! All of `advisory`, and a Landlock domain without the right to execute: what is not granted answers `EACCES`.

use mur_containment_kernel::enclosure::enter;
use mur_containment_kernel::{KernelEnclosure, Tier, probe};
use mur_plugin_api::{About, BackendInfo, ContainmentBackend, HostReport, PluginError, export_plugin};

struct Scoped;

impl ContainmentBackend for Scoped {
    const ABOUT: About = About {
        summary: "the granted folders only, by Landlock, in namespaces and a scope of the session's own",
        vendor: "murmur",
        config_schema: r#"{"type":"object","additionalProperties":false,"examples":[{}]}"#,
    };
    type Enclosure = KernelEnclosure;

    fn new(_config: &str) -> Result<Self, PluginError> {
        Ok(Self)
    }

    fn info(&self) -> BackendInfo {
        let tier = Tier::Scoped;
        BackendInfo {
            class: tier.class().as_str().into(),
            mechanism: tier.mechanism().into(),
            needs: "Linux 5.13 with Landlock, user, network and process namespaces, and a cgroup scope".into(),
        }
    }

    fn probe(&self) -> Result<HostReport, PluginError> {
        Ok(probe(Tier::Scoped))
    }

    fn open(&self, request: &[u8]) -> Result<KernelEnclosure, PluginError> {
        KernelEnclosure::open(Tier::Scoped, request)
    }

    fn enter(request: &[u8], fds: &[i32]) -> Result<(), PluginError> {
        enter(Tier::Scoped, request, fds)
    }
}

export_plugin!(containment "scoped", env!("CARGO_PKG_VERSION"), Scoped, class Scoped);
