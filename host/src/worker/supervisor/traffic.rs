//! The connection of a worker as `mur` keeps it: one task writes, one reads and decides what each frame may do.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::super::protocol::{Decoder, Event, Up};
use super::super::types::HostCalls;
use super::calls::{MAX_WAITING, Worker, Written};
use super::requests;
use super::socket::Socket;

/// Starts the tasks of a worker that is ready.
pub(super) fn run(worker: &Arc<Worker>, socket: Socket, decoder: Decoder) {
    let socket = Arc::new(socket);
    let (queue, waiting) = mpsc::channel(MAX_WAITING);
    let writer = tokio::spawn(write(socket.clone(), waiting)).abort_handle();
    let reader = tokio::spawn(read(worker.clone(), socket, decoder)).abort_handle();
    worker.attach(queue, vec![writer, reader]);
}

async fn write(socket: Arc<Socket>, mut waiting: mpsc::Receiver<Written>) {
    while let Some(frame) = waiting.recv().await {
        if socket.send(&frame.bytes, &frame.fds).await.is_err() {
            // The reader sees the end too, and says how the process ended.
            waiting.close();
            return;
        }
    }
}

async fn read(worker: Arc<Worker>, socket: Arc<Socket>, mut decoder: Decoder) {
    let mut buffer = Socket::buffer();
    let how = loop {
        match drain(&worker, &mut decoder) {
            Ok(()) => {}
            Err(breach) => break format!("it broke the worker protocol: {breach}"),
        }
        // After its greeting a worker has no descriptor to give: any it sends are dropped.
        match socket.receive(&mut buffer, &mut decoder).await {
            Ok((0, _)) => {
                let half = if decoder.is_inside_frame() { " in the middle of a frame" } else { "" };
                let how = worker.reap().await;
                break format!("it {how}{half}");
            }
            Ok(_) => worker.heard(),
            Err(error) => break format!("its connection failed: {error}"),
        }
    };
    if !worker.is_closing() {
        worker.lose(how);
        worker.gone().await;
    }
}

/// Acts on every whole frame. An error is a breach of the protocol.
pub(super) fn drain(worker: &Arc<Worker>, decoder: &mut Decoder) -> Result<(), String> {
    while let Some(frame) = decoder.next_frame::<Up>().map_err(|error| error.to_string())? {
        handle(worker, frame)?;
    }
    Ok(())
}

/// What a frame does. An error is a breach of the protocol.
fn handle(worker: &Arc<Worker>, frame: Up) -> Result<(), String> {
    let unknown = |call: u64| format!("it spoke of call {call}, which does not run");
    match frame {
        Up::Ready { .. } | Up::Refused { .. } => Err("a second greeting".to_owned()),
        Up::Loaded { load, fault } => {
            if worker.loaded(load, fault) {
                Ok(())
            } else {
                Err(format!("it answered load {load}, which was not made"))
            }
        }
        Up::Running { call } => {
            if worker.restart(call) {
                Ok(())
            } else {
                Err(unknown(call))
            }
        }
        Up::Returned { call, outcome } => {
            if worker.returned(call, outcome) {
                Ok(())
            } else {
                Err(unknown(call))
            }
        }
        Up::Event { call, event } => {
            let host = worker.with_call(call, |call| call.running.then(|| call.host.clone()));
            let host = host.ok_or_else(|| unknown(call))?;
            if let Some(host) = host {
                emit(&*host, event);
            }
            Ok(())
        }
        Up::Ask { call, request, ask } => worker
            .with_call(call, |entry| requests::ask(worker, call, entry, request, ask))
            .ok_or_else(|| unknown(call))?,
        Up::Open { call, request, method, uri, headers, body, timeouts } => {
            let head = requests::Head { method, uri, headers, body, timeouts };
            worker
                .with_call(call, |entry| requests::open(worker, call, entry, request, head))
                .ok_or_else(|| unknown(call))?
        }
        Up::Chunk { call, request, bytes } => {
            worker.with_call(call, |entry| requests::chunk(entry, request, bytes)).ok_or_else(|| unknown(call))?
        }
        Up::End { call, request, whole } => {
            worker.with_call(call, |entry| requests::end(entry, request, whole)).ok_or_else(|| unknown(call))
        }
        Up::Credit { call, request, amount } => {
            worker.with_call(call, |entry| requests::credit(entry, request, amount)).ok_or_else(|| unknown(call))?
        }
        Up::Dropped { call, request } => {
            worker.with_call(call, |entry| requests::dropped(entry, request)).ok_or_else(|| unknown(call))
        }
    }
}

fn emit(host: &dyn HostCalls, event: Event) {
    match event {
        Event::Chunk(text) => host.emit_chunk(&text),
        Event::Thinking(text) => host.emit_thinking(&text),
        Event::ToolCallStarted(id, name) => host.tool_call_started(&id, &name),
        Event::ToolCallInputBytes(id, bytes) => host.tool_call_input_bytes(&id, bytes),
    }
}
