//! What every containment backend must do. Entering the class confines a process for good, so that it does confine is for
//! the class's own escape tests; here it must refuse what it cannot read.

use std::time::Duration;

use super::{Report, refused, same, worked};
use crate::class::Class;
use crate::containment::BackendObject;
use crate::error::{ErrorKind, PluginError};

/// A module's `enter`.
pub type Enter<'a> = &'a dyn Fn(&[u8], &[i32]) -> Result<(), PluginError>;

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
    report.check("a probe answers, and what is short names a step and a remedy", || {
        let found = worked("probe", worked("open", open())?.probe())?;
        if !found.backed && (found.step.is_empty() || found.remedy.is_empty()) {
            return Err(format!("the shortfall is {found:?}"));
        }
        let readings: Result<serde_json::Map<String, serde_json::Value>, _> = serde_json::from_str(&found.readings);
        readings.map(|_| ()).map_err(|error| format!("the readings are no JSON object: {error}"))
    });
    report.check("an enclosure opens or is refused, and closing it twice is no fault", || {
        let mut backend = worked("open", open())?;
        match backend.open(b"{}") {
            Ok(mut enclosure) => {
                worked("close", enclosure.close(Duration::from_secs(10)))?;
                worked("a second close", enclosure.close(Duration::from_secs(10)))
            }
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
