//! Best-effort sinks: a thread each, a bounded queue, a count of what was lost.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::diagnostics::output;
use crate::plugins::Sink;

/// Lines a sink may be behind before further ones are dropped: a few MiB at the usual line size.
const QUEUE: usize = 4096;

/// Lines handed over in one call.
const BATCH: usize = 256;

/// How long all best-effort sinks together may take to finish at the end of a session.
pub const DRAIN_LIMIT: Duration = Duration::from_secs(2);

enum Message {
    Line(Bytes),
    #[cfg(test)]
    Settle(SyncSender<()>),
}

pub(super) struct SideSink {
    name: String,
    queue: Mutex<Option<SyncSender<Message>>>,
    lost: Arc<AtomicU64>,
    done: Mutex<Receiver<()>>,
}

impl SideSink {
    pub(super) fn start(sink: Box<dyn Sink>) -> Self {
        let name = sink.name().to_owned();
        let (queue, lines) = mpsc::sync_channel(QUEUE);
        let (finished, done) = mpsc::channel();
        let lost = Arc::new(AtomicU64::new(0));
        let (counter, label) = (Arc::clone(&lost), name.clone());
        let started = std::thread::Builder::new().name(format!("sink-{name}")).spawn(move || {
            run(&label, sink, &lines, &counter);
            let _ = finished.send(());
        });
        // Without its thread the sink is lost from the first line on, and counted as such.
        let queue = started.is_ok().then_some(queue);
        Self { name, queue: Mutex::new(queue), lost, done: Mutex::new(done) }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    pub(super) fn offer(&self, line: &Bytes) {
        let queue = self.queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let refused = match queue.as_ref() {
            Some(queue) => matches!(
                queue.try_send(Message::Line(line.clone())),
                Err(TrySendError::Full(_) | TrySendError::Disconnected(_))
            ),
            None => true,
        };
        if refused {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[cfg(test)]
    pub(super) fn settle(&self) {
        let (answer, settled) = mpsc::sync_channel(1);
        let queue = self.queue.lock().unwrap();
        queue.as_ref().unwrap().send(Message::Settle(answer)).unwrap();
        settled.recv().unwrap();
    }
}

/// Closes the queues and waits for the threads, all within one limit.
pub(super) fn close_all(sinks: &[SideSink]) {
    for sink in sinks {
        sink.queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
    }
    let until = Instant::now() + DRAIN_LIMIT;
    for sink in sinks {
        let left = until.saturating_duration_since(Instant::now());
        let done = sink.done.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if done.recv_timeout(left).is_err() {
            output::log(&format!("[capsule-runtime] the sink '{}' did not finish in time", sink.name));
        }
    }
}

fn run(name: &str, mut sink: Box<dyn Sink>, lines: &Receiver<Message>, lost: &AtomicU64) {
    let mut said = false;
    while let Ok(first) = lines.recv() {
        let mut batch = Vec::new();
        let mut answers: Vec<SyncSender<()>> = Vec::new();
        for message in std::iter::once(first).chain(lines.try_iter().take(BATCH - 1)) {
            match message {
                Message::Line(line) => batch.push(line),
                #[cfg(test)]
                Message::Settle(answer) => answers.push(answer),
            }
        }
        if !batch.is_empty()
            && let Err(fault) = sink.write(&batch)
        {
            lost.fetch_add(batch.len() as u64, Ordering::Relaxed);
            if !said {
                said = true;
                output::log(&format!("[capsule-runtime] the sink '{name}' refused records: {}", fault.message()));
            }
        }
        for answer in answers.drain(..) {
            let _ = answer.send(());
        }
    }
    let _ = sink.flush(DRAIN_LIMIT);
    let _ = sink.close();
}
