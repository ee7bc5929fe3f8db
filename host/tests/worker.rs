//! Workers as a session uses them: the built `mur` runs them, artifacts are tiny components written as text, and
//! hostile workers are shell scripts that speak on descriptor 3.

#![allow(clippy::disallowed_methods, reason = "tests look at processes from outside")]

#[path = "support/component.rs"]
mod component;

use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use component::{ECHO, component};
use mur::egress::{HttpError, HttpRequest, HttpResponse};
use mur::worker::engine::{self, Reservation};
use mur::worker::{
    ArtifactSpec, BoxFuture, CallError, CallLimits, HostCalls, Kind, Preopen, PreopenSource, Status, ToolInput,
    ToolResult, WorkerSet, WorkerSetup,
};

const SPIN: &str = "(loop $again (br $again)) (unreachable)";

fn compiled(component: &[u8]) -> OwnedFd {
    let engine = engine::engine(Reservation::of_this_host()).unwrap();
    let mut file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut file, &engine.precompile_component(component).unwrap()).unwrap();
    file.into()
}

fn artifact(id: &str, component: &[u8], limits: CallLimits) -> ArtifactSpec {
    ArtifactSpec {
        id: id.to_owned(),
        full: format!("test/{id}@0.1.0"),
        compiled: compiled(component),
        preopens: Vec::new(),
        env: Vec::new(),
        limits,
    }
}

fn limits(deadline: Duration) -> CallLimits {
    CallLimits { deadline, ..CallLimits::default() }
}

async fn started(setup: WorkerSetup) -> WorkerSet {
    let workers = WorkerSet::with_program(env!("CARGO_BIN_EXE_mur"));
    workers.start(Kind::Tools, setup).await.unwrap();
    workers
}

async fn with_artifact(core: &str, limits: CallLimits) -> WorkerSet {
    let workers = started(WorkerSetup::default()).await;
    workers.load(Kind::Tools, artifact("a", &component(core, false), limits)).await.unwrap();
    workers
}

#[derive(Default)]
struct Host {
    chunks: Mutex<Vec<String>>,
}

impl HostCalls for Host {
    fn http<'a>(&'a self, _: &'a str, _: HttpRequest) -> BoxFuture<'a, Result<HttpResponse, HttpError>> {
        Box::pin(async { Err(HttpError::NameNotResolved) })
    }
    fn emit_chunk(&self, text: &str) {
        self.chunks.lock().unwrap().push(text.to_owned());
    }
}

/// Is told by a call that it runs.
#[derive(Default)]
struct Running(tokio::sync::Notify);

impl HostCalls for Running {
    fn http<'a>(&'a self, _: &'a str, _: HttpRequest) -> BoxFuture<'a, Result<HttpResponse, HttpError>> {
        Box::pin(async { Err(HttpError::NameNotResolved) })
    }
    fn emit_chunk(&self, _: &str) {
        self.0.notify_one();
    }
}

async fn call(workers: &WorkerSet, id: &str, data: &str) -> Result<ToolResult, CallError> {
    let input = ToolInput { data: Some(data.to_owned()), log_path: None };
    workers.call_tool(Kind::Tools, id, input, Vec::new(), Arc::new(Host::default())).await
}

#[tokio::test]
async fn a_call_returns_what_the_tool_answers_and_each_has_an_instance_of_its_own() {
    let workers = with_artifact(ECHO, CallLimits::default()).await;
    for text in ["{}", "", "漢字", &"x".repeat(30_000)] {
        let result = call(&workers, "a", text).await.unwrap();
        assert_eq!((result.status, result.data.as_deref()), (Status::Passed, Some(text)));
    }
    workers.close().await;
}

