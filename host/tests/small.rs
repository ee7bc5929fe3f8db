//! A worker on a host that limits address space (`ulimit -v`): memories are not reserved whole, and artifacts run.
//! A file of its own, because the limit is the whole process's.

#[path = "support/component.rs"]
mod component;

use std::sync::Arc;

use component::{ECHO, component};
use mur::egress::{HttpError, HttpRequest, HttpResponse};
use mur::worker::engine::{self, Reservation};
use mur::worker::{ArtifactSpec, BoxFuture, CallLimits, HostCalls, Kind, ToolInput, WorkerSet, WorkerSetup};
use nix::sys::resource::{Resource, setrlimit};

struct Nothing;

impl HostCalls for Nothing {
    fn http<'a>(&'a self, _: &'a str, _: HttpRequest) -> BoxFuture<'a, Result<HttpResponse, HttpError>> {
        Box::pin(async { Err(HttpError::NameNotResolved) })
    }
}

#[tokio::test]
async fn artifacts_run_where_address_space_is_limited() {
    let limit = 2 << 30;
    setrlimit(Resource::RLIMIT_AS, limit, limit).unwrap();
    assert_eq!(Reservation::of_this_host(), Reservation::Small);
    let engine = engine::engine(Reservation::Small).unwrap();
    let code = engine.precompile_component(&component(ECHO, false)).unwrap();
    let mut file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut file, &code).unwrap();
    let workers = WorkerSet::with_program(env!("CARGO_BIN_EXE_mur"));
    workers.start(Kind::Tools, WorkerSetup::default()).await.unwrap();
    let spec = ArtifactSpec {
        id: "a".into(),
        full: "test/a@0.1.0".into(),
        compiled: file.into(),
        preopens: Vec::new(),
        env: Vec::new(),
        limits: CallLimits::default(),
    };
    workers.load(Kind::Tools, spec).await.unwrap();
    let input = ToolInput { data: Some("x".into()), log_path: None };
    let result = workers.call_tool(Kind::Tools, "a", input, Vec::new(), Arc::new(Nothing)).await.unwrap();
    assert_eq!(result.data.as_deref(), Some("x"));
    assert_eq!(*workers.lost().borrow(), None);
    workers.close().await;
}
