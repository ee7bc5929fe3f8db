//! `cargo xtask demo`: the counting house, from its sources to its trace.

// As in `sh`.
#![allow(clippy::disallowed_methods)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::dist::{self, Dist, Profile};
use crate::{Outcome, sh};

const TASK: &str = "Count the file ledger.txt with your clerks";
/// Nothing in a demo takes this long; it ends one that hangs.
const DEADLINE_SECS: &str = "55";

/// Builds, installs and launches the counting house, and shows what came of it. With `--release` on a release build.
pub fn demo(arguments: &[&str]) -> Outcome {
    let profile = match arguments {
        [] => Profile::Debug,
        ["--release"] => Profile::Release,
        _ => return Err("usage: cargo xtask demo [--release]".to_owned()),
    };
    let dist = dist::dist(profile)?;
    let start = Instant::now();
    let place = Place::new(&dist)?;
    for member in ["lead", "clerk"] {
        place.mur(&["build", member])?;
        place.mur(&["install", "-g", &format!("./{member}/counting-house-{member}-0.1.0.mur.zip")])?;
    }
    let run = place.launch()?;
    let result = run.records.join("out/result.txt");
    let text = fs::read_to_string(&result).map_err(|fault| format!("{}: {fault}", result.display()))?;
    sh::print(&format!("\nThe result\n\n{}\n", indent(&text)));
    sh::print(&format!("The formation's trace: mur trace show {}\n\n", run.formation));
    place.mur(&["trace", "show", &run.formation])?;
    let home = place.home.join(".murmur");
    sh::print(&format!(
        "\nWhere everything lies\n\n  the members' sources   {}\n  the result             {}\n  the lead's records     {}\n  \
         the clerks' records    {}\n  mur                    {}\n\nThe demo took {:.1} s after the build.\n",
        place.project.display(),
        result.display(),
        run.records.display(),
        home.join("records").join(strip(&home)).join("formations").join(&run.formation).display(),
        place.binary.display(),
        start.elapsed().as_secs_f64(),
    ));
    if text.contains("Together:") { Ok(()) } else { Err("the clerks' answers were not joined".to_owned()) }
}

fn strip(path: &Path) -> PathBuf {
    path.strip_prefix("/").unwrap_or(path).to_owned()
}

fn indent(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

/// Where the demo happens: a home and a project of its own.
struct Place {
    binary: PathBuf,
    home: PathBuf,
    project: PathBuf,
}

struct Run {
    formation: String,
    records: PathBuf,
}

impl Place {
    fn new(dist: &Dist) -> Outcome<Self> {
        let root = sh::target().join("demo");
        if root.exists() {
            fs::remove_dir_all(&root).map_err(|fault| format!("{}: {fault}", root.display()))?;
        }
        let (home, project) = (root.join("home"), root.join("counting-house"));
        sh::folder(&home)?;
        fs::set_permissions(&home, fs::Permissions::from_mode(0o700)).map_err(|fault| fault.to_string())?;
        copy_tree(&sh::root().join("docs/examples/counting-house"), &project)?;
        // A relative target folder must not end up in a home.
        let canonical = |path: PathBuf| path.canonicalize().map_err(|fault| format!("{}: {fault}", path.display()));
        Ok(Self { binary: dist.mur.clone(), home: canonical(home)?, project: canonical(project)? })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(arguments).current_dir(&self.project).env_clear().env("HOME", &self.home);
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default()).stdin(Stdio::null());
        sh::print(&format!("$ mur {}\n", shell(arguments)));
        command
    }

    fn mur(&self, arguments: &[&str]) -> Outcome {
        sh::run(&mut self.command(arguments))
    }

    /// Runs the formation; what it prints goes through, and is looked at on the way.
    fn launch(&self) -> Outcome<Run> {
        let arguments = ["run", "--roster", "--verbose", "--deadline", DEADLINE_SECS, "--task", TASK];
        let mut command = self.command(&arguments);
        let mut child = command.stdout(Stdio::piped()).spawn().map_err(|fault| format!("mur: {fault}"))?;
        let (mut formation, mut records) = (None, None);
        let stdout = child.stdout.take().expect("stdout is a pipe");
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            sh::print(&format!("{line}\n"));
            let value = |key: &str| line.strip_prefix(key).map(|value| value.trim().to_owned());
            formation = formation.or_else(|| value("formation:"));
            records = records.or_else(|| value("records:").map(PathBuf::from));
        }
        let status = child.wait().map_err(|fault| format!("mur: {fault}"))?;
        if !status.success() {
            return Err(format!("the formation ended with {status}"));
        }
        let missing = |what: &str| format!("mur printed no '{what}' line");
        Ok(Run {
            formation: formation.ok_or_else(|| missing("formation:"))?,
            records: records.ok_or_else(|| missing("records:"))?,
        })
    }
}

fn shell(arguments: &[&str]) -> String {
    let quoted: Vec<String> = arguments
        .iter()
        .map(|word| if word.contains(' ') { format!("'{word}'") } else { (*word).to_owned() })
        .collect();
    quoted.join(" ")
}

fn copy_tree(from: &Path, to: &Path) -> Outcome {
    let say = |fault: std::io::Error| format!("{}: {fault}", from.display());
    sh::folder(to)?;
    for entry in fs::read_dir(from).map_err(say)?.flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_tree(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target).map_err(say)?;
        }
    }
    Ok(())
}
