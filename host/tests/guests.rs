//! The first-party guests in a worker: files through folders that came as descriptors, requests through the session.
//!
//! They are built by `cargo xtask dist`, so these tests say so when they are missing; `MUR_DIST` names another dist.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mur::containment::{Class, Helper, Prepared, WorkerLimits};
use mur::egress::{Egress, HttpError, HttpRequest, HttpResponse, RuleSet, Sender, TrustClass};
use mur::manifest::NetworkRule;
use mur::worker::engine::{self, Reservation};
use mur::worker::{
    ArtifactSpec, BoxFuture, CallError, CallLimits, Confinement, HostCalls, Kind, Preopen, PreopenSource, Status,
    ToolInput, ToolResult, WorkerSet, WorkerSetup,
};
use mur_plugin_api::{Access, EnclosureRequest, Grant, ProcessKind, ProfileRequest, ScopeLimits};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

fn dist() -> PathBuf {
    std::env::var_os("MUR_DIST")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/dist/debug")), PathBuf::from)
}

fn guest(name: &str) -> OwnedFd {
    let dir = dist().join("lib/mur/artifacts/murmur").join(name);
    let versions =
        std::fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}: cargo xtask dist", dir.display()));
    let version = versions.flatten().next().unwrap().path();
    let mut archives = std::fs::read_dir(version).unwrap().flatten().map(|entry| entry.path());
    let archive = archives.find(|path| path.extension().is_some_and(|end| end == "zip")).unwrap();
    let mut archive = zip::ZipArchive::new(std::fs::File::open(archive).unwrap()).unwrap();
    let mut component = Vec::new();
    archive.by_name("capsule.wasm").unwrap().read_to_end(&mut component).unwrap();
    let engine = engine::engine(Reservation::of_this_host()).unwrap();
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&engine.precompile_component(&component).unwrap()).unwrap();
    file.into()
}

struct Out {
    egress: Arc<Egress>,
    rules: RuleSet,
}

impl Out {
    fn to(rules: &[&str]) -> Arc<Self> {
        let rules = RuleSet::new(rules.iter().map(|rule| NetworkRule::parse(rule).unwrap()));
        Arc::new(Self { egress: Egress::new(None), rules })
    }
}

impl HostCalls for Out {
    fn http<'a>(&'a self, artifact: &'a str, request: HttpRequest) -> BoxFuture<'a, Result<HttpResponse, HttpError>> {
        Box::pin(async move {
            let sender = Sender {
                artifact: artifact.to_owned(),
                rules: self.rules.clone(),
                gateway: None,
                trust: TrustClass::Untrusted,
                traceparent: None,
            };
            self.egress.send(&sender, request).await
        })
    }
}

async fn worker(name: &str, preopens: Vec<Preopen>, deadline: Duration) -> WorkerSet {
    worker_under(WorkerSetup::default(), name, preopens, deadline).await
}

async fn worker_under(setup: WorkerSetup, name: &str, preopens: Vec<Preopen>, deadline: Duration) -> WorkerSet {
    let workers = WorkerSet::with_program(env!("CARGO_BIN_EXE_mur"));
    workers.start(Kind::Tools, setup).await.unwrap();
    let spec = ArtifactSpec {
        id: name.to_owned(),
        full: format!("murmur/{name}@0"),
        compiled: guest(name),
        preopens,
        env: Vec::new(),
        limits: CallLimits { deadline, ..CallLimits::default() },
    };
    workers.load(Kind::Tools, spec).await.unwrap();
    workers
}

async fn call(
    workers: &WorkerSet,
    name: &str,
    input: serde_json::Value,
    host: &Arc<Out>,
) -> Result<ToolResult, CallError> {
    let input = ToolInput { data: Some(input.to_string()), log_path: None };
    workers.call_tool(Kind::Tools, name, input, Vec::new(), host.clone()).await
}

fn data(result: Result<ToolResult, CallError>) -> (Status, String) {
    let result = result.unwrap();
    (result.status, result.data.or(result.summary).unwrap_or_default())
}

