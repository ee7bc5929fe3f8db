//! What one call has: its limits, its view of the system, and its line to `mur`.

use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio::io::AsyncWrite;
use tokio::sync::oneshot;
use wasmtime::ResourceLimiter;
use wasmtime::component::{HasData, Linker, Resource, ResourceTable};
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::filesystem::{Descriptor, Dir};
use wasmtime_wasi::p2::bindings::filesystem::preopens;
use wasmtime_wasi::{FsPerms, OpenMode, WasiCtx, WasiCtxView, WasiView};
use wasmtime_wasi_http::{WasiHttpCtx, WasiHttpCtxView, WasiHttpView};

use super::super::clock::Clock;
use super::super::protocol::{Answer, Ask, Frame, Up};
use super::super::types::CallLimits;
use super::board::Pending;
use super::http::Hooks;
use super::load::Artifact;
use super::run::Shared;

/// Most bytes one call writes to each of its standard streams; the rest is dropped.
const MAX_STDIO: usize = 64 << 10;

/// A call's line to `mur`.
pub(super) struct Link {
    pub(super) call: u64,
    pub(super) shared: Arc<Shared>,
    next: AtomicU32,
}

impl Link {
    pub(super) fn new(call: u64, shared: Arc<Shared>) -> Self {
        Self { call, shared, next: AtomicU32::new(0) }
    }

    /// A new id for a request of this call.
    pub(super) fn next_request(&self) -> u32 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Asks `mur` and waits for the answer.
    pub(super) async fn ask(&self, ask: Ask) -> Option<Answer> {
        let request = self.next_request();
        // What no frame holds is not asked.
        let frame = Up::Ask { call: self.call, request, ask }.encode().ok()?;
        let (sender, answer) = oneshot::channel();
        if !self.shared.board.expect(self.call, request, Pending::Answer(sender)) {
            return None;
        }
        self.shared.outgoing.send_bytes(&frame);
        answer.await.ok()
    }
}

/// The data of a call's store.
pub(super) struct State {
    pub(super) table: ResourceTable,
    pub(super) limits: Limits,
    pub(super) link: Arc<Link>,
    pub(super) clock: Arc<Clock>,
    artifact: Arc<Artifact>,
    /// What the call may still write to its standard streams.
    stdio: [Arc<AtomicUsize>; 2],
    wasi: WasiCtx,
    http: WasiHttpCtx,
    hooks: Hooks,
}

impl State {
    pub(super) fn new(artifact: Arc<Artifact>, env: &[(String, String)], link: Arc<Link>, clock: Arc<Clock>) -> Self {
        let mut wasi = WasiCtx::builder();
        for (name, value) in &artifact.env {
            if !env.iter().any(|(replaced, _)| replaced == name) {
                wasi.env(name, value);
            }
        }
        for (name, value) in env {
            wasi.env(name, value);
        }
        let stdio = [Arc::new(AtomicUsize::new(MAX_STDIO)), Arc::new(AtomicUsize::new(MAX_STDIO))];
        wasi.stdout(Stdio { stream: Stream::Out, left: stdio[0].clone() });
        wasi.stderr(Stdio { stream: Stream::Err, left: stdio[1].clone() });
        // Sockets: every address is refused and names are not looked up, which is the builder's own start.
        Self {
            table: ResourceTable::new(),
            limits: Limits::new(artifact.limits),
            hooks: Hooks::new(link.clone()),
            link,
            clock,
            artifact,
            stdio,
            wasi: wasi.build(),
            http: WasiHttpCtx::new(),
        }
    }

    /// Turns to the next call of an instance that is kept: what a call may use is counted anew, apart from what the
    /// instance holds.
    pub(super) fn turn_to(&mut self, link: Arc<Link>, clock: Arc<Clock>) {
        self.hooks = Hooks::new(link.clone());
        self.link = link;
        self.clock = clock;
        self.limits.exhausted = None;
        for left in &self.stdio {
            left.store(MAX_STDIO, Ordering::Relaxed);
        }
    }
}

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

impl WasiHttpView for State {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView { hooks: &mut self.hooks, table: &mut self.table, ctx: &mut self.http }
    }
}

