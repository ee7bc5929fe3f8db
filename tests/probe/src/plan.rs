//! What a run of the probe is to attempt: lines of `key value` in a file of the work folder.
//!
//! The harness looks at the process from outside before anything is attempted. So the probe says that it is there, waits
//! for the harness's word, and reads the plan again, which by then also holds what could not be known before the launch.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What stands before a plan's path, in whatever text reaches the probe; the path ends at a semicolon.
pub const MARKER: &str = "ESCAPE-PLAN=";

/// How long the harness may take to look at the process.
const LOOKED_AT: Duration = Duration::from_secs(300);

/// A plan.
#[derive(Debug)]
pub struct Plan {
    file: PathBuf,
    lines: Vec<(String, String)>,
}

impl Plan {
    /// The plan a text names; nothing when it names none.
    pub fn named_in(text: &str) -> Option<Result<Self, String>> {
        let (_, rest) = text.split_once(MARKER)?;
        let (path, _) = rest.split_once(';')?;
        Some(Self::read(Path::new(path)))
    }

    fn read(file: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
        let pair = |line: &str| line.split_once(' ').map(|(key, value)| (key.to_owned(), value.to_owned()));
        Ok(Self { file: file.to_owned(), lines: text.lines().filter_map(pair).collect() })
    }

    /// Says that the probe is here, waits to be looked at, and reads the rest.
    pub(crate) fn begin(self) -> Result<Self, String> {
        if self.one("wait").is_none() {
            return Ok(self);
        }
        // SAFETY: no arguments.
        let pid = unsafe { libc::getpid() };
        self.write("ready", &format!("{pid}\n"))
            .map_err(|error| format!("the probe cannot say it is ready: {error}"))?;
        let go = self.beside("go");
        let begun = Instant::now();
        // Another process writes it, and a confined one may have nothing it could wait on.
        while !go.exists() {
            if begun.elapsed() > LOOKED_AT {
                return Err("the harness did not say go".to_owned());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Self::read(&go).map(|rest| Self { file: self.file, lines: self.lines.into_iter().chain(rest.lines).collect() })
    }

    /// The cases, in their order.
    pub fn cases(&self) -> impl Iterator<Item = &str> {
        self.all("case")
    }

    /// Every value of a key.
    pub fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.lines.iter().filter(move |(known, _)| known == key).map(|(_, value)| value.as_str())
    }

    /// The value of a key.
    pub fn one(&self, key: &str) -> Option<&str> {
        self.lines.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }

    /// Whether the class in force composes a root, in which what was not granted is absent.
    pub fn sealed(&self) -> bool {
        self.one("class") == Some("sealed")
    }

    /// The work folder: the plan lies in it.
    pub fn work(&self) -> &Path {
        self.file.parent().unwrap_or(Path::new("/"))
    }

    /// A path in the work folder that belongs to this run of the probe.
    pub fn scratch(&self, name: &str) -> PathBuf {
        // SAFETY: no arguments.
        self.work().join(format!("ec-{name}-{}", unsafe { libc::getpid() }))
    }

    fn beside(&self, suffix: &str) -> PathBuf {
        let mut name = self.file.clone().into_os_string();
        name.push(".");
        name.push(suffix);
        name.into()
    }

    fn write(&self, suffix: &str, text: &str) -> io::Result<()> {
        let (scratch, path) = (self.beside(&format!("{suffix}.new")), self.beside(suffix));
        fs::write(&scratch, text)?;
        fs::rename(scratch, path)
    }

    /// Adds to the report.
    pub(crate) fn report(&self, line: &str) {
        let file = File::options().append(true).create(true).open(self.beside("report"));
        // A report that cannot be written is missed by the harness, which then says so.
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}
