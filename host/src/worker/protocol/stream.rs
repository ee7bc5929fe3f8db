//! Bodies that stream over the connection: what both sides do the same way.
//!
//! The sender of a body holds a [`Credit`] of [`WINDOW`] and spends it chunk by chunk; the receiver gives back what its
//! consumer has taken.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use tokio::sync::{Semaphore, mpsc};

use super::{MAX_CHUNK, MAX_CHUNKS_AHEAD, WINDOW, cost};
use crate::egress::HttpError;

/// What the receiver still has room for.
#[derive(Debug)]
pub struct Credit(Semaphore);

impl Default for Credit {
    fn default() -> Self {
        Self(Semaphore::new(WINDOW as usize))
    }
}

impl Credit {
    /// Gives room back. `false` when the other side gives more than there ever was.
    #[must_use]
    pub fn add(&self, amount: u32) -> bool {
        let fits = self.0.available_permits() + amount as usize <= WINDOW as usize;
        if fits {
            self.0.add_permits(amount as usize);
        }
        fits
    }

    /// Waits for room for a chunk and takes it.
    async fn spend(&self, len: usize) {
        if let Ok(permit) = self.0.acquire_many(cost(len)).await {
            permit.forget();
        }
    }
}

/// Sends a body chunk by chunk as there is room. `send` answers `false` when nobody listens any more.
pub async fn pump<B, S>(mut body: B, credit: Arc<Credit>, mut send: impl FnMut(Bytes) -> S) -> Result<(), B::Error>
where
    B: Body<Data = Bytes> + Unpin,
    S: Future<Output = bool>,
{
    while let Some(frame) = body.frame().await {
        // Trailers are not passed on.
        let Ok(mut data) = frame?.into_data() else { continue };
        while !data.is_empty() {
            let chunk = data.split_to(data.len().min(MAX_CHUNK));
            credit.spend(chunk.len()).await;
            if !send(chunk).await {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// What the connection delivers into a [`StreamBody`]: chunks, then `None` for a whole end or an error.
pub type Delivery = Result<Option<Bytes>, HttpError>;

/// How a body tells the other side what became of it.
pub trait Receipt: Send + Unpin {
    /// That much has been consumed.
    fn consumed(&self, amount: u32);
    /// The body is not read any further.
    fn dropped(&self);
}

/// A body that arrives over the connection.
pub struct StreamBody<R: Receipt> {
    chunks: mpsc::Receiver<Delivery>,
    receipt: R,
    owed: u32,
    ended: bool,
}

/// A body and the end that the connection delivers into. Delivering past the channel's capacity means that the sender
/// overdrew its credit.
pub fn body<R: Receipt>(receipt: R) -> (mpsc::Sender<Delivery>, StreamBody<R>) {
    // One more for the end.
    let (sender, chunks) = mpsc::channel(MAX_CHUNKS_AHEAD + 1);
    (sender, StreamBody { chunks, receipt, owed: 0, ended: false })
}

impl<R: Receipt> Body for StreamBody<R> {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        match ready!(self.chunks.poll_recv(cx)) {
            Some(Ok(Some(chunk))) => {
                self.owed += cost(chunk.len());
                // Given back in quarters, so that a stream of small chunks costs few frames the other way.
                if self.owed >= WINDOW / 4 {
                    self.receipt.consumed(self.owed);
                    self.owed = 0;
                }
                Poll::Ready(Some(Ok(Frame::data(chunk))))
            }
            Some(Ok(None)) => {
                self.ended = true;
                Poll::Ready(None)
            }
            Some(Err(error)) => {
                self.ended = true;
                Poll::Ready(Some(Err(error)))
            }
            // Whoever delivered is gone: what is here is not the whole body.
            None => {
                self.ended = true;
                Poll::Ready(Some(Err(HttpError::Cancelled)))
            }
        }
    }
}

impl<R: Receipt> Drop for StreamBody<R> {
    fn drop(&mut self) {
        if !self.ended {
            self.receipt.dropped();
        }
    }
}
