//! A model provider that speaks real HTTP: well, slowly, with errors, and cut off in the middle.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::PATIENCE;

/// A request as the provider saw it.
#[derive(Debug, Clone)]
pub struct Seen {
    /// `POST`.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// Names in lower case, and values.
    pub headers: Vec<(String, String)>,
    /// The body as JSON, null when it is none.
    pub body: Value,
}

impl Seen {
    /// The first header of a name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// A piece of what the provider does.
#[derive(Debug, Clone)]
pub enum Piece {
    /// Sends bytes of the body.
    Bytes(Vec<u8>),
    /// Lets time pass.
    Wait(Duration),
    /// Waits until the test says go on.
    Hold,
    /// Breaks the connection.
    Cut,
}

/// An answer.
#[derive(Debug, Clone)]
pub struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    streamed: bool,
    before: Vec<Piece>,
    pieces: Vec<Piece>,
}

impl Answer {
    /// A JSON body in one.
    pub fn json(status: u16, body: &Value) -> Self {
        Self::text(status, "application/json", &body.to_string())
    }

    /// Any body in one.
    pub fn text(status: u16, kind: &str, body: &str) -> Self {
        Self {
            status,
            headers: vec![("content-type".into(), kind.into())],
            streamed: false,
            before: Vec::new(),
            pieces: vec![Piece::Bytes(body.as_bytes().to_vec())],
        }
    }

    /// A stream, in pieces.
    pub fn stream(pieces: Vec<Piece>) -> Self {
        Self {
            status: 200,
            headers: vec![("content-type".into(), "text/event-stream".into())],
            streamed: true,
            before: Vec::new(),
            pieces,
        }
    }

    /// A stream of events.
    pub fn events(events: impl IntoIterator<Item = String>) -> Self {
        Self::stream(events.into_iter().map(|event| Piece::Bytes(event.into_bytes())).collect())
    }

    /// Adds a header.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Lets time pass before the head is sent.
    pub fn after(mut self, wait: Duration) -> Self {
        self.before.push(Piece::Wait(wait));
        self
    }

    /// Holds the head back until [`Provider::release`].
    pub fn held(mut self) -> Self {
        self.before.push(Piece::Hold);
        self
    }

    /// Lets time pass before each piece of the body.
    pub fn slowly(mut self, wait: Duration) -> Self {
        self.pieces = self.pieces.into_iter().flat_map(|piece| [Piece::Wait(wait), piece]).collect();
        self
    }

    /// Sends the body in pieces of so many bytes.
    pub fn in_pieces(mut self, size: usize) -> Self {
        let all: Vec<u8> = self
            .pieces
            .iter()
            .filter_map(|piece| if let Piece::Bytes(bytes) = piece { Some(bytes.as_slice()) } else { None })
            .collect::<Vec<_>>()
            .concat();
        self.pieces = all.chunks(size).map(|bytes| Piece::Bytes(bytes.to_vec())).collect();
        self
    }

    /// Breaks the connection after so many pieces.
    pub fn cut_after(mut self, pieces: usize) -> Self {
        self.pieces.truncate(pieces);
        self.pieces.push(Piece::Cut);
        self
    }

    /// Ends the stream as if it were whole after so many pieces.
    pub fn end_after(mut self, pieces: usize) -> Self {
        self.pieces.truncate(pieces);
        self
    }

    /// Accepts the request and breaks the connection before a head.
    pub fn hang_up() -> Self {
        let mut answer = Self::stream(Vec::new());
        answer.before.push(Piece::Cut);
        answer
    }
}

type Script = Box<dyn FnMut(usize, &Seen) -> Answer + Send>;

#[derive(Default)]
struct State {
    seen: Vec<Seen>,
    released: usize,
    closed: bool,
}

type Shared = Arc<(Mutex<State>, Condvar)>;

/// The provider. It ends with the test.
pub struct Provider {
    address: String,
    shared: Shared,
}

impl Provider {
    /// Plays answers in turn; the last one again and again.
    pub fn play(answers: impl IntoIterator<Item = Answer>) -> Self {
        let mut answers: VecDeque<Answer> = answers.into_iter().collect();
        Self::answer(move |_, _| {
            if answers.len() > 1 {
                answers.pop_front().expect("there are several")
            } else {
                answers.front().cloned().unwrap_or_else(|| Answer::json(500, &json!({"error": "nothing to play"})))
            }
        })
    }

