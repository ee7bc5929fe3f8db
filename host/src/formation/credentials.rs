//! What a launch mints: every edge is signed at once and the key is wiped before the first member is spawned. The
//! launcher keeps each member's first channel line, which wipes itself.

use zeroize::Zeroizing;

use crate::credentials::MemberName;
use crate::credentials::channel::{self, FirstLine, ProcessName};
use crate::credentials::token::{EdgeToken, SigningKey};
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::ids::FormationId;
use crate::roster::admission::Admitted;

use super::channel::Line;
use super::readiness::Ready;

/// The channel lines of a launch.
pub struct Credentials {
    names: Vec<MemberName>,
    callees: Vec<Vec<usize>>,
    first_lines: Vec<Zeroizing<String>>,
}

impl Credentials {
    /// Mints the formation's key, signs every edge, and ends the key.
    pub fn mint(id: &FormationId, admitted: &Admitted, launcher: &ProcessName) -> Result<Self> {
        let names = admitted.members.iter().map(|member| member_name(&member.name)).collect::<Result<Vec<_>>>()?;
        let callees: Vec<Vec<usize>> = (0..names.len()).map(|from| admitted.callees(from).collect()).collect();
        let edges: Vec<(usize, usize)> = admitted.edges().collect();
        let signing = SigningKey::mint()?;
        let key = signing.verifying_key();
        let mut tokens = signing.sign_edges(id, &names, &edges).into_iter();
        let entry = admitted.entry();
        let first_lines = (0..names.len())
            .map(|from| {
                let own: Vec<EdgeToken> = tokens.by_ref().take(callees[from].len()).collect();
                let pairs: Vec<(&MemberName, &EdgeToken)> =
                    callees[from].iter().map(|to| &names[*to]).zip(&own).collect();
                channel::first_line(&FirstLine {
                    formation: id,
                    member: &names[from],
                    entry: from == entry,
                    key: &key,
                    launcher,
                    tokens: &pairs,
                })
            })
            .collect();
        Ok(Self { names, callees, first_lines })
    }

    /// Whether a member may call anybody.
    pub fn has_callees(&self, index: usize) -> bool {
        !self.callees[index].is_empty()
    }

    /// A member's first line, and what follows it at once. It is handed out once: nothing of it stays here.
    pub fn take_first_lines(&mut self, index: usize, more: &str) -> Line {
        let first = std::mem::take(&mut self.first_lines[index]);
        // Sized ahead: a line that grows leaves unwiped copies behind.
        let mut lines = Zeroizing::new(Vec::with_capacity(first.len() + more.len()));
        lines.extend_from_slice(first.as_bytes());
        lines.extend_from_slice(more.as_bytes());
        lines
    }

    /// The door URLs of the members `index` may call.
    pub fn urls_line(&self, index: usize, ready: &[Option<Ready>]) -> String {
        let urls: Vec<(&MemberName, String)> = self.callees[index]
            .iter()
            .filter_map(|to| Some((&self.names[*to], format!("http://{}", ready[*to].as_ref()?.address))))
            .collect();
        channel::urls_line(urls.iter().map(|(name, url)| (*name, url.as_str())))
    }
}

fn member_name(text: &str) -> Result<MemberName> {
    MemberName::parse(text)
        .ok_or_else(|| Diagnostic::new(codes::E_ROS_001, format!("roster.yaml: '{text}' is no member name")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roster::admission::{AdmittedMember, Reach};

    fn admitted() -> Admitted {
        let member = |name: &str, entry| AdmittedMember {
            name: name.into(),
            capsule: format!("local/{name}"),
            version: "1".into(),
            sha256: String::new(),
            entry,
            serves_peers: true,
            authenticated: true,
            holds: 1,
        };
        Admitted {
            members: vec![member("lead", true), member("a", false), member("b", false)],
            reach: Reach::Rules(vec![(0, 1), (0, 2), (2, 1)]),
            warnings: Vec::new(),
            retain: None,
            stale: Vec::new(),
        }
    }

    #[test]
    fn each_member_is_handed_its_own_edges_and_no_other() {
        let launcher = ProcessName { pid: 1, process_start: "1".into() };
        let mut minted = Credentials::mint(&FormationId::mint(), &admitted(), &launcher).unwrap();
        let mut tokens = |index: usize| {
            let line = minted.take_first_lines(index, "");
            let value: serde_json::Value = serde_json::from_slice(&line).unwrap();
            let named =
                value["tokens"].as_array().unwrap().iter().map(|token| token["to"].as_str().unwrap().to_owned());
            (value["member"].as_str().unwrap().to_owned(), named.collect::<Vec<_>>())
        };
        assert_eq!(tokens(0), ("lead".into(), vec!["a".into(), "b".into()]));
        assert_eq!(tokens(1), ("a".into(), vec![]));
        assert_eq!(tokens(2), ("b".into(), vec!["a".into()]));
        assert!(!minted.has_callees(1));
        assert!(minted.take_first_lines(2, "").is_empty(), "it is handed out once");
    }
}
