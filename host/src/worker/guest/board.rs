//! What is under way: running calls, and what each of them has asked of `mur`. Whoever reads the
//! connection looks things up here and delivers directly, without waiting.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::http::HeaderMap;
use tokio::sync::{mpsc, oneshot};

use super::super::protocol::stream::{Credit, Delivery};
use super::super::protocol::{Answer, Down, MAX_REQUESTS};
use crate::egress::HttpError;

/// The head of a response.
pub(super) struct Head {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
}

/// Something a call waits for.
pub(super) enum Pending {
    /// The answer to a question.
    Answer(oneshot::Sender<Answer>),
    /// A response.
    Http(HttpPending),
}

/// An HTTP request that was sent.
pub(super) struct HttpPending {
    pub(super) head: Option<oneshot::Sender<Result<Head, HttpError>>>,
    pub(super) body: mpsc::Sender<Delivery>,
    pub(super) credit: Arc<Credit>,
}

struct Entry {
    cancel: Option<oneshot::Sender<()>>,
    pending: HashMap<u32, Pending>,
}

/// The board of a worker.
#[derive(Default)]
pub(super) struct Board {
    calls: Mutex<HashMap<u64, Entry>>,
}

impl Board {
    /// Enters a call. The receiver says that it is no longer wanted.
    pub(super) fn enter(&self, call: u64) -> oneshot::Receiver<()> {
        let (cancel, cancelled) = oneshot::channel();
        let entry = Entry { cancel: Some(cancel), pending: HashMap::new() };
        self.lock().insert(call, entry);
        cancelled
    }

    /// Strikes a call; whatever it waited for is dropped.
    pub(super) fn leave(&self, call: u64) {
        self.lock().remove(&call);
    }

    /// Whether a call runs.
    pub(super) fn is_running(&self, call: u64) -> bool {
        self.lock().contains_key(&call)
    }

    /// Enters what a running call waits for; `false` when it waits for too much already.
    #[must_use]
    pub(super) fn expect(&self, call: u64, request: u32, pending: Pending) -> bool {
        match self.lock().get_mut(&call) {
            Some(entry) if entry.pending.len() < MAX_REQUESTS => {
                entry.pending.insert(request, pending);
                true
            }
            _ => false,
        }
    }

    /// Strikes what a call waited for; `false` when it had come to its end already.
    pub(super) fn forget(&self, call: u64, request: u32) -> bool {
        self.lock().get_mut(&call).is_some_and(|entry| entry.pending.remove(&request).is_some())
    }

    /// Delivers a frame that belongs to a call. Frames for calls and requests that have ended crossed them on the way
    /// and are dropped. An error is a breach of the protocol.
    pub(super) fn deliver(&self, frame: Down) -> Result<(), String> {
        match frame {
            Down::Cancel { call } => {
                if let Some(entry) = self.lock().get_mut(&call)
                    && let Some(cancel) = entry.cancel.take()
                {
                    let _ = cancel.send(());
                }
            }
            Down::Answer { call, request, answer } => {
                if let Some(Pending::Answer(waiting)) = self.take(call, request) {
                    let _ = waiting.send(answer);
                }
            }
            Down::Head { call, request, status, headers } => {
                let headers = super::http::header_map(headers);
                self.with_http(call, request, |http| {
                    if let Some(head) = http.head.take() {
                        let _ = head.send(Ok(Head { status, headers }));
                    }
                    Ok(())
                })?;
            }
            Down::Failed { call, request, error } => {
                if let Some(Pending::Http(mut http)) = self.take(call, request)
                    && let Some(head) = http.head.take()
                {
                    let _ = head.send(Err(error));
                }
            }
            Down::Chunk { call, request, bytes } => {
                self.with_http(call, request, |http| match http.body.try_send(Ok(Some(bytes))) {
                    Err(mpsc::error::TrySendError::Full(_)) => Err("a response's body overran its credit".to_owned()),
                    _ => Ok(()),
                })?;
            }
            Down::End { call, request, error } => {
                if let Some(Pending::Http(http)) = self.take(call, request) {
                    let _ = http.body.try_send(error.map_or(Ok(None), Err));
                }
            }
            Down::Credit { call, request, amount } => {
                self.with_http(call, request, |http| {
                    if http.credit.add(amount) { Ok(()) } else { Err("too much credit".to_owned()) }
                })?;
            }
            Down::Hello { .. } | Down::Descriptors { .. } => return Err("a second greeting".to_owned()),
            // Taken before it comes here.
            Down::Load { .. } | Down::Call { .. } => {}
        }
        Ok(())
    }

    fn with_http(
        &self,
        call: u64,
        request: u32,
        then: impl FnOnce(&mut HttpPending) -> Result<(), String>,
    ) -> Result<(), String> {
        match self.lock().get_mut(&call).and_then(|entry| entry.pending.get_mut(&request)) {
            Some(Pending::Http(http)) => then(http),
            _ => Ok(()),
        }
    }

    fn take(&self, call: u64, request: u32) -> Option<Pending> {
        self.lock().get_mut(&call)?.pending.remove(&request)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Entry>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
