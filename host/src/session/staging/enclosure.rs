//! What a launch asks a session's enclosure for, settled on the manifest alone: the enclosure is the first thing made, since
//! making it is what shows that this host can.

use std::path::Path;

use mur_plugin_api::{EnclosureRequest, IoLimit, ScopeLimits};

use crate::diagnostics::Result;
use crate::egress::{RuleSet, proxy};
use crate::ids::SessionId;
use crate::manifest::Capsule;

/// The request of a session; nothing for a capsule that starts no process. The bound of reading and writing is that of the
/// file system the work folder is on, or is to be made on.
///
/// # Errors
/// `E-CAP-001` naming the first destination that cannot be parsed.
pub fn request(capsule: &Capsule, session: &SessionId, work: &Path) -> Result<Option<EnclosureRequest>> {
    if !capsule.starts_processes() {
        return Ok(None);
    }
    let resources = &capsule.capabilities.resources;
    let scope = ScopeLimits {
        memory: resources.cgroup_memory_bytes,
        pids: resources.cgroup_pids_max,
        cpu_percent: resources.cgroup_cpu_percent,
    };
    let rules = RuleSet::of_capsule(&capsule.capabilities)?;
    // With an empty list there is nothing that could be reached, and nothing listens.
    let served = !rules.rules().is_empty();
    let there = work.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    Ok(Some(EnclosureRequest {
        ports: if served { proxy::ports(&rules) } else { Vec::new() },
        names: served,
        io: Some(IoLimit { bytes_per_second: resources.cgroup_io_bytes_per_sec, path: there.to_owned() }),
        ..EnclosureRequest::new(session.as_str(), scope)
    }))
}
