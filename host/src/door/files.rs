//! The operator's plane: the files a capsule exports (`exports.files`), listed and read while its tasks run.
//!
//! What lies there is written by tools, so nothing is believed: every file is opened beneath the work folder by
//! descriptor, and a link anywhere on the path is refused, whatever the class.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use axum::body::Body;
use axum::response::Response;
use http::{HeaderValue, StatusCode, header};
use nix::dir::{Dir, Type};
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::authorize::flat;
use crate::diagnostics::{self, Diagnostic, codes};
use crate::paths::beneath::{self, Refusal};
use crate::paths::resolve_through_existing;
use crate::trace::Trace;

/// Where the plane begins.
const PREFIX: &str = "/resources/files";
/// Largest file read, whatever the manifest allows: it is held in memory while it is sent.
const MAX_FILE: u64 = 256 << 20;
/// Most files of a listing; each is hashed.
const MAX_ENTRIES: usize = 10_000;
/// Deepest folder of a listing.
const MAX_DEPTH: usize = 64;
/// What one read of a file takes.
const CHUNK: usize = 64 << 10;

/// What a capsule exports.
#[derive(Clone)]
pub struct ExportedFiles {
    /// The work folder.
    pub work: PathBuf,
    /// The exported folder in it, as the manifest writes it.
    pub root: String,
    /// Largest file that is read.
    pub max_bytes: u64,
    /// The class achieved.
    pub containment: String,
    /// Where each request is recorded.
    pub trace: Trace,
}

impl ExportedFiles {
    /// Refuses a folder that resolves outside the work folder (`E-CAP-007`). It need not exist.
    pub fn check(work: &Path, root: &str) -> diagnostics::Result<()> {
        let inside = resolve_through_existing(work);
        let resolved = resolve_through_existing(&work.join(root));
        if resolved.starts_with(&inside) {
            return Ok(());
        }
        Err(Diagnostic::new(
            codes::E_CAP_007,
            format!("exports.files.root '{root}' is {}, outside the work folder", resolved.display()),
        )
        .hint("export a folder inside the work folder, and no link that leads out of it"))
    }
}

/// A refusal of the plane: a status, a code and a sentence.
type Refused = (StatusCode, &'static str, String);

/// Answers a GET below `/resources/`. `generation` counts the tasks that have run. Off the async thread: files are
/// read and hashed.
pub(super) async fn answer(files: &ExportedFiles, generation: u64, path: &str) -> Response {
    let Some(rest) = path.strip_prefix(PREFIX).filter(|rest| rest.is_empty() || rest.starts_with('/')) else {
        return not_found("no such resource");
    };
    let (files, rest) = (files.clone(), rest.to_owned());
    let answered = tokio::task::spawn_blocking(move || files.serve(generation, &rest)).await;
    answered.unwrap_or_else(|_| flat(StatusCode::INTERNAL_SERVER_ERROR, "io_error", "the files could not be read"))
}

/// `404` of a path nothing is at.
pub(super) fn not_found(message: &str) -> Response {
    flat(StatusCode::NOT_FOUND, "not_found", message)
}

/// A record of one request.
#[derive(Serialize)]
struct Requested<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'a str>,
    outcome: &'a str,
    reason: Option<&'a str>,
}

impl ExportedFiles {
    fn serve(&self, generation: u64, rest: &str) -> Response {
        let listing = matches!(rest, "" | "/");
        let (event, path) = if listing { ("resource_list", None) } else { ("resource_read", Some(rest)) };
        let answered = if listing { self.list(generation) } else { self.read(generation, rest) };
        let (outcome, reason) = match &answered {
            Ok(_) => ("ok", None),
            Err((_, error, message)) => (*error, Some(message.as_str())),
        };
        self.trace.record_aside(event, None, Requested { path, outcome, reason });
        answered.unwrap_or_else(|(status, error, message)| flat(status, error, &message))
    }

