//! Recorded sessions: the records directories of one workdir root, and naming one of them.

use std::fs;
use std::path::{Path, PathBuf};

use super::elsewhere;
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::ids::SessionId;
use crate::paths::MurmurHome;

/// Shortest suffix that names a session.
const MIN_SUFFIX: usize = 4;

/// Where else sessions may be, for a root that has none.
pub const ELSEWHERE: &str = "run it where the capsule was run, or name the workdir root: --workdir DIR; the entry member of \
                             a formation records under the roster's directory";

/// The records of one workdir root.
#[derive(Clone, Debug)]
pub struct Group {
    /// The root as given.
    pub root: PathBuf,
    /// `~/.murmur/records/<mirror>`.
    pub dir: PathBuf,
}

impl Group {
    /// The group of a workdir root.
    pub fn of(home: &MurmurHome, root: &Path) -> Self {
        Self { root: root.to_owned(), dir: home.records_group(root) }
    }

    /// The group that a directory of records is.
    pub fn at(home: &MurmurHome, dir: &Path) -> Self {
        let root =
            dir.strip_prefix(home.records()).map_or_else(|_| dir.to_owned(), |mirror| Path::new("/").join(mirror));
        Self { root, dir: dir.to_owned() }
    }

    /// The group a trace lies in, when it lies among the records.
    pub fn beside(home: &MurmurHome, trace: &Path) -> Option<Self> {
        let dir = trace.parent()?.parent()?;
        dir.starts_with(home.records()).then(|| Self::at(home, dir))
    }

    /// Its sessions, newest first. A group that does not exist has none.
    pub fn sessions(&self) -> Vec<SessionId> {
        let Ok(entries) = fs::read_dir(&self.dir) else { return Vec::new() };
        let mut sessions: Vec<SessionId> =
            entries.flatten().filter_map(|entry| SessionId::parse(entry.file_name().to_str()?)).collect();
        sessions.sort();
        sessions.reverse();
        sessions
    }

    /// The records directory of a session.
    pub fn records_dir(&self, session: &SessionId) -> PathBuf {
        self.dir.join(session.as_str())
    }

    /// The session an address names among these: `@N`, a full id, or a suffix. `E-TRC-002`.
    pub fn find(&self, address: &str) -> Result<SessionId> {
        self.look(address)?.ok_or_else(|| self.unknown(address))
    }

    /// The session an address names among these or, when none of them is meant and the search may leave this root, where
    /// formations and running sessions record. `E-TRC-002`, with the command's words for one that lies elsewhere.
    pub fn find_beyond(&self, home: &MurmurHome, address: &str, reach: Reach) -> Result<(Self, SessionId)> {
        if let Some(refusal) = elsewhere::no_session(home, address) {
            return Err(refusal);
        }
        if let Some(session) = self.look(address)? {
            return Ok((self.clone(), session));
        }
        let whole = SessionId::parse(address).is_some();
        let mut found = if address.starts_with('@') { Vec::new() } else { elsewhere::find(home, address) };
        match (found.len(), reach) {
            (0, _) => Err(self.unknown(address)),
            (1, Reach::Home) => Ok(found.remove(0)),
            (1, Reach::HomeByWholeId) if whole => Ok(found.remove(0)),
            _ => Err(self.unknown(address).hint(elsewhere::hint(&found, reach))),
        }
    }

    fn look(&self, address: &str) -> Result<Option<SessionId>> {
        if let Some(number) = address.strip_prefix('@') {
            let index: Option<usize> = number.parse().ok().filter(|index| *index >= 1);
            return Ok(index.and_then(|index| self.sessions().get(index - 1).cloned()));
        }
        if address.len() < MIN_SUFFIX {
            return Err(Diagnostic::new(codes::E_TRC_002, format!("'{address}' is too short to name a session"))
                .hint(format!("give at least {MIN_SUFFIX} of its last characters, or @N")));
        }
        let mut found = self.ending_in(address);
        if found.len() > 1 {
            let list: String = found.iter().map(|id| format!("\n{id}")).collect();
            return Err(Diagnostic::new(codes::E_TRC_002, format!("'{address}' names several sessions:{list}"))
                .hint("give more of the id's last characters"));
        }
        Ok(found.pop())
    }

    /// Its sessions whose id ends with a text, in whatever case that is written.
    pub fn ending_in(&self, text: &str) -> Vec<SessionId> {
        let wanted = text.to_lowercase();
        if let Some(whole) = SessionId::parse(&wanted) {
            return Some(whole).filter(|id| self.records_dir(id).is_dir()).into_iter().collect();
        }
        self.sessions().into_iter().filter(|id| id.as_str().ends_with(&wanted)).collect()
    }

    /// The trace file an address names. A path is taken as it is, and may be that of the records directory; anything else
    /// is looked for as [`Group::find_beyond`] does. `E-TRC-002`.
    pub fn trace_of(&self, home: &MurmurHome, address: &str, reach: Reach) -> Result<PathBuf> {
        if is_path(address) {
            let path = PathBuf::from(address);
            return Ok(if path.is_dir() { path.join("trace.jsonl") } else { path });
        }
        let (group, session) = self.find_beyond(home, address, reach)?;
        Ok(group.records_dir(&session).join("trace.jsonl"))
    }

    fn unknown(&self, address: &str) -> Diagnostic {
        let (dir, count) = (self.dir.display(), self.sessions().len());
        if count == 0 {
            return Diagnostic::new(codes::E_TRC_002, format!("'{address}': no session is recorded under {dir}"))
                .hint(ELSEWHERE);
        }
        Diagnostic::new(codes::E_TRC_002, format!("'{address}' names none of the {count} sessions under {dir}"))
            .hint("mur trace list shows them; --workdir DIR reads those of another workdir root")
    }
}

/// How far an id or its end is looked for when the workdir root has no such session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Nowhere else: the root was named.
    Root,
    /// Wherever formations and running sessions record: to read.
    Home,
    /// The same, by its whole id alone: the end of one may be mistyped, and something is done with the session.
    HomeByWholeId,
}

/// Whether an address is a literal path.
pub fn is_path(address: &str) -> bool {
    address.contains('/') || address.ends_with(".jsonl")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_named_by_rank_id_or_suffix() {
        let dir = tempfile::tempdir().unwrap();
        let home = MurmurHome::at(dir.path().to_owned());
        let group = Group::of(&home, &dir.path().join("w"));
        let none = group.find("@1").unwrap_err();
        assert!(none.message().starts_with("'@1': no session is recorded under "), "{none}");
        let ids: Vec<SessionId> = (0..3).map(|_| SessionId::mint()).collect();
        for id in &ids {
            fs::create_dir_all(group.records_dir(id)).unwrap();
        }
        assert_eq!(group.find("@1").unwrap(), ids[2]);
        assert_eq!(group.find("@3").unwrap(), ids[0]);
        assert_eq!(group.find(ids[1].as_str()).unwrap(), ids[1]);
        assert_eq!(group.find(&ids[1].as_str()[18..].to_uppercase()).unwrap(), ids[1]);
        for bad in ["@0", "@4", "@", "abc", "ses_"] {
            assert_eq!(group.find(bad).unwrap_err().code(), codes::E_TRC_002, "{bad}");
        }
    }
}
