//! Measurements of the budget that need the library: `measure plugins|tool-call|classes|commands|door DIST HOME`, one JSON object on
//! standard output. Run by `cargo xtask bench` on a release build, from a copy in the dist's `bin/`.

#![allow(clippy::disallowed_methods, reason = "a measurement starts mur as its launcher does")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mur::containment::{Class, CommandProfile, Ended, Helper, Prepared, WorkerLimits};
use mur::credentials::MemberName;
use mur::credentials::channel::{FirstLine, ProcessName, first_line};
use mur::credentials::token::SigningKey;
use mur::egress::{HttpError, HttpRequest, HttpResponse};
use mur::ids::FormationId;
use mur::paths::MurmurHome;
use mur::plugins::{Registry, Settings};
use mur::worker::engine::{self, Reservation};
use mur::worker::{
    ArtifactSpec, BoxFuture, CallLimits, Confinement, HostCalls, Kind, ToolInput, WorkerSet, WorkerSetup,
};
use mur_plugin_api::{Access, CommandRequest, EnclosureRequest, Grant, ProcessKind, ProfileRequest, ScopeLimits};
use serde_json::{Value, json};

type Outcome = Result<Value, Box<dyn std::error::Error>>;

/// The work of one tool call: small, so that what is measured is the way there and back.
const INPUT: &str = r#"{"text":"the quick brown fox jumps over the lazy dog","top":1}"#;
const CALLS: usize = 2000;
const CLASS_RUNS: usize = 15;
const COMMANDS: usize = 60;
const CONNECTIONS: usize = 8;
const DOOR_FOR: Duration = Duration::from_secs(3);
const DOOR_RUNS: usize = 3;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["plugins", _, home] => plugins(Path::new(home)),
        ["tool-call", dist, _] => tool_call(Path::new(dist)),
        ["classes", dist, _] => classes(Path::new(dist)),
        ["commands", dist, _] => commands(Path::new(dist)),
        ["door", dist, home] => door(Path::new(dist), Path::new(home)),
        _ => Err("usage: measure plugins|tool-call|classes|commands|door DIST HOME".into()),
    };
    match outcome {
        Ok(value) => {
            mur::diagnostics::output::stdout_line(&value.to_string());
            ExitCode::SUCCESS
        }
        Err(fault) => {
            mur::diagnostics::output::stderr_line(&fault.to_string());
            ExitCode::FAILURE
        }
    }
}

/// Finding, checking, hashing and loading one plugin; once a process, since a library stays loaded.
fn plugins(home: &Path) -> Outcome {
    let home = MurmurHome::at(home.to_owned());
    let start = Instant::now();
    let mut registry = Registry::new(&home, &Settings::default());
    let sink = registry.sink("jsonl", json!({})).map_err(|fault| fault.message().to_owned())?;
    let elapsed = start.elapsed();
    drop(sink);
    Ok(json!({"values": [elapsed.as_secs_f64() * 1000.0]}))
}

/// Microseconds a call through a worker takes above the same call in this process.
fn tool_call(dist: &Path) -> Outcome {
    let component = component(dist, "text-stats")?;
    let here = in_process(&component)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let there = runtime.block_on(through_worker(dist, &component))?;
    // Both sorted: the difference at every quantile.
    let step = CALLS / 20;
    let values: Vec<f64> = (step..CALLS - step).step_by(step).map(|at| there[at] - here[at]).collect();
    Ok(json!({"values": values, "in_process": here[CALLS / 2], "through_worker": there[CALLS / 2]}))
}

/// Milliseconds until an enclosure is there, what trying the host takes beside it, and until a worker of each class is ready.
fn classes(dist: &Path) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut found = serde_json::Map::new();
    let millis = |since: Instant| since.elapsed().as_secs_f64() * 1000.0;
    let (mut enclosures, mut probes) = (Vec::new(), Vec::new());
    for class in [Class::Advisory, Class::Scoped, Class::Sealed] {
        let mut workers = Vec::new();
        for _ in 0..CLASS_RUNS {
            let folder = tempfile::tempdir()?;
            let library = dist.join(format!("lib/mur/plugins/libmur_containment_{class}.so"));
            let library = std::os::fd::OwnedFd::from(std::fs::File::open(library)?);
            let start = Instant::now();
            let helper = Helper::with_program(dist.join("bin/mur"))?;
            helper.load(class, &library)?;
            helper.open(class, enclosure_request())?;
            if class == Class::Scoped {
                enclosures.push(millis(start));
                let start = Instant::now();
                helper.probe(class)?;
                probes.push(millis(start));
            }
            let start = Instant::now();
            let Prepared { request, fds } = helper.prepare(worker_request(folder.path()))?;
            let set = runtime.block_on(async {
                let set = WorkerSet::with_program_within(dist.join("bin/mur"), helper);
                let confinement = Confinement { library, request, fds, own_root: class == Class::Sealed };
                let setup = WorkerSetup { confinement: Some(confinement), logs: None };
                set.start(Kind::Tools, setup).await.map_err(|fault| fault.message().to_owned())?;
                Ok::<_, String>(set)
            })?;
            workers.push(millis(start));
            runtime.block_on(set.close());
        }
        found.insert(class.as_str().to_owned(), json!(workers));
    }
    found.insert("enclosure".to_owned(), json!(enclosures));
    found.insert("probe".to_owned(), json!(probes));
    Ok(Value::Object(found))
}

