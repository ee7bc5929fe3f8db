//! `cargo xtask kernels`: the containment suites on kernels that this machine does not run.
//!
//! Debian's kernels are booted under qemu, without acceleration where there is none, on a small image made of the built
//! binaries and a userland of packages. As root, with nothing else running, the machine runs the containment suites; then
//! systemd takes over and an ordinary user's session, delegated to by its own manager, runs what such a user may. One table
//! says what each class achieves on each kernel, how the suites went, and what the escape-conformance harness got there.
//!
//! Everything that is downloaded is kept under `target/kernels`; nothing is installed.

mod image;
mod machine;
mod packages;
mod plan;
mod report;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::dist::{self, Profile};
use crate::{Outcome, sh};
use packages::Release;
use report::Machine;

/// How long one machine may take unless `--minutes` says otherwise. An emulated processor is some twenty times slower.
const MINUTES: u64 = 60;

const USAGE: &str = "usage: cargo xtask kernels [--kernel 6.1|6.12]… [--suite NAME]… [--minutes N] [--refresh]";

/// A kernel that is tried.
pub(crate) struct Kernel {
    /// Its line, as `--kernel` names it.
    line: &'static str,
    /// The release of Debian that has it.
    release: Release,
}

const KERNELS: [Kernel; 2] =
    [Kernel { line: "6.1", release: Release::Bookworm }, Kernel { line: "6.12", release: Release::Trixie }];

struct Wanted {
    kernels: Vec<&'static Kernel>,
    suites: Vec<&'static plan::Suite>,
    minutes: u64,
    refresh: bool,
}

/// Builds, boots each kernel in turn and prints the table. Fails when a class is not achieved or a test fails.
pub fn kernels(arguments: &[&str]) -> Outcome {
    let wanted = wanted(arguments)?;
    let folder = sh::target().join("kernels");
    let store = packages::Store::new(&folder, wanted.refresh)?;
    // Downloads first: they fail sooner than a build.
    let emulator = machine::Emulator::find(&store)?;
    let userland = store.userland()?;
    let mut images = Vec::new();
    for kernel in &wanted.kernels {
        images.push((*kernel, store.kernel(kernel.release)?));
    }
    let dist = dist::dist(Profile::Debug)?;
    let probe = match wanted.suites.iter().any(|suite| suite.kind == plan::Kind::Harness) {
        true => Some(dist::escape_probe()?.root),
        false => None,
    };
    let tests = plan::build(&wanted.suites)?;
    let initramfs = folder.join("initramfs.cpio");
    let content = image::Content { userland: &userland, dist: &dist.root, probe: probe.as_deref(), tests: &tests };
    image::write(&initramfs, &content)?;
    let mut machines = Vec::new();
    for (kernel, image) in images {
        machines.push(boot(&emulator, kernel, &image, &initramfs, &folder, Duration::from_secs(wanted.minutes * 60))?);
    }
    sh::print(&report::table(&machines));
    let faults: Vec<String> = machines.iter().flat_map(Machine::faults).collect();
    if faults.is_empty() {
        return Ok(());
    }
    for fault in &faults {
        sh::say(fault);
    }
    Err(format!("{} of what was tried failed; what the machines printed is in {}", faults.len(), folder.display()))
}

fn boot(
    emulator: &machine::Emulator,
    kernel: &Kernel,
    image: &Path,
    initramfs: &Path,
    folder: &Path,
    limit: Duration,
) -> Outcome<Machine> {
    let logs = machine::Logs {
        console: folder.join(format!("{}-console.log", kernel.line)),
        results: folder.join(format!("{}-results.log", kernel.line)),
    };
    sh::say(&format!("booting {} ({})", kernel.line, image.file_name().unwrap_or_default().to_string_lossy()));
    let start = Instant::now();
    let ended = emulator.run(image, initramfs, &logs, limit)?;
    let said = std::fs::read(&logs.results).map_err(|fault| format!("{}: {fault}", logs.results.display()))?;
    let mut machine = Machine::read(kernel.line, &String::from_utf8_lossy(&said));
    if !machine.whole {
        machine.broken = Some(format!("{ended}; see {}", logs.console.display()));
    }
    sh::say(&format!("{} ended after {:.0} s", kernel.line, start.elapsed().as_secs_f64()));
    Ok(machine)
}

fn wanted(arguments: &[&str]) -> Outcome<Wanted> {
    let mut wanted = Wanted { kernels: Vec::new(), suites: Vec::new(), minutes: MINUTES, refresh: false };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        if *argument == "--refresh" {
            wanted.refresh = true;
            continue;
        }
        let value = rest.next().ok_or_else(|| format!("{argument} needs a value\n{USAGE}"))?;
        match *argument {
            "--kernel" => {
                let known = KERNELS.iter().find(|kernel| kernel.line == *value);
                wanted.kernels.push(known.ok_or_else(|| format!("no kernel '{value}'\n{USAGE}"))?);
            }
            "--suite" => {
                let known = plan::SUITES.iter().find(|suite| suite.name == *value);
                let names: Vec<&str> = plan::SUITES.iter().map(|suite| suite.name).collect();
                wanted.suites.push(known.ok_or_else(|| format!("no suite '{value}' but {}", names.join(", ")))?);
            }
            "--minutes" => wanted.minutes = value.parse().map_err(|_| format!("--minutes needs a number\n{USAGE}"))?,
            _ => return Err(USAGE.to_owned()),
        }
    }
    if wanted.kernels.is_empty() {
        wanted.kernels = KERNELS.iter().collect();
    }
    if wanted.suites.is_empty() {
        wanted.suites = plan::SUITES.iter().collect();
    }
    Ok(wanted)
}

/// A file that was built, and its name in the image.
pub(crate) struct Built {
    name: String,
    path: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_tried_unless_less_is_asked_for() {
        let all = wanted(&[]).unwrap();
        assert_eq!((all.kernels.len(), all.suites.len(), all.minutes), (KERNELS.len(), plan::SUITES.len(), MINUTES));
        let some = wanted(&["--kernel", "6.1", "--suite", "confined", "--minutes", "5", "--refresh"]).unwrap();
        assert_eq!((some.kernels[0].line, some.suites[0].name, some.minutes), ("6.1", "confined", 5));
        assert!(some.refresh && some.kernels.len() == 1);
        for bad in [&["--kernel", "5.4"][..], &["--kernel"], &["--suite", "x"], &["--minutes", "x"], &["x", "y"]] {
            assert!(wanted(bad).is_err(), "{bad:?}");
        }
    }
}
