//! The conversation record of a context: every message as it joins, one JSON line each, under `~/.murmur/conversations/`.
//!
//! The record is kept for the operator, for hooks, and for the next task of the same context when conversations are
//! threaded. It can never fail a task: a record that cannot be written is told once.
//!
//! A context is its first caller's. Naming it is no right to it: a member or credential that names another's context
//! begins anew, and neither reads nor adds to what is kept. The operator reaches all.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::pairs;
use super::wire::Message;
use crate::diagnostics::output;
use crate::ids::{ContextId, MessageId};
use crate::manifest::Capsule;
use crate::paths::{MurmurHome, beneath, make_private};
use crate::trace::unix_ms;

/// A longer record is not loaded: no model takes that much.
const LOAD_MAX: u64 = 64 << 20;

/// What the model is told of a call whose result was not recorded.
const UNANSWERED: &str = "No result of this call was recorded: the session ended before it was answered. Whether the tool \
                          ran, and what it did, is not known.";

/// The line of a compaction. It has no role, so whoever reads messages passes it over.
const COMPACTION: &str = "murmur.compaction";

/// A header is far shorter.
const MAX_HEADER: usize = 4096;

/// The record of one context, opened when the first message joins.
pub struct Conversation {
    /// `~/.murmur/conversations`: below it no link is followed.
    root: PathBuf,
    path: PathBuf,
    capsule: String,
    /// Whose task it is; `None` for the operator.
    owner: Option<String>,
    file: State,
}

enum State {
    Closed,
    Open(File),
    Failed,
}

