//! A client of a session's door: plain HTTP over a socket, so that it can also send what no client should.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::PATIENCE;

/// A door, and how to present oneself at it.
#[derive(Debug, Clone)]
pub struct Door {
    address: String,
    headers: Vec<(String, String)>,
}

/// An answer.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The status code.
    pub status: u16,
    /// Names in lower case, and values.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: String,
}

impl Reply {
    /// The first header of a name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The body as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|fault| panic!("{fault}: {} {}", self.status, self.body))
    }

    /// The `result` of a JSON-RPC answer.
    #[track_caller]
    pub fn result(&self) -> Value {
        let body = self.json();
        assert!(body.get("result").is_some(), "{} {}", self.status, self.body);
        body["result"].clone()
    }

    /// The code of a JSON-RPC error.
    #[track_caller]
    pub fn error_code(&self) -> i64 {
        self.json()["error"]["code"].as_i64().unwrap_or_else(|| panic!("{} {}", self.status, self.body))
    }
}

impl Door {
    /// The door at an address: `localhost:port`, with or without `http://` before it.
    pub fn at(address: &str) -> Self {
        let address = address.strip_prefix("http://").unwrap_or(address).trim_end_matches('/');
        Self { address: address.replace("localhost", "127.0.0.1"), headers: vec![("A2A-Version".into(), "1.0".into())] }
    }

    /// The door a `--json` readiness line announces, with the operator's token when the line carries one.
    #[track_caller]
    pub fn ready(line: &Value) -> Self {
        let url = line["url"].as_str().unwrap_or_else(|| panic!("no url in {line}"));
        let door = Self::at(url);
        match line["tokens"]["operator"].as_str() {
            Some(token) => door.token(token),
            None => door,
        }
    }

    /// Presents a bearer token.
    pub fn token(&self, token: &str) -> Self {
        self.header("Authorization", &format!("Bearer {token}"))
    }

    /// Sends a header with every request, in place of one of the same name.
    pub fn header(&self, name: &str, value: &str) -> Self {
        let mut door = self.without(name);
        door.headers.push((name.to_owned(), value.to_owned()));
        door
    }

    /// Sends a header no more.
    pub fn without(&self, name: &str) -> Self {
        let mut door = self.clone();
        door.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        door
    }

    /// Its address, `127.0.0.1:port`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// A connection to it.
    #[track_caller]
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap_or_else(|fault| panic!("{}: {fault}", self.address));
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket takes a timeout");
        stream.set_write_timeout(Some(PATIENCE)).expect("a socket takes a timeout");
        stream
    }

    fn request(&self, method: &str, path: &str, body: Option<&str>) -> String {
        let mut text = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", self.address);
        for (name, value) in &self.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        if let Some(body) = body {
            text.push_str(&format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len()));
        }
        text.push_str("\r\n");
        text.push_str(body.unwrap_or_default());
        text
    }

    /// `GET`.
    #[track_caller]
    pub fn get(&self, path: &str) -> Reply {
        self.raw(self.request("GET", path, None).as_bytes())
    }

    /// `POST /` with a body as it is.
    #[track_caller]
    pub fn post(&self, body: &str) -> Reply {
        self.raw(self.request("POST", "/", Some(body)).as_bytes())
    }

    /// Bytes as they are, and the answer to them.
    #[track_caller]
    pub fn raw(&self, bytes: &[u8]) -> Reply {
        let mut stream = self.connect();
        stream.write_all(bytes).expect("the door takes bytes");
        let mut reader = BufReader::new(stream);
        let (status, headers) = head(&mut reader);
        let mut reply = Reply { status, headers, body: String::new() };
        let mut body = Vec::new();
        if reply.header("transfer-encoding").is_some_and(|coding| coding.contains("chunked")) {
            let mut chunks = Chunks { reader, left: 0, done: false };
            chunks.read_to_end(&mut body).expect("a whole body");
        } else if let Some(length) = reply.header("content-length").and_then(|length| length.parse().ok()) {
            reader.take(length).read_to_end(&mut body).expect("a whole body");
        } else {
            reader.read_to_end(&mut body).expect("a whole body");
        }
        reply.body = String::from_utf8(body).expect("a body of text");
        reply
    }

    /// A JSON-RPC call.
    #[track_caller]
    pub fn call(&self, method: &str, params: Value) -> Reply {
        self.post(&json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string())
    }

    /// A task from a text; answered as soon as the door holds it.
    #[track_caller]
    pub fn send(&self, text: &str) -> Value {
        let message = json!({"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": text}]});
        let params = json!({"message": message, "configuration": {"returnImmediately": true}});
        self.call("SendMessage", params).result()["task"].clone()
    }

    /// A task from a text, answered when it has ended.
    #[track_caller]
    pub fn ask(&self, text: &str) -> Value {
        let message = json!({"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": text}]});
        self.call("SendMessage", json!({"message": message})).result()["task"].clone()
    }

    /// A task as it stands.
    #[track_caller]
    pub fn task(&self, id: &str) -> Value {
        self.call("GetTask", json!({"id": id})).result()
    }

    /// Waits until a task is in a state, such as `TASK_STATE_WORKING`.
    #[track_caller]
    pub fn wait_for(&self, id: &str, state: &str) -> Value {
        let mut task = Value::Null;
        crate::wait_until(&format!("{id} to be {state}"), || {
            task = self.task(id);
            task["status"]["state"] == state
        });
        task
    }

    /// A call answered by a stream of events.
    #[track_caller]
    pub fn stream(&self, method: &str, params: Value) -> Stream {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
        let mut stream = self.connect();
        stream.write_all(self.request("POST", "/", Some(&body)).as_bytes()).expect("the door takes bytes");
        let mut reader = BufReader::new(stream);
        let (status, headers) = head(&mut reader);
        let chunked = headers.iter().any(|(name, value)| name == "transfer-encoding" && value.contains("chunked"));
        let reader: Box<dyn Read> =
            if chunked { Box::new(Chunks { reader, left: 0, done: false }) } else { Box::new(reader) };
        Stream { status, headers, reader: BufReader::new(reader) }
    }
}

