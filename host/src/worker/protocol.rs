//! Frames between `mur` and a worker, over one stream socket (descriptor 3 of the worker).
//!
//! A frame is a `u32` length of its body (little-endian), one byte that says its kind, and the body. Every kind has a
//! bound, compared with the length before anything is read or reserved. `mur` sends [`Down`] frames and the worker
//! [`Up`] frames; the first in each direction carries the protocol's version. Calls are multiplexed by id, and whatever
//! belongs to a call carries that id; what a call asks of `mur` carries an id of its own beside it.
//!
//! Descriptors travel with the first byte of the frame that speaks of them. Bodies of HTTP messages stream in chunks
//! under a credit that the receiver hands out as it consumes, so that neither side ever holds more than [`WINDOW`] of
//! one body.

pub mod stream;
pub mod wire;

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};

use super::hook::{
    HookEvent, HookResult, InferenceRequest, InferenceResponse, IoError, MessagePage, TaskIo, TaskIoReply,
};
use super::types::{CallLimits, ProcessOutcome, ProcessRequest, Status, ToolInput, ToolResult};
use crate::egress::{HttpError, PeerAnswer, PeerMessage, Timeouts};
use wire::{Malformed, Wire, wire_enum, wire_struct};

/// Raised with every change of a frame.
pub const VERSION: u32 = 4;

/// The worker's end of the connection.
pub const DESCRIPTOR: i32 = 3;

/// Length and kind.
const HEADER: usize = 5;

/// Most bytes of an artifact's input or result: a conversation and a screenshot or two fit.
pub const MAX_DATA: usize = 64 << 20;

/// Most bytes of one chunk of a body.
pub const MAX_CHUNK: usize = 64 << 10;

/// Most bytes of one fragment of a task's stream; a longer one is sent in parts.
pub const MAX_FRAGMENT: usize = 64 << 10;

/// Most bytes of a prompt, an answer to one, or the head of an HTTP message.
pub const MAX_TEXT: usize = 1 << 20;

/// Most bytes a program is given or gives back through `murmur:process`.
pub const MAX_PROCESS: usize = 32 << 20;

/// Most bytes of a message about a failure.
pub const MAX_REASON: usize = 16 << 10;

/// Most bytes of one body on their way to a receiver that has not consumed them.
pub const WINDOW: u32 = 256 << 10;

/// What a chunk costs at least, so that many tiny ones cost what they occupy.
const LEAST_COST: usize = 256;

/// Most chunks that can be on their way at once.
pub const MAX_CHUNKS_AHEAD: usize = WINDOW as usize / LEAST_COST;

/// Most folders of one artifact: with its code they fit one message of descriptors.
pub const MAX_PREOPENS: usize = crate::process::fds::MAX_PASSED - 1;

/// Most things one call may have asked at a time. A worker refuses its artifact more; `mur` allows for twice as many and
/// takes more for a breach.
pub const MAX_REQUESTS: usize = 64;

/// Room for ids and counts beside a frame's own content.
const ROOM: usize = 1024;

/// What a chunk takes from the credit of its body.
pub fn cost(len: usize) -> u32 {
    u32::try_from(len.max(LEAST_COST)).unwrap_or(u32::MAX)
}

/// Why an artifact call ended without a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It trapped.
    Trap(String),
    /// It outran its deadline.
    Deadline,
    /// It reached its memory limit.
    Memory,
    /// It reached its limit of table elements.
    Tables,
    /// It reached its limit of instances.
    Instances,
    /// It imports what its kind is not given.
    MissingImport(String),
    /// It lacks the export called.
    MissingExport(String),
    /// It could not be loaded or instantiated.
    Instantiate(String),
    /// `mur` cancelled it.
    Cancelled,
    /// The worker cannot do what was asked.
    Refused(String),
}

/// A fragment for the running task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Text.
    Chunk(String),
    /// Reasoning.
    Thinking(String),
    /// A tool call was begun: id, name.
    ToolCallStarted(String, String),
    /// A tool call's input so far: id, bytes.
    ToolCallInputBytes(String, u64),
}

/// What a call is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// `murmur:tool/run`, in a fresh instance.
    Tool(ToolInput),
    /// A function of `murmur:hook/lifecycle`, in the hook's own instance.
    Hook(HookEvent),
}

