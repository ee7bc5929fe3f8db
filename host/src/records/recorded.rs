//! Recorded sessions: the records directories of one workdir root, and naming one of them.

use std::fs;
use std::path::{Path, PathBuf};

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

    /// The session an address names: `@N`, a full id, or a suffix. `E-TRC-002`.
    pub fn find(&self, address: &str) -> Result<SessionId> {
        let sessions = self.sessions();
        if let Some(number) = address.strip_prefix('@') {
            let index: Option<usize> = number.parse().ok().filter(|index| *index >= 1);
            return index
                .and_then(|index| sessions.get(index - 1).cloned())
                .ok_or_else(|| self.unknown(address, sessions.len()));
        }
        if address.len() < MIN_SUFFIX {
            return Err(Diagnostic::new(codes::E_TRC_002, format!("'{address}' is too short to name a session"))
                .hint(format!("give at least {MIN_SUFFIX} of its last characters, or @N")));
        }
        let wanted = address.to_lowercase();
        let found: Vec<&SessionId> = sessions.iter().filter(|id| id.as_str().ends_with(&wanted)).collect();
        match found.as_slice() {
            [session] => Ok((*session).clone()),
            [] => Err(self.unknown(address, sessions.len())),
            several => {
                let list: String = several.iter().map(|id| format!("\n{id}")).collect();
                Err(Diagnostic::new(codes::E_TRC_002, format!("'{address}' names several sessions:{list}"))
                    .hint("give more of the id's last characters"))
            }
        }
    }

    /// The trace file an address names. A path is taken as it is, and may be that of the records directory; anything else
    /// is looked for among these sessions. `E-TRC-002`.
    pub fn trace_of(&self, address: &str) -> Result<PathBuf> {
        if is_path(address) {
            let path = PathBuf::from(address);
            return Ok(if path.is_dir() { path.join("trace.jsonl") } else { path });
        }
        Ok(self.records_dir(&self.find(address)?).join("trace.jsonl"))
    }

    fn unknown(&self, address: &str, count: usize) -> Diagnostic {
        let dir = self.dir.display();
        if count == 0 {
            return Diagnostic::new(codes::E_TRC_002, format!("'{address}': no session is recorded under {dir}"))
                .hint(ELSEWHERE);
        }
        Diagnostic::new(codes::E_TRC_002, format!("'{address}' names none of the {count} sessions under {dir}"))
            .hint("mur trace list shows them; --workdir DIR reads those of another workdir root")
    }
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
