//! The emulated machine: qemu, its consoles as files, and its end.

// As in `sh`.
#![allow(clippy::disallowed_methods)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::packages::Store;
use crate::{Outcome, sh};

const PROGRAM: &str = "qemu-system-x86_64";

/// Bytes of memory: the image is unpacked into it, and a scope of the suites may hold a quarter of a gigabyte.
const MEMORY: &str = "3G";
const PROCESSORS: &str = "2";

/// How often the machine is looked at.
const LOOK: Duration = Duration::from_millis(200);

/// How to start qemu.
pub struct Emulator {
    /// The program and what goes before its own arguments.
    start: Vec<String>,
    modules: Option<PathBuf>,
    /// Whether the host's processor runs the machine. Inside another machine that may be offered, and hang.
    pub accelerate: bool,
}

/// Where a machine's words go.
pub struct Logs {
    /// What the kernel and the first process print.
    pub console: PathBuf,
    /// What the suites say.
    pub results: PathBuf,
}

/// A machine that is not left running when this ends early.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Emulator {
    /// The host's own, or one unpacked from packages: with its own loader, libraries, modules and firmware, so that it
    /// suits any host.
    pub fn find(store: &Store) -> Outcome<Self> {
        if let Some(path) = sh::which(PROGRAM) {
            return Ok(Self { start: vec![path.display().to_string()], modules: None, accelerate: false });
        }
        let root = store.emulator()?;
        let at = |path: &str| root.join(path).display().to_string();
        let libraries = at("usr/lib/x86_64-linux-gnu");
        Ok(Self {
            start: vec![
                at("usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"),
                "--library-path".to_owned(),
                format!("{libraries}:{libraries}/pulseaudio"),
                at(&format!("usr/bin/{PROGRAM}")),
                "-L".to_owned(),
                at("usr/share/qemu"),
                "-L".to_owned(),
                at("usr/share/seabios"),
            ],
            modules: Some(root.join("usr/lib/x86_64-linux-gnu/qemu")),
            accelerate: false,
        })
    }

    /// Boots, and waits for the machine to power itself off. Gives how it ended, in words.
    pub fn run(&self, kernel: &Path, initramfs: &Path, logs: &Logs, limit: Duration) -> Outcome<String> {
        let (program, before) = self.start.split_first().ok_or("there is no emulator")?;
        let mut command = Command::new(program);
        command.args(before);
        if let Some(modules) = &self.modules {
            command.env("QEMU_MODULE_DIR", modules);
        }
        let accelerator = if self.accelerate { "kvm" } else { "tcg,thread=multi" };
        command.args(["-machine", "q35", "-accel", accelerator, "-cpu", "max"]);
        command.args(["-m", MEMORY, "-smp", PROCESSORS, "-nodefaults", "-nographic", "-no-reboot"]);
        command.arg("-serial").arg(format!("file:{}", logs.console.display()));
        command.arg("-serial").arg(format!("file:{}", logs.results.display()));
        command.arg("-kernel").arg(kernel).arg("-initrd").arg(initramfs);
        // A host with other work to do emulates timers too late for the check that early boot makes of them.
        command.args(["-append", "console=ttyS0 loglevel=5 no_timer_check panic=-1 rdinit=/init"]);
        command.stdin(Stdio::null());
        let mut running = Running(command.spawn().map_err(|fault| format!("{}: {fault}", sh::line(&command)))?);
        let until = Instant::now() + limit;
        loop {
            if let Some(status) = running.0.try_wait().map_err(|fault| fault.to_string())? {
                return Ok(format!("the machine ended with {status}"));
            }
            if Instant::now() >= until {
                return Ok(format!("the machine was stopped after {} minutes", limit.as_secs() / 60));
            }
            std::thread::sleep(LOOK);
        }
    }
}
