//! Containment class `advisory`: what a Linux host without Landlock can give, with no kernel claim on files.
//!
//! A worker runs in the session's namespaces and scope, with no capability, no new privileges, limits, and the system call
//! filter. Landlock is never installed here: that is `scoped`.

use mur_containment_kernel::enclosure::enter;
use mur_containment_kernel::{KernelEnclosure, Tier, probe};
use mur_plugin_api::{About, BackendInfo, ContainmentBackend, HostReport, PluginError, export_plugin};

struct Advisory;

impl ContainmentBackend for Advisory {
    const ABOUT: About = About {
        summary: "namespaces, scope, no privileges, limits and a system call filter; no kernel claim on files",
        vendor: "murmur",
        config_schema: r#"{"type":"object","additionalProperties":false,"examples":[{}]}"#,
    };
    type Enclosure = KernelEnclosure;

    fn new(_config: &str) -> Result<Self, PluginError> {
        Ok(Self)
    }

    fn info(&self) -> BackendInfo {
        let tier = Tier::Advisory;
        BackendInfo {
            class: tier.class().as_str().into(),
            mechanism: tier.mechanism().into(),
            needs: "Linux 5.11 with user, network and process namespaces, and a cgroup scope".into(),
        }
    }

    fn probe(&self) -> Result<HostReport, PluginError> {
        Ok(probe(Tier::Advisory))
    }

    fn open(&self, request: &[u8]) -> Result<KernelEnclosure, PluginError> {
        KernelEnclosure::open(Tier::Advisory, request)
    }

    fn enter(request: &[u8], fds: &[i32]) -> Result<(), PluginError> {
        enter(Tier::Advisory, request, fds)
    }
}

export_plugin!(containment "advisory", env!("CARGO_PKG_VERSION"), Advisory, class Advisory);
