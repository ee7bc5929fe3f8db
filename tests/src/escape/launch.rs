//! One launch: `mur` started with the probe in it, looked at from outside, told to go on, and its report read.

// The harness starts mur as an operator's shell would.
#![allow(clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::cases::{Class, Route, Verdict};
use super::host::{setting, which};
use super::listeners::Listeners;
use super::look::{self, Looked};
use super::member::Formation;
use super::stage::{self, Capsule, DRIVER_STORE, HOOKS_SCOPE, HOOKS_STORE, KEY, MARKER, Stage, TOOLS_STORE};
use crate::Trace;

/// The file `mur` is started with open, on a descriptor nobody is told of.
const LEAKED: &str = "/etc/hostname";

/// A text that is in the probe's memory.
const CANARY: &str = "ec-canary";

/// What a run has beside its stage.
pub struct Bench {
    /// Home and capsules.
    pub stage: Stage,
    /// What listens on the host.
    pub listeners: Listeners,
    /// How long a launch may take.
    pub timeout: Duration,
    /// Whether launches run in a delegated scope.
    pub systemd_scope: bool,
}

/// What the probe reported of a case.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The verdict.
    pub verdict: Verdict,
    /// What its control came to.
    pub control: String,
    /// The evidence.
    pub detail: String,
}

impl Seen {
    /// A verdict of the harness's own.
    pub fn new(verdict: Verdict, control: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { verdict, control: control.into(), detail: detail.into() }
    }
}

/// A launch that has ended.
#[derive(Debug)]
pub struct Ran {
    /// What the probe reported, by case.
    pub seen: BTreeMap<String, Seen>,
    /// What the look from outside found.
    pub looked: Result<Looked, String>,
    /// `mur`'s exit status; none when a signal or the harness ended it.
    pub status: Option<i32>,
    /// What `mur` printed.
    pub stderr: String,
    /// What it recorded.
    pub trace: Option<Trace>,
    /// Where everything of the launch lies.
    pub folder: PathBuf,
}

