//! What a launch needs: a home, the probe as a component of each kind, and capsules that call it.

// The harness starts mur as an operator's shell would.
#![allow(clippy::disallowed_methods)]

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::cases::{Class, Route};

/// Store names of the kinds of artifact.
pub const DRIVER_STORE: &str = "ec-driver";
/// See [`DRIVER_STORE`].
pub const TOOLS_STORE: &str = "ec-tools";
/// See [`DRIVER_STORE`].
pub const HOOKS_STORE: &str = "ec-hooks";

/// The part of the work folder that a hook is granted whose capsule has the tight limits.
pub const HOOKS_SCOPE: &str = "hooked";

/// The key no worker may hold; it is put in a gateway.
pub const KEY: &str = "ec-planted-gateway-key-5b1f0c";

/// The probe as a library, in the work folder.
pub const LIBRARY: &str = "libmur_escape_probe.so";

/// The folders of programs every launch has. A user's own, with wrappers around interpreters, would measure those.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What no worker may read from a file.
pub const MARKER: &str = "ec-planted-secret-90d2";

/// Limits of the resource cases (`capabilities.resources`).
const TIGHT: [(&str, u64); 9] = [
    ("max_processes", 512),
    ("max_open_files", 128),
    ("max_file_size_bytes", 10 << 20),
    ("cpu_seconds", 60),
    ("memory_bytes", 4 << 30),
    ("cgroup_memory_bytes", 256 << 20),
    ("cgroup_pids_max", 32),
    ("cgroup_cpu_percent", 50),
    ("workdir_max_bytes", 50 << 20),
];

/// A capsule, by what makes it differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capsule {
    /// What runs the probe.
    pub route: Route,
    /// The class it declares.
    pub class: Class,
    /// Whether it has the tight limits.
    pub tight: bool,
    /// Whether it declares `workdir_exec`, and then no class.
    pub workdir_exec: bool,
    /// Whether it calls the probe once more, for what is refused only at a later call.
    pub slow: bool,
    /// Whether its session is a member of a formation.
    pub member: bool,
}

impl Capsule {
    /// An ordinary one.
    pub fn new(route: Route, class: Class) -> Self {
        Self { route, class, tight: false, workdir_exec: false, slow: false, member: false }
    }

    /// Its bare name.
    pub fn name(&self) -> String {
        let mut name = format!("ec-{}-{}", self.route.as_str().replace('/', "-"), self.class.as_str());
        for (given, word) in [(self.tight, "-tight"), (self.workdir_exec, "-exec"), (self.slow, "-slow")] {
            if given {
                name.push_str(word);
            }
        }
        name
    }
}

/// A home with everything installed.
pub struct Stage {
    /// The binary graded.
    pub mur: PathBuf,
    /// The home.
    pub home: PathBuf,
    /// Where everything of this run lies.
    pub root: PathBuf,
    /// The interpreter that loads the probe.
    pub python: String,
    driver_version: String,
    tool_version: String,
    stats_version: String,
}

impl Stage {
    /// Makes the home and installs the probe in it.
    ///
    /// # Errors
    /// In words, when that fails.
    pub fn new(mur: PathBuf, root: &Path, python: &str) -> Result<Self, String> {
        let home = root.join("home");
        for folder in [root, &home, &home.join(".murmur"), &root.join("sources")] {
            make_private(folder)?;
        }
        let config = home.join(".murmur/config.yaml");
        write(&config, &format!("# {MARKER}\n"), 0o600)?;
        let (driver_version, driver) = bundled(&mur, "driver-scripted")?;
        let (tool_version, tool) = bundled(&mur, "read-file")?;
        let (stats_version, _) = bundled(&mur, "text-stats")?;
        let (_, hook) = bundled(&mur, "hook-debug")?;
        let (root, python) = (root.to_owned(), python.to_owned());
        let stage = Self { mur, home, root, python, driver_version, tool_version, stats_version };
        stage.install(
            &json!({
                "name": "escape-probe", "version": "1.0.0", "runtime": "tool", "execution": "wasm",
                "requires_files": ["capsule.wasm"], "description": "Where the probe runs.",
            }),
            Some(("capsule.wasm", &tool)),
        )?;
        stage.install(
            &json!({
                "name": "escape-probe", "version": "2.0.0", "runtime": "driver", "execution": "wasm",
                "requires_files": ["capsule.wasm"], "description": "Where the probe runs.",
                "upstream_auth": {"header": "authorization", "value": "Bearer {key}"},
                "models": {"scripted": {"max_output_tokens": 64000, "context_window": 1_000_000}},
            }),
            Some(("capsule.wasm", &driver)),
        )?;
        stage.install(
            &json!({
                "name": "escape-probe", "version": "3.0.0", "runtime": "hook", "execution": "wasm",
                "requires_files": ["capsule.wasm"], "description": "Where the probe runs.",
                "binding": "on-tool-call", "commit_policy": "deny",
            }),
            Some(("capsule.wasm", &hook)),
        )?;
        Ok(stage)
    }

