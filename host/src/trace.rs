//! The record of a run: one JSON object a line, handed to the sinks of the session.
//!
//! The required sink (`jsonl`) is written first and on the caller's thread: when it refuses a line, the session has lost
//! its record and ends. Every other sink works on a thread of its own behind a bounded queue; it can neither slow nor
//! fail the session, and what it lost is counted in the trace before the session's last line.

pub mod records;
mod side;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde::Serialize;

use crate::diagnostics::{Diagnostic, Result, codes, output};
use crate::ids::{EventId, SessionId};
use crate::plugins::Sink;

use side::SideSink;

/// A record with a type of its own; the payload's fields are written in the order they are declared.
pub trait Record: Serialize {
    /// The `event_type`.
    const TYPE: &'static str;
}

/// How long the required sink may take to hand what it holds to the operating system.
const FLUSH_LIMIT: Duration = Duration::from_secs(5);

/// The trace of one session. Cheap to clone; all clones append to the same sinks.
#[derive(Clone)]
pub struct Trace(Arc<Inner>);

struct Inner {
    session: SessionId,
    main: Mutex<Main>,
    side: Vec<SideSink>,
    root: OnceLock<EventId>,
    totals: Mutex<Totals>,
    written: AtomicU64,
}

/// The required sink, and whether the session's last line is written.
struct Main {
    sink: Box<dyn Sink>,
    sealed: bool,
}

/// What `session_end` sums up, counted as the lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Turns of all ended tasks.
    pub turns: u64,
    /// Input tokens of all ended tasks.
    pub input_tokens: u64,
    /// Output tokens of all ended tasks.
    pub output_tokens: u64,
    /// `tool_call` lines.
    pub tool_calls: u64,
    /// `shell` and `shell_detached` lines.
    pub shell_calls: u64,
}

/// The keys every line starts with, in their order.
#[derive(Serialize)]
struct Frame<'a> {
    event_type: &'a str,
    event_id: &'a EventId,
    parent_id: Option<&'a EventId>,
    session_id: &'a SessionId,
    timestamp: u64,
}

impl Trace {
    /// A trace over its required sink and the configured best-effort ones, all of them opened.
    pub fn new(session: SessionId, main: Box<dyn Sink>, side: Vec<Box<dyn Sink>>) -> Self {
        let side = side.into_iter().map(SideSink::start).collect();
        Self(Arc::new(Inner {
            session,
            main: Mutex::new(Main { sink: main, sealed: false }),
            side,
            root: OnceLock::new(),
            totals: Mutex::new(Totals::default()),
            written: AtomicU64::new(0),
        }))
    }

    /// Appends one line and returns its id. Without a parent the line hangs off `session_start`. What comes after
    /// `session_end` is not written: whoever was slower than the session's end has nobody to tell.
    ///
    /// An error means the required sink refused: the session has to end with it (`E-RUN-007`).
    pub fn record(&self, event_type: &str, parent: Option<&EventId>, payload: impl Serialize) -> Result<EventId> {
        self.0.append(&mut self.0.main(), event_type, parent, payload)
    }

    /// Appends a typed record; see [`Trace::record`].
    pub fn write<R: Record>(&self, parent: Option<&EventId>, record: &R) -> Result<EventId> {
        self.record(R::TYPE, parent, record)
    }

    /// Appends `session_start`, the root of the tree.
    pub fn start(&self, record: &records::SessionStart) -> Result<EventId> {
        let id = self.record(records::SessionStart::TYPE, None, record)?;
        let _ = self.0.root.set(id.clone());
        Ok(id)
    }

    /// Appends a record whose loss must not change the run: a refusal is said once on stderr and swallowed.
    pub fn record_aside(&self, event_type: &str, parent: Option<&EventId>, payload: impl Serialize) -> Option<EventId> {
        match self.record(event_type, parent, payload) {
            Ok(id) => Some(id),
            Err(fault) => {
                output::stderr_line(&format!(
                    "[capsule-runtime] a {event_type} record was not written: {}",
                    fault.message()
                ));
                None
            }
        }
    }

