//! What the fuzz target drives: the books of a worker, under the bytes that worker would send.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body_util::{BodyExt, Full};
use tokio::sync::{mpsc, watch};

use super::super::protocol::Decoder;
use super::super::types::{BoxFuture, CallLimits, HostCalls, Kind};
use super::calls::{MAX_WAITING, Started, Worker};
use super::traffic;
use crate::egress::{HttpError, HttpRequest, HttpResponse};
use crate::process::Pidfd;

/// Turns of the runtime after each piece: what was asked is answered meanwhile.
const TURNS: usize = 8;

/// Reads bytes as a worker's frames, in pieces of the size the first byte gives: load 1 waits for its answer, call 2 runs,
/// and call 3 was told to end. Whatever they say, nothing panics, and the first breach is the last thing read.
pub fn fuzz(bytes: &[u8]) {
    let Some((&piece, rest)) = bytes.split_first() else { return };
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_time().build() else { return };
    runtime.block_on(read(rest, usize::from(piece).max(1)));
}

async fn read(bytes: &[u8], piece: usize) {
    // Its own: nothing here is ever signalled, since no breach is acted on.
    let Ok(pidfd) = Pidfd::of_self() else { return };
    let started = Started { kind: Kind::Tools, pidfd: Arc::new(pidfd), inside: None, own_root: false };
    let worker = Worker::new(started, watch::Sender::new(None));
    let (queue, mut sent) = mpsc::channel(MAX_WAITING);
    worker.attach(queue, Vec::new());
    let (_load, _loaded) = worker.expect_load();
    worker.remember("tool".to_owned(), CallLimits::default());
    let calls = [(); 2].map(|()| worker.enter("tool", Arc::new(Answers)));
    if let [Ok(_), Ok((told, _))] = &calls {
        let _ = worker.stop(*told, false);
    }
    let mut decoder = Decoder::default();
    for part in bytes.chunks(piece) {
        decoder.push(part);
        if traffic::drain(&worker, &mut decoder).is_err() {
            break;
        }
        for _ in 0..TURNS {
            tokio::task::yield_now().await;
        }
        while sent.try_recv().is_ok() {}
    }
    worker.hang_up();
}

/// Answers a request with a body of a few chunks' size, and whatever else is asked as a call without grants is answered.
struct Answers;

impl HostCalls for Answers {
    fn http<'a>(&'a self, _: &'a str, request: HttpRequest) -> BoxFuture<'a, Result<HttpResponse, HttpError>> {
        Box::pin(async move {
            // As a provider does, it reads what it is sent before it answers.
            request.body.collect().await?;
            let body = Full::new(Bytes::from_static(&[b'x'; 100_000])).map_err(|never| match never {}).boxed_unsync();
            Ok(HttpResponse { status: StatusCode::OK, headers: HeaderMap::new(), body, credential_rejected: false })
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::super::protocol::{Ask, Event, Fault, Frame, Product, Up};
    use super::super::super::types::{Status, ToolResult};
    use super::*;
    use crate::egress::Timeouts;

    /// What a sound worker might say of the calls above.
    fn conversation() -> Vec<Up> {
        let open = |call, request, body| Up::Open {
            call,
            request,
            method: "POST".into(),
            uri: "https://provider/v1".into(),
            headers: vec![("content-type".into(), Bytes::from_static(b"application/json"))],
            body,
            timeouts: Timeouts::default(),
        };
        let result = ToolResult {
            status: Status::Passed,
            summary: None,
            data: Some("{}".into()),
            data_path: None,
            truncated: false,
            metadata: Vec::new(),
        };
        vec![
            Up::Loaded { load: 1, fault: None },
            Up::Running { call: 2 },
            Up::Event { call: 2, event: Event::Chunk("so".into()) },
            Up::Ask { call: 2, request: 0, ask: Ask::Input("which?".into()) },
            open(2, 1, true),
            Up::Chunk { call: 2, request: 1, bytes: Bytes::from_static(b"{}") },
            Up::End { call: 2, request: 1, whole: true },
            Up::Credit { call: 2, request: 1, amount: 65_536 },
            open(2, 2, false),
            Up::Dropped { call: 2, request: 2 },
            open(3, 1, false),
            Up::Returned { call: 3, outcome: Err(Fault::Cancelled) },
            Up::Returned { call: 2, outcome: Ok(Product::Tool(result)) },
        ]
    }

    #[test]
    fn a_sound_conversation_is_read_to_its_end() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let bytes: Vec<u8> = conversation().iter().flat_map(|frame| frame.encode().unwrap()).collect();
        for piece in [1, 7, 255] {
            runtime.block_on(read(&bytes, piece));
        }
    }

    proptest! {
        #[test]
        fn no_order_and_no_repetition_of_frames_panics(
            order in proptest::collection::vec(0_usize..13, 0..24), cut in 0_usize..40, piece in 1_u8..,
        ) {
            let frames = conversation();
            let mut bytes = vec![piece];
            bytes.extend(order.iter().flat_map(|at| frames[*at].encode().unwrap()));
            fuzz(&bytes[..bytes.len().saturating_sub(cut).max(1)]);
        }
    }
}
