//! Server-sent events, fed in whatever pieces the network delivers.

/// The longest event kept: a line or an event beyond this is a fault of the server, not something to grow into.
pub const MAX_EVENT: usize = 8 * 1024 * 1024;

/// One event.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Event {
    /// The `event:` field, empty when there was none.
    pub name: String,
    /// The `data:` lines, joined by line feeds.
    pub data: String,
}

/// A decoder. Bytes go in, whole events come out; an event cut off at the end of the input never does.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// How much of the buffer is known to hold no line end.
    scanned: usize,
    name: String,
    data: String,
    has_data: bool,
    started: bool,
}

impl Decoder {
    /// Takes in bytes and returns the events they completed.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<Event>, String> {
        self.buffer.extend_from_slice(bytes);
        if !self.started && self.buffer.len() >= 3 {
            self.started = true;
            if self.buffer.starts_with("\u{feff}".as_bytes()) {
                self.buffer.drain(..3);
            }
        }
        let mut events = Vec::new();
        let mut start = 0;
        let mut at = self.scanned;
        while at < self.buffer.len() {
            let end = match self.buffer[at] {
                b'\n' => at + 1,
                // A carriage return ends a line alone or before a line feed, which may not be here yet.
                b'\r' if at + 1 == self.buffer.len() => break,
                b'\r' if self.buffer[at + 1] == b'\n' => at + 2,
                b'\r' => at + 1,
                _ => {
                    at += 1;
                    continue;
                }
            };
            let line = String::from_utf8_lossy(&self.buffer[start..at]).into_owned();
            if let Some(event) = self.line(&line) {
                events.push(event);
            }
            start = end;
            at = end;
        }
        self.buffer.drain(..start);
        self.scanned = at - start;
        if self.buffer.len() + self.data.len() > MAX_EVENT {
            return Err(format!("the server sent an event of more than {MAX_EVENT} bytes"));
        }
        Ok(events)
    }

    fn line(&mut self, line: &str) -> Option<Event> {
        if line.is_empty() {
            let name = std::mem::take(&mut self.name);
            let data = std::mem::take(&mut self.data);
            return std::mem::take(&mut self.has_data).then_some(Event { name, data });
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.name),
            "data" => {
                if self.has_data {
                    self.data.push('\n');
                }
                self.data.push_str(value);
                self.has_data = true;
            }
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(text: &str, piece: usize) -> Vec<Event> {
        let mut decoder = Decoder::default();
        text.as_bytes().chunks(piece).flat_map(|bytes| decoder.push(bytes).unwrap()).collect()
    }

    #[test]
    fn the_size_of_the_pieces_changes_nothing() {
        let text = ": hello\nevent: a\ndata: {\"x\":\ndata: 1}\n\r\ndata:two\r\n\r\nid: 3\n\ndata: häuser\r\rdata: cut";
        let whole = decode(text, text.len());
        assert_eq!(whole.len(), 3);
        assert_eq!(whole[0], Event { name: "a".into(), data: "{\"x\":\n1}".into() });
        assert_eq!(whole[1], Event { name: String::new(), data: "two".into() });
        assert_eq!(whole[2].data, "häuser");
        for piece in 1..text.len() {
            assert_eq!(decode(text, piece), whole, "pieces of {piece}");
        }
    }

    #[test]
    fn a_server_cannot_make_the_buffer_grow_without_end() {
        let mut decoder = Decoder::default();
        let piece = vec![b'x'; 1024 * 1024];
        let faults = (0..16).filter(|_| decoder.push(&piece).is_err()).count();
        assert!(faults > 0);
    }
}
