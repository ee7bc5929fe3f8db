//! A model provider that knows one sentence, and notes when it is first asked.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use crate::Outcome;

const ANSWER: &str = r#"{"type":"message","content":[{"type":"text","text":"done"}],"stop_reason":"end_turn","usage":{"input_tokens":1,"output_tokens":1}}"#;

/// The provider.
pub struct Provider {
    /// Its base URL.
    pub url: String,
    asked: Receiver<(Instant, Sender<()>)>,
}

/// A request that waits for its answer.
pub struct Asked {
    /// When its head had come.
    pub at: Instant,
    answer: Sender<()>,
}

impl Asked {
    /// Answers it.
    pub fn answer(self) {
        // One that is gone wants no answer.
        let _ = self.answer.send(());
    }
}

impl Provider {
    /// Starts one.
    pub fn start() -> Outcome<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").map_err(|fault| fault.to_string())?;
        let url = format!("http://{}", listener.local_addr().map_err(|fault| fault.to_string())?);
        let (sender, asked) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let sender = sender.clone();
                std::thread::spawn(move || serve(stream, &sender));
            }
        });
        Ok(Self { url, asked })
    }

    /// Waits for the next request.
    pub fn next(&self) -> Outcome<Asked> {
        let wait = std::time::Duration::from_secs(60);
        let (at, answer) = self.asked.recv_timeout(wait).map_err(|_| "the provider was not asked".to_owned())?;
        Ok(Asked { at, answer })
    }
}

fn serve(stream: TcpStream, asked: &Sender<(Instant, Sender<()>)>) -> Option<()> {
    let mut writer = stream.try_clone().ok()?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let line = line.trim_end().to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
            if line.is_empty() {
                break;
            }
        }
        let at = Instant::now();
        let mut body = Vec::new();
        reader.by_ref().take(length).read_to_end(&mut body).ok()?;
        let (sender, go) = channel();
        asked.send((at, sender)).ok()?;
        go.recv().ok()?;
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{ANSWER}",
            ANSWER.len()
        );
        writer.write_all(head.as_bytes()).ok()?;
    }
}
