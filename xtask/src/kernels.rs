//! `cargo xtask kernels`: the containment suites on kernels that this machine does not run.
//!
//! Debian's kernels are booted under qemu, without acceleration unless `--kvm` asks for it, on a small image made of the built
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

const USAGE: &str =
    "usage: cargo xtask kernels [--kernel 6.1|6.12]… [--suite NAME]… [--class CLASS]… [--case ID]… [--minutes N] [--kvm] [--refresh]
       cargo xtask kernels --table";

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
    /// What the harness grades.
    classes: Vec<&'static str>,
    /// Its cases; all of them when there are none.
    cases: Vec<String>,
    minutes: u64,
    accelerate: bool,
    refresh: bool,
}

/// Builds, boots each kernel in turn and prints the table. Fails when a class is not achieved or a test fails.
pub fn kernels(arguments: &[&str]) -> Outcome {
    let folder = sh::target().join("kernels");
    if arguments == ["--table"] {
        return finish(&kept(&folder)?, &folder);
    }
    let wanted = wanted(arguments)?;
    let store = packages::Store::new(&folder, wanted.refresh)?;
    // Downloads first: they fail sooner than a build.
    let mut emulator = machine::Emulator::find(&store)?;
    emulator.accelerate = wanted.accelerate;
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
    let content = image::Content {
        userland: &userland,
        dist: &dist.root,
        probe: probe.as_deref(),
        tests: &tests,
        classes: &wanted.classes,
        cases: &wanted.cases,
    };
    image::write(&initramfs, &content)?;
    let mut machines = Vec::new();
    for (kernel, image) in images {
        machines.push(boot(&emulator, kernel, &image, &initramfs, &folder, Duration::from_secs(wanted.minutes * 60))?);
        let (said, keep) = (folder.join(format!("{}-results.log", kernel.line)), folder.join("kept"));
        sh::folder(&keep)?;
        sh::copy(&said, &keep.join(format!("{}-{}.log", kernel.line, wanted.part())), 0o644)?;
    }
    finish(&machines, &folder)
}

/// What earlier runs kept, a machine a kernel: a slow host tries part after part.
fn kept(folder: &Path) -> Outcome<Vec<Machine>> {
    let folder = folder.join("kept");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    let written = |path: &PathBuf| std::fs::metadata(path).and_then(|about| about.modified()).ok();
    files.sort_by_key(|path| std::cmp::Reverse(written(path)));
    let mut machines = Vec::new();
    for kernel in &KERNELS {
        let mut said = String::new();
        for file in &files {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with(&format!("{}-", kernel.line)) {
                said.push_str(&std::fs::read_to_string(file).map_err(|fault| format!("{}: {fault}", file.display()))?);
            }
        }
        if !said.is_empty() {
            machines.push(Machine::read(kernel.line, &said));
        }
    }
    if machines.is_empty() {
        Err(format!("nothing was tried yet: {} is empty", folder.display()))
    } else {
        Ok(machines)
    }
}

fn finish(machines: &[Machine], folder: &Path) -> Outcome {
    sh::print(&report::table(machines));
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

impl Wanted {
    /// What of it is tried, as a file is named by.
    fn part(&self) -> String {
        let suites = self.suites.iter().map(|suite| suite.name);
        suites.chain(self.classes.iter().copied()).collect::<Vec<_>>().join("+")
    }
}

fn wanted(arguments: &[&str]) -> Outcome<Wanted> {
    let mut wanted = Wanted {
        kernels: Vec::new(),
        suites: Vec::new(),
        classes: Vec::new(),
        cases: Vec::new(),
        minutes: MINUTES,
        accelerate: false,
        refresh: false,
    };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        if matches!(*argument, "--refresh" | "--kvm") {
            wanted.refresh |= *argument == "--refresh";
            wanted.accelerate |= *argument == "--kvm";
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
            "--class" => {
                let known = report::CLASSES.iter().find(|class| *class == value);
                wanted.classes.push(known.ok_or_else(|| format!("no class '{value}'\n{USAGE}"))?);
            }
            "--case" => wanted.cases.push((*value).to_owned()),
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
    if wanted.classes.is_empty() {
        wanted.classes = report::CLASSES.to_vec();
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
        assert_eq!((all.classes.len(), all.accelerate), (4, false));
        let some = wanted(&["--kernel", "6.1", "--suite", "confined", "--minutes", "5", "--refresh"]).unwrap();
        assert_eq!((some.kernels[0].line, some.suites[0].name, some.minutes), ("6.1", "confined", 5));
        assert!(some.refresh && some.kernels.len() == 1);
        assert_eq!(wanted(&["--class", "scoped", "--kvm"]).unwrap().classes, ["scoped"]);
        assert_eq!(wanted(&["--case", "a", "--case", "b"]).unwrap().cases, ["a", "b"]);
        for bad in [
            &["--kernel", "5.4"][..],
            &["--class", "x"],
            &["--kernel"],
            &["--suite", "x"],
            &["--minutes", "x"],
            &["x", "y"],
        ] {
            assert!(wanted(bad).is_err(), "{bad:?}");
        }
    }
}