#[test]
fn a_worker_outlives_the_thread_that_started_it() {
    // The parent-death signal follows the thread that forked, so that must never be a short-lived one.
    let starting = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let handle = starting.handle().clone();
    let workers = std::thread::spawn(move || handle.block_on(with_artifact(ECHO, CallLimits::default())));
    let workers = workers.join().unwrap();
    let pid = workers.pid(Kind::Tools).unwrap();
    for text in ["one", "two"] {
        let result = starting.block_on(call(&workers, "a", text)).unwrap();
        assert_eq!(result.data.as_deref(), Some(text));
    }
    assert_eq!(workers.pid(Kind::Tools), Some(pid), "it is the same worker");
    assert_eq!(*workers.lost().borrow(), None);
    starting.block_on(workers.close());
}

#[tokio::test]
async fn fragments_arrive_in_order_and_before_the_result() {
    let workers = started(WorkerSetup::default()).await;
    let core = format!("(call $emit (local.get 1) (i32.const 2)) (call $emit (local.get 1) (local.get 2)) {ECHO}");
    workers.load(Kind::Tools, artifact("s", &component(&core, true), CallLimits::default())).await.unwrap();
    let host = Arc::new(Host::default());
    let input = ToolInput { data: Some("hello".into()), log_path: None };
    workers.call_tool(Kind::Tools, "s", input, Vec::new(), host.clone()).await.unwrap();
    assert_eq!(*host.chunks.lock().unwrap(), ["he", "hello"]);
    workers.close().await;
}

#[tokio::test]
async fn a_trap_is_named_and_the_worker_goes_on() {
    let workers = with_artifact("(unreachable)", CallLimits::default()).await;
    let error = call(&workers, "a", "{}").await.unwrap_err();
    assert!(matches!(&error, CallError::Trap(text) if text.contains("unreachable")), "{error:?}");
    workers.load(Kind::Tools, artifact("b", &component(ECHO, false), CallLimits::default())).await.unwrap();
    assert!(call(&workers, "b", "x").await.is_ok());
    assert_eq!(*workers.lost().borrow(), None);
    workers.close().await;
}

#[tokio::test]
async fn a_tool_that_computes_for_ever_is_ended_by_its_deadline() {
    let limit = Duration::from_millis(300);
    let workers = with_artifact(SPIN, limits(limit)).await;
    let begun = Instant::now();
    assert_eq!(call(&workers, "a", "{}").await, Err(CallError::Deadline(limit)));
    assert!(begun.elapsed() >= limit && begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    workers.close().await;
}

#[tokio::test]
async fn growing_past_the_memory_limit_is_named() {
    let core = "(memory.grow (i32.const 1000)) (i32.const -1) (i32.eq) (if (then unreachable)) (i32.const 64)";
    let workers = with_artifact(core, CallLimits { memory: 1 << 20, ..CallLimits::default() }).await;
    assert_eq!(call(&workers, "a", "{}").await, Err(CallError::Memory(1 << 20)));
    workers.load(Kind::Tools, artifact("a", &component(core, false), CallLimits::default())).await.unwrap();
    assert!(call(&workers, "a", "{}").await.is_ok(), "the same code within its limit");
    workers.close().await;
}

#[tokio::test]
async fn a_dropped_call_is_cancelled_and_the_worker_answers_the_next() {
    let workers = with_artifact(SPIN, limits(Duration::from_secs(600))).await;
    workers.load(Kind::Tools, artifact("b", &component(ECHO, false), CallLimits::default())).await.unwrap();
    let cancelled = tokio::time::timeout(Duration::from_millis(200), call(&workers, "a", "{}")).await;
    assert!(cancelled.is_err());
    assert!(call(&workers, "b", "x").await.is_ok());
    assert_eq!(*workers.lost().borrow(), None);
    workers.close().await;
}

#[tokio::test]
async fn an_import_that_is_not_given_is_named_by_the_load_and_by_every_call() {
    let text = r#"(component (import "murmur:text/out@0.1.0" (instance (export "f" (func)))))"#;
    let workers = started(WorkerSetup::default()).await;
    let missing = CallError::MissingImport("murmur:text/out@0.1.0".into());
    let spec = artifact("m", &wat::parse_str(text).unwrap(), CallLimits::default());
    assert_eq!(workers.load(Kind::Tools, spec).await, Err(missing.clone()));
    assert_eq!(call(&workers, "m", "{}").await, Err(missing));
    workers.close().await;
}

#[tokio::test]
async fn a_component_without_the_export_fails_the_call_naming_it() {
    let workers = started(WorkerSetup::default()).await;
    let spec = artifact("e", &wat::parse_str("(component)").unwrap(), CallLimits::default());
    workers.load(Kind::Tools, spec).await.unwrap();
    assert_eq!(call(&workers, "e", "{}").await, Err(CallError::MissingExport("murmur:tool/run@0.1.0".into())));
    assert!(matches!(call(&workers, "nothing", "{}").await, Err(CallError::Refused(_))));
    workers.close().await;
}

#[tokio::test]
async fn a_compiled_form_that_is_none_is_refused() {
    let workers = started(WorkerSetup::default()).await;
    let mut file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut file, &[0x7f; 9000]).unwrap();
    let spec = ArtifactSpec { compiled: file.into(), ..artifact("x", &component(ECHO, false), CallLimits::default()) };
    assert!(matches!(workers.load(Kind::Tools, spec).await, Err(CallError::Instantiate(_))));
    assert_eq!(*workers.lost().borrow(), None);
    workers.close().await;
}