const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn files_are_reached_beneath_the_granted_folder_only() {
    let dir = tempfile::tempdir().unwrap();
    let work = dir.path().join("work");
    std::fs::create_dir(&work).unwrap();
    std::fs::write(dir.path().join("secret"), "outside").unwrap();
    std::fs::write(work.join("a.txt"), "inside").unwrap();
    std::os::unix::fs::symlink("../secret", work.join("out")).unwrap();
    std::os::unix::fs::symlink(dir.path().join("secret"), work.join("absolute")).unwrap();
    let folder = |write| vec![Preopen { source: PreopenSource::Path(work.clone()), guest: ".".into(), write }];
    let host = Out::to(&[]);
    let readers = worker("read-file", folder(true), LONG).await;
    assert_eq!(
        data(call(&readers, "read-file", json!({"path": "a.txt"}), &host).await),
        (Status::Passed, "inside".into())
    );
    for path in ["../secret", "out", "absolute", "/etc/passwd", "a.txt/../../secret"] {
        let (status, text) = data(call(&readers, "read-file", json!({"path": path}), &host).await);
        assert!(status != Status::Passed && text != "outside", "{path}: {text}");
    }
    readers.close().await;
    let input = json!({"path": "b.txt", "content": "new"});
    let writers = worker("write-file", folder(true), LONG).await;
    assert_eq!(data(call(&writers, "write-file", input.clone(), &host).await).0, Status::Passed);
    assert_eq!(std::fs::read_to_string(work.join("b.txt")).unwrap(), "new");
    writers.close().await;
    let writers = worker("write-file", folder(false), LONG).await;
    let input = json!({"path": "c.txt", "content": "new"});
    assert_ne!(data(call(&writers, "write-file", input, &host).await).0, Status::Passed, "the folder is read only");
    assert!(!work.join("c.txt").exists());
    writers.close().await;
}

#[tokio::test]
async fn a_fifo_in_the_work_folder_holds_neither_the_worker_nor_the_call() {
    let dir = tempfile::tempdir().unwrap();
    nix::unistd::mkfifo(&dir.path().join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::fs::write(dir.path().join("a"), "x").unwrap();
    let source = PreopenSource::Path(dir.path().to_owned());
    let limit = Duration::from_millis(500);
    let workers = worker("read-file", vec![Preopen { source, guest: ".".into(), write: true }], limit).await;
    let host = Out::to(&[]);
    let outcome = call(&workers, "read-file", json!({"path": "pipe"}), &host).await;
    assert!(!matches!(outcome, Err(CallError::Lost(_))), "{outcome:?}");
    assert!(call(&workers, "read-file", json!({"path": "a"}), &host).await.is_ok());
    workers.close().await;
}

#[tokio::test]
async fn a_response_streams_through_whole_and_a_refused_host_is_told() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let body = "0123456789abcdef".repeat(60_000);
    tokio::spawn({
        let body = body.clone();
        async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut buffer = [0; 4096];
                let _ = stream.read(&mut buffer).await.unwrap();
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
                stream.write_all(head.as_bytes()).await.unwrap();
                stream.write_all(body.as_bytes()).await.unwrap();
            }
        }
    });
    let workers = worker("fetch", Vec::new(), LONG).await;
    let input = json!({"url": format!("http://127.0.0.1:{port}/"), "limit": 1_000_000});
    let (status, text) = data(call(&workers, "fetch", input.clone(), &Out::to(&["127.0.0.1"])).await);
    assert_eq!(status, Status::Passed, "{text}");
    assert!(text == body, "{} bytes", text.len());
    let (status, text) = data(call(&workers, "fetch", input, &Out::to(&["localhost"])).await);
    assert_eq!(status, Status::Failed, "{text}");
    // Only the part that is wanted is taken; the rest of the response is let go of.
    let input = json!({"url": format!("http://127.0.0.1:{port}/"), "limit": 10});
    let (_, text) = data(call(&workers, "fetch", input, &Out::to(&["127.0.0.1"])).await);
    assert_eq!(text, "0123456789");
    workers.close().await;
}

#[tokio::test]
async fn a_call_that_waits_for_a_silent_server_is_ended_by_its_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let limit = Duration::from_millis(400);
    let workers = worker("fetch", Vec::new(), limit).await;
    let begun = Instant::now();
    let input = json!({"url": format!("http://127.0.0.1:{port}/")});
    let outcome = call(&workers, "fetch", input, &Out::to(&["127.0.0.1"])).await;
    assert_eq!(outcome, Err(CallError::Deadline(limit)));
    assert!(begun.elapsed() < Duration::from_secs(8));
    assert_eq!(*workers.lost().borrow(), None);
    workers.close().await;
}

