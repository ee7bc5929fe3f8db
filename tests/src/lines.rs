//! The lines of a stream, as they come.

use std::io::{BufRead, BufReader, Read};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::PATIENCE;

#[derive(Default)]
struct Gathered {
    lines: Vec<String>,
    closed: bool,
}

/// What a stream has brought so far; a thread of its own reads it.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<(Mutex<Gathered>, Condvar)>);

impl Lines {
    /// Reads a stream to its end.
    pub(crate) fn of(pipe: impl Read + Send + 'static) -> Self {
        let lines = Self::default();
        let shared = lines.clone();
        std::thread::spawn(move || {
            let mut reader = BufReader::new(pipe);
            let mut line = Vec::new();
            while reader.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
                let text = String::from_utf8_lossy(&line).trim_end_matches('\n').to_owned();
                shared.0.0.lock().expect("no panic under it").lines.push(text);
                shared.0.1.notify_all();
                line.clear();
            }
            shared.close();
        });
        lines
    }

    /// Of a stream that is not read here.
    pub(crate) fn none() -> Self {
        let lines = Self::default();
        lines.close();
        lines
    }

    fn close(&self) {
        self.0.0.lock().expect("no panic under it").closed = true;
        self.0.1.notify_all();
    }

    fn wait<T>(&self, mut find: impl FnMut(&[String], bool) -> Option<T>, patience: Duration) -> Option<T> {
        let deadline = Instant::now() + patience;
        let mut gathered = self.0.0.lock().expect("no panic under it");
        loop {
            if let Some(found) = find(&gathered.lines, gathered.closed) {
                return Some(found);
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            gathered = self.0.1.wait_timeout(gathered, left).expect("no panic under it").0;
        }
    }

    /// The first line of these, waiting for it; `None` when the stream ended without it.
    pub(crate) fn first(&self, wanted: impl Fn(&str) -> bool) -> Option<String> {
        self.found(|lines| lines.iter().find(|line| wanted(line)).cloned())
    }

    /// The line of this number, from 0.
    pub(crate) fn nth(&self, number: usize) -> Option<String> {
        self.found(|lines| lines.get(number).cloned())
    }

    fn found(&self, find: impl Fn(&[String]) -> Option<String>) -> Option<String> {
        let outcome = |lines: &[String], closed: bool| match find(lines) {
            Some(line) => Some(Some(line)),
            None => closed.then_some(None),
        };
        self.wait(outcome, PATIENCE).flatten()
    }

    /// Waits a while for the end of the stream, which a descendant may hold open.
    pub(crate) fn closed(&self) {
        self.wait(|_, closed| closed.then_some(()), Duration::from_secs(5));
    }

    /// Everything so far.
    pub(crate) fn text(&self) -> String {
        self.0.0.lock().expect("no panic under it").lines.iter().map(|line| format!("{line}\n")).collect()
    }
}