    /// A command line of `mur` with nothing but a path and this home around it.
    pub fn mur(&self, cwd: &Path) -> Command {
        let mut command = Command::new(&self.mur);
        command.env_clear().env("PATH", PATH).env("HOME", &self.home).current_dir(cwd);
        command
    }

    fn ok(&self, args: &[&Path]) -> Result<(), String> {
        let output = self.mur(&self.root).args(args).output().map_err(|fault| format!("mur: {fault}"))?;
        let said = || format!("mur {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        if output.status.success() { Ok(()) } else { Err(said()) }
    }

    /// Builds an artifact from its manifest and installs it.
    ///
    /// # Errors
    /// In words, with what `mur` said.
    pub fn install(&self, manifest: &Value, packed: Option<(&str, &[u8])>) -> Result<(), String> {
        let text = |key: &str| manifest[key].as_str().unwrap_or_default();
        let name = format!("{}-{}", text("name"), text("version"));
        let source = self.root.join("sources").join(&name);
        make_private(&source)?;
        write(&source.join("murmur.yaml"), &format!("{manifest:#}"), 0o644)?;
        if let Some((file, bytes)) = packed {
            let file = source.join(file);
            fs::create_dir_all(file.parent().unwrap_or(&source)).map_err(|fault| format!("{name}: {fault}"))?;
            fs::write(&file, bytes)
                .and_then(|()| fs::set_permissions(&file, fs::Permissions::from_mode(0o755)))
                .map_err(|fault| format!("{name}: {fault}"))?;
        }
        self.ok(&["build".as_ref(), &source])?;
        self.ok(&["install".as_ref(), "-g".as_ref(), &source.join(format!("{name}.mur.zip"))])
    }

    /// The probe as a library or a program, beside the `mur` graded.
    ///
    /// # Errors
    /// When it is not there.
    pub fn probe(&self, file: &str) -> Result<Vec<u8>, String> {
        let prefix = self.mur.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
        let path = prefix.join("lib/mur/probe").join(file);
        fs::read(&path).map_err(|fault| format!("{}: {fault}; see 'cargo xtask dist --escape-probe'", path.display()))
    }

    /// Installs a capsule; once is enough.
    ///
    /// # Errors
    /// In words, with what `mur` said.
    pub fn capsule(&self, capsule: &Capsule) -> Result<(), String> {
        if self.root.join("sources").join(format!("{}-0.1.0", capsule.name())).exists() {
            return Ok(());
        }
        if capsule.route == Route::NativeTool && !self.root.join("sources/escape-native-1.0.0").exists() {
            self.install(
                &json!({
                    "name": "escape-native", "version": "1.0.0", "runtime": "tool", "implementation": "native",
                    "requires_files": ["bin/escape-native"], "description": "The probe.",
                    "input_schema": {"type": "object", "properties": {"plan": {"type": "string"}}},
                }),
                Some(("bin/escape-native", &self.probe("escape-probe")?)),
            )?;
        }
        self.install(&self.manifest(capsule), None)
    }

    fn manifest(&self, capsule: &Capsule) -> Value {
        let gateway = json!({"endpoint": "http://127.0.0.1:9", "api_key": KEY});
        let stored = |store: &str| json!({"state": {"store": store}});
        let scripted = json!({
            "name": "murmur/driver-scripted", "version": self.driver_version, "runtime": "driver",
            "gateway": gateway, "capabilities": stored(DRIVER_STORE),
        });
        let tool = json!({
            "name": "local/escape-probe", "version": "1.0.0", "runtime": "tool", "capabilities": stored(TOOLS_STORE),
        });
        let native = json!({"name": "local/escape-native", "version": "1.0.0", "runtime": "tool"});
        // A folder of the records and a part of the work folder cannot both be granted.
        let folder = if capsule.tight { json!({"scope": HOOKS_SCOPE}) } else { json!({"records": true}) };
        let hook = json!({
            "name": "local/escape-probe", "version": "3.0.0", "runtime": "hook",
            "capabilities": {"filesystem": folder, "state": {"store": HOOKS_STORE}},
        });
        // The call that the hook is asked about.
        let stats = json!({
            "name": "murmur/text-stats", "version": self.stats_version, "runtime": "tool", "capabilities": stored(TOOLS_STORE),
        });
        let scripts = || json!({"artifact": "murmur/driver-scripted", "config": self.script(capsule)});
        let (artifacts, driver) = match capsule.route {
            Route::Driver => (
                json!([
                    {
                        "name": "local/escape-probe", "version": "2.0.0", "runtime": "driver", "gateway": gateway,
                        "capabilities": stored(DRIVER_STORE),
                    },
                    {
                        "name": "murmur/read-file", "version": self.tool_version, "runtime": "tool",
                        "capabilities": stored(TOOLS_STORE),
                    },
                ]),
                json!({"artifact": "local/escape-probe"}),
            ),
            Route::Shell => (json!([scripted]), scripts()),
            Route::NativeTool => (json!([scripted, native]), scripts()),
            Route::Tools => (json!([scripted, tool]), scripts()),
            Route::Hooks => (json!([scripted, stats, hook]), scripts()),
        };
        let mut capabilities = json!({"limits": {"deadline_seconds": 600}});
        if capsule.class > Class::Unconfined && !capsule.workdir_exec {
            capabilities["containment"] = capsule.class.as_str().into();
        }
        if capsule.route == Route::Shell {
            capabilities["shell"] = json!({"allow": ["bash", self.python]});
        }
        if capsule.tight {
            capabilities["resources"] = TIGHT
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).into()))
                .collect::<serde_json::Map<_, _>>()
                .into();
        }
        if capsule.workdir_exec {
            capabilities["filesystem"] = json!({"workdir_exec": true});
        }
        json!({
            "name": capsule.name(), "version": "0.1.0", "runtime": "capsule", "execution": "static",
            "artifacts": artifacts, "capabilities": capabilities,
            // So that the session has an operator token.
            "network": {"authentication": {"scheme": "bearer"}},
            "inference": {"transport": "http", "model": "scripted", "driver": driver},
        })
    }

    /// The task names the plan; the second call's plan lies beside it.
    fn script(&self, capsule: &Capsule) -> Value {
        let call = |plan: &str| match capsule.route {
            Route::Shell => {
                let loads = format!("import ctypes; ctypes.CDLL(\"./{LIBRARY}\").mur_escape_probe(b\"{plan}\")");
                json!({"call": "bash", "input": {"command": format!("{} -c '{loads}'", self.python)}})
            }
            Route::NativeTool => json!({"call": "escape-native", "input": {"plan": plan}}),
            Route::Hooks => json!({"call": "text-stats", "input": {"text": plan}}),
            _ => json!({"call": "escape-probe", "input": {"plan": plan}}),
        };
        let second = call("{{task | replace \";\" \".second;\"}}");
        let mut turns = vec![json!([call("{{task}}")])];
        for _ in 0..if capsule.slow { 2 } else { 1 } {
            turns.push(json!([second]));
        }
        turns.push(json!([{"say": "done"}]));
        json!({"rules": [{"turns": turns}]})
    }
}

