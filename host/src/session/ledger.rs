//! The machine's spend of the day: one line for each served driver call, shared by every session of the user.
//!
//! `~/.murmur/spend/<YYYY-MM-DD>.jsonl` by UTC. A line is one write at the end of the file, so sessions never tear each
//! other's; a reader keeps its place and takes in what has been added since.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::json;
use time::OffsetDateTime;

use crate::diagnostics::{Diagnostic, Result, codes};
use crate::ids::SessionId;
use crate::paths::{MurmurHome, make_private};
use crate::trace::unix_ms;

/// A day's file larger than this is no ledger of ours: ten million calls.
const FILE_MAX: u64 = 1 << 30;

/// The ledger as one session sees it.
#[derive(Debug)]
pub struct Ledger {
    dir: PathBuf,
    session: SessionId,
    today: Option<Today>,
}

#[derive(Debug)]
struct Today {
    day: String,
    file: File,
    /// Bytes read so far; what follows the last line end is read again.
    read: u64,
    sum: u64,
}

impl Ledger {
    /// For a session; nothing is opened yet.
    pub fn new(home: &MurmurHome, session: &SessionId) -> Self {
        Self { dir: home.root().join("spend"), session: session.clone(), today: None }
    }

    /// Tokens the machine has spent today.
    ///
    /// # Errors
    /// `E-RUN-026` when the ledger cannot be used: under a ceiling nothing is then sent.
    pub fn used(&mut self) -> Result<u64> {
        self.read_on(OffsetDateTime::now_utc()).map_err(|error| self.unusable(&error))
    }

    /// Adds a call.
    ///
    /// # Errors
    /// `E-RUN-026`, as above.
    pub fn add(&mut self, input_tokens: u64, output_tokens: u64) -> Result<()> {
        self.write(OffsetDateTime::now_utc(), input_tokens, output_tokens).map_err(|error| self.unusable(&error))
    }

    fn write(&mut self, now: OffsetDateTime, input_tokens: u64, output_tokens: u64) -> io::Result<()> {
        let line = json!({
            "ts": unix_ms(), "session_id": self.session, "input_tokens": input_tokens, "output_tokens": output_tokens,
        });
        self.open(now)?.file.write_all(format!("{line}\n").as_bytes())
    }

    fn read_on(&mut self, now: OffsetDateTime) -> io::Result<u64> {
        let today = self.open(now)?;
        let mut added = Vec::new();
        today.file.seek(SeekFrom::Start(today.read))?;
        (&today.file).take(FILE_MAX.saturating_sub(today.read) + 1).read_to_end(&mut added)?;
        if today.read + added.len() as u64 > FILE_MAX {
            return Err(io::Error::other(format!("it is larger than {FILE_MAX} bytes")));
        }
        let whole = added.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let lines = added[..whole].split(|byte| *byte == b'\n');
        today.sum = lines.fold(today.sum, |sum, line| sum.saturating_add(tokens_of(line)));
        today.read += whole as u64;
        Ok(today.sum)
    }

    /// Today's file; a new one after midnight.
    fn open(&mut self, now: OffsetDateTime) -> io::Result<&mut Today> {
        let day = format!("{:04}-{:02}-{:02}", now.year(), u8::from(now.month()), now.day());
        let today = match self.today.take().filter(|today| today.day == day) {
            Some(today) => today,
            None => {
                make_private(&self.dir)?;
                let file = OpenOptions::new()
                    .read(true)
                    .append(true)
                    .create(true)
                    .mode(0o600)
                    .custom_flags(libc::O_NOFOLLOW)
                    .open(self.dir.join(format!("{day}.jsonl")))?;
                Today { day, file, read: 0, sum: 0 }
            }
        };
        Ok(self.today.insert(today))
    }

    fn unusable(&self, error: &io::Error) -> Diagnostic {
        Diagnostic::new(
            codes::E_RUN_026,
            format!("the machine's spend ledger in {} cannot be used: {error}", self.dir.display()),
        )
        .hint("repair or remove that directory, or take spend.machine_tokens_per_day out of the configuration")
    }
}

/// A line that is none of ours counts nothing.
fn tokens_of(line: &[u8]) -> u64 {
    #[derive(Deserialize)]
    struct Line {
        input_tokens: u64,
        output_tokens: u64,
    }
    serde_json::from_slice::<Line>(line).map_or(0, |line| line.input_tokens.saturating_add(line.output_tokens))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_add_to_one_sum_and_a_torn_line_counts_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let home = MurmurHome::at(dir.path().to_owned());
        let mut one = Ledger::new(&home, &SessionId::mint());
        let mut other = Ledger::new(&home, &SessionId::mint());
        assert_eq!(one.used().unwrap(), 0);
        one.add(10, 5).unwrap();
        other.add(3, 2).unwrap();
        assert_eq!((one.used().unwrap(), other.used().unwrap()), (20, 20));

        let file = std::fs::read_dir(dir.path().join(".murmur/spend")).unwrap().next().unwrap().unwrap().path();
        let mut raw = OpenOptions::new().append(true).open(&file).unwrap();
        raw.write_all(br#"{"input_tokens":100,"#).unwrap();
        assert_eq!(one.used().unwrap(), 20);
        raw.write_all(b"\"output_tokens\":1}\nnot json\n").unwrap();
        assert_eq!(one.used().unwrap(), 121);
    }

    #[test]
    fn a_new_day_begins_at_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::new(&MurmurHome::at(dir.path().to_owned()), &SessionId::mint());
        let monday = OffsetDateTime::from_unix_timestamp(1_700_000_000).unwrap();
        ledger.write(monday, 7, 0).unwrap();
        assert_eq!(ledger.read_on(monday).unwrap(), 7);
        assert_eq!(ledger.read_on(monday + time::Duration::DAY).unwrap(), 0);
    }

    #[test]
    fn an_unusable_ledger_is_refused_by_code() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(".murmur")).unwrap();
        std::fs::write(dir.path().join(".murmur/spend"), "a file").unwrap();
        let mut ledger = Ledger::new(&MurmurHome::at(dir.path().to_owned()), &SessionId::mint());
        assert_eq!(ledger.used().unwrap_err().code(), codes::E_RUN_026);
    }
}
