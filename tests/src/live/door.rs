//! A plain client of a door: HTTP/1.1 by hand, so that a test says exactly what goes over the wire.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

/// A door and the token presented to it.
#[derive(Clone, Debug)]
pub struct Door {
    /// `host:port`.
    pub address: String,
    /// Presented as `Authorization: Bearer`, unless empty.
    pub token: String,
}

/// An answer: status, header lines in lower case, body.
#[derive(Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl Answer {
    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The body as JSON; null when it is none.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

impl Door {
    /// A door at `host:port` (a scheme is dropped).
    pub fn new(address: &str, token: &str) -> Self {
        let address = address.strip_prefix("http://").unwrap_or(address);
        Self { address: address.replace("localhost", "127.0.0.1"), token: token.to_owned() }
    }

    /// One request with exactly these headers besides framing.
    pub fn raw(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut stream = self.open(method, path, headers, body);
        read_answer(&mut stream)
    }

    fn open(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> BufReader<TcpStream> {
        let mut stream = TcpStream::connect(&self.address).expect("the door accepts");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n", self.address);
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
        stream.write_all(&[head.as_bytes(), body].concat()).expect("a request is sent");
        BufReader::new(stream)
    }

    fn headers<'a>(&self, authorization: &'a str, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
        let mut headers = vec![("content-type", "application/json"), ("a2a-version", "1.0")];
        if !self.token.is_empty() {
            headers.push(("authorization", authorization));
        }
        headers.extend_from_slice(more);
        headers
    }

    /// One JSON-RPC request with more headers; the whole answer.
    pub fn ask(&self, method: &str, params: Value, more: &[(&str, &str)]) -> Answer {
        let authorization = format!("Bearer {}", self.token);
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
        self.raw("POST", "/", &self.headers(&authorization, more), body.as_bytes())
    }

    /// One JSON-RPC request; the body of its answer.
    pub fn call(&self, method: &str, params: Value) -> Value {
        self.ask(method, params, &[]).json()
    }

    /// Sends a task and returns its id without waiting for its end.
    #[track_caller]
    pub fn send(&self, text: &str) -> String {
        let answer = self.call("SendMessage", message(text, true));
        let id = answer.pointer("/result/task/id").and_then(Value::as_str);
        id.unwrap_or_else(|| panic!("no task: {answer}")).to_owned()
    }

    /// Polls a task until its state is terminal.
    #[track_caller]
    pub fn ended(&self, task: &str) -> Value {
        crate::live::run::until("a task ends", || {
            let answer = self.call("GetTask", json!({"id": task}));
            let state = answer.pointer("/result/status/state").and_then(Value::as_str).unwrap_or_default().to_owned();
            !matches!(state.as_str(), "TASK_STATE_SUBMITTED" | "TASK_STATE_WORKING" | "TASK_STATE_INPUT_REQUIRED")
        });
        self.call("GetTask", json!({"id": task}))["result"].take()
    }

    /// Opens a stream; events come as they are read.
    pub fn stream(&self, method: &str, params: Value, more: &[(&str, &str)]) -> Stream {
        let authorization = format!("Bearer {}", self.token);
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
        let mut reader = self.open("POST", "/", &self.headers(&authorization, more), body.as_bytes());
        let (status, headers) = read_head(&mut reader);
        Stream {
            status,
            chunked: header(&headers, "transfer-encoding") == Some("chunked"),
            headers,
            reader,
            rest: Vec::new(),
        }
    }
}

/// The params of a message with one text part.
pub fn message(text: &str, return_immediately: bool) -> Value {
    json!({
        "message": {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": text}]},
        "configuration": {"returnImmediately": return_immediately},
    })
}

/// The text of a finished task's answer.
pub fn answer_text(task: &Value) -> String {
    let artifacts = task["artifacts"].as_array().cloned().unwrap_or_default();
    let response = artifacts.iter().find(|artifact| artifact["name"] == "response").or(artifacts.first());
    response
        .and_then(|artifact| artifact.pointer("/parts/0/text"))
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

/// An open event stream.
pub struct Stream {
    /// HTTP status.
    pub status: u16,
    /// Header lines.
    pub headers: Vec<(String, String)>,
    chunked: bool,
    reader: BufReader<TcpStream>,
    rest: Vec<u8>,
}

/// One event: its id, if it has one, and its data. A comment has neither.
#[derive(Debug)]
pub struct Event {
    /// `id:`.
    pub id: Option<u64>,
    /// `data:` as JSON.
    pub data: Value,
}

impl Stream {
    /// The next event that carries data; `None` when the stream ended.
    pub fn next_event(&mut self) -> Option<Event> {
        loop {
            while let Some(end) = self.rest.windows(2).position(|pair| pair == b"\n\n") {
                let block: Vec<u8> = self.rest.drain(..end + 2).collect();
                let text = String::from_utf8_lossy(&block).into_owned();
                let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
                if let Some(data) = field("data:") {
                    let id = field("id:").and_then(|id| id.parse().ok());
                    return Some(Event { id, data: serde_json::from_str(data).unwrap_or_default() });
                }
            }
            let more = self.read_some()?;
            self.rest.extend_from_slice(&more);
        }
    }

    fn read_some(&mut self) -> Option<Vec<u8>> {
        if !self.chunked {
            let mut buffer = [0; 4096];
            let count = self.reader.read(&mut buffer).ok()?;
            return (count > 0).then(|| buffer[..count].to_vec());
        }
        let mut size = String::new();
        self.reader.read_line(&mut size).ok()?;
        let size = usize::from_str_radix(size.trim(), 16).ok()?;
        let mut chunk = vec![0; size + 2];
        self.reader.read_exact(&mut chunk).ok()?;
        chunk.truncate(size);
        (size > 0).then_some(chunk)
    }
}

fn header<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

fn read_head(reader: &mut BufReader<TcpStream>) -> (u16, Vec<(String, String)>) {
    let mut line = String::new();
    reader.read_line(&mut line).expect("an answer");
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a header line");
        let line = line.trim_end();
        let Some((name, value)) = line.split_once(':') else { break };
        headers.push((name.to_lowercase(), value.trim().to_owned()));
    }
    (status, headers)
}

/// Reads one whole answer framed by its length, or by the connection's end.
pub fn read_answer(reader: &mut BufReader<TcpStream>) -> Answer {
    let (status, headers) = read_head(reader);
    let mut body = Vec::new();
    match header(&headers, "content-length").and_then(|length| length.parse().ok()) {
        Some(length) => {
            body = vec![0; length];
            reader.read_exact(&mut body).expect("a whole body");
        }
        None => {
            let _ = reader.read_to_end(&mut body);
        }
    }
    Answer { status, headers, body }
}