/// What ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exhausted {
    Memory,
    Tables,
}

/// Counts what a call has taken.
pub(super) struct Limits {
    allowed: CallLimits,
    memory: u64,
    tables: u64,
    grown: u64,
    /// The first thing that was denied.
    pub(super) exhausted: Option<Exhausted>,
}

impl Limits {
    fn new(allowed: CallLimits) -> Self {
        Self { allowed, memory: 0, tables: 0, grown: 0, exhausted: None }
    }
}

impl ResourceLimiter for Limits {
    fn memory_growing(&mut self, current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        let more = desired.saturating_sub(current) as u64;
        let fits = self.memory.saturating_add(more) <= self.allowed.memory;
        if fits {
            self.memory += more;
            self.grown = more;
        } else {
            self.exhausted.get_or_insert(Exhausted::Memory);
        }
        Ok(fits)
    }

    fn memory_grow_failed(&mut self, _error: wasmtime::Error) -> wasmtime::Result<()> {
        // Counted, and then the host itself had no room.
        self.memory = self.memory.saturating_sub(std::mem::take(&mut self.grown));
        Ok(())
    }

    fn table_growing(&mut self, current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        let more = desired.saturating_sub(current) as u64;
        let fits = self.tables.saturating_add(more) <= self.allowed.table_elements;
        if fits {
            self.tables += more;
        } else {
            self.exhausted.get_or_insert(Exhausted::Tables);
        }
        Ok(fits)
    }

    fn instances(&self) -> usize {
        self.allowed.instances as usize
    }
}

/// Folders come as descriptors: nothing in a worker is opened by a path of the host.
struct Folders;

impl HasData for Folders {
    type Data<'a> = FoldersView<'a>;
}

struct FoldersView<'a> {
    artifact: &'a Artifact,
    table: &'a mut ResourceTable,
}

impl preopens::Host for FoldersView<'_> {
    fn get_directories(&mut self) -> wasmtime::Result<Vec<(Resource<Descriptor>, String)>> {
        let mut found = Vec::with_capacity(self.artifact.folders.len());
        for folder in &self.artifact.folders {
            let (perms, mode) = if folder.write {
                (FsPerms::ReadWrite, OpenMode::READ | OpenMode::WRITE)
            } else {
                (FsPerms::ReadOnly, OpenMode::READ)
            };
            let dir = Dir::new(folder.file.try_clone()?, perms, mode, false);
            found.push((self.table.push(Descriptor::Dir(dir))?, folder.guest.clone()));
        }
        Ok(found)
    }
}

/// Puts our folders in the place of the ones WASI's own context would open.
pub(super) fn link_folders(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    linker.allow_shadowing(true);
    preopens::add_to_linker::<State, Folders>(linker, |state| FoldersView {
        artifact: &state.artifact,
        table: &mut state.table,
    })?;
    super::open::link(linker)?;
    linker.allow_shadowing(false);
    Ok(())
}

#[derive(Clone, Copy)]
enum Stream {
    Out,
    Err,
}

/// One of the worker's own standard streams, for one call: bounded, and never waited for.
#[derive(Clone)]
struct Stdio {
    stream: Stream,
    left: Arc<AtomicUsize>,
}

impl Stdio {
    fn write(&self, bytes: &[u8]) {
        let left = self.left.load(Ordering::Relaxed);
        let part = &bytes[..bytes.len().min(left)];
        self.left.store(left - part.len(), Ordering::Relaxed);
        if part.is_empty() {
            return;
        }
        // A full pipe or a closed one drops the bytes.
        let _ = match self.stream {
            Stream::Out => nix::unistd::write(io::stdout().as_fd(), part),
            Stream::Err => nix::unistd::write(io::stderr().as_fd(), part),
        };
    }
}

impl IsTerminal for Stdio {
    fn is_terminal(&self) -> bool {
        // A worker's streams are pipes.
        false
    }
}

impl StdoutStream for Stdio {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }
}

impl AsyncWrite for Stdio {
    fn poll_write(self: Pin<&mut Self>, _cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.write(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
