//! The launch's own text.

use std::ffi::OsStr;
use std::fs::{self, FileType};
use std::io::Read as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use super::WorkPlace;
use crate::diagnostics::{Diagnostic, Result, codes, output};
use crate::paths::beneath::{self, Refusal};
use crate::paths::regular;

/// Most bytes of a task.
pub const MAX_TASK: u64 = 16 << 20;

/// Files of a work folder a launch without `--task` takes its text from, in this order.
const IMPORTED: [&str; 2] = ["task.md", "input.txt"];

/// What `--task` gives, else what lies in a given work folder. A formation member takes nothing that lies around.
pub fn of_launch(flag: Option<&OsStr>, place: &WorkPlace, member: bool) -> Result<Option<Vec<u8>>> {
    match (flag, place) {
        (Some(value), _) => from_flag(value).map(Some),
        (None, WorkPlace::Given(work)) if !member => imported(work),
        _ => Ok(None),
    }
}

/// An existing file's content, else the text itself.
fn from_flag(value: &OsStr) -> Result<Vec<u8>> {
    let path = Path::new(value);
    let refused = |why: &dyn std::fmt::Display| {
        Diagnostic::new(codes::E_IO_003, format!("--task: {} cannot be read: {why}", path.display()))
    };
    // A text too long or too odd to be a path is not the path of a file. A folder's name may well be a text.
    let kind = match fs::metadata(path) {
        Ok(meta) if !meta.is_dir() => meta.file_type(),
        _ => return as_text(value),
    };
    if !kind.is_file() {
        let hint = "name a regular file, or give the text itself: --task \"$(cat ...)\"";
        return Err(refused(&format!("it is {}, not a regular file", kind_of(kind))).hint(hint));
    }
    let mut bytes = Vec::new();
    let read = regular::open(path).and_then(|file| file.take(MAX_TASK + 1).read_to_end(&mut bytes));
    match read {
        Ok(read) if read as u64 > MAX_TASK => Err(refused(&format!("it is larger than {MAX_TASK} bytes"))),
        Ok(_) => Ok(bytes),
        Err(error) => Err(refused(&error)),
    }
}

fn as_text(value: &OsStr) -> Result<Vec<u8>> {
    let text = value
        .to_str()
        .ok_or_else(|| Diagnostic::new(codes::E_IO_003, "--task is neither a file that is there nor UTF-8 text"))?;
    if looks_like_a_path(text) && !Path::new(value).exists() {
        output::stderr_line(&format!(
            "[capsule-runtime] note: --task: no file '{text}' is here; taken as the task's text"
        ));
    }
    Ok(text.as_bytes().to_vec())
}

fn kind_of(kind: FileType) -> &'static str {
    match kind {
        kind if kind.is_fifo() => "a pipe",
        kind if kind.is_socket() => "a socket",
        _ => "a device",
    }
}

/// One word with a slash, or with the ending that task files have; an address of the web is none.
fn looks_like_a_path(text: &str) -> bool {
    let word = !text.is_empty() && text.len() <= 4096 && !text.contains(|c: char| c.is_whitespace() || c.is_control());
    word && !text.contains("://") && (text.contains('/') || text.ends_with(".md") || text.ends_with(".txt"))
}

fn imported(work: &Path) -> Result<Option<Vec<u8>>> {
    for name in IMPORTED {
        match beneath::read(work, Path::new(name), MAX_TASK) {
            Ok(bytes) => return Ok(Some(bytes)),
            Err(Refusal::Io(error)) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(refusal) => {
                return Err(Diagnostic::new(
                    codes::E_RUN_050,
                    format!("the task in {} was not read: {refusal}", work.join(name).display()),
                )
                .hint("replace it with a regular file, or pass --task"));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_neither_text_nor_a_regular_file_is_refused_and_never_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let place = WorkPlace::Under(dir.path().into());
        let (pipe, socket) = (dir.path().join("pipe"), dir.path().join("socket"));
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let _listening = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        std::os::unix::fs::symlink(&pipe, dir.path().join("link")).unwrap();
        for (path, kind) in [
            (pipe.as_path(), "a pipe"),
            (dir.path().join("link").as_path(), "a pipe"),
            (socket.as_path(), "a socket"),
            (Path::new("/dev/zero"), "a device"),
            (Path::new("/dev/null"), "a device"),
        ] {
            let refusal = of_launch(Some(path.as_os_str()), &place, false).unwrap_err();
            assert_eq!(refusal.code(), codes::E_IO_003);
            let wanted = format!("--task: {} cannot be read: it is {kind}, not a regular file", path.display());
            assert_eq!(refusal.message(), wanted);
        }
    }

    #[test]
    fn a_task_is_a_file_when_there_is_one_and_text_otherwise() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("t");
        fs::write(&file, "from the file").unwrap();
        let place = WorkPlace::Under(dir.path().into());
        assert_eq!(of_launch(Some(file.as_os_str()), &place, false).unwrap().unwrap(), b"from the file");
        for text in ["just text", "a/b/none", &"x".repeat(10_000), "line\nline", ""] {
            assert_eq!(of_launch(Some(text.as_ref()), &place, false).unwrap().unwrap(), text.as_bytes());
        }
        // A directory is no task file.
        assert_eq!(
            of_launch(Some(dir.path().as_os_str()), &place, false).unwrap().unwrap(),
            dir.path().to_str().unwrap().as_bytes()
        );
    }

    #[test]
    fn a_text_that_may_be_a_mistyped_path_is_told_from_a_sentence() {
        for path in ["nofile.md", "notes.txt", "tasks/one", "./x", "/tmp/none"] {
            assert!(looks_like_a_path(path), "{path}");
        }
        for text in ["", "hello", "read notes.md", "sum up a/b or c", "https://example.org/x", "a.md\n"] {
            assert!(!looks_like_a_path(text), "{text}");
        }
    }

    #[test]
    fn a_work_folder_brings_its_task_but_never_to_a_member() {
        let dir = tempfile::tempdir().unwrap();
        let place = WorkPlace::Given(fs::canonicalize(dir.path()).unwrap());
        assert_eq!(of_launch(None, &place, false).unwrap(), None);
        fs::write(dir.path().join("input.txt"), "input").unwrap();
        assert_eq!(of_launch(None, &place, false).unwrap().unwrap(), b"input");
        fs::write(dir.path().join("task.md"), "task").unwrap();
        assert_eq!(of_launch(None, &place, false).unwrap().unwrap(), b"task");
        assert_eq!(of_launch(None, &place, true).unwrap(), None);
    }

    #[test]
    fn a_link_in_the_work_folder_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("task.md")).unwrap();
        let place = WorkPlace::Given(fs::canonicalize(dir.path()).unwrap());
        assert_eq!(of_launch(None, &place, false).unwrap_err().code(), codes::E_RUN_050);
    }
}