    fn list(&self, generation: u64) -> Result<Response, Refused> {
        let mut entries = Vec::new();
        match self.open_root() {
            Ok(Some(root)) => self.walk(root, &mut PathBuf::new(), 0, &mut entries)?,
            Ok(None) => {}
            Err(refused) => return Err(refused),
        }
        entries.sort_by(|(a, _), (b, _)| a.cmp(b));
        let entries: Vec<Value> = entries.into_iter().map(|(_, entry)| entry).collect();
        let body = json!({
            "root": self.root,
            "mode": "read-only",
            "max_bytes": self.max_bytes,
            "generation": generation,
            "containment_achieved": self.containment,
            "entries": entries,
        });
        let mut response = Response::new(Body::from(body.to_string()));
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Ok(response)
    }

    /// The exported folder by descriptor; `None` when it is not there.
    fn open_root(&self) -> Result<Option<OwnedFd>, Refused> {
        match beneath::open_directory(&self.work, Path::new(&self.root)) {
            Ok(root) => Ok(Some(root)),
            Err(Refusal::Io(error)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(refusal) => Err(refused(&refusal)),
        }
    }

    /// Regular files below a folder. A link of either kind, a folder that cannot be entered and a name that is no text are left out.
    fn walk(
        &self,
        folder: OwnedFd,
        path: &mut PathBuf,
        depth: usize,
        entries: &mut Vec<(String, Value)>,
    ) -> Result<(), Refused> {
        let held = folder.try_clone().map_err(|error| io_error(&error))?;
        let mut dir = Dir::from_fd(folder).map_err(|errno| io_error(&errno.into()))?;
        for entry in dir.iter() {
            let entry = entry.map_err(|errno| io_error(&errno.into()))?;
            let Ok(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
            if name == "." || name == ".." {
                continue;
            }
            path.push(&name);
            // Some file systems name no type; opening decides for those.
            let kind = entry.file_type();
            if matches!(kind, Some(Type::Directory) | None)
                && depth < MAX_DEPTH
                && let Some(below) = open_at(&held, &name, OFlag::O_RDONLY | OFlag::O_DIRECTORY)
            {
                self.walk(below, path, depth + 1, entries)?;
            } else if matches!(kind, Some(Type::File) | None)
                && let Some((entry_path, entry)) = entry_of(&held, &name, path)
            {
                if entries.len() == MAX_ENTRIES {
                    let message = format!("the exported folder holds more than {MAX_ENTRIES} files");
                    return Err((StatusCode::PAYLOAD_TOO_LARGE, "too_large", message));
                }
                entries.push((entry_path, entry));
            }
            path.pop();
        }
        Ok(())
    }

    fn read(&self, generation: u64, rest: &str) -> Result<Response, Refused> {
        let relative = relative_path(rest)
            .ok_or_else(|| (StatusCode::FORBIDDEN, "outside_root", "that is no path inside the root".to_owned()))?;
        let file = beneath::open(&self.work, &Path::new(&self.root).join(&relative)).map_err(|it| refused(&it))?;
        let limit = self.max_bytes.min(MAX_FILE);
        let meta = file.metadata().map_err(|error| io_error(&error))?;
        let mut bytes = Vec::new();
        file.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(|error| io_error(&error))?;
        if bytes.len() as u64 > limit {
            let message = format!("the file is larger than {limit} bytes");
            return Err((StatusCode::PAYLOAD_TOO_LARGE, "too_large", message));
        }
        let etag = format!("\"sha256:{}\"", hex(&Sha256::digest(&bytes)));
        let mut response = Response::new(Body::from(bytes));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        let named = [
            ("etag", etag),
            ("x-murmur-mtime-ms", mtime_ms(&meta).to_string()),
            ("x-murmur-generation", generation.to_string()),
            ("x-murmur-containment", self.containment.clone()),
            ("x-murmur-export-root", self.root.clone()),
        ];
        for (name, value) in named {
            if let Ok(value) = HeaderValue::from_str(&value) {
                headers.insert(name, value);
            }
        }
        Ok(response)
    }
}

/// Opens a name in a folder, never through a link.
fn open_at(folder: &OwnedFd, name: &str, flags: OFlag) -> Option<OwnedFd> {
    let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    openat(folder.as_fd(), name, flags, Mode::empty()).ok()
}

fn entry_of(folder: &OwnedFd, name: &str, path: &Path) -> Option<(String, Value)> {
    let mut file = File::from(open_at(folder, name, OFlag::O_RDONLY)?);
    let meta = file.metadata().ok().filter(|meta| meta.is_file() && meta.nlink() == 1)?;
    let path = path.to_str()?.to_owned();
    let entry = json!({
        "path": path,
        "size_bytes": meta.len(),
        "mtime_ms": mtime_ms(&meta),
        "sha256": digest(&mut file).ok()?,
    });
    Some((path, entry))
}

fn digest(file: &mut File) -> io::Result<String> {
    let mut hash = Sha256::new();
    let mut chunk = vec![0; CHUNK];
    loop {
        match file.read(&mut chunk) {
            Ok(0) => return Ok(hex(&hash.finalize())),
            Ok(read) => hash.update(&chunk[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn mtime_ms(meta: &std::fs::Metadata) -> i64 {
    meta.mtime().saturating_mul(1000).saturating_add(meta.mtime_nsec() / 1_000_000)
}

/// `/a/b` percent-decoded once. Refused, never repaired: an empty, `.` or `..` component, NUL, or what is no text; one
/// slash may follow.
fn relative_path(rest: &str) -> Option<PathBuf> {
    let decoded = percent_decode(rest.strip_prefix('/')?)?;
    let plain = decoded.strip_suffix('/').unwrap_or(&decoded);
    let well_formed = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
    plain.split('/').all(well_formed).then(|| PathBuf::from(OsStr::new(plain)))
}

fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
        bytes.push(u8::try_from(digit()? * 16 + digit()?).ok()?);
    }
    String::from_utf8(bytes).ok()
}

fn io_error(error: &io::Error) -> Refused {
    (StatusCode::INTERNAL_SERVER_ERROR, "io_error", error.to_string())
}

fn refused(refusal: &Refusal) -> Refused {
    let (status, error) = match refusal {
        Refusal::Io(error) if error.kind() == io::ErrorKind::NotFound => (StatusCode::NOT_FOUND, "not_found"),
        Refusal::Io(error) => return io_error(error),
        Refusal::InvalidComponent => (StatusCode::FORBIDDEN, "outside_root"),
        Refusal::Symlink => (StatusCode::FORBIDDEN, "symlink_refused"),
        Refusal::HardLink | Refusal::NotARegularFile | Refusal::Foreign(_) => {
            (StatusCode::FORBIDDEN, "not_a_regular_file")
        }
        Refusal::TooLarge(_) => (StatusCode::PAYLOAD_TOO_LARGE, "too_large"),
    };
    let message = match refusal {
        Refusal::Io(_) => "there is no such file".to_owned(),
        other => other.to_string(),
    };
    (status, error, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_decoded_once_and_never_repaired() {
        for (text, expected) in
            [("/a/b.txt", "a/b.txt"), ("/a%20b", "a b"), ("/a/", "a"), ("/%25", "%"), ("/%C3%A9", "é")]
        {
            assert_eq!(relative_path(text), Some(PathBuf::from(expected)), "{text}");
        }
        for bad in
            ["", "//a", "/a//b", "/.", "/..", "/a/../b", "/%2e%2e/x", "/a%00", "/%ff", "/%2", "/%zz", "/a//", "/%2Fetc"]
        {
            assert_eq!(relative_path(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_root_that_leads_out_of_the_work_folder_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let work = dir.path().join("work");
        std::fs::create_dir(&work).unwrap();
        std::os::unix::fs::symlink("..", work.join("out")).unwrap();
        assert!(ExportedFiles::check(&work, "there/not").is_ok());
        assert!(ExportedFiles::check(&work, ".").is_ok());
        assert_eq!(ExportedFiles::check(&work, "out").unwrap_err().code(), codes::E_CAP_007);
    }
}