    /// The id of `session_start`, once it is written.
    pub fn root(&self) -> Option<&EventId> {
        self.0.root.get()
    }

    /// The session this is the record of.
    pub fn session(&self) -> &SessionId {
        &self.0.session
    }

    /// The sums so far.
    pub fn totals(&self) -> Totals {
        *self.0.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lines written so far.
    pub fn written(&self) -> u64 {
        self.0.written.load(Ordering::Relaxed)
    }

    /// Hands everything the required sink holds to the operating system.
    pub fn flush(&self) -> Result<()> {
        self.0.main().sink.flush(FLUSH_LIMIT)
    }

    /// Appends what the best-effort sinks lost, then `session_end`, the last line of the session: no other comes between
    /// or after. A session that has ended does not end again.
    pub fn end(&self, duration_ms: u64, exit_status: &str) -> Result<()> {
        let inner = &*self.0;
        let mut main = inner.main();
        for sink in &inner.side {
            let lost = sink.lost();
            if lost > 0 {
                let record = records::SinkDropped { sink: sink.name().to_owned(), dropped: lost };
                inner.append(&mut main, records::SinkDropped::TYPE, None, &record)?;
            }
        }
        let totals = self.totals();
        let record = records::SessionEnd {
            total_turns: totals.turns,
            total_input_tokens: totals.input_tokens,
            total_output_tokens: totals.output_tokens,
            total_tool_calls: totals.tool_calls,
            total_shell_calls: totals.shell_calls,
            duration_ms,
            exit_status: exit_status.to_owned(),
        };
        inner.append(&mut main, records::SessionEnd::TYPE, None, &record)?;
        main.sealed = true;
        main.sink.flush(FLUSH_LIMIT)
    }

    /// Closes every sink; the best-effort ones get [`side::DRAIN_LIMIT`] together to finish what they hold.
    pub fn close(&self) {
        {
            let mut main = self.0.main();
            let _ = main.sink.flush(FLUSH_LIMIT);
            let _ = main.sink.close();
        }
        side::close_all(&self.0.side);
    }
}

impl Inner {
    fn main(&self) -> MutexGuard<'_, Main> {
        self.main.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn append(
        &self,
        main: &mut Main,
        event_type: &str,
        parent: Option<&EventId>,
        payload: impl Serialize,
    ) -> Result<EventId> {
        let id = EventId::mint();
        if main.sealed {
            return Ok(id);
        }
        let frame = Frame {
            event_type,
            event_id: &id,
            parent_id: parent.or(self.root.get()),
            session_id: &self.session,
            timestamp: unix_ms(),
        };
        let payload = to_json(event_type, &payload)?;
        let line = Bytes::from(splice(&to_json(event_type, &frame)?, &payload, event_type)?);
        main.sink.write(std::slice::from_ref(&line)).map_err(|fault| lost(event_type, &fault))?;
        self.written.fetch_add(1, Ordering::Relaxed);
        self.count(event_type, &payload);
        for sink in &self.side {
            sink.offer(&line);
        }
        Ok(id)
    }

    fn count(&self, event_type: &str, payload: &[u8]) {
        let mut totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        match event_type {
            "tool_call" => totals.tool_calls += 1,
            "shell" | "shell_detached" => totals.shell_calls += 1,
            "task_end" => {
                #[derive(Default, serde::Deserialize)]
                #[serde(default)]
                struct Sums {
                    turns: u64,
                    input_tokens: u64,
                    output_tokens: u64,
                }
                let sums: Sums = serde_json::from_slice(payload).unwrap_or_default();
                totals.turns += sums.turns;
                totals.input_tokens += sums.input_tokens;
                totals.output_tokens += sums.output_tokens;
            }
            _ => {}
        }
    }
}

/// Unix milliseconds now.
pub fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

fn to_json(event_type: &str, value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|error| {
        Diagnostic::new(codes::E_RUN_007, format!("a {event_type} record is not serialisable: {error}"))
    })
}