/// Milliseconds a command takes under a class above the bare command: `/bin/true` from its start to its end.
fn commands(dist: &Path) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let bare = command_times(&runtime, &CommandProfile::unconfined())?;
    let mut found = serde_json::Map::new();
    for class in [Class::Scoped, Class::Sealed] {
        let folder = tempfile::tempdir()?;
        let library = dist.join(format!("lib/mur/plugins/libmur_containment_{class}.so"));
        let helper = Helper::with_program(dist.join("bin/mur"))?;
        helper.load(class, &std::os::fd::OwnedFd::from(std::fs::File::open(library)?))?;
        helper.open(class, enclosure_request())?;
        let system = ["/usr", "/bin", "/lib", "/lib64"].map(|path| Grant::optional(path, Access::ExecuteRead));
        let grants = system.into_iter().chain([Grant::required(folder.path(), Access::Write)]).collect();
        let limits = WorkerLimits::default().into();
        let profile =
            helper.commands(ProfileRequest { grants, ..ProfileRequest::new(ProcessKind::Command, limits) })?;
        let held = command_times(&runtime, &profile)?;
        // Both sorted: the difference at every quantile.
        let above: Vec<f64> = held.iter().zip(&bare).map(|(held, bare)| held - bare).collect();
        found.insert(class.as_str().to_owned(), json!(above));
        helper.close();
    }
    found.insert("bare".to_owned(), json!(bare));
    Ok(Value::Object(found))
}

fn command_times(
    runtime: &tokio::runtime::Runtime,
    profile: &CommandProfile,
) -> Result<Vec<f64>, Box<dyn std::error::Error>> {
    let command =
        CommandRequest { program: "/bin/true".into(), args: vec!["true".into()], env: Vec::new(), cwd: "/".into() };
    let mut times = Vec::new();
    for round in 0..=COMMANDS {
        let null = || std::fs::OpenOptions::new().read(true).write(true).open("/dev/null");
        let stdio = [null()?.into(), null()?.into(), null()?.into()];
        let start = Instant::now();
        let running = profile.start(&command, stdio)?;
        let ended = runtime.block_on(running.wait())?;
        if ended != Ended::Exited(0) {
            return Err(format!("/bin/true ended as {ended:?}").into());
        }
        // The first one starts the server.
        if round > 0 {
            times.push(start.elapsed().as_secs_f64() * 1000.0);
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

fn enclosure_request() -> EnclosureRequest {
    let scope = ScopeLimits { memory: 1 << 30, pids: 64, cpu_percent: 200 };
    EnclosureRequest::new("measure", scope)
}

fn worker_request(folder: &Path) -> ProfileRequest {
    ProfileRequest {
        grants: vec![Grant::required(folder, Access::Write)],
        ..ProfileRequest::new(ProcessKind::Worker, WorkerLimits::default().into())
    }
}

fn component(dist: &Path, name: &str) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let only = |folder: PathBuf| -> Result<PathBuf, std::io::Error> {
        std::fs::read_dir(&folder)?
            .next()
            .ok_or_else(|| std::io::Error::other("an empty folder"))?
            .map(|one| one.path())
    };
    let version = only(dist.join("lib/mur/artifacts/murmur").join(name))?;
    let archive = std::fs::read_dir(version)?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|ending| ending == "zip"))
        .ok_or("no archive")?;
    let mut component = Vec::new();
    zip::ZipArchive::new(std::fs::File::open(archive)?)?.by_name("capsule.wasm")?.read_to_end(&mut component)?;
    Ok(component)
}

struct Context {
    table: wasmtime::component::ResourceTable,
    wasi: wasmtime_wasi::WasiCtx,
}