#[tokio::test]
async fn a_killed_worker_fails_its_call_and_is_reported_once() {
    let workers = started(WorkerSetup::default()).await;
    let core = format!("(call $emit (local.get 1) (i32.const 2)) {SPIN}");
    let spec = artifact("a", &component(&core, true), limits(Duration::from_secs(600)));
    workers.load(Kind::Tools, spec).await.unwrap();
    let mut lost = workers.lost();
    let pid = workers.pid(Kind::Tools).unwrap();
    let running = Arc::new(Running::default());
    let kill = async {
        running.0.notified().await;
        let pid = nix::unistd::Pid::from_raw(pid);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
    };
    let input = ToolInput { data: Some("{}".to_owned()), log_path: None };
    let call_it = workers.call_tool(Kind::Tools, "a", input, Vec::new(), running.clone());
    let (outcome, ()) = tokio::join!(call_it, kill);
    let Err(CallError::Lost(found)) = outcome else { panic!("{outcome:?}") };
    assert_eq!((found.kind, found.pid, found.call.as_deref()), (Kind::Tools, pid, Some("tool 'a'")));
    let text = found.diagnostic().to_string();
    assert!(text.starts_with("error[E-RUN-065]: the tools worker"), "{text}");
    assert!(text.contains(&format!("pid {pid}")) && text.contains("signal 9"), "{text}");
    lost.wait_for(Option::is_some).await.unwrap();
    assert!(matches!(call(&workers, "a", "{}").await, Err(CallError::Lost(_))), "it is not started again");
    workers.close().await;
}

#[tokio::test]
async fn a_worker_holds_stdio_and_its_connection_and_an_empty_environment() {
    let workers = started(WorkerSetup::default()).await;
    let pid = workers.pid(Kind::Tools).unwrap();
    // Non-dumpable: its /proc entries belong to root, and only root (which tests may be) can look.
    if nix::unistd::geteuid().is_root() {
        assert_eq!(std::fs::read(format!("/proc/{pid}/environ")).unwrap(), b"");
        assert_eq!(std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap(), PathBuf::from("/"));
        let open: Vec<(i32, String)> = std::fs::read_dir(format!("/proc/{pid}/fd"))
            .unwrap()
            .flatten()
            .filter_map(|entry| {
                let target = std::fs::read_link(entry.path()).ok()?.to_string_lossy().into_owned();
                Some((entry.file_name().to_str()?.parse().ok()?, target))
            })
            .collect();
        // Its own event loop is all that is beside them.
        let other: Vec<_> = open.iter().filter(|(fd, target)| *fd > 3 && !target.starts_with("anon_inode:")).collect();
        assert!(other.iter().all(|(_, target)| target.starts_with("socket:")), "{open:?}");
        assert!(open.iter().any(|(fd, target)| *fd == 3 && target.starts_with("socket:")), "{open:?}");
        assert!(open.iter().any(|(fd, target)| *fd == 0 && target == "/dev/null"), "{open:?}");
    } else {
        assert!(std::fs::read(format!("/proc/{pid}/environ")).is_err());
    }
    let group = nix::unistd::getpgid(Some(nix::unistd::Pid::from_raw(pid))).unwrap();
    assert_eq!(group.as_raw(), pid);
    workers.close().await;
}