    /// Answers each request by a function of its number and content.
    ///
    /// # Panics
    /// When no port can be had.
    pub fn answer(script: impl FnMut(usize, &Seen) -> Answer + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it is bound").to_string();
        let shared = Shared::default();
        let script: Arc<Mutex<Script>> = Arc::new(Mutex::new(Box::new(script)));
        let state = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if state.0.lock().is_ok_and(|state| state.closed) {
                    return;
                }
                let (state, script) = (Arc::clone(&state), Arc::clone(&script));
                std::thread::spawn(move || serve(stream, &state, &script));
            }
        });
        Self { address, shared }
    }

    /// Its base URL, without a path.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Lets one held answer go on.
    pub fn release(&self) {
        self.shared.0.lock().expect("no panic under it").released += 1;
        self.shared.1.notify_all();
    }

    /// The requests so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.shared.0.lock().expect("no panic under it").seen.clone()
    }

    /// Waits for a number of requests.
    #[track_caller]
    pub fn wait_for(&self, count: usize) -> Vec<Seen> {
        let deadline = Instant::now() + PATIENCE;
        let mut state = self.shared.0.lock().expect("no panic under it");
        while state.seen.len() < count {
            let left = deadline.checked_duration_since(Instant::now());
            let left = left.unwrap_or_else(|| panic!("{} of {count} requests came", state.seen.len()));
            state = self.shared.1.wait_timeout(state, left).expect("no panic under it").0;
        }
        state.seen.clone()
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        if let Ok(mut state) = self.shared.0.lock() {
            state.closed = true;
            state.released = usize::MAX;
        }
        self.shared.1.notify_all();
        // Wakes the listener, which then sees that it is over.
        let _ = TcpStream::connect(&self.address);
    }
}

fn serve(stream: TcpStream, shared: &Shared, script: &Mutex<Script>) {
    let _ = stream.set_read_timeout(Some(PATIENCE));
    let _ = stream.set_nodelay(true);
    let Ok(mut writer) = stream.try_clone() else { return };
    let mut reader = BufReader::new(stream);
    while let Some(seen) = read_request(&mut reader) {
        let number = {
            let mut state = shared.0.lock().expect("no panic under it");
            state.seen.push(seen.clone());
            shared.1.notify_all();
            state.seen.len() - 1
        };
        let answer = (script.lock().expect("no panic under it"))(number, &seen);
        if perform(&mut writer, &answer, shared).is_none() {
            // Both halves must close for the client to see it.
            let _ = writer.shutdown(std::net::Shutdown::Both);
            return;
        }
    }
}

fn read_request(reader: &mut impl BufRead) -> Option<Seen> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
    let mut words = line.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let find = |name: &str| headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    let mut body = Vec::new();
    if find("transfer-encoding").is_some_and(|coding| coding.contains("chunked")) {
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            let size = u64::from_str_radix(line.trim(), 16).ok()?;
            read_whole(reader, size, &mut body)?;
            reader.read_line(&mut String::new()).ok()?;
            if size == 0 {
                break;
            }
        }
    } else if let Some(length) = find("content-length").and_then(|length| length.parse().ok()) {
        read_whole(reader, length, &mut body)?;
    }
    let body = serde_json::from_slice(&body).unwrap_or_default();
    Some(Seen { method, path, headers, body })
}

/// Reads so many bytes, or nothing: a request that breaks off, as its sender is killed, is none.
fn read_whole(reader: &mut impl BufRead, length: u64, body: &mut Vec<u8>) -> Option<()> {
    let read = reader.by_ref().take(length).read_to_end(body).ok()?;
    (read as u64 == length).then_some(())
}

fn perform(writer: &mut TcpStream, answer: &Answer, shared: &Shared) -> Option<()> {
    let mut cut = false;
    let mut act = |piece: &Piece, writer: &mut TcpStream| -> Option<()> {
        match piece {
            Piece::Bytes(bytes) if answer.streamed => {
                writer.write_all(format!("{:x}\r\n", bytes.len()).as_bytes()).ok()?;
                writer.write_all(bytes).ok()?;
                writer.write_all(b"\r\n").ok()
            }
            Piece::Bytes(bytes) => writer.write_all(bytes).ok(),
            Piece::Wait(wait) => {
                std::thread::sleep(*wait);
                Some(())
            }
            Piece::Hold => hold(shared),
            Piece::Cut => {
                cut = true;
                None
            }
        }
    };
    for piece in &answer.before {
        act(piece, writer)?;
    }
    let mut head = format!("HTTP/1.1 {} Answer\r\n", answer.status);
    for (name, value) in &answer.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    let whole: usize =
        answer.pieces.iter().map(|piece| if let Piece::Bytes(bytes) = piece { bytes.len() } else { 0 }).sum();
    let breaks = answer.pieces.iter().any(|piece| matches!(piece, Piece::Cut));
    if answer.streamed {
        head.push_str("transfer-encoding: chunked\r\n");
    } else {
        // A body that breaks off promises more than it sends.
        head.push_str(&format!("content-length: {}\r\n", whole + usize::from(breaks)));
    }
    head.push_str("\r\n");
    writer.write_all(head.as_bytes()).ok()?;
    for piece in &answer.pieces {
        act(piece, writer)?;
    }
    if answer.streamed {
        writer.write_all(b"0\r\n\r\n").ok()?;
    }
    Some(())
}

fn hold(shared: &Shared) -> Option<()> {
    let deadline = Instant::now() + PATIENCE;
    let mut state = shared.0.lock().ok()?;
    while state.released == 0 {
        let left = deadline.checked_duration_since(Instant::now())?;
        state = shared.1.wait_timeout(state, left).ok()?.0;
    }
    if !state.closed {
        state.released -= 1;
    }
    Some(())
}