/// A folder of the owner's alone; one that is there is taken as it is.
pub fn make_private(folder: &Path) -> Result<(), String> {
    let say = |fault: std::io::Error| format!("{}: {fault}", folder.display());
    fs::create_dir_all(folder).map_err(say)?;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).map_err(say)
}

/// Writes a file with a mode.
pub fn write(file: &Path, text: &str, mode: u32) -> Result<(), String> {
    let say = |fault: std::io::Error| format!("{}: {fault}", file.display());
    fs::write(file, text).map_err(say)?;
    fs::set_permissions(file, fs::Permissions::from_mode(mode)).map_err(say)
}

/// Version and component of an artifact that comes with a `mur`.
fn bundled(mur: &Path, name: &str) -> Result<(String, Vec<u8>), String> {
    let say = |fault: &dyn std::fmt::Display| format!("murmur/{name} beside {}: {fault}", mur.display());
    let prefix = mur.parent().and_then(Path::parent).ok_or_else(|| say(&"there is no prefix"))?;
    let folder = prefix.join("lib/mur/artifacts/murmur").join(name);
    let entry = fs::read_dir(&folder).map_err(|fault| say(&fault))?.flatten().next();
    let version = entry.ok_or_else(|| say(&"it has no version"))?.file_name().to_string_lossy().into_owned();
    let archive = folder.join(&version).join(format!("{name}-{version}.mur.zip"));
    let file = fs::File::open(&archive).map_err(|fault| say(&fault))?;
    let mut archive = zip::ZipArchive::new(file).map_err(|fault| say(&fault))?;
    let mut entry = archive.by_name("capsule.wasm").map_err(|fault| say(&fault))?;
    let mut component = Vec::new();
    entry.read_to_end(&mut component).map_err(|fault| say(&fault))?;
    Ok((version, component))
}
