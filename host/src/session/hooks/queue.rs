//! The queue of an async hook: events are handled in order, while the session goes on.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::{Hook, Scene, call};
use crate::session::context::SessionContext;
use crate::worker::hook::HookEvent;

/// Events that wait at most.
const DEPTH: usize = 1024;

struct Waiting {
    event: HookEvent,
    scene: Scene,
}

/// One hook's queue.
pub(super) struct Queue {
    /// Whether an event waits for room rather than being dropped.
    blocks: bool,
    sender: Mutex<Option<mpsc::Sender<Waiting>>>,
    receiver: Mutex<Option<mpsc::Receiver<Waiting>>>,
    worker: Mutex<Option<JoinHandle<()>>>,
    left: Arc<AtomicUsize>,
}

impl Queue {
    pub(super) fn new(blocks: bool) -> Self {
        let (sender, receiver) = mpsc::channel(DEPTH);
        Self {
            blocks,
            sender: Mutex::new(Some(sender)),
            receiver: Mutex::new(Some(receiver)),
            worker: Mutex::new(None),
            left: Arc::default(),
        }
    }

    /// Starts handling events, once.
    pub(super) fn begin(&self, ctx: Arc<SessionContext>, hook: Arc<Hook>) {
        let Some(mut receiver) = take(&self.receiver) else { return };
        let left = self.left.clone();
        let handling = tokio::spawn(async move {
            while let Some(Waiting { event, scene }) = receiver.recv().await {
                let lost = call(&ctx, &hook, event, &scene).await.is_err();
                left.fetch_sub(1, Ordering::Relaxed);
                if lost {
                    // The session learns of the loss by itself.
                    return;
                }
            }
        });
        *self.worker.lock().unwrap_or_else(PoisonError::into_inner) = Some(handling);
    }

    /// Adds an event; `false` when there is no room and it does not wait for some.
    pub(super) async fn offer(&self, event: HookEvent, scene: Scene) -> bool {
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(sender) = sender else { return true };
        self.left.fetch_add(1, Ordering::Relaxed);
        let waiting = Waiting { event, scene };
        if self.blocks {
            // A closed queue is that of a lost worker.
            let _ = sender.send(waiting).await;
            return true;
        }
        match sender.try_send(waiting) {
            Err(mpsc::error::TrySendError::Full(_)) => {
                self.left.fetch_sub(1, Ordering::Relaxed);
                false
            }
            _ => true,
        }
    }

    /// Takes no more events and waits for those there are; how many are left at the bound, if any.
    pub(super) async fn drain(&self, until: Instant) -> Option<usize> {
        drop(take(&self.sender));
        let mut handling = take(&self.worker)?;
        match tokio::time::timeout_at(until.into(), &mut handling).await {
            Ok(_) => None,
            Err(_) => {
                handling.abort();
                Some(self.left.load(Ordering::Relaxed))
            }
        }
    }
}

fn take<T>(place: &Mutex<Option<T>>) -> Option<T> {
    place.lock().unwrap_or_else(PoisonError::into_inner).take()
}
