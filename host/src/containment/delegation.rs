//! Asking systemd for a cgroup scope that is ours to divide: on a host with the v2 tree alone a user has no other.
//!
//! The enclosure's process asks for itself and for the session that started it, with the few messages it takes. Whatever
//! goes wrong is no error: the session then makes its scope where it stands, and says so when it cannot (`E-RUN-012`).

mod bus;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bus::{Argument, Bus, Call};

/// How long it may take from the first connection until this process stands in the scope.
const PATIENCE: Duration = Duration::from_secs(2);

/// How often this process looks where it stands.
const LOOK: Duration = Duration::from_millis(1);

/// The bus of the whole host, where root asks the manager of the whole host.
const SYSTEM_BUS: &str = "unix:path=/run/dbus/system_bus_socket";

/// The buses that are asked, in order: the session's own, as the environment or the usual place says, and for root the
/// host's.
pub fn addresses() -> Vec<String> {
    let user = nix::unistd::geteuid();
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let runtime = variable("XDG_RUNTIME_DIR").map_or_else(|| PathBuf::from(format!("/run/user/{user}")), PathBuf::from);
    let socket = runtime.join("bus");
    let usual = socket.exists().then(|| format!("unix:path={}", bus::escaped(&socket)));
    let host = (user.is_root() && Path::new("/run/dbus/system_bus_socket").exists()).then(|| SYSTEM_BUS.to_owned());
    let mut found: Vec<String> = Vec::new();
    for address in [variable("DBUS_SESSION_BUS_ADDRESS"), usual, host].into_iter().flatten() {
        if !found.contains(&address) {
            found.push(address);
        }
    }
    found
}

/// Asks each bus until this process stands in a scope of its own. The error is an account of the last that was asked.
pub(super) fn ask(addresses: &[String]) -> Result<(), String> {
    let until = Instant::now() + PATIENCE;
    let mut why = "no bus is known".to_owned();
    for address in addresses {
        match ask_one(address, until) {
            Ok(()) => return Ok(()),
            Err(fault) => why = format!("{address}: {fault}"),
        }
    }
    Err(why)
}

fn ask_one(address: &str, until: Instant) -> Result<(), String> {
    let own = nix::unistd::getpid();
    let session = nix::unistd::getppid();
    let unit = format!("murmur-{own}-0.scope");
    let mut bus = Bus::connect(address, until)?;
    let mut pids = vec![own.as_raw().cast_unsigned()];
    // An orphan's parent is not the session.
    if session.as_raw() > 1 {
        pids.push(session.as_raw().cast_unsigned());
    }
    let properties = [
        ("Description", Argument::Text("a murmur session")),
        ("PIDs", Argument::Numbers(&pids)),
        ("Delegate", Argument::Flag(true)),
        ("CollectMode", Argument::Text("inactive-or-failed")),
    ];
    bus.call(&Call {
        destination: "org.freedesktop.systemd1",
        path: "/org/freedesktop/systemd1",
        interface: "org.freedesktop.systemd1.Manager",
        member: "StartTransientUnit",
        unit: Some((&unit, "fail", &properties)),
    })?;
    // The answer means that the job is queued.
    while !stands_in(&unit) {
        if Instant::now() >= until {
            return Err(format!("{unit} was granted and never entered"));
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

fn stands_in(unit: &str) -> bool {
    let text = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    text.lines().filter_map(|line| line.strip_prefix("0::")).any(|path| path.split('/').next_back() == Some(unit))
}
