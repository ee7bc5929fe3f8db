//! What every containment backend must do. Entering the class confines a process for good, so that it does confine is for
//! the class's own escape tests; here it must refuse what it cannot read.

use std::time::Duration;

use super::{Report, refused, same, worked};
use crate::class::Class;
use crate::containment::BackendObject;
use crate::error::{ErrorKind, PluginError};
use crate::request::{Access, EnclosureRequest, Grant, ProcessKind, ProcessLimits, ProfileRequest, ScopeLimits};

/// A module's `enter`.
pub type Enter<'a> = &'a dyn Fn(&[u8], &[i32]) -> Result<(), PluginError>;

/// How long an enclosure of a check may take to close.
const CLOSING: Duration = Duration::from_secs(10);

fn enclosure_request() -> EnclosureRequest {
    EnclosureRequest::new("check", ScopeLimits { memory: 256 << 20, pids: 32, cpu_percent: 100 })
}

fn profile_request() -> ProfileRequest {
    let limits = ProcessLimits { open_files: 64, file_size: 1 << 20, cpu_seconds: None, address_space: None };
    ProfileRequest {
        grants: vec![Grant::optional("/usr", Access::Read)],
        ..ProfileRequest::new(ProcessKind::Worker, limits)
    }
}

fn encoded(request: &impl serde::Serialize) -> Vec<u8> {
    // Integers and UTF-8: serialising them cannot fail.
    serde_json::to_vec(request).unwrap_or_default()
}

/// Runs the checks. `enter` is the module's own; it is only given requests that no class can read, unless the class is
/// `unconfined`, which reads none.
pub fn containment(
    report: &mut Report,
    class: &str,
    open: &dyn Fn() -> Result<BackendObject, PluginError>,
    enter: Enter<'_>,
) {
    let Ok(class) = class.parse::<Class>() else {
        report.check("the header names one of the four classes", || Err(format!("it names {class:?}")));
        return;
    };
    report.check("it serves the class its header names, by a mechanism", || {
        let info = worked("info", worked("open", open())?.info())?;
        same("the class", &info.class.as_str(), &class.as_str())?;
        if info.mechanism.is_empty() { Err("the mechanism has no name".to_owned()) } else { Ok(()) }
    });
    report.check("a probe answers, and what is short names a step, a cause and a remedy", || {
        let found = worked("probe", worked("open", open())?.probe())?;
        for shortfall in found.shortfalls() {
            let words = [&shortfall.blocker, &shortfall.step, &shortfall.cause, &shortfall.remedy];
            if words.iter().any(|word| word.is_empty()) {
                return Err(format!("the shortfall is {shortfall:?}"));
            }
        }
        let readings: Result<serde_json::Map<String, serde_json::Value>, _> = serde_json::from_str(&found.readings);
        readings.map(|_| ()).map_err(|error| format!("the readings are no JSON object: {error}"))
    });
    report.check("a probe leaves nothing behind: a second one finds the same", || {
        let mut backend = worked("open", open())?;
        let (first, second) = (worked("probe", backend.probe())?, worked("a second probe", backend.probe())?);
        same("the second report", &second, &first)
    });
    report.check("an enclosure is refused a request that cannot be read", || {
        if class == Class::Unconfined {
            return Ok(());
        }
        match worked("open", open())?.open(b"not json") {
            Ok(mut enclosure) => refused("such a profile", enclosure.prepare(b"not json")).or_else(|_| {
                // A class that shares nothing reads its request in `enter` only.
                refused("such a request", enter(b"not json", &[]))
            }),
            Err(error) if error.kind() == ErrorKind::Panicked => Err(format!("it panicked: {error}")),
            Err(_) => Ok(()),
        }
    });
    report.check("where the host backs the class, an enclosure opens, makes profiles and counts what it uses", || {
        let mut backend = worked("open", open())?;
        let found = worked("probe", backend.probe())?;
        if found.shortfalls().next().is_some() {
            return Ok(());
        }
        let mut enclosure = worked("open", backend.open(&encoded(&enclosure_request())))?;
        let profile = worked("prepare", enclosure.prepare(&encoded(&profile_request())))?;
        let handed = profile.fds.iter().all(|fd| *fd > 2);
        worked("usage", enclosure.usage())?;
        worked("network", enclosure.network())?;
        worked("close", enclosure.close(CLOSING))?;
        worked("a second close", enclosure.close(CLOSING))?;
        if handed { Ok(()) } else { Err(format!("it hands over standard streams: {:?}", profile.fds)) }
    });
    report.check("a closed enclosure makes no profile that could be entered", || {
        let mut backend = worked("open", open())?;
        let Ok(mut enclosure) = backend.open(&encoded(&enclosure_request())) else { return Ok(()) };
        worked("close", enclosure.close(CLOSING))?;
        match enclosure.prepare(&encoded(&profile_request())) {
            Ok(profile) if profile.fds.is_empty() => Ok(()),
            Ok(_) => Err("it made one".to_owned()),
            Err(error) if error.kind() == ErrorKind::Panicked => Err(format!("it panicked: {error}")),
            Err(_) => Ok(()),
        }
    });
    report.check("a request that cannot be read confines nothing and is refused", || {
        if class == Class::Unconfined {
            return worked("enter", enter(b"not json", &[]));
        }
        for request in [&b""[..], b"not json", b"[]", b"\xff\xfe"] {
            refused("such a request", enter(request, &[]))?;
        }
        Ok(())
    });
}
