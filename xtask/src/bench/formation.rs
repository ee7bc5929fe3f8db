//! Formations, launched and timed from outside.

// As in `sh`.
#![allow(clippy::disallowed_methods)]

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};

use super::provider::{Asked, Provider};
use crate::dist::Dist;
use crate::{Outcome, sh};

/// A home for all measurements, with the capsules they use installed.
pub struct Place {
    mur: PathBuf,
    root: PathBuf,
    provider: Provider,
}

impl Place {
    /// Makes one, and installs a lead that asks a provider and a member that plays a script.
    pub fn new(dist: &Dist) -> Outcome<Self> {
        let root = sh::target().join("bench");
        if root.exists() {
            fs::remove_dir_all(&root).map_err(|fault| format!("{}: {fault}", root.display()))?;
        }
        sh::folder(&root.join("home"))?;
        fs::set_permissions(root.join("home"), fs::Permissions::from_mode(0o700)).map_err(|fault| fault.to_string())?;
        let root = root.canonicalize().map_err(|fault| fault.to_string())?;
        let place = Self { mur: dist.mur.clone(), root, provider: Provider::start()? };
        let gateway = json!({"endpoint": place.provider.url, "keyless": true});
        let mut lead = capsule("bench-lead", "driver-anthropic", &gateway, "claude-haiku-4-5", dist)?;
        lead["capabilities"] = json!({"network": {"allow": ["localhost"]}});
        let gateway = json!({"endpoint": "http://127.0.0.1:9", "keyless": true});
        let mut member = capsule("bench-member", "driver-scripted", &gateway, "scripted", dist)?;
        member["lifecycle"] = json!({"task_acceptance": "queue", "after_task": "sleep"});
        member["exports"] = json!({"peer_tasks": {"accept": true}});
        for (name, manifest) in [("bench-lead", lead), ("bench-member", member)] {
            let source = place.root.join(name);
            sh::folder(&source)?;
            sh::write(&source.join("murmur.yaml"), manifest.to_string().as_bytes(), 0o644)?;
            place.quiet(&["build", name])?;
            place.quiet(&["install", "-g", &format!("./{name}/{name}-0.1.0.mur.zip")])?;
        }
        Ok(place)
    }

    /// The home.
    pub fn home(&self) -> PathBuf {
        self.root.join("home")
    }

    /// `mur` in this home.
    pub fn command(&self, cwd: &Path) -> Command {
        let mut command = Command::new(&self.mur);
        command.current_dir(cwd).env_clear().env("HOME", self.home()).stdin(Stdio::null());
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command
    }

    fn quiet(&self, arguments: &[&str]) -> Outcome {
        let mut command = self.command(&self.root);
        let output = sh::output(command.args(arguments))?;
        match output.status.success() {
            true => Ok(()),
            false => Err(format!("{}: {}", sh::line(&command), String::from_utf8_lossy(&output.stderr))),
        }
    }

    /// A formation of so many members: the lead, and members it may call.
    pub fn formation(&self, members: usize) -> Outcome<Formation<'_>> {
        let project = self.root.join(format!("formation-{members}"));
        sh::folder(&project)?;
        let names: Vec<String> = (1..members).map(|number| format!("m{number}")).collect();
        let mut all = vec![json!({"name": "lead", "capsule": "local/bench-lead", "version": "0.1.0", "entry": true})];
        all.extend(names.iter().map(|name| json!({"name": name, "capsule": "local/bench-member", "version": "0.1.0"})));
        let rules = json!([{"from": "lead", "to": names}]);
        let roster = json!({"roster_version": 1, "members": all, "reachability": rules});
        sh::write(&project.join("roster.yaml"), roster.to_string().as_bytes(), 0o644)?;
        let formation = Formation { place: self, project, members, class: "unconfined" };
        // The first launch compiles; what is measured is what every later one costs.
        formation.time()?;
        Ok(formation)
    }
}

fn capsule(name: &str, driver: &str, gateway: &Value, model: &str, dist: &Dist) -> Outcome<Value> {
    let versions = dist.root.join("lib/mur/artifacts/murmur").join(driver);
    let version = fs::read_dir(&versions)
        .ok()
        .and_then(|mut entries| entries.next()?.ok())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .ok_or_else(|| format!("{} is empty", versions.display()))?;
    let full = format!("murmur/{driver}");
    Ok(json!({
        "name": name, "version": "0.1.0", "runtime": "capsule", "execution": "static",
        "artifacts": [{"name": full, "version": version, "runtime": "driver", "gateway": gateway}],
        "inference": {"transport": "http", "model": model, "driver": {"artifact": full}},
        "network": {"authentication": {"scheme": "bearer"}},
    }))
}

/// A formation that can be launched again and again.
pub struct Formation<'a> {
    place: &'a Place,
    project: PathBuf,
    members: usize,
    class: &'static str,
}

impl Formation<'_> {
    /// The same under another class.
    pub fn under(mut self, class: &'static str) -> Self {
        self.class = class;
        self
    }

    /// Milliseconds to the first model request and to exit, of so many runs.
    pub fn times(&self, runs: usize) -> Outcome<Vec<(f64, f64)>> {
        (0..runs).map(|_| self.time()).collect()
    }

    fn time(&self) -> Outcome<(f64, f64)> {
        let start = Instant::now();
        let (child, asked) = self.launch()?;
        let request = asked.at.duration_since(start).as_secs_f64() * 1000.0;
        asked.answer();
        ended(child)?;
        Ok((request, start.elapsed().as_secs_f64() * 1000.0))
    }

    /// Mebibytes of proportional memory of all processes, divided by the members.
    pub fn memory(&self, runs: usize) -> Outcome<Vec<f64>> {
        (0..runs)
            .map(|_| {
                let (child, asked) = self.launch()?;
                let kib = tree(child.id()).into_iter().map(pss).sum::<Outcome<u64>>();
                asked.answer();
                ended(child)?;
                Ok(kib? as f64 / 1024.0 / self.members as f64)
            })
            .collect()
    }

    fn launch(&self) -> Outcome<(Child, Asked)> {
        let mut command = self.place.command(&self.project);
        command.args(["run", "--roster", "--json", "--containment", self.class, "--task", "say something"]);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|fault| format!("mur: {fault}"))?;
        match self.place.provider.next() {
            Ok(asked) => Ok((child, asked)),
            Err(fault) => {
                let _ = child.kill();
                let output = child.wait_with_output().map_err(|fault| fault.to_string())?;
                Err(format!("{fault}: {}", String::from_utf8_lossy(&output.stderr)))
            }
        }
    }
}

fn ended(child: Child) -> Outcome {
    let output = child.wait_with_output().map_err(|fault| fault.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("the formation failed: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

/// A process and everything under it.
fn tree(root: u32) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        // The name may hold anything; what follows its last parenthesis does not.
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)?.parse().ok());
        if let Some(parent) = parent {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = vec![root];
    let mut at = 0;
    while at < found.len() {
        found.extend(children.get(&found[at]).into_iter().flatten());
        at += 1;
    }
    found
}

fn pss(pid: u32) -> Outcome<u64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(&path).map_err(|fault| format!("{path}: {fault} (memory is measured as root)"))?;
    text.lines()
        .find_map(|line| line.strip_prefix("Pss:")?.trim().strip_suffix(" kB")?.trim().parse().ok())
        .ok_or_else(|| format!("{path} has no Pss"))
}
