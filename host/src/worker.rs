//! Guest workers: all WASM code runs there, one process for each kind of artifact.
//!
//! [`supervisor`] is `mur`'s side: it starts workers, loads artifacts, makes calls and answers host calls. [`guest`] is
//! what runs inside `mur __guest-worker <kind>`. [`protocol`] lies between them and [`engine`] is the one place that
//! configures wasmtime, for compiling and for running.

pub mod clock;
pub mod engine;
pub mod guest;
pub mod hook;
pub mod protocol;
pub mod supervisor;
pub mod types;

pub use supervisor::WorkerSet;
pub use types::{
    ArtifactSpec, BoxFuture, CallError, CallLimits, Confinement, HostCalls, Kind, LostWorker, Preopen, PreopenSource,
    ProcessOutcome, ProcessRequest, Status, ToolInput, ToolResult, WorkerSetup,
};