impl wasmtime_wasi::WasiView for Context {
    fn ctx(&mut self) -> wasmtime_wasi::WasiCtxView<'_> {
        wasmtime_wasi::WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

/// The call as a worker makes it, a fresh instance each, without the worker.
fn in_process(component: &[u8]) -> Result<Vec<f64>, Box<dyn std::error::Error>> {
    use wasmtime::component::{Component, Linker, Val};
    let engine = engine::engine(Reservation::of_this_host())?;
    let component = Component::new(&engine, component)?;
    let mut linker: Linker<Context> = Linker::new(&engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    let ready = linker.instantiate_pre(&component)?;
    let interface = component.get_export_index(None, "murmur:tool/run@0.1.0").ok_or("it is no tool")?;
    let run = component.get_export_index(Some(&interface), "run").ok_or("it has no run")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let input = Val::Record(vec![
        ("data".into(), Val::Option(Some(Box::new(Val::String(INPUT.into()))))),
        ("log-path".into(), Val::Option(None)),
    ]);
    let mut times = Vec::with_capacity(CALLS);
    for _ in 0..CALLS {
        let start = Instant::now();
        let context = Context { table: Default::default(), wasi: wasmtime_wasi::WasiCtxBuilder::new().build() };
        let mut store = wasmtime::Store::new(&engine, context);
        store.set_epoch_deadline(u64::MAX / 2);
        let mut results = [Val::Bool(false)];
        runtime.block_on(async {
            let instance = ready.instantiate_async(&mut store).await?;
            let run = instance.get_func(&mut store, run).ok_or_else(|| wasmtime::Error::msg("it has no run"))?;
            run.call_async(&mut store, std::slice::from_ref(&input), &mut results).await
        })?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

struct NoHost;

impl HostCalls for NoHost {
    fn http<'a>(&'a self, _: &'a str, _: HttpRequest) -> BoxFuture<'a, Result<HttpResponse, HttpError>> {
        Box::pin(async { Err(HttpError::Denied("a measurement has no network".to_owned())) })
    }
}

async fn through_worker(dist: &Path, component: &[u8]) -> Result<Vec<f64>, Box<dyn std::error::Error>> {
    let words = |fault: mur::diagnostics::Diagnostic| fault.message().to_owned();
    let engine = engine::engine(Reservation::of_this_host())?;
    let path = std::env::temp_dir().join(format!("measure-{}.cwasm", std::process::id()));
    std::fs::write(&path, engine.precompile_component(component)?)?;
    let compiled = std::fs::File::open(&path)?;
    std::fs::remove_file(&path)?;
    let workers = WorkerSet::with_program(dist.join("bin/mur"));
    workers.start(Kind::Tools, WorkerSetup::default()).await.map_err(words)?;
    let spec = ArtifactSpec {
        id: "text-stats".to_owned(),
        full: "murmur/text-stats@0".to_owned(),
        compiled: compiled.into(),
        preopens: Vec::new(),
        env: Vec::new(),
        limits: CallLimits::default(),
    };
    workers.load(Kind::Tools, spec).await.map_err(|fault| format!("{fault:?}"))?;
    let host: Arc<dyn HostCalls> = Arc::new(NoHost);
    let mut times = Vec::with_capacity(CALLS);
    for _ in 0..CALLS {
        let input = ToolInput { data: Some(INPUT.to_owned()), log_path: None };
        let start = Instant::now();
        let result = workers.call_tool(Kind::Tools, "text-stats", input, Vec::new(), host.clone()).await;
        times.push(start.elapsed().as_secs_f64() * 1e6);
        result.map_err(|fault| format!("{fault:?}"))?;
    }
    workers.close().await;
    times.sort_by(f64::total_cmp);
    Ok(times)
}

/// `GetTask` of an ended task, under the formation token of the member that started it.
fn door(dist: &Path, home: &Path) -> Outcome {
    let key = SigningKey::mint().map_err(|fault| fault.message().to_owned())?;
    let formation = FormationId::mint();
    let name = |name: &str| MemberName::parse(name).ok_or("a member's name");
    let (caller, member) = (name("caller")?, name("served")?);
    let token = key.sign_edge(&formation, &caller, &member);
    let launcher = ProcessName { pid: std::process::id(), process_start: String::new() };
    let verifying = key.verifying_key();
    let line = first_line(&FirstLine {
        formation: &formation,
        member: &member,
        entry: false,
        key: &verifying,
        launcher: &launcher,
        tokens: &[],
    });
    let (channel, mut writer) = std::io::pipe()?;
    let (lifeline, holder) = std::io::pipe()?;
    writer.write_all(line.as_bytes())?;
    // A child inherits what is not closed at exec, and the shell moves them to where the member looks.
    let script = format!(
        "exec 8<&0 9</proc/{}/fd/{} 0</dev/null; exec \"$@\"",
        std::process::id(),
        std::os::fd::AsRawFd::as_raw_fd(&lifeline)
    );
    let work = home.join("door");
    std::fs::create_dir_all(&work)?;
    let mut child = Command::new("sh")
        .args(["-c", &script, "sh"])
        .arg(dist.join("bin/mur"))
        .args(["run", "--capsule", "local/bench-member", "--capsule-version", "0.1.0", "--json"])
        .args(["--containment", "unconfined", "--workdir"])
        .arg(&work)
        .env("HOME", home)
        .env("MURMUR_FORMATION_ID", formation.as_str())
        .env("MURMUR_FORMATION_CHANNEL", "8")
        .env("MURMUR_FORMATION_LIFELINE", "9")
        .stdin(channel)
        .stdout(Stdio::piped())
        .spawn()?;
    let mut ready = String::new();
    BufReader::new(child.stdout.take().ok_or("no stdout")?).read_line(&mut ready)?;
    drop(lifeline);
    let ready: Value = serde_json::from_str(&ready)?;
    let address = ready["url"].as_str().ok_or("no url")?.replace("localhost", "127.0.0.1");
    let outcome = load(&address, token.expose());
    // The member ends as the formation does.
    drop(holder);
    child.wait()?;
    outcome
}

fn load(address: &str, token: &str) -> Outcome {
    let message = json!({"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "say something"}]});
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}).to_string();
    let mut connection = Connection::open(address)?;
    let answer = connection.ask(&request(address, token, &body))?;
    let task = answer["result"]["task"]["id"].as_str().ok_or_else(|| format!("no task: {answer}"))?.to_owned();
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": task}}).to_string();
    let request = request(address, token, &body);
    let (mut per_second, mut p99) = (Vec::new(), Vec::new());
    for _ in 0..DOOR_RUNS {
        let stop = AtomicBool::new(false);
        let start = Instant::now();
        let mut times: Vec<f64> = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..CONNECTIONS).map(|_| scope.spawn(|| client(address, &request, &stop))).collect();
            std::thread::sleep(DOOR_FOR);
            stop.store(true, Ordering::Relaxed);
            clients.into_iter().flat_map(|client| client.join().ok().and_then(Result::ok).unwrap_or_default()).collect()
        });
        let elapsed = start.elapsed().as_secs_f64();
        times.sort_by(f64::total_cmp);
        let at = times.len() * 99 / 100;
        p99.push(times.get(at).copied().ok_or("the door answered nothing")?);
        per_second.push(times.len() as f64 / elapsed);
    }
    Ok(json!({"per_second": per_second, "p99_ms": p99}))
}

fn request(address: &str, token: &str, body: &str) -> Vec<u8> {
    format!(
        "POST / HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\nA2A-Version: 1.0\r\n\
         x-murmur-task-origin: peer\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

fn client(address: &str, request: &[u8], stop: &AtomicBool) -> std::io::Result<Vec<f64>> {
    let mut connection = Connection::open(address)?;
    let mut times = Vec::with_capacity(1 << 17);
    while !stop.load(Ordering::Relaxed) {
        let start = Instant::now();
        connection.exchange(request)?;
        times.push(start.elapsed().as_secs_f64() * 1000.0);
    }
    Ok(times)
}

struct Connection {
    reader: BufReader<TcpStream>,
    line: Vec<u8>,
    body: Vec<u8>,
}

impl Connection {
    fn open(address: &str) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        Ok(Self { reader: BufReader::new(stream), line: Vec::new(), body: Vec::new() })
    }

    fn exchange(&mut self, request: &[u8]) -> std::io::Result<()> {
        self.reader.get_mut().write_all(request)?;
        let mut length = 0;
        loop {
            self.line.clear();
            if self.reader.read_until(b'\n', &mut self.line)? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            if self.line == b"\r\n" {
                break;
            }
            if self.line.len() > 15 && self.line[..15].eq_ignore_ascii_case(b"content-length:") {
                let text = String::from_utf8_lossy(&self.line[15..]);
                length = text.trim().parse().map_err(|_| std::io::Error::other("a length"))?;
            }
        }
        self.body.resize(length, 0);
        self.reader.read_exact(&mut self.body)
    }

    fn ask(&mut self, request: &[u8]) -> Result<Value, Box<dyn std::error::Error>> {
        self.exchange(request)?;
        Ok(serde_json::from_slice(&self.body)?)
    }
}