#[tokio::test]
async fn a_worker_whose_session_is_gone_ends_even_while_it_computes() {
    let workers = with_artifact(SPIN, limits(Duration::from_secs(600))).await;
    let pid = workers.pid(Kind::Tools).unwrap();
    let pidfd = mur::process::Pidfd::open(pid).unwrap();
    let _ = tokio::time::timeout(Duration::from_millis(150), call(&workers, "a", "{}")).await;
    drop(workers);
    tokio::time::timeout(Duration::from_secs(10), pidfd.ended()).await.expect("it ends at end of file").unwrap();
}

#[test]
fn a_wrong_start_is_refused_with_one_line() {
    let run = |args: &[&str], env: Option<(&str, &str)>| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_mur"));
        command.arg("__guest-worker").args(args).env_clear().stdin(std::process::Stdio::null());
        command.envs(env);
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && text.lines().count() == 1 && output.stdout.is_empty(), "{args:?}: {text}");
        text
    };
    assert!(run(&["tools"], Some(("LANG", "C"))).contains("environment"));
    assert!(run(&["everything"], None).contains("'everything' is no kind"));
    assert!(run(&[], None).contains("no kind"));
    assert!(run(&["tools", "more"], None).contains("'more'"));
    assert!(run(&["tools"], None).contains("descriptor 3"));
}

/// A program that speaks on descriptor 3.
fn script(dir: &tempfile::TempDir, body: &str) -> WorkerSet {
    let path = dir.path().join("worker");
    std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    WorkerSet::with_program(path)
}

/// `printf` text of a frame.
fn frame(kind: u8, body: &[u8]) -> String {
    let mut bytes = u32::try_from(body.len()).unwrap().to_le_bytes().to_vec();
    bytes.push(kind);
    bytes.extend(body);
    bytes.iter().map(|byte| format!("\\{byte:03o}")).collect()
}

fn ready() -> String {
    frame(0, &[4, 0, 0, 0, 9, 0, 0, 0])
}

#[tokio::test]
async fn a_worker_that_breaks_the_greeting_could_not_start() {
    let cases = [
        ("exit 3".to_owned(), "exited with status 3"),
        ("echo no such thing >&2; exit 3".to_owned(), "no such thing"),
        ("printf '\\377\\377\\377\\377\\000' >&3".to_owned(), "protocol"),
        ("printf '\\000\\000\\000\\000\\000' >&3".to_owned(), "protocol"),
        (format!("printf '{}' >&3", frame(0, &[9, 0, 0, 0, 9, 0, 0, 0])), "version 9"),
        (format!("printf '{}' >&3", frame(1, b"\x05\0\0\0never")), "never"),
        ("printf '\\000\\000' >&3".to_owned(), "closed its connection"),
    ];
    for (body, expected) in cases {
        let dir = tempfile::tempdir().unwrap();
        let error = script(&dir, &body).start(Kind::Driver, WorkerSetup::default()).await.unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("error[E-RUN-066]: the driver worker could not be started"), "{text}");
        assert!(text.contains(expected), "{body}: {text}");
    }
    let missing = WorkerSet::with_program("/nonexistent/mur");
    assert!(missing.start(Kind::Tools, WorkerSetup::default()).await.is_err());
}