impl Conversation {
    /// The record of a context of this capsule; `None` when none is kept.
    pub fn of(home: &MurmurHome, capsule: &Capsule, context: &ContextId, owner: Option<String>) -> Option<Self> {
        if !capsule.context.record {
            return None;
        }
        let store = capsule.context.record_store.as_deref().unwrap_or(&capsule.name);
        // A name that is no path segment names no folder; a declared store was checked at launch.
        let store = ContextId::parse(store)?;
        let root = home.conversations();
        let path = root.join(store.as_str()).join(context.as_str()).join("conversation.jsonl");
        Some(Self { root, path, capsule: capsule.name.clone(), owner, file: State::Closed })
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The messages of earlier tasks, as every provider accepts them.
    pub fn load(&self) -> io::Result<Recorded> {
        let mut text = Vec::new();
        match self.open(OFlag::O_RDONLY) {
            Ok(file) => file.take(LOAD_MAX + 1).read_to_end(&mut text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Recorded::default()),
            Err(error) => return Err(error),
        };
        if text.len() as u64 > LOAD_MAX {
            return Err(io::Error::other(format!("the record is longer than {LOAD_MAX} bytes")));
        }
        if !self.reaches(&text) {
            return Ok(Recorded::default());
        }
        Ok(Recorded::read(&text))
    }

    /// Whether a record that begins with these bytes is this caller's.
    fn reaches(&self, text: &[u8]) -> bool {
        #[derive(Deserialize)]
        struct Header {
            caller: Option<String>,
        }
        if self.owner.is_none() || text.is_empty() {
            return true;
        }
        let first = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
        serde_json::from_slice::<Header>(first).is_ok_and(|header| header.caller == self.owner)
    }

    /// Appends one message.
    pub fn append(&mut self, message: &Message) {
        self.add(&message.record_line());
    }

    /// Notes what a compaction leaves of the conversation, of which it made `new`: from here on it consists of these. A
    /// user's message is added as any is; another that was changed stands in the note, since at this place a reader would
    /// take it for one that follows.
    pub fn compacted(&mut self, left: &[Message], new: &[&Message]) {
        for message in new.iter().filter(|message| message.is_user()) {
            self.append(message);
        }
        let list: Vec<String> = left
            .iter()
            .map(|message| match message.is_replacement() && !message.is_user() {
                true => message.record_line(),
                false => format!("\"{}\"", message.id),
            })
            .collect();
        self.add(&format!(r#"{{"type":"{COMPACTION}","messages":[{}]}}"#, list.join(",")));
    }

    fn add(&mut self, line: &str) {
        if let Err(error) = self.write(line) {
            self.file = State::Failed;
            output::stderr_line(&format!(
                "[capsule-runtime] the conversation record {} cannot be written: {error}; this task goes on without it",
                self.path.display()
            ));
        }
    }

    fn write(&mut self, line: &str) -> io::Result<()> {
        if let State::Closed = self.file {
            self.file = State::Open(self.open_to_append()?);
        }
        let State::Open(file) = &mut self.file else { return Ok(()) };
        file.write_all(format!("{line}\n").as_bytes())
    }

    fn open(&self, flags: OFlag) -> io::Result<File> {
        let relative = self.path.strip_prefix(&self.root).unwrap_or(&self.path);
        Ok(beneath::open_record(&self.root, relative, flags)?)
    }

    fn open_to_append(&self) -> io::Result<File> {
        make_private(self.path.parent().unwrap_or(Path::new("/")))?;
        let mut file = self.open(OFlag::O_RDWR | OFlag::O_APPEND | OFlag::O_CREAT)?;
        let length = file.metadata()?.len();
        if length == 0 {
            let mut header = json!({"type": "murmur.record", "capsule": self.capsule, "created_ms": unix_ms()});
            if let Some(owner) = &self.owner {
                header["caller"] = owner.as_str().into();
            }
            file.write_all(format!("{header}\n").as_bytes())?;
        } else if !self.reaches(&first_bytes(&file)?) {
            return Err(io::Error::other("the context is another caller's"));
        } else if !ends_a_line(&file, length)? {
            // A killed writer can leave one torn line.
            file.write_all(b"\n")?;
        }
        Ok(file)
    }
}

/// As much of a record as its header takes.
fn first_bytes(file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; MAX_HEADER];
    let read = std::os::unix::fs::FileExt::read_at(file, &mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes)
}

fn ends_a_line(file: &File, length: u64) -> io::Result<bool> {
    let mut last = [0_u8];
    std::os::unix::fs::FileExt::read_exact_at(file, &mut last, length - 1)?;
    Ok(last == *b"\n")
}

/// What a record holds.
#[derive(Default)]
pub struct Recorded {
    /// Its messages, oldest first. The first is a user's, and every tool call is answered.
    pub messages: Vec<Message>,
    /// The conversation as it last stood, where a compaction left less of it.
    compacted: Option<Vec<Message>>,
    /// Lines that were passed over: torn or damaged ones, answers to calls nobody made, and what a provider would not
    /// take at the beginning.
    pub passed_over: usize,
    /// Tool calls no result was recorded of. The runtime's own answer stands in its place.
    pub unanswered: usize,
}

impl Recorded {
    fn read(text: &[u8]) -> Self {
        let mut read = Self::default();
        // The calls of the last assistant's message that are not answered yet.
        let mut open: Vec<String> = Vec::new();
        for text in text.split(|byte| *byte == b'\n').filter(|text| !text.is_empty()) {
            let Some(line) = read_line(text) else {
                let taken = match Note::of(text) {
                    Some(Note { left: Some(left) }) => {
                        read.answer(&mut open);
                        read.compact(&left)
                    }
                    note => note.is_some(),
                };
                read.passed_over += usize::from(!taken);
                continue;
            };
            if line.role == "tool" {
                match open.iter().position(|id| Some(id) == line.tool_call_id.as_ref()) {
                    Some(at) => {
                        open.remove(at);
                        read.push(line.message());
                    }
                    None => read.passed_over += 1,
                }
                continue;
            }
            read.answer(&mut open);
            if line.role == "assistant" {
                if read.messages.is_empty() {
                    read.passed_over += 1;
                    continue;
                }
                open = line.calls();
            }
            read.push(line.message());
        }
        read.answer(&mut open);
        read
    }

    /// The conversation as it last stood: what the last compaction left, and what came after it.
    pub fn conversation(self) -> Vec<Message> {
        self.compacted.unwrap_or(self.messages)
    }

    /// How many messages that is.
    pub fn conversation_len(&self) -> usize {
        self.compacted.as_ref().unwrap_or(&self.messages).len()
    }

    fn push(&mut self, message: Message) {
        if let Some(compacted) = &mut self.compacted {
            compacted.push(message.clone());
        }
        self.messages.push(message);
    }

    /// Goes on with these messages alone, each an id or a message. Of two with one id the later is meant. Whether all are
    /// there; where one is missing the conversation stays as it was.
    fn compact(&mut self, left: &[Box<RawValue>]) -> bool {
        let known = self.compacted.iter().flatten().chain(&self.messages);
        let by_id: HashMap<&str, &Message> = known.map(|message| (message.id.as_str(), message)).collect();
        let message = |one: &RawValue| match serde_json::from_str::<&str>(one.get()) {
            Ok(id) => by_id.get(id).map(|&message| message.clone()),
            Err(_) => read_line(one.get().as_bytes()).map(Line::message),
        };
        let left: Option<Vec<Message>> = left.iter().map(|one| message(one)).collect();
        let fits = left.as_ref().is_some_and(|left| pairs::check(left).is_ok());
        if fits {
            self.compacted = left;
        }
        fits
    }

    /// Answers what is still open: a provider refuses a conversation with a call that has no result.
    fn answer(&mut self, open: &mut Vec<String>) {
        self.unanswered += open.len();
        for id in open.drain(..) {
            self.push(Message::tool(&id, true, UNANSWERED));
        }
    }
}

/// A line that is no message: the first, which says whose record it is, or a compaction's.
struct Note {
    /// What a compaction left.
    left: Option<Vec<Box<RawValue>>>,
}

impl Note {
    fn of(text: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct Line {
            #[serde(rename = "type")]
            kind: String,
            messages: Option<Vec<Box<RawValue>>>,
        }
        match serde_json::from_slice::<Line>(text).ok()? {
            Line { kind, .. } if kind == "murmur.record" => Some(Self { left: None }),
            Line { kind, messages } if kind == COMPACTION && messages.is_some() => Some(Self { left: messages }),
            _ => None,
        }
    }
}

struct Line {
    role: String,
    id: Option<MessageId>,
    blocks: Vec<Box<RawValue>>,
    tool_call_id: Option<String>,
    is_error: bool,
    source_id: Option<String>,
    inserted_by: Option<String>,
}

fn read_line(text: &[u8]) -> Option<Line> {
    #[derive(Deserialize)]
    struct Text {
        role: String,
        content: Box<RawValue>,
        id: Option<String>,
        tool_call_id: Option<String>,
        is_error: Option<bool>,
        source_id: Option<String>,
        inserted_by: Option<String>,
    }
    let line: Text = serde_json::from_slice(text).ok()?;
    if !["user", "assistant", "tool"].contains(&line.role.as_str()) {
        return None;
    }
    let blocks = match serde_json::from_str::<Vec<Box<RawValue>>>(line.content.get()) {
        Ok(blocks) => blocks,
        // A hook may have left a plain text.
        Err(_) => {
            let text: String = serde_json::from_str(line.content.get()).ok()?;
            vec![serde_json::value::to_raw_value(&json!({"type": "text", "text": text})).ok()?]
        }
    };
    Some(Line {
        role: line.role,
        id: line.id.as_deref().and_then(MessageId::parse),
        blocks,
        tool_call_id: line.tool_call_id,
        is_error: line.is_error.unwrap_or(false),
        source_id: line.source_id,
        inserted_by: line.inserted_by,
    })
}

impl Line {
    /// Ids of the calls an assistant's message makes.
    fn calls(&self) -> Vec<String> {
        pairs::calls(self.blocks.iter().map(AsRef::as_ref))
    }

    fn message(self) -> Message {
        let call = self.tool_call_id.as_deref();
        let message = Message::recorded(self.id, &self.role, call, self.is_error, &self.blocks).named(self.source_id);
        match self.inserted_by.as_deref() {
            Some("replace-context") => message.replacing(),
            Some("seed-context") => message.seeded(),
            _ => message,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use super::*;
    use proptest::prelude::*;

    fn conversation(dir: &Path) -> Conversation {
        let path = dir.join("capsule/ctx/conversation.jsonl");
        let root = path.parent().unwrap().to_owned();
        Conversation { root, path, capsule: "capsule".into(), owner: None, file: State::Closed }
    }

    fn blocks(text: &str) -> Vec<Box<RawValue>> {
        serde_json::from_str(text).unwrap()
    }

    fn wires(messages: &[Message]) -> Vec<String> {
        messages.iter().map(|message| message.wire.get().to_owned()).collect()
    }

    #[test]
    fn a_context_is_its_first_callers_and_the_operators() {
        let dir = tempfile::tempdir().unwrap();
        let of = |owner: Option<&str>| Conversation { owner: owner.map(Into::into), ..conversation(dir.path()) };
        let texts = |owner| of(owner).load().unwrap().messages.len();
        of(Some("member:a@frm_1")).append(&Message::user("a's secret"));
        for stranger in ["member:b@frm_1", "member:a@frm_2", "credential:a"] {
            assert_eq!(texts(Some(stranger)), 0, "{stranger} reads nothing");
            of(Some(stranger)).append(&Message::user("forged"));
        }
        assert_eq!(texts(Some("member:a@frm_1")), 1, "what strangers sent was not added");
        of(None).append(&Message::user("the operator's"));
        assert_eq!((texts(None), texts(Some("member:a@frm_1"))), (2, 2));

        std::fs::remove_file(of(None).path).unwrap();
        of(None).append(&Message::user("the operator's"));
        assert_eq!(texts(Some("member:a@frm_1")), 0);
    }

    #[test]
    fn what_was_recorded_is_loaded_as_it_was_sent() {
        let dir = tempfile::tempdir().unwrap();
        let call = r#"[{"type":"tool_call","id":"c1","name":"t","input":{"n":1.50}}]"#;
        let messages = [
            Message::user("hi").fenced_by("task:event"),
            Message::assistant(&blocks(call)),
            Message::tool("c1", true, "no"),
            Message::assistant(&blocks(r#"[{"type":"text","text":"bye"}]"#)),
        ];
        let mut record = conversation(dir.path());
        messages.iter().for_each(|message| record.append(message));
        let loaded = conversation(dir.path()).load().unwrap();
        assert_eq!(wires(&loaded.messages), wires(&messages));
        assert_eq!(loaded.messages[0].id, messages[0].id);
        assert_eq!((loaded.passed_over, loaded.unanswered), (0, 0));

        let text = std::fs::read_to_string(&record.path).unwrap();
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines[0]["type"], "murmur.record");
        assert_eq!(lines[1]["fence"], "task:event");
        assert_eq!(lines[3]["tool_call_id"], "c1");
    }

    #[test]
    fn a_torn_line_costs_itself_only() {
        let dir = tempfile::tempdir().unwrap();
        let mut record = conversation(dir.path());
        record.append(&Message::user("one"));
        let mut file = OpenOptions::new().append(true).open(&record.path).unwrap();
        file.write_all(br#"{"role":"assist"#).unwrap();
        let mut record = conversation(dir.path());
        record.append(&Message::user("two"));
        let loaded = record.load().unwrap();
        assert_eq!((loaded.messages.len(), loaded.passed_over), (2, 1));
    }

    #[test]
    fn unanswered_calls_are_answered_and_answers_to_nothing_left_out() {
        let text = [
            r#"{"role":"assistant","content":[{"type":"text","text":"before any user"}]}"#,
            r#"{"role":"user","content":"plain"}"#,
            r#"{"role":"tool","tool_call_id":"x","content":[]}"#,
            r#"{"role":"assistant","content":[{"type":"tool_call","id":"a"},{"type":"tool_call","id":"b"}]}"#,
            r#"{"role":"tool","tool_call_id":"b","content":[]}"#,
            r#"{"role":"user","content":[{"type":"text","text":"next"}]}"#,
            r#"{"no":"role"}"#,
            "not json",
            r#"{"role":"assistant","content":[{"type":"tool_call","id":"c"}]}"#,
        ]
        .join("\n");
        let recorded = Recorded::read(text.as_bytes());
        let loaded = wires(&recorded.messages);
        let shapes: Vec<(String, bool)> = loaded
            .iter()
            .map(|wire| serde_json::from_str::<serde_json::Value>(wire).unwrap())
            .map(|wire| {
                let id = wire["tool_call_id"].as_str().unwrap_or_default();
                (format!("{}{id}", wire["role"].as_str().unwrap()), wire["is_error"] == true)
            })
            .collect();
        let expected = [
            ("user", false),
            ("assistant", false),
            ("toolb", false),
            ("toola", true),
            ("user", false),
            ("assistant", false),
            ("toolc", true),
        ];
        assert_eq!(shapes, expected.map(|(role, error)| (role.to_owned(), error)));
        assert_eq!((recorded.passed_over, recorded.unanswered), (4, 2));
        assert!(loaded[0].contains(r#"{"type":"text","text":"plain"}"#));
    }

    #[test]
    fn a_compacted_conversation_goes_on_as_it_stood_and_its_originals_stay() {
        let dir = tempfile::tempdir().unwrap();
        let call = |id: &str| Message::assistant(&blocks(&format!(r#"[{{"type":"tool_call","id":"{id}"}}]"#)));
        let before = [
            Message::user("task"),
            call("c1"),
            Message::tool("c1", false, "one"),
            call("c2"),
            Message::tool("c2", false, "a long result"),
        ];
        let mut record = conversation(dir.path());
        before.iter().for_each(|message| record.append(message));
        let shortened = Message::recorded(
            Some(before[4].id.clone()),
            "tool",
            Some("c2"),
            false,
            &blocks(r#"[{"type":"text","text":"cut"}]"#),
        );
        let (summary, shortened) = (Message::user("summary").replacing(), shortened.replacing());
        let left = [before[0].clone(), summary.clone(), before[3].clone(), shortened.clone()];
        record.compacted(&left, &[&summary, &shortened]);
        record.append(&Message::user("next"));
        let loaded = conversation(dir.path()).load().unwrap();
        assert_eq!((loaded.messages.len(), loaded.passed_over, loaded.unanswered), (7, 0, 0), "all, for whoever reads");
        let stood = loaded.conversation();
        assert_eq!(wires(&stood[..4]), wires(&left));
        assert_eq!((stood.len(), &stood[3].id), (5, &before[4].id));

        // A second one refers to what the first one left.
        let left = [stood[0].clone(), summary, stood[2].clone(), stood[3].clone()];
        let mut record = conversation(dir.path());
        record.compacted(&left, &[]);
        assert_eq!(wires(&conversation(dir.path()).load().unwrap().conversation()), wires(&left));

        // Without a message it speaks of, or as no conversation, a note changes nothing.
        for bad in [r#"["msg_gone"]"#, "[]", &format!(r#"["{}"]"#, before[1].id)] {
            let text = std::fs::read_to_string(&record.path).unwrap();
            let more = format!(r#"{text}{{"type":"murmur.compaction","messages":{bad}}}"#);
            let read = Recorded::read(more.as_bytes());
            assert_eq!((read.passed_over, read.conversation_len()), (1, 4), "{bad}");
        }
    }

    #[test]
    fn a_link_in_the_records_place_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let mut record = conversation(dir.path());
        std::fs::create_dir_all(record.path.parent().unwrap()).unwrap();
        std::fs::write(dir.path().join("victim"), "").unwrap();
        std::os::unix::fs::symlink(dir.path().join("victim"), &record.path).unwrap();
        record.append(&Message::user("x"));
        assert_eq!(std::fs::read(dir.path().join("victim")).unwrap(), b"");
    }

    proptest! {
        #[test]
        fn no_bytes_panic_the_reader(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Recorded::read(&bytes);
        }

        #[test]
        fn wherever_a_record_breaks_off_what_is_loaded_is_whole(cut in 0_usize..2000) {
            let mut text = String::from("{\"type\":\"murmur.record\"}\n");
            for message in [
                Message::user("do it"),
                Message::assistant(&blocks(r#"[{"type":"tool_call","id":"1","name":"t","input":{}},{"type":"tool_call","id":"2","name":"t","input":{}}]"#)),
                Message::tool("1", false, "one"),
                Message::tool("2", false, "two"),
                Message::assistant(&blocks(r#"[{"type":"tool_call","id":"3","name":"t","input":{}}]"#)),
                Message::tool("3", false, "three"),
                Message::assistant(&blocks(r#"[{"type":"text","text":"done"}]"#)),
            ] {
                text.push_str(&message.record_line());
                text.push('\n');
            }
            let recorded = Recorded::read(&text.as_bytes()[..cut.min(text.len())]);
            let mut open: Vec<String> = Vec::new();
            for (at, message) in recorded.messages.iter().enumerate() {
                let line = read_line(message.wire.get().as_bytes()).unwrap();
                prop_assert!(at > 0 || line.role == "user");
                if line.role == "tool" {
                    prop_assert!(open.contains(line.tool_call_id.as_ref().unwrap()));
                    open.retain(|id| Some(id) != line.tool_call_id.as_ref());
                } else {
                    prop_assert!(open.is_empty(), "{open:?}");
                    open = line.calls();
                }
            }
            prop_assert!(open.is_empty(), "{open:?}");
        }
    }
}