/// What a call comes to when the component returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Product {
    /// Of [`Work::Tool`].
    Tool(ToolResult),
    /// Of [`Work::Hook`].
    Hook(HookResult),
}

/// What a call asks of `mur`, apart from HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// The answer of whoever sent the task.
    Input(String),
    /// A program's run.
    Process(ProcessRequest),
    /// A message to the door at an address.
    Message(String, PeerMessage),
    /// A completion by the capsule's driver.
    Inference(InferenceRequest),
    /// The tokens of a text.
    Count(String),
    /// The running task's input or output.
    TaskIo(TaskIo),
    /// A page of the conversation: cursor, most messages.
    Conversation(Option<String>, u32),
}

/// `mur`'s answer to an [`Ask`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To [`Ask::Input`]; an error is the artifact's trap.
    Input(Result<String, String>),
    /// To [`Ask::Process`].
    Process(Result<ProcessOutcome, String>),
    /// To [`Ask::Message`].
    Message(Result<PeerAnswer, String>),
    /// To [`Ask::Inference`].
    Inference(Result<InferenceResponse, String>),
    /// To [`Ask::Count`].
    Count(u64),
    /// To [`Ask::TaskIo`].
    TaskIo(Result<TaskIoReply, IoError>),
    /// To [`Ask::Conversation`].
    Conversation(Result<MessagePage, String>),
}

wire_enum!(Fault {
    0 Trap(text), 1 Deadline, 2 Memory, 3 Tables, 4 Instances, 5 MissingImport(name), 6 MissingExport(name),
    7 Instantiate(text), 8 Cancelled, 9 Refused(text),
});
wire_enum!(Event { 0 Chunk(text), 1 Thinking(text), 2 ToolCallStarted(id, name), 3 ToolCallInputBytes(id, bytes) });
wire_enum!(Ask {
    0 Input(prompt), 1 Process(request), 2 Message(peer_url, message), 3 Inference(request), 4 Count(text),
    5 TaskIo(question), 6 Conversation(cursor, most),
});
wire_enum!(Answer {
    0 Input(answer), 1 Process(outcome), 2 Message(answer), 3 Inference(answer), 4 Count(tokens), 5 TaskIo(answer),
    6 Conversation(page),
});
wire_enum!(Work { 0 Tool(input), 1 Hook(event) });
wire_enum!(Product { 0 Tool(result), 1 Hook(result) });
wire_struct!(ToolInput { data, log_path });
wire_enum!(Status { 0 Passed, 1 Failed, 2 Error });
wire_enum!(HttpError {
    0 Denied(what), 1 NameNotResolved, 2 ConnectionRefused, 3 ConnectionLost, 4 ConnectTimeout, 5 ReadTimeout,
    6 Tls(why), 7 InvalidRequest(why), 8 Protocol(why), 9 Cancelled, 10 Other(why),
});
wire_struct!(ToolResult { status, summary, data, data_path, truncated, metadata });
wire_struct!(ProcessRequest { binary, args, stdin, env, timeout_ms });
wire_struct!(ProcessOutcome { exit_code, signal, stdout, stderr, truncated });
wire_struct!(PeerMessage { message_id, context_id, text });
wire_struct!(PeerAnswer { task_id, context_id, state });
wire_struct!(Timeouts { connect, first_byte, between_bytes });
wire_struct!(CallLimits { memory, table_elements, instances, deadline });

impl Wire for std::time::Duration {
    fn put(&self, out: &mut Vec<u8>) {
        u64::try_from(self.as_nanos()).unwrap_or(u64::MAX).put(out);
    }
    fn get(from: &mut Bytes) -> Result<Self, Malformed> {
        u64::get(from).map(Self::from_nanos)
    }
}

/// A frame that may not be sent: its content is larger than its kind allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TooLarge {
    /// Its size.
    pub size: usize,
    /// The bound of its kind.
    pub bound: usize,
}

impl std::fmt::Display for TooLarge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes, and at most {} can be passed", self.size, self.bound)
    }
}

/// One direction of the connection.
pub trait Frame: Sized {
    /// Most bytes of the body of a kind; `None` for no kind.
    fn bound(kind: u8) -> Option<usize>;
    /// Reads a body.
    fn decode(kind: u8, body: Bytes) -> Result<Self, Malformed>;
    /// The whole frame, header included.
    fn encode(&self) -> Result<Vec<u8>, TooLarge>;
}

