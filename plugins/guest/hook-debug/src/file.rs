//! The file the lines go to.

use wasip2::filesystem::preopens::get_directories;
use wasip2::filesystem::types::{DescriptorFlags, OpenFlags, PathFlags};

/// Its name in the granted folder.
const NAME: &str = "events.jsonl";

/// Adds a line to the file in the first folder that is granted; without one it goes to standard error.
pub fn append(line: &str) {
    let text = format!("{line}\n");
    if let Some((folder, _)) = get_directories().into_iter().next() {
        let opened = folder.open_at(PathFlags::empty(), NAME, OpenFlags::CREATE, DescriptorFlags::WRITE);
        if let Ok(file) = opened
            && let Ok(stream) = file.append_via_stream()
            && text.as_bytes().chunks(4096).all(|piece| stream.blocking_write_and_flush(piece).is_ok())
        {
            return;
        }
    }
    let stderr = wasip2::cli::stderr::get_stderr();
    let _ = stderr.blocking_write_and_flush(&text.as_bytes()[..text.len().min(4096)]);
}

/// What is granted, by name.
pub fn folders() -> Vec<String> {
    get_directories().into_iter().map(|(_, name)| name).collect()
}

/// Tries to write a file, by a path in the first folder; what came of it, in words.
pub fn try_write(path: &str) -> String {
    let Some((folder, _)) = get_directories().into_iter().next() else { return "no folder".to_owned() };
    match folder.open_at(PathFlags::SYMLINK_FOLLOW, path, OpenFlags::CREATE, DescriptorFlags::WRITE) {
        Ok(_) => "written".to_owned(),
        Err(code) => format!("refused: {}", code.message()),
    }
}