#[track_caller]
fn head(reader: &mut impl BufRead) -> (u16, Vec<(String, String)>) {
    let mut line = || {
        let mut line = String::new();
        reader.read_line(&mut line).expect("the door answers");
        line.trim_end().to_owned()
    };
    let first = line();
    let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.unwrap_or_else(|| panic!("the door answered '{first}'"));
    let mut headers = Vec::new();
    loop {
        let line = line();
        let Some((name, value)) = line.split_once(':') else { return (status, headers) };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
}

/// A stream of events.
pub struct Stream {
    /// The status code.
    pub status: u16,
    /// Names in lower case, and values.
    pub headers: Vec<(String, String)>,
    reader: BufReader<Box<dyn Read>>,
}

impl Stream {
    /// The next event's data, `None` at the end of the stream. Comments are passed over.
    #[track_caller]
    pub fn next_event(&mut self) -> Option<Value> {
        let mut data = String::new();
        loop {
            let mut line = String::new();
            if self.reader.read_line(&mut line).expect("the stream goes on") == 0 {
                return None;
            }
            let line = line.trim_end_matches(['\r', '\n']);
            if let Some(more) = line.strip_prefix("data:") {
                data.push_str(more.trim_start());
            } else if line.is_empty() && !data.is_empty() {
                return Some(serde_json::from_str(&data).unwrap_or_else(|fault| panic!("{fault}: {data}")));
            }
        }
    }

    /// The next event that fits.
    #[track_caller]
    pub fn until(&mut self, mut fits: impl FnMut(&Value) -> bool) -> Value {
        let mut seen = Vec::new();
        while let Some(event) = self.next_event() {
            if fits(&event) {
                return event;
            }
            seen.push(event);
        }
        panic!("the stream ended before such an event: {seen:?}")
    }

    /// Every event until the end.
    #[track_caller]
    pub fn rest(mut self) -> Vec<Value> {
        std::iter::from_fn(move || self.next_event()).collect()
    }
}

/// The body of a chunked answer.
struct Chunks<R> {
    reader: R,
    left: usize,
    done: bool,
}

impl<R: BufRead> Read for Chunks<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.left == 0 && !self.done {
            let mut line = String::new();
            self.reader.read_line(&mut line)?;
            self.left = usize::from_str_radix(line.trim(), 16)
                .map_err(|_| std::io::Error::other(format!("no chunk size: '{line}'")))?;
            self.done = self.left == 0;
        }
        if self.done {
            return Ok(0);
        }
        let room = buffer.len().min(self.left);
        let count = self.reader.read(&mut buffer[..room])?;
        if count == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= count;
        if self.left == 0 {
            let mut end = [0; 2];
            self.reader.read_exact(&mut end)?;
        }
        Ok(count)
    }
}
