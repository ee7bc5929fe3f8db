//! What a session says of itself on stdout: the readiness line or lines, and the status at the end.

use std::path::Path;

use serde::Serialize;
use serde_json::{Map, Value};

use super::outcome::ExitStatus;
use crate::diagnostics::output;

/// How much is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Lines for a person.
    Text {
        /// More of them.
        verbose: bool,
    },
    /// One JSON line.
    Json,
}

/// What a session announces once its door can be reached.
#[derive(Clone, Debug)]
pub struct Announcement<'a> {
    /// `localhost:<port>`; empty without a door.
    pub url: &'a str,
    /// The session.
    pub session: &'a str,
    /// Capsule name.
    pub name: &'a str,
    /// Capsule version.
    pub version: &'a str,
    /// The work folder.
    pub work: &'a Path,
    /// The records directory.
    pub records: &'a Path,
    /// Of a member.
    pub formation: Option<&'a str>,
    /// Whether the door asks for a token.
    pub authenticated: bool,
    /// Tokens by credential name, when they are to be told.
    pub tokens: Option<Vec<(String, String)>>,
    /// The driver and the model.
    pub driver: (&'a str, &'a str),
    /// Installed skills.
    pub skills: usize,
}

impl Announcement<'_> {
    /// Says it. A line that carries tokens is dropped where stdout refuses it, never logged.
    pub fn print(&self, manner: Manner) {
        match manner {
            Manner::Json if self.tokens.is_some() => output::stdout_secret_line(&self.json()),
            Manner::Json => output::stdout_line(&self.json()),
            Manner::Text { verbose } => {
                for line in self.lines(verbose) {
                    output::stdout_line(&line);
                }
            }
        }
    }

    fn json(&self) -> String {
        #[derive(Serialize)]
        struct Line<'a> {
            url: &'a str,
            pid: u32,
            session_id: &'a str,
            name: &'a str,
            version: &'a str,
            workdir: &'a str,
            records_dir: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            formation_id: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            auth: Option<&'static str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            tokens: Option<Map<String, Value>>,
        }
        let tokens = self.tokens.as_ref().filter(|_| self.authenticated);
        let line = Line {
            url: self.url,
            pid: std::process::id(),
            session_id: self.session,
            name: self.name,
            version: self.version,
            workdir: &self.work.to_string_lossy(),
            records_dir: &self.records.to_string_lossy(),
            formation_id: self.formation,
            auth: (self.authenticated && !self.url.is_empty()).then_some("bearer"),
            tokens: tokens.map(|all| all.iter().map(|(k, v)| (k.clone(), Value::from(v.as_str()))).collect()),
        };
        // Strings, numbers and a map of strings: nothing here can fail to serialise.
        serde_json::to_string(&line).unwrap_or_default()
    }

    fn lines(&self, verbose: bool) -> Vec<String> {
        let mut lines = Vec::new();
        if !self.url.is_empty() {
            lines.push(format!("murmur: url {}", self.url));
            if self.authenticated {
                lines.push(format!("murmur: auth bearer (mur token {})", self.session));
            }
        }
        lines.push(format!("session: {}", self.session));
        if verbose {
            lines.push(format!("workdir: {}", self.work.display()));
            lines.push(format!("records: {}", self.records.display()));
            lines.push(format!("manifest: {} v{}", self.name, self.version));
            lines.push(format!("driver: {} ({})", self.driver.0, self.driver.1));
            if self.skills > 0 {
                lines.push(format!("skills: {} installed", self.skills));
            }
            if let Some(formation) = self.formation {
                lines.push(format!("formation: {formation}"));
            }
        }
        lines
    }
}

/// The last line of a run in text; nothing under `--json`.
pub fn status(manner: Manner, status: ExitStatus) {
    if let Manner::Text { .. } = manner {
        output::stdout_line(&format!("status:  {}", status.as_str()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announcement() -> Announcement<'static> {
        Announcement {
            url: "localhost:4000",
            session: "ses_1",
            name: "tally",
            version: "1.10",
            work: Path::new("/w"),
            records: Path::new("/r"),
            formation: None,
            authenticated: false,
            tokens: None,
            driver: ("murmur/driver-scripted", "m"),
            skills: 0,
        }
    }

    #[test]
    fn a_person_reads_url_auth_session_in_that_order() {
        assert_eq!(announcement().lines(false), ["murmur: url localhost:4000", "session: ses_1"]);
        let authenticated = Announcement { authenticated: true, ..announcement() };
        assert_eq!(
            authenticated.lines(false),
            ["murmur: url localhost:4000", "murmur: auth bearer (mur token ses_1)", "session: ses_1"]
        );
    }

    #[test]
    fn verbose_adds_its_lines_after_the_session() {
        let all = Announcement { skills: 2, formation: Some("frm_1"), ..announcement() };
        assert_eq!(
            all.lines(true)[2..],
            [
                "workdir: /w",
                "records: /r",
                "manifest: tally v1.10",
                "driver: murmur/driver-scripted (m)",
                "skills: 2 installed",
                "formation: frm_1"
            ]
        );
    }

    #[test]
    fn the_readiness_line_has_tokens_only_of_an_authenticated_door() {
        let line: Value = serde_json::from_str(&announcement().json()).unwrap();
        assert_eq!(line["url"], "localhost:4000");
        assert_eq!(line["pid"], std::process::id());
        for absent in ["formation_id", "auth", "tokens"] {
            assert!(line.get(absent).is_none(), "{absent}");
        }
        let tokens = Some(vec![("operator".to_owned(), "mdt1.x".to_owned())]);
        let public = Announcement { tokens: tokens.clone(), ..announcement() };
        assert!(!public.json().contains("mdt1"));
        let authenticated = Announcement { tokens, authenticated: true, ..announcement() };
        let line: Value = serde_json::from_str(&authenticated.json()).unwrap();
        assert_eq!((line["auth"].as_str(), line["tokens"]["operator"].as_str()), (Some("bearer"), Some("mdt1.x")));
    }
}