/// Answers in the shapes of the Anthropic Messages API.
pub mod anthropic {
    use super::{Answer, Value, json};

    fn event(kind: &str, mut data: Value) -> String {
        data["type"] = kind.into();
        format!("event: {kind}\ndata: {data}\n\n")
    }

    fn start() -> String {
        event(
            "message_start",
            json!({"message": {"id": "msg_1", "type": "message", "role": "assistant", "content": [],
            "usage": {"input_tokens": 11, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 2,
            "output_tokens": 1}}}),
        )
    }

    fn end(stop: &str) -> [String; 2] {
        [
            event("message_delta", json!({"delta": {"stop_reason": stop}, "usage": {"output_tokens": 7}})),
            event("message_stop", json!({})),
        ]
    }

    /// A text, streamed in the given pieces.
    pub fn stream_text(pieces: &[&str]) -> Answer {
        let mut events = vec![
            start(),
            event("content_block_start", json!({"index": 0, "content_block": {"type": "text", "text": ""}})),
        ];
        for piece in pieces {
            events.push(event(
                "content_block_delta",
                json!({"index": 0, "delta": {"type": "text_delta", "text": piece}}),
            ));
        }
        events.push(event("content_block_stop", json!({"index": 0})));
        events.extend(end("end_turn"));
        Answer::events(events)
    }

    /// A tool call, its input streamed in the given pieces of JSON.
    pub fn stream_call(id: &str, name: &str, input: &[&str]) -> Answer {
        let block = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
        let mut events = vec![start(), event("content_block_start", json!({"index": 0, "content_block": block}))];
        for piece in input {
            let delta = json!({"type": "input_json_delta", "partial_json": piece});
            events.push(event("content_block_delta", json!({"index": 0, "delta": delta})));
        }
        events.push(event("content_block_stop", json!({"index": 0})));
        events.extend(end("tool_use"));
        Answer::events(events)
    }

    /// A text in one.
    pub fn text(text: &str) -> Answer {
        Answer::json(
            200,
            &json!({"id": "msg_1", "type": "message", "role": "assistant", "stop_reason": "end_turn",
            "content": [{"type": "text", "text": text}], "usage": {"input_tokens": 11, "output_tokens": 7}}),
        )
    }

    /// A refusal.
    pub fn error(status: u16, kind: &str, message: &str) -> Answer {
        Answer::json(status, &json!({"type": "error", "error": {"type": kind, "message": message}}))
    }

    /// An error in the middle of a stream that began well.
    pub fn stream_error(kind: &str, message: &str) -> Answer {
        let error = json!({"error": {"type": kind, "message": message}});
        Answer::events([start(), event("ping", json!({})), event("error", error)])
    }
}

/// Answers in the shapes of the OpenAI Chat Completions API.
pub mod openai {
    use super::{Answer, Value, json};

    fn chunk(delta: &Value, finish: Option<&str>) -> String {
        let chunk = json!({"id": "c1", "object": "chat.completion.chunk",
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]});
        format!("data: {chunk}\n\n")
    }

    fn end(finish: &str) -> [String; 3] {
        let usage = json!({"id": "c1", "object": "chat.completion.chunk", "choices": [], "usage": usage()});
        [chunk(&json!({}), Some(finish)), format!("data: {usage}\n\n"), "data: [DONE]\n\n".to_owned()]
    }

    fn usage() -> Value {
        json!({"prompt_tokens": 14, "completion_tokens": 7, "total_tokens": 21,
            "prompt_tokens_details": {"cached_tokens": 3}, "completion_tokens_details": {"reasoning_tokens": 2}})
    }

    /// A text, streamed in the given pieces.
    pub fn stream_text(pieces: &[&str]) -> Answer {
        let mut events = vec![chunk(&json!({"role": "assistant", "content": ""}), None)];
        events.extend(pieces.iter().map(|piece| chunk(&json!({"content": piece}), None)));
        events.extend(end("stop"));
        Answer::events(events)
    }

    /// A tool call, its input streamed in the given pieces of JSON.
    pub fn stream_call(id: &str, name: &str, input: &[&str]) -> Answer {
        let first = json!({"index": 0, "id": id, "type": "function", "function": {"name": name, "arguments": ""}});
        let mut events = vec![chunk(&json!({"role": "assistant", "tool_calls": [first]}), None)];
        events.extend(
            input
                .iter()
                .map(|piece| chunk(&json!({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}), None)),
        );
        events.extend(end("tool_calls"));
        Answer::events(events)
    }

    /// A text in one.
    pub fn text(text: &str) -> Answer {
        let message = json!({"role": "assistant", "content": text});
        Answer::json(
            200,
            &json!({"id": "c1", "object": "chat.completion", "usage": usage(),
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}),
        )
    }

    /// A refusal.
    pub fn error(status: u16, code: &str, message: &str) -> Answer {
        Answer::json(status, &json!({"error": {"message": message, "type": "invalid_request_error", "code": code}}))
    }
}
