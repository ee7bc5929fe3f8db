//! The launcher's side of a launch whose session is a formation's member: the harness signs the token, so that it knows
//! what nobody may find.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::launcher::{self, FORMATION};

/// Who the member is, and whom it may call.
const NAME: &str = "boss";
const PEER: &str = "coder";

/// Longest file that is looked into.
const LONGEST: u64 = 4 << 20;

/// What a launcher holds for as long as its member runs.
#[derive(Debug)]
pub struct Formation {
    /// The member's read ends.
    channel: OwnedFd,
    lifeline: OwnedFd,
    /// Channel and lifeline, as both ends of a pipe are told.
    pipes: Vec<String>,
    _held: [File; 2],
}

impl Formation {
    /// A formation whose member has yet to be started.
    ///
    /// # Errors
    /// When the channel cannot be written.
    pub fn new() -> Result<Self, String> {
        let say = |fault: std::io::Error| format!("a formation's channel: {fault}");
        let ((channel, tell), (lifeline, holder)) = (launcher::pipe(), launcher::pipe());
        let mut held = [File::from(tell), File::from(holder)];
        let first = launcher::first_line(NAME, &[PEER]).replace("\"entry\":false", "\"entry\":true");
        held[0].write_all(first.as_bytes()).map_err(say)?;
        let mut pipes = Vec::new();
        for end in &held {
            let about = end.metadata().map_err(say)?;
            pipes.push(format!("{}:{}", about.dev(), about.ino()));
        }
        Ok(Self { channel, lifeline, pipes, _held: held })
    }

    /// The member's environment.
    pub fn env(&self) -> [(&'static str, String); 3] {
        [
            ("MURMUR_FORMATION_ID", FORMATION.to_owned()),
            ("MURMUR_FORMATION_CHANNEL", self.channel.as_raw_fd().to_string()),
            ("MURMUR_FORMATION_LIFELINE", self.lifeline.as_raw_fd().to_string()),
        ]
    }

    /// The token of the member's one edge.
    pub fn token() -> (String, String) {
        ("the member's edge token".to_owned(), launcher::token(NAME, PEER))
    }

    /// What the plan of a member's probe has beside any other's: where to look, and what for.
    pub fn lines(&self, home: &Path, secrets: &[(String, String)]) -> Vec<String> {
        let backwards = |text: &str| text.chars().rev().collect::<String>();
        let names = secrets.iter().map(|(name, text)| format!("token {} {}", name.replace(' ', "-"), backwards(text)));
        let mut lines: Vec<String> = names.collect();
        lines.extend(self.pipes.iter().map(|pipe| format!("formation-pipe {pipe}")));
        lines.push(format!("launcher {}", std::process::id()));
        lines.push(format!("token-root {}", home.display()));
        lines.extend(holders(home, secrets).iter().map(|path| format!("token-file {}", path.display())));
        lines
    }
}

/// Files below a folder that hold a secret, as the operator sees them.
fn holders(folder: &Path, secrets: &[(String, String)]) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let Ok(about) = entry.metadata() else { continue };
            if about.is_dir() {
                folders.push(entry.path());
            } else if about.is_file()
                && about.len() <= LONGEST
                && let Ok(bytes) = fs::read(entry.path())
                && secrets.iter().any(|(_, text)| super::look::contains(&bytes, text.as_bytes()))
            {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    found
}
