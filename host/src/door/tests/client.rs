//! A client that writes and reads bytes, so that what goes over the wire is what a test says.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Nothing here takes this long.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) struct Client {
    socket: TcpStream,
    read: Vec<u8>,
}

/// A whole answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Answer {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.text()))
    }
}

/// A JSON-RPC request as bytes.
pub(super) fn request(headers: &[&str], method: &str, params: &Value) -> Vec<u8> {
    let body = json!({ "jsonrpc": "2.0", "id": 3, "method": method, "params": params }).to_string();
    post(headers, &body)
}

/// A POST of this body as bytes.
pub(super) fn post(headers: &[&str], body: &str) -> Vec<u8> {
    let mut head = "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".to_owned();
    if !headers.iter().any(|line| line.to_ascii_lowercase().starts_with("a2a-version")) {
        head.push_str("A2A-Version: 1.0\r\n");
    }
    for line in headers.iter().filter(|line| !line.is_empty()) {
        head.push_str(line);
        head.push_str("\r\n");
    }
    format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

impl Client {
    pub(super) async fn connect(port: u16) -> Self {
        Self { socket: TcpStream::connect(("127.0.0.1", port)).await.unwrap(), read: Vec::new() }
    }

    pub(super) async fn send(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).await.unwrap();
        self.socket.flush().await.unwrap();
    }

    pub(super) async fn call(&mut self, headers: &[&str], method: &str, params: Value) -> Answer {
        self.send(&request(headers, method, &params)).await;
        self.answer().await
    }

    pub(super) async fn get(&mut self, line: &str, headers: &[&str]) -> Answer {
        let mut head = format!("{line} HTTP/1.1\r\nHost: localhost\r\n");
        for header in headers {
            head.push_str(header);
            head.push_str("\r\n");
        }
        self.send(format!("{head}\r\n").as_bytes()).await;
        self.answer().await
    }

    pub(super) async fn stream(mut self, headers: &[&str], method: &str, params: Value) -> Stream {
        self.send(&request(headers, method, &params)).await;
        let (status, headers) = self.head().await;
        assert_eq!(status, 200);
        assert!(!headers.iter().any(|(name, _)| name == "content-length"), "{headers:?}");
        Stream { client: self, headers, text: String::new(), ended: false }
    }

    /// More bytes; false at the end.
    async fn fill(&mut self) -> bool {
        let mut chunk = vec![0; 64 * 1024];
        let read = tokio::time::timeout(PATIENCE, self.socket.read(&mut chunk)).await.expect("an answer in time");
        let read = read.unwrap_or(0);
        self.read.extend_from_slice(&chunk[..read]);
        read > 0
    }

    async fn until(&mut self, end: &[u8]) -> String {
        loop {
            if let Some(at) = self.read.windows(end.len()).position(|window| window == end) {
                let rest = self.read.split_off(at + end.len());
                let taken = std::mem::replace(&mut self.read, rest);
                return String::from_utf8(taken[..at].to_vec()).unwrap();
            }
            assert!(self.fill().await, "the connection ended: {:?}", String::from_utf8_lossy(&self.read));
        }
    }

    async fn head(&mut self) -> (u16, Vec<(String, String)>) {
        let head = self.until(b"\r\n\r\n").await;
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers = lines
            .map(|line| line.split_once(": ").unwrap_or((line.trim_end_matches(':'), "")))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        (status, headers)
    }

    pub(super) async fn answer(&mut self) -> Answer {
        let (status, headers) = self.head().await;
        let length = headers.iter().find(|(name, _)| name == "content-length").map(|(_, value)| value.as_str());
        let length: usize = length.unwrap_or_else(|| panic!("no length: {headers:?}")).parse().unwrap();
        while self.read.len() < length {
            assert!(self.fill().await, "the body ended early");
        }
        let rest = self.read.split_off(length);
        let body = std::mem::replace(&mut self.read, rest);
        Answer { status, headers, body }
    }

    /// Whether the door has closed the connection and nothing is left to read.
    pub(super) async fn is_closed(&mut self) -> bool {
        self.read.is_empty() && !self.fill().await
    }
}

/// An open stream, without its chunking.
pub(super) struct Stream {
    client: Client,
    pub(super) headers: Vec<(String, String)>,
    text: String,
    ended: bool,
}

/// One event: its number, its `data` line as JSON; or a comment.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) id: Option<u64>,
    pub(super) result: Value,
    pub(super) comment: Option<String>,
}

impl Line {
    /// What it says, in a word.
    pub(super) fn word(&self) -> String {
        if let Some(comment) = &self.comment {
            return comment.clone();
        }
        let (kind, body) = self.result.as_object().unwrap().iter().next().unwrap();
        let state = |body: &Value| body["status"]["state"].as_str().unwrap().replace("TASK_STATE_", "");
        let frame = body["metadata"].as_object().and_then(|it| it.values().next()).map(|it| it["frame"].clone());
        match (kind.as_str(), frame) {
            (_, Some(Value::String(frame))) => format!("{kind} {frame}"),
            ("task", _) => format!("task {}", state(body)),
            ("statusUpdate", _) => {
                let text = body["status"]["message"]["parts"][0]["text"].as_str().unwrap_or("-");
                format!("status {} {text}", state(body))
            }
            ("artifactUpdate", _) => format!("response {}", body["artifact"]["parts"][0]["text"].as_str().unwrap()),
            _ => kind.clone(),
        }
    }
}

impl Stream {
    /// The next event or comment; `None` once the stream has ended.
    pub(super) async fn next(&mut self) -> Option<Line> {
        while !self.text.contains("\n\n") {
            if self.ended || !self.chunk().await {
                assert_eq!(self.text, "", "an event was cut");
                return None;
            }
        }
        let (event, rest) = self.text.split_once("\n\n").unwrap();
        let (event, rest) = (event.to_owned(), rest.to_owned());
        self.text = rest;
        let mut line = Line { id: None, result: Value::Null, comment: None };
        for text in event.lines() {
            match text.split_once(": ") {
                Some(("id", id)) => line.id = Some(id.parse().unwrap()),
                Some(("data", data)) => {
                    let data: Value = serde_json::from_str(data).unwrap();
                    assert_eq!((&data["jsonrpc"], &data["id"]), (&json!("2.0"), &json!(3)));
                    line.result = data["result"].clone();
                    assert_eq!(line.result.as_object().unwrap().len(), 1);
                }
                _ => line.comment = Some(text.to_owned()),
            }
        }
        Some(line)
    }

    pub(super) async fn word(&mut self) -> String {
        self.next().await.map_or("end".to_owned(), |line| line.word())
    }

    /// What is left, in words.
    pub(super) async fn rest(&mut self) -> Vec<String> {
        let mut words = Vec::new();
        while let Some(line) = self.next().await {
            words.push(line.word());
        }
        words
    }

    async fn chunk(&mut self) -> bool {
        let size = self.client.until(b"\r\n").await;
        let size = usize::from_str_radix(&size, 16).unwrap();
        while self.client.read.len() < size + 2 {
            assert!(self.client.fill().await, "a chunk was cut");
        }
        let rest = self.client.read.split_off(size + 2);
        let chunk = std::mem::replace(&mut self.client.read, rest);
        self.text.push_str(std::str::from_utf8(&chunk[..size]).unwrap());
        self.ended = size == 0;
        !self.ended
    }
}