impl Bench {
    /// Launches a capsule whose probe attempts `cases` in its first call and `second` in later ones.
    ///
    /// # Errors
    /// When the launch cannot be staged; what `mur` itself does is in [`Ran`].
    pub fn launch(&self, capsule: &Capsule, cases: &[&str], second: &[&str]) -> Result<Ran, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        self.stage.capsule(capsule)?;
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = self.stage.root.join(format!("{number:02}-{}", capsule.name()));
        let (project, work) = (folder.join("project"), folder.join("project/work"));
        for one in [&folder, &project, &work] {
            stage::make_private(one)?;
        }
        stage::write(&project.join(".env"), &format!("EC_SECRET={MARKER}\n"), 0o600)?;
        let own = self.own_folder(capsule, &work, number)?;
        self.staged_program(&own)?;
        if capsule.route == Route::Shell {
            let library = work.join(stage::LIBRARY);
            fs::write(&library, self.stage.probe(stage::LIBRARY)?)
                .map_err(|fault| format!("{}: {fault}", library.display()))?;
        }
        let plan = own.join("plan");
        let common = self.lines(capsule);
        stage::write(&plan, &format!("wait 1\ncanary {CANARY}-{number}-{}\n", std::process::id()), 0o600)?;
        let later: String = second.iter().map(|case| format!("case {case}\n")).collect();
        stage::write(&beside(&plan, "second"), &format!("{later}{common}"), 0o600)?;
        let known = look::traces(&self.stage.home);
        // Held until the session has ended: its end is the lifeline's.
        let formation = capsule.member.then(Formation::new).transpose()?;
        let mut child = self.start(capsule, formation.as_ref(), &work, &plan, &folder)?;
        let canary = format!("{CANARY}-{number}-{}", std::process::id());
        let looked = self.wait_ready(&mut child, capsule, &plan, &known).map(|mut looked| {
            if let Some(probe) = looked.probe {
                looked.memory = look::search(probe, &canary, &self.secrets());
            }
            looked
        });
        let of_formation = formation.as_ref().map(|one| one.lines(&self.stage.home, &self.tokens()).join("\n") + "\n");
        // A process that could not be looked at is let go with nothing to attempt.
        let rest = looked.as_ref().map(|looked| self.rest(capsule, cases, looked, &work, &known));
        let new = beside(&plan, "go.new");
        stage::write(
            &new,
            &format!("{common}{}{}", of_formation.unwrap_or_default(), rest.unwrap_or_default()),
            0o600,
        )?;
        fs::rename(&new, beside(&plan, "go")).map_err(|fault| format!("{}: {fault}", new.display()))?;
        let status = self.finish(&mut child);
        let mut seen = read_report(&beside(&plan, "report"));
        seen.extend(read_report(&beside(&beside(&plan, "second"), "report")));
        let trace = look::traces(&self.stage.home).into_iter().find(|trace| !known.contains(trace));
        let trace = trace.map(|path| Trace::read(&path));
        let stderr = fs::read_to_string(folder.join("stderr")).unwrap_or_default();
        Ok(Ran { seen, looked, status, stderr, trace, folder })
    }

    /// The folder the probe is at home in: the work folder, or for hooks, which are granted none of it, a folder of their
    /// state store.
    fn own_folder(&self, capsule: &Capsule, work: &Path, number: u32) -> Result<PathBuf, String> {
        if capsule.route != Route::Hooks {
            return Ok(work.to_owned());
        }
        let state = self.stage.home.join(".murmur/state");
        let own = state.join(HOOKS_STORE).join(format!("{number:02}"));
        for one in [&state, &state.join(HOOKS_STORE), &own] {
            stage::make_private(one)?;
        }
        Ok(own)
    }

    /// A program nobody lists, under the name of one that is.
    fn staged_program(&self, own: &Path) -> Result<(), String> {
        let echo = which("echo", stage::PATH).ok_or("there is no 'echo' to stage")?;
        let staged = own.join("bash");
        fs::copy(&echo, &staged)
            .and_then(|_| fs::set_permissions(&staged, fs::Permissions::from_mode(0o755)))
            .map_err(|fault| format!("{}: {fault}", staged.display()))
    }

    /// What every plan of a launch holds.
    fn lines(&self, capsule: &Capsule) -> String {
        let mut lines = vec![format!("class {}", capsule.class.as_str()), format!("route {}", capsule.route.as_str())];
        lines.extend(self.listeners.tcp.iter().map(|address| format!("tcp {address}")));
        lines.extend(self.listeners.udp.iter().map(|address| format!("udp {address}")));
        lines.extend(self.listeners.tcp.iter().map(|address| format!("http http://{address}/")));
        if matches!(capsule.route, Route::Tools | Route::Hooks) {
            // What stands for a gateway, from an artifact without one.
            lines.push("http http://127.0.0.1:9/".to_owned());
        }
        lines.push(format!("abstract {}", self.listeners.name));
        lines.push(format!("unix {}", self.listeners.path.display()));
        let loaders = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];
        lines.extend(loaders.iter().find(|path| Path::new(path).exists()).map(|path| format!("loader {path}")));
        for (key, path) in [
            ("protected-hardlinks", "/proc/sys/fs/protected_hardlinks"),
            ("vm.unprivileged_userfaultfd", "/proc/sys/vm/unprivileged_userfaultfd"),
            ("kernel.perf_event_paranoid", "/proc/sys/kernel/perf_event_paranoid"),
        ] {
            lines.push(format!("{key} {}", setting(path)));
        }
        if let Ok(leaked) = fs::metadata(LEAKED) {
            lines.push(format!("leaked {}:{}", leaked.dev(), leaked.ino()));
        }
        lines.extend(accounts().into_iter().map(|name| format!("account {name}")));
        lines.join("\n") + "\n"
    }

    /// What is known only once the session runs.
    fn rest(&self, capsule: &Capsule, cases: &[&str], looked: &Looked, work: &Path, known: &[PathBuf]) -> String {
        let home = self.stage.home.join(".murmur");
        let mut lines: Vec<String> = cases.iter().map(|case| format!("case {case}")).collect();
        lines.push(format!("peek {}", looked.mur));
        lines.extend(looked.others.iter().map(|pid| format!("peek {pid}")));
        lines.push(format!("records {}", looked.records.join("trace.jsonl").display()));
        lines.extend(known.first().map(|other| format!("records {}", other.display())));
        for secret in [home.join("config.yaml"), home.join("running"), work.with_file_name(".env")] {
            lines.push(format!("secret {}", secret.display()));
        }
        if capsule.route == Route::Hooks && !capsule.tight {
            // The work folder is no hook's that was not granted it.
            let _ = stage::write(&work.join("ec-planted"), MARKER, 0o600);
            lines.push(format!("secret {}", work.join("ec-planted").display()));
        }
        lines.push(format!(
            "fill {}",
            if capsule.route == Route::Hooks { work.join(HOOKS_SCOPE) } else { work.into() }.display()
        ));
        lines.push(format!("runtime {}", looked.runtime.display()));
        lines.push(format!("records-dir {}", looked.records.display()));
        let own = match capsule.route {
            Route::Tools => TOOLS_STORE,
            Route::Hooks => HOOKS_STORE,
            _ => DRIVER_STORE,
        };
        lines.push(format!("own-store {}", home.join("state").join(own).display()));
        for other in [DRIVER_STORE, TOOLS_STORE, HOOKS_STORE].into_iter().filter(|other| *other != own) {
            let other = home.join("state").join(other);
            // A folder with nothing in it could be listed without anybody noticing.
            let _ = stage::make_private(&other);
            let _ = fs::write(other.join("ec-planted"), MARKER);
            lines.push(format!("other-store {}", other.join("ec-planted").display()));
            lines.push(format!("other-store {}", other.display()));
        }
        lines.join("\n") + "\n"
    }

    /// Secrets that no worker may hold, by name.
    fn secrets(&self) -> Vec<(String, String)> {
        let mut secrets = self.tokens();
        secrets.push(("the gateway's key".to_owned(), KEY.to_owned()));
        secrets
    }

    /// Tokens of the session that runs, and of the edge of a member.
    fn tokens(&self) -> Vec<(String, String)> {
        let mut secrets = vec![Formation::token()];
        let running = self.stage.home.join(".murmur/running");
        for entry in fs::read_dir(running).into_iter().flatten().flatten() {
            let text = fs::read_to_string(entry.path()).unwrap_or_default();
            let Ok(record) = serde_json::from_str::<serde_json::Value>(&text) else { continue };
            tokens(&record, &mut secrets);
        }
        secrets
    }

    fn start(
        &self,
        capsule: &Capsule,
        formation: Option<&Formation>,
        work: &Path,
        plan: &Path,
        folder: &Path,
    ) -> Result<Child, String> {
        let say = |fault: std::io::Error| format!("mur cannot be started: {fault}");
        let task = format!("ESCAPE-PLAN={};", plan.display());
        let name = format!("local/{}", capsule.name());
        let mut line: Vec<String> = Vec::new();
        if self.systemd_scope {
            let scope = ["systemd-run", "--user", "--scope", "--quiet", "--property=Delegate=yes", "--"];
            line.extend(scope.map(str::to_owned));
        }
        line.push(self.stage.mur.display().to_string());
        line.extend(["run", "--capsule", &name, "--capsule-version", "0.1.0", "--task", &task].map(str::to_owned));
        line.extend(["--workdir".to_owned(), work.display().to_string()]);
        if capsule.class == Class::Unconfined {
            line.extend(["--containment", "unconfined"].map(str::to_owned));
        }
        if formation.is_some() {
            line.extend(["--lifecycle-task-acceptance", "single", "--lifecycle-after-task", "exit"].map(str::to_owned));
        }
        let project = work.parent().unwrap_or(work);
        // Descriptor 7 is left open on purpose: whoever is careless hands it on.
        let base = self.stage.mur(project);
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &format!("exec 7<{LEAKED}; exec \"$@\""), "sh"]).args(&line);
        command.env_clear().current_dir(project);
        command.envs(base.get_envs().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned()))));
        if self.systemd_scope {
            let kept = ["XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"];
            command.envs(kept.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        }
        if let Some(formation) = formation {
            command.envs(formation.env());
        }
        let output = |name: &str| fs::File::create(folder.join(name)).map_err(say);
        command.stdin(Stdio::null()).stdout(output("stdout")?).stderr(output("stderr")?).process_group(0);
        command.spawn().map_err(say)
    }

    /// Waits until the probe is there, and looks.
    fn wait_ready(
        &self,
        child: &mut Child,
        capsule: &Capsule,
        plan: &Path,
        known: &[PathBuf],
    ) -> Result<Looked, String> {
        let begun = Instant::now();
        let ready = beside(plan, "ready");
        while !ready.exists() {
            if child.try_wait().is_ok_and(|ended| ended.is_some()) {
                return Err("mur ended before the probe was there".to_owned());
            }
            if begun.elapsed() > self.timeout {
                return Err(format!("the probe was not there after {} s", self.timeout.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let mur = i32::try_from(child.id()).map_err(|fault| fault.to_string())?;
        look::look(mur, capsule.route, capsule.class, &self.stage.home, known)
    }

    /// Waits for the end; what takes too long is killed with its group.
    fn finish(&self, child: &mut Child) -> Option<i32> {
        let begun = Instant::now();
        loop {
            if let Ok(Some(status)) = child.try_wait() {
                return status.code();
            }
            if begun.elapsed() > self.timeout {
                let group = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX));
                let _ = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
                let _ = child.wait();
                return None;
            }
            std::thread::sleep(Duration::from_millis(3));
        }
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}

/// Accounts of the host other than root, which a composed root does not know.
fn accounts() -> Vec<String> {
    let text = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let names = text.lines().filter_map(|line| line.split(':').next());
    names.filter(|name| !name.is_empty() && !["root", "capsule"].contains(name)).take(40).map(str::to_owned).collect()
}

/// Every text of a running record that is a token.
fn tokens(record: &serde_json::Value, into: &mut Vec<(String, String)>) {
    match record {
        serde_json::Value::Object(map) => {
            for (key, value) in map {
                match value.as_str() {
                    Some(text) if key.contains("token") && text.len() >= 16 => {
                        into.push((format!("the session's {key}"), text.to_owned()));
                    }
                    _ => tokens(value, into),
                }
            }
        }
        serde_json::Value::Array(list) => list.iter().for_each(|value| tokens(value, into)),
        _ => {}
    }
}

/// The last line of each case counts: a case that may not live to report writes beforehand what its end would mean.
fn read_report(path: &Path) -> BTreeMap<String, Seen> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let mut fields = line.split('\t');
            let (case, verdict) = (fields.next()?, fields.next()?);
            let seen = Seen::new(Verdict::parse(verdict), fields.next()?, fields.next()?);
            Some((case.to_owned(), seen))
        })
        .collect()
}