macro_rules! frames {
    ($(#[$doc:meta])* $name:ident {
        $($(#[$vdoc:meta])* $kind:literal $variant:ident { $($(#[$fdoc:meta])* $field:ident: $ty:ty),* $(,)? } max $max:expr;)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "the frame's own line says it; fields are named for what they are")]
        pub enum $name { $($(#[$vdoc])* $variant { $($(#[$fdoc])* $field: $ty),* },)* }

        impl Frame for $name {
            fn bound(kind: u8) -> Option<usize> {
                match kind {
                    $($kind => Some($max),)*
                    _ => None,
                }
            }

            fn decode(kind: u8, mut body: Bytes) -> Result<Self, Malformed> {
                let frame = match kind {
                    $($kind => Self::$variant { $($field: Wire::get(&mut body)?),* },)*
                    other => return Err(Malformed::new(format!("{other} is no frame's kind"))),
                };
                if body.is_empty() {
                    Ok(frame)
                } else {
                    Err(Malformed::new(format!("{} bytes too many in a frame of kind {kind}", body.len())))
                }
            }

            fn encode(&self) -> Result<Vec<u8>, TooLarge> {
                let mut out = vec![0; HEADER];
                let bound = match self {
                    $(Self::$variant { $($field),* } => {
                        out[HEADER - 1] = $kind;
                        $(Wire::put($field, &mut out);)*
                        $max
                    })*
                };
                let size = out.len() - HEADER;
                if size > bound {
                    return Err(TooLarge { size, bound });
                }
                // Every bound is far below 4 GiB.
                out[..HEADER - 1].copy_from_slice(&u32::try_from(size).unwrap_or(u32::MAX).to_le_bytes());
                Ok(out)
            }
        }
    };
}

frames! {
    /// What `mur` sends.
    Down {
        /// First: the version, how the worker is to live, and the confinement it is to enter. `descriptors` follow in
        /// [`Down::Descriptors`] frames; the library is the first of them when `confined`.
        0 Hello { version: u32, die_with_parent: bool, small: bool, confined: bool, descriptors: u32, request: Bytes } max MAX_TEXT;
        /// A batch of descriptors.
        1 Descriptors { count: u32 } max ROOM;
        /// An artifact: its machine code and then its folders come as descriptors, apart from folders with a path, which
        /// the worker opens in its own root.
        2 Load { load: u32, id: String, full: String, preopens: Vec<(String, (bool, Option<Bytes>))>, env: Vec<(String, String)>, limits: CallLimits } max MAX_TEXT;
        /// A call of an artifact.
        3 Call { call: u64, artifact: String, work: Work, env: Vec<(String, String)> } max MAX_DATA + MAX_TEXT;
        /// The call is no longer wanted.
        4 Cancel { call: u64 } max ROOM;
        /// To [`Up::Ask`].
        5 Answer { call: u64, request: u32, answer: Answer } max MAX_PROCESS + ROOM;
        /// The head of a response.
        6 Head { call: u64, request: u32, status: u16, headers: Vec<(String, Bytes)> } max MAX_TEXT;
        /// There is no response.
        7 Failed { call: u64, request: u32, error: HttpError } max MAX_REASON + ROOM;
        /// A part of a response's body.
        8 Chunk { call: u64, request: u32, bytes: Bytes } max MAX_CHUNK + ROOM;
        /// The end of a response's body.
        9 End { call: u64, request: u32, error: Option<HttpError> } max MAX_REASON + ROOM;
        /// More of a request's body may be sent.
        10 Credit { call: u64, request: u32, amount: u32 } max ROOM;
    }
}

frames! {
    /// What a worker sends.
    Up {
        /// Confined, and holding nothing but stdio and the connection. The worker's own pidfd comes as a descriptor.
        0 Ready { version: u32, pid: u32 } max ROOM;
        /// It cannot start.
        1 Refused { reason: String } max MAX_REASON + ROOM;
        /// To [`Down::Load`].
        2 Loaded { load: u32, fault: Option<Fault> } max MAX_REASON + ROOM;
        /// Instantiation took noticeably long and is over: the call has its whole deadline again.
        3 Running { call: u64 } max ROOM;
        /// To [`Down::Call`], exactly once.
        4 Returned { call: u64, outcome: Result<Product, Fault> } max MAX_DATA + MAX_TEXT;
        /// A fragment for the task's stream.
        5 Event { call: u64, event: Event } max MAX_FRAGMENT + ROOM;
        /// A question to `mur`.
        6 Ask { call: u64, request: u32, ask: Ask } max MAX_PROCESS + ROOM;
        /// A request's head; its body follows when `body`.
        7 Open { call: u64, request: u32, method: String, uri: String, headers: Vec<(String, Bytes)>, body: bool, timeouts: Timeouts } max MAX_TEXT;
        /// A part of a request's body.
        8 Chunk { call: u64, request: u32, bytes: Bytes } max MAX_CHUNK + ROOM;
        /// The end of a request's body; `whole` unless the artifact gave it up.
        9 End { call: u64, request: u32, whole: bool } max ROOM;
        /// More of a response's body may be sent.
        10 Credit { call: u64, request: u32, amount: u32 } max ROOM;
        /// The artifact let go of a request and its response.
        11 Dropped { call: u64, request: u32 } max ROOM;
    }
}

/// Cuts received bytes into frames.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: BytesMut,
}

impl Decoder {
    /// Takes what was received.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame, if it is here. After an error the connection is of no more use.
    pub fn next_frame<F: Frame>(&mut self) -> Result<Option<F>, Malformed> {
        let Some(header) = self.buffer.get(..HEADER) else { return Ok(None) };
        let (len, kind) = (u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize, header[4]);
        let bound = F::bound(kind).ok_or_else(|| Malformed::new(format!("{kind} is no frame's kind")))?;
        if len > bound {
            return Err(Malformed::new(format!("a frame of kind {kind} with {len} bytes, where {bound} is the most")));
        }
        if self.buffer.len() < HEADER + len {
            return Ok(None);
        }
        self.buffer.advance(HEADER);
        let body = self.buffer.split_to(len).freeze();
        F::decode(kind, body).map(Some)
    }

    /// Whether a frame has begun and not ended.
    pub fn is_inside_frame(&self) -> bool {
        !self.buffer.is_empty()
    }
}

/// Cuts a text into parts of at most [`MAX_FRAGMENT`] bytes, on character boundaries.
pub fn fragments(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (head, tail) = rest.split_at(rest.floor_char_boundary(MAX_FRAGMENT));
        rest = tail;
        Some(head)
    })
}

/// A message about a failure, cut to what a frame holds.
pub fn reason(text: impl Into<String>) -> String {
    let mut text: String = text.into();
    text.truncate(text.floor_char_boundary(MAX_REASON - ROOM));
    text
}

/// The fuzz target: reads bytes as a connection in both directions, in the pieces given by the first byte.
pub fn fuzz(bytes: &[u8]) {
    let Some((&piece, rest)) = bytes.split_first() else { return };
    let piece = usize::from(piece).max(1);
    fn drain<F: Frame>(rest: &[u8], piece: usize) {
        let mut decoder = Decoder::default();
        let mut queue: VecDeque<F> = VecDeque::new();
        for part in rest.chunks(piece) {
            decoder.push(part);
            loop {
                match decoder.next_frame::<F>() {
                    Ok(Some(frame)) => queue.push_back(frame),
                    Ok(None) => break,
                    Err(_) => return,
                }
            }
        }
        // Whatever was read can be sent again.
        for frame in queue {
            assert!(frame.encode().is_ok(), "a frame within its bound");
        }
    }
    drain::<Down>(rest, piece);
    drain::<Up>(rest, piece);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::worker::hook::{ContextInsertion, HookMessage, HookOutput};

    fn one<F: Frame>(bytes: &[u8]) -> Result<Option<F>, Malformed> {
        let mut decoder = Decoder::default();
        decoder.push(bytes);
        decoder.next_frame()
    }

    #[test]
    fn a_length_past_the_bound_is_refused_by_the_header_alone() {
        for kind in 0..=255_u8 {
            let mut header = u32::MAX.to_le_bytes().to_vec();
            header.push(kind);
            assert!(one::<Up>(&header).is_err(), "{kind}");
            assert!(one::<Down>(&header).is_err(), "{kind}");
        }
    }

    #[test]
    fn an_empty_body_where_fields_are_called_for_is_malformed() {
        assert!(one::<Up>(&[0, 0, 0, 0, 4]).is_err());
        assert!(one::<Up>(&[0, 0, 0, 0, 200]).is_err());
    }

    #[test]
    fn a_half_frame_is_waited_for() {
        let frame = Up::Refused { reason: "no".into() }.encode().unwrap();
        let mut decoder = Decoder::default();
        for byte in &frame[..frame.len() - 1] {
            decoder.push(&[*byte]);
            assert_eq!(decoder.next_frame::<Up>(), Ok(None));
            assert!(decoder.is_inside_frame());
        }
        decoder.push(&frame[frame.len() - 1..]);
        assert_eq!(decoder.next_frame::<Up>(), Ok(Some(Up::Refused { reason: "no".into() })));
    }

    #[test]
    fn a_list_longer_than_its_frame_reserves_nothing() {
        let mut body = 7_u64.to_le_bytes().to_vec();
        body.extend(1_u32.to_le_bytes());
        body.extend(200_u16.to_le_bytes());
        body.extend(u32::MAX.to_le_bytes());
        assert!(Down::decode(6, body.into()).is_err());
    }

    #[test]
    fn a_result_past_the_bound_is_not_sent() {
        let result = ToolResult {
            status: Status::Passed,
            summary: None,
            data: Some("x".repeat(MAX_DATA + MAX_TEXT)),
            data_path: None,
            truncated: false,
            metadata: Vec::new(),
        };
        assert!(Up::Returned { call: 1, outcome: Ok(Product::Tool(result)) }.encode().is_err());
    }

    #[test]
    fn fragments_end_on_characters_and_lose_nothing() {
        let text = "é".repeat(MAX_FRAGMENT);
        let parts: Vec<&str> = fragments(&text).collect();
        assert!(parts.iter().all(|part| part.len() <= MAX_FRAGMENT));
        assert_eq!(parts.concat(), text);
    }

    fn some_up() -> impl Strategy<Value = Up> {
        let text = ".{0,40}";
        prop_oneof![
            (any::<u64>(), text, proptest::option::of(text), any::<bool>()).prop_map(|(call, key, data, truncated)| {
                Up::Returned {
                    call,
                    outcome: Ok(Product::Tool(ToolResult {
                        status: Status::Failed,
                        summary: data.clone(),
                        data,
                        data_path: None,
                        truncated,
                        metadata: vec![(key.clone(), key)],
                    })),
                }
            }),
            (any::<u64>(), text).prop_map(|(call, text)| Up::Returned { call, outcome: Err(Fault::Trap(text)) }),
            (any::<u64>(), text).prop_map(|(call, text)| {
                let message = HookMessage {
                    role: "user".into(),
                    content: text.clone(),
                    id: Some(text),
                    source_id: None,
                    inserted_by: Some(ContextInsertion::SeedContext),
                };
                Up::Returned { call, outcome: Ok(Product::Hook(Ok(HookOutput::SeedContext(vec![message])))) }
            }),
            (any::<u64>(), any::<u32>(), proptest::collection::vec(any::<u8>(), 0..100))
                .prop_map(|(call, request, bytes)| Up::Chunk { call, request, bytes: bytes.into() }),
            (any::<u64>(), text, any::<u64>())
                .prop_map(|(call, id, n)| Up::Event { call, event: Event::ToolCallInputBytes(id, n) }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(frames in proptest::collection::vec(some_up(), 1..6), piece in 1_usize..50) {
            let bytes: Vec<u8> = frames.iter().flat_map(|frame| frame.encode().unwrap()).collect();
            let mut decoder = Decoder::default();
            let mut read = Vec::new();
            for part in bytes.chunks(piece) {
                decoder.push(part);
                while let Some(frame) = decoder.next_frame::<Up>().unwrap() {
                    read.push(frame);
                }
            }
            prop_assert_eq!(read, frames);
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            fuzz(&bytes);
        }

        #[test]
        fn any_body_of_any_kind_is_read_without_a_panic(kind in 0_u8..14, body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Up::decode(kind, body.clone().into());
            let _ = Down::decode(kind, body.into());
        }
    }
}