/// A worker of a class in an enclosure of its own, with one folder granted.
async fn worker_of(class: Class, folder: &Path, guest: &str) -> WorkerSet {
    let library = dist().join(format!("lib/mur/plugins/libmur_containment_{class}.so"));
    let library = OwnedFd::from(std::fs::File::open(&library).unwrap_or_else(|error| panic!("{library:?}: {error}")));
    let helper = Helper::with_program(env!("CARGO_BIN_EXE_mur")).unwrap();
    helper.load(class, &library).unwrap();
    let scope = ScopeLimits { memory: 1 << 30, pids: 64, cpu_percent: 200 };
    let session = format!("guests-{class}");
    helper.open(class, EnclosureRequest::new(session, scope)).unwrap();
    let limits = WorkerLimits::default().into();
    let grants = vec![Grant::required(folder, Access::Write)];
    let request = ProfileRequest { grants, ..ProfileRequest::new(ProcessKind::Worker, limits) };
    let Prepared { request, fds } = helper.prepare(request).unwrap();
    let confinement = Confinement { library, request, fds, own_root: class == Class::Sealed };
    let setup = WorkerSetup { confinement: Some(confinement), logs: None };
    let workers = WorkerSet::with_program_within(env!("CARGO_BIN_EXE_mur"), helper);
    workers.start(Kind::Tools, setup).await.unwrap();
    let source = PreopenSource::Path(folder.to_owned());
    let spec = ArtifactSpec {
        id: guest.to_owned(),
        full: format!("murmur/{guest}@0"),
        compiled: self::guest(guest),
        preopens: vec![Preopen { source, guest: ".".into(), write: true }],
        env: Vec::new(),
        limits: CallLimits { deadline: LONG, ..CallLimits::default() },
    };
    workers.load(Kind::Tools, spec).await.unwrap();
    workers
}

#[tokio::test]
async fn a_worker_under_a_class_runs_its_artifacts_as_one_without_a_class_does() {
    for class in [Class::Advisory, Class::Scoped, Class::Sealed] {
        // Below the directory a root is built on, and elsewhere.
        for base in ["/tmp", "/var/tmp"] {
            let dir = tempfile::tempdir_in(base).unwrap();
            std::fs::write(dir.path().join("a"), "inside").unwrap();
            let workers = worker_of(class, dir.path(), "read-file").await;
            let host = Out::to(&[]);
            let read = data(call(&workers, "read-file", json!({"path": "a"}), &host).await);
            assert_eq!(read, (Status::Passed, "inside".into()), "{class} {base}");
            let pid = workers.pid(Kind::Tools).unwrap();
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            for line in ["NoNewPrivs:\t1", "Seccomp:\t2", "CapEff:\t0000000000000000"] {
                assert!(status.contains(line), "{line}: {status}");
            }
            workers.close().await;
            assert!(!Path::new(&format!("/proc/{pid}")).exists());
        }
    }
}

#[tokio::test]
async fn a_worker_is_lost_with_its_enclosure() {
    let dir = tempfile::tempdir().unwrap();
    let workers = worker_of(Class::Scoped, dir.path(), "read-file").await;
    let mut lost = workers.lost();
    let enclosure = workers.enclosure().unwrap().pidfd();
    enclosure.signal(nix::sys::signal::Signal::SIGKILL).unwrap();
    let lost = lost.wait_for(Option::is_some).await.unwrap().clone().unwrap();
    assert_eq!(lost.diagnostic().code().as_str(), "E-RUN-065");
    let pid = lost.pid;
    tokio::time::timeout(LONG, async {
        while Path::new(&format!("/proc/{pid}")).exists() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("the worker is gone");
    workers.close().await;
}

#[tokio::test]
async fn a_library_that_is_none_keeps_the_worker_from_starting() {
    let mut library = tempfile::tempfile().unwrap();
    library.write_all(b"no library").unwrap();
    let confinement =
        Confinement { library: library.into(), request: b"{}".to_vec(), fds: Vec::new(), own_root: false };
    let setup = WorkerSetup { confinement: Some(confinement), logs: None };
    let workers = WorkerSet::with_program(env!("CARGO_BIN_EXE_mur"));
    let error = workers.start(Kind::Tools, setup).await.unwrap_err().to_string();
    assert!(error.contains("E-RUN-066") && error.contains("library"), "{error}");
}