#[tokio::test]
async fn a_worker_that_breaks_the_protocol_later_is_lost() {
    let cases = [
        (ready(), "second greeting"),
        (frame(4, &[7, 0, 0, 0, 0, 0, 0, 0, 0, 8]), "call 7"),
        (frame(6, b"\x07\0\0\0\0\0\0\0\x01\0\0\0\0\x01\0\0\0x"), "call 7"),
        (frame(2, &[9, 0, 0, 0, 0]), "load 9"),
        ("\\377\\377\\377\\377\\010".to_owned(), "66560"),
        ("\\001\\000\\000\\000\\144\\000".to_owned(), "no frame's kind"),
    ];
    for (frame, expected) in cases {
        let dir = tempfile::tempdir().unwrap();
        let body = format!("printf '{}' >&3; printf '{frame}' >&3; sleep 60", ready());
        let workers = script(&dir, &body);
        workers.start(Kind::Tools, WorkerSetup::default()).await.unwrap();
        let mut lost = workers.lost();
        let wait = tokio::time::timeout(Duration::from_secs(20), lost.wait_for(Option::is_some)).await;
        let how = wait.expect("it is lost").unwrap().as_ref().unwrap().how.clone();
        assert!(how.contains(expected), "{frame}: {how}");
        workers.close().await;
    }
}

#[tokio::test]
async fn half_a_frame_and_then_nothing_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let workers = script(&dir, &format!("printf '{}\\000\\020' >&3", ready()));
    workers.start(Kind::Tools, WorkerSetup::default()).await.unwrap();
    let mut lost = workers.lost();
    let lost = lost.wait_for(Option::is_some).await.unwrap().clone().unwrap();
    assert!(lost.how.contains("in the middle of a frame") && lost.call.is_none(), "{lost}");
    workers.close().await;
}

#[tokio::test]
async fn the_output_of_a_worker_is_kept_in_its_log_and_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let body = format!("printf '{}' >&3; echo hello >&2; head -c 3000000 /dev/zero | tr '\\0' x; cat <&3", ready());
    let workers = script(&dir, &body);
    let setup = WorkerSetup { logs: Some(dir.path().to_owned()), ..WorkerSetup::default() };
    workers.start(Kind::Tools, setup).await.unwrap();
    let log = dir.path().join("worker-tools.log");
    let full = async {
        while std::fs::metadata(&log).map_or(0, |meta| meta.len()) < 1 << 20 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), full).await.unwrap();
    workers.close().await;
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(text.contains("hello") && text.ends_with("is dropped\n") && text.len() < (1 << 20) + 200);
    assert_eq!(std::fs::metadata(&log).unwrap().permissions().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn a_folder_that_is_not_there_is_refused_before_the_worker_hears_of_it() {
    let workers = started(WorkerSetup::default()).await;
    let mut spec = artifact("f", &component(ECHO, false), CallLimits::default());
    let source = PreopenSource::Path("/nonexistent/folder".into());
    spec.preopens.push(Preopen { source, guest: ".".into(), write: true });
    let error = workers.load(Kind::Tools, spec).await.unwrap_err();
    assert!(error.to_string().contains("/nonexistent/folder"), "{error}");
    workers.close().await;
}

#[tokio::test]
async fn a_stopped_worker_is_lost_well_past_its_calls_deadline() {
    let workers = with_artifact(SPIN, limits(Duration::from_millis(200))).await;
    let pid = nix::unistd::Pid::from_raw(workers.pid(Kind::Tools).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).unwrap();
    let begun = Instant::now();
    let outcome = tokio::time::timeout(Duration::from_secs(40), call(&workers, "a", "{}")).await.unwrap();
    let Err(CallError::Lost(lost)) = outcome else { panic!("{outcome:?}") };
    assert!(begun.elapsed() >= Duration::from_secs(10), "{:?}", begun.elapsed());
    assert!(lost.how.contains("nothing came from it for 10 s after its deadline passed"), "{lost}");
    workers.close().await;
}