/// One line from the frame's object and the payload's object.
fn splice(frame: &[u8], payload: &[u8], event_type: &str) -> Result<Vec<u8>> {
    let fields = payload
        .strip_prefix(b"{")
        .ok_or_else(|| Diagnostic::new(codes::E_RUN_007, format!("a {event_type} record is not an object")))?;
    let mut line = Vec::with_capacity(frame.len() + payload.len() + 2);
    line.extend_from_slice(&frame[..frame.len() - 1]);
    if fields != b"}" {
        line.push(b',');
    }
    line.extend_from_slice(fields);
    Ok(line)
}

fn lost(event_type: &str, fault: &Diagnostic) -> Diagnostic {
    Diagnostic::new(
        codes::E_RUN_007,
        format!("the session's trace could not be written ({event_type}): {}: {}", fault.code(), fault.message()),
    )
    .hint("the disk may be full or the records directory gone; a run without its record is ended")
}

#[cfg(test)]
pub mod testing {
    //! A sink that keeps its lines, for the tests of whoever writes records.

    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::plugins::SessionHeader;

    /// The lines written so far.
    #[derive(Clone, Default)]
    pub struct Kept(Arc<Mutex<Vec<Bytes>>>);

    impl Kept {
        /// Each line as JSON.
        pub fn lines(&self) -> Vec<serde_json::Value> {
            self.0.lock().unwrap().iter().map(|line| serde_json::from_slice(line).unwrap()).collect()
        }

        /// Each line as written.
        pub fn raw(&self) -> Vec<String> {
            self.0.lock().unwrap().iter().map(|line| String::from_utf8(line.to_vec()).unwrap()).collect()
        }
    }

    impl Sink for Kept {
        fn name(&self) -> &str {
            "kept"
        }
        fn open(&mut self, _: &SessionHeader) -> Result<()> {
            Ok(())
        }
        fn write(&mut self, lines: &[Bytes]) -> Result<()> {
            self.0.lock().unwrap().extend_from_slice(lines);
            Ok(())
        }
        fn flush(&mut self, _: Duration) -> Result<()> {
            Ok(())
        }
        fn close(&mut self) -> Result<()> {
            Ok(())
        }
    }

