//! A containment backend of class `advisory` that does the least: no new privileges, no core dumps, and the limits it is
//! asked for. The first-party library of the class does much more; this one shows the interface.
#![allow(unsafe_code)]

use mur_plugin_api::{
    About, BackendInfo, ContainmentBackend, ErrorKind, HostReport, NoEnclosure, PluginError, ProfileRequest,
    export_plugin,
};

struct Least;

impl ContainmentBackend for Least {
    const ABOUT: About = About {
        summary: "no new privileges, no core dumps, and limits on files",
        vendor: "example",
        config_schema: r#"{"type":"object","examples":[{}]}"#,
    };
    // A class that shares nothing between the processes of a session.
    type Enclosure = NoEnclosure;

    fn new(_config: &str) -> Result<Self, PluginError> {
        Ok(Self)
    }

    fn info(&self) -> BackendInfo {
        BackendInfo { class: "advisory".into(), mechanism: "rlimits".into(), needs: "Linux".into() }
    }

    fn probe(&self) -> Result<HostReport, PluginError> {
        Ok(HostReport::backed())
    }

    fn open(&self, _request: &[u8]) -> Result<NoEnclosure, PluginError> {
        Ok(NoEnclosure)
    }

    fn enter(request: &[u8], _fds: &[i32]) -> Result<(), PluginError> {
        // A request that does not say what this needs confines nothing, so it is an error.
        let ProfileRequest { limits, .. } =
            serde_json::from_slice(request).map_err(|error| PluginError::new(ErrorKind::Invalid, error.to_string()))?;
        // SAFETY: plain integers.
        check("no new privileges", unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
        limit("core dumps", libc::RLIMIT_CORE, 0)?;
        limit("open files", libc::RLIMIT_NOFILE, limits.open_files)?;
        limit("file size", libc::RLIMIT_FSIZE, limits.file_size)
    }
}

/// Lowers a limit, never raises one.
fn limit(step: &str, resource: libc::__rlimit_resource_t, most: u64) -> Result<(), PluginError> {
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `now` is a structure of the kernel's layout.
    check(step, unsafe { libc::getrlimit(resource, &raw mut now) })?;
    let most = most.min(now.rlim_max);
    let wanted = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: as above.
    check(step, unsafe { libc::setrlimit(resource, &raw const wanted) })
}

fn check(step: &str, result: libc::c_int) -> Result<(), PluginError> {
    if result == 0 { Ok(()) } else { Err(PluginError::io(step, &std::io::Error::last_os_error())) }
}

export_plugin!(containment "least", env!("CARGO_PKG_VERSION"), Least, class Advisory);