    /// A trace into memory.
    pub fn trace() -> (Trace, Kept) {
        let kept = Kept::default();
        (Trace::new(SessionId::mint(), Box::new(kept.clone()), Vec::new()), kept)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::testing::{Kept, trace};
    use super::*;
    use crate::plugins::SessionHeader;

    struct Full;

    impl Sink for Full {
        fn name(&self) -> &str {
            "full"
        }
        fn open(&mut self, _: &SessionHeader) -> Result<()> {
            Ok(())
        }
        fn write(&mut self, _: &[Bytes]) -> Result<()> {
            Err(Diagnostic::new(codes::E_PLG_005, "no space left"))
        }
        fn flush(&mut self, _: Duration) -> Result<()> {
            Ok(())
        }
        fn close(&mut self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_starts_with_the_frame_and_goes_on_with_the_payload_in_order() {
        let (trace, kept) = trace();
        let id = trace.record("thing", None, json!({"zebra": 1, "apple": "a\nb"})).unwrap();
        let line = &kept.raw()[0];
        let session = trace.session();
        let start = format!(
            "{{\"event_type\":\"thing\",\"event_id\":\"{id}\",\"parent_id\":null,\"session_id\":\"{session}\",\"timestamp\":"
        );
        assert!(line.starts_with(&start), "{line}");
        assert!(line.ends_with(",\"zebra\":1,\"apple\":\"a\\nb\"}"), "{line}");
        assert!(!line.contains('\n'));
    }

    #[test]
    fn an_empty_payload_leaves_the_frame_alone() {
        let (trace, kept) = trace();
        trace.record("bare", None, json!({})).unwrap();
        assert_eq!(kept.lines()[0].as_object().unwrap().len(), 5);
        assert!(trace.record("bad", None, 7).is_err());
        assert_eq!(kept.lines().len(), 1);
    }

    #[test]
    fn a_line_without_a_parent_hangs_off_the_session_start() {
        let (trace, kept) = trace();
        let root = trace.record("session_start", None, json!({})).unwrap();
        trace.0.root.set(root.clone()).unwrap();
        let turn = trace.record("inference", None, json!({})).unwrap();
        trace.record("tool_call", Some(&turn), json!({})).unwrap();
        let lines = kept.lines();
        assert_eq!(lines[1]["parent_id"], root.as_str());
        assert_eq!(lines[2]["parent_id"], turn.as_str());
    }

    #[test]
    fn the_session_end_sums_up_tasks_and_calls() {
        let (trace, kept) = trace();
        trace.record("tool_call", None, json!({})).unwrap();
        for _ in 0..2 {
            trace.record("task_end", None, json!({"turns": 3, "input_tokens": 10, "output_tokens": 4})).unwrap();
        }
        trace.end(12, "ok").unwrap();
        let end = kept.lines().pop().unwrap();
        assert_eq!(end["total_turns"], 6);
        assert_eq!(end["total_input_tokens"], 20);
        assert_eq!(end["total_output_tokens"], 8);
        assert_eq!(end["total_tool_calls"], 1);
        assert_eq!(end["exit_status"], "ok");
    }

    #[test]
    fn nothing_follows_the_session_end_whoever_writes_meanwhile() {
        let side = Kept::default();
        let kept = Kept::default();
        let trace = Trace::new(SessionId::mint(), Box::new(kept.clone()), vec![Box::new(side.clone())]);
        let writers: Vec<_> = (0..4)
            .map(|_| {
                let trace = trace.clone();
                std::thread::spawn(move || {
                    for _ in 0..200 {
                        trace.record("tool_call", None, json!({})).unwrap();
                    }
                })
            })
            .collect();
        trace.end(1, "ok").unwrap();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        trace.end(2, "failed").unwrap();
        trace.close();
        let lines = kept.lines();
        let end = lines.last().unwrap();
        assert_eq!((&end["event_type"], &end["exit_status"]), (&json!("session_end"), &json!("ok")));
        // It counts exactly what was written before it.
        assert_eq!(end["total_tool_calls"], lines.len() - 1);
        assert_eq!(trace.written(), lines.len() as u64);
        assert!(side.lines().iter().rev().skip(1).all(|line| line["event_type"] != "session_end"));
    }

    #[test]
    fn a_required_sink_that_refuses_ends_the_session() {
        let trace = Trace::new(SessionId::mint(), Box::new(Full), Vec::new());
        let fault = trace.record("thing", None, json!({})).unwrap_err();
        assert_eq!(fault.code(), codes::E_RUN_007);
        assert!(fault.message().contains("no space left"));
        assert!(trace.record_aside("thing", None, json!({})).is_none());
    }

    #[test]
    fn a_failing_side_sink_is_counted_and_changes_nothing() {
        let kept = Kept::default();
        let trace = Trace::new(SessionId::mint(), Box::new(kept.clone()), vec![Box::new(Full)]);
        trace.record("thing", None, json!({})).unwrap();
        trace.0.side[0].settle();
        trace.end(1, "ok").unwrap();
        let lines = kept.lines();
        assert_eq!(lines[1]["event_type"], "sink_dropped");
        assert_eq!(lines[1]["dropped"], 1);
        assert_eq!(lines[2]["event_type"], "session_end");
        trace.close();
    }
}
