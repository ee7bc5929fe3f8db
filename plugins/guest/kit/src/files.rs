//! Files of the folders this artifact is given.
//!
//! `std::fs` has nothing behind it on the target that needs no WASI toolchain, so the descriptors are used as they are.

use wasip2::filesystem::preopens::get_directories;
use wasip2::filesystem::types::{Descriptor, DescriptorFlags, DescriptorType, ErrorCode, OpenFlags, PathFlags};
use wasip2::io::streams::StreamError;

/// How much of a file moves at once.
const PIECE: u64 = 64 * 1024;

/// Splits a path into the granted folder it lies in and the way inside it.
fn place(path: &str) -> Result<(Descriptor, String), String> {
    let folders = get_directories();
    let wanted = path.trim_start_matches("./");
    let mut best: Option<(Descriptor, String, usize)> = None;
    let mut here: Option<Descriptor> = None;
    for (folder, name) in folders {
        if name == "." || name.is_empty() {
            here = Some(folder);
            continue;
        }
        let inside = wanted.strip_prefix(name.as_str()).and_then(|rest| match rest.strip_prefix('/') {
            Some(rest) => Some(rest),
            None if rest.is_empty() => Some("."),
            None => None,
        });
        if let Some(inside) = inside
            && best.as_ref().is_none_or(|(_, _, length)| name.len() > *length)
        {
            best = Some((folder, inside.to_owned(), name.len()));
        }
    }
    if let Some((folder, inside, _)) = best {
        return Ok((folder, inside));
    }
    if wanted.starts_with('/') {
        return Err(format!("'{path}' is outside the folders this artifact is given"));
    }
    here.map(|folder| (folder, if wanted.is_empty() { ".".to_owned() } else { wanted.to_owned() }))
        .ok_or_else(|| "this artifact is given no work folder".to_owned())
}

/// Reads part of a file: at most `limit` bytes from `offset`, and the file's whole size.
pub fn read(path: &str, offset: u64, limit: u64) -> Result<(Vec<u8>, u64), String> {
    let (folder, inside) = place(path)?;
    let say = |code: ErrorCode| explain(path, code);
    let file =
        folder.open_at(PathFlags::SYMLINK_FOLLOW, &inside, OpenFlags::empty(), DescriptorFlags::READ).map_err(say)?;
    let stat = file.stat().map_err(say)?;
    if stat.type_ == DescriptorType::Directory {
        return Err(format!("'{path}' is a folder"));
    }
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < limit {
        let (piece, end) =
            file.read(PIECE.min(limit - bytes.len() as u64), offset + bytes.len() as u64).map_err(say)?;
        bytes.extend_from_slice(&piece);
        if end || piece.is_empty() {
            break;
        }
    }
    Ok((bytes, stat.size))
}

/// What lies in a folder: names, folders with a slash at their end.
pub fn list(path: &str) -> Result<Vec<String>, String> {
    let (folder, inside) = place(path)?;
    let say = |code: ErrorCode| explain(path, code);
    let directory =
        folder.open_at(PathFlags::SYMLINK_FOLLOW, &inside, OpenFlags::DIRECTORY, DescriptorFlags::READ).map_err(say)?;
    let entries = directory.read_directory().map_err(say)?;
    let mut names = Vec::new();
    while let Some(entry) = entries.read_directory_entry().map_err(say)? {
        let slash = if entry.type_ == DescriptorType::Directory { "/" } else { "" };
        names.push(format!("{}{slash}", entry.name));
    }
    names.sort();
    Ok(names)
}

/// Writes a whole file: a reader sees the old content or the new, never a part.
pub fn write(path: &str, bytes: &[u8]) -> Result<(), String> {
    let (folder, inside) = place(path)?;
    let say = |code: ErrorCode| explain(path, code);
    parents(&folder, &inside).map_err(say)?;
    // The new content replaces a name, so a folder there must be refused before anything is written.
    if let Ok(stat) = folder.stat_at(PathFlags::empty(), &inside)
        && stat.type_ == DescriptorType::Directory
    {
        return Err(format!("'{path}' is a folder"));
    }
    let (parent, name) = inside.rsplit_once('/').map_or(("", inside.as_str()), |(parent, name)| (parent, name));
    let scratch = format!(".{name}.{:016x}.tmp", super::guest::random_u64());
    let scratch = if parent.is_empty() { scratch } else { format!("{parent}/{scratch}") };
    let done = (|| {
        let file = folder.open_at(
            PathFlags::empty(),
            &scratch,
            OpenFlags::CREATE | OpenFlags::EXCLUSIVE,
            DescriptorFlags::WRITE,
        )?;
        write_all(&file, bytes, 0)?;
        drop(file);
        folder.rename_at(&scratch, &folder, &inside)
    })();
    if done.is_err() {
        let _ = folder.unlink_file_at(&scratch);
    }
    done.map_err(say)
}

/// Adds to the end of a file, which is made when it is not there.
pub fn append(path: &str, bytes: &[u8]) -> Result<(), String> {
    let (folder, inside) = place(path)?;
    let say = |code: ErrorCode| explain(path, code);
    parents(&folder, &inside).map_err(say)?;
    let file = folder.open_at(PathFlags::empty(), &inside, OpenFlags::CREATE, DescriptorFlags::WRITE).map_err(say)?;
    let end = file.stat().map_err(say)?.size;
    write_all(&file, bytes, end).map_err(say)
}

fn write_all(file: &Descriptor, bytes: &[u8], offset: u64) -> Result<(), ErrorCode> {
    let stream = file.write_via_stream(offset)?;
    for piece in bytes.chunks(4096) {
        stream.blocking_write_and_flush(piece).map_err(|fault| match fault {
            StreamError::LastOperationFailed(error) => {
                wasip2::filesystem::types::filesystem_error_code(&error).unwrap_or(ErrorCode::Io)
            }
            StreamError::Closed => ErrorCode::Io,
        })?;
    }
    Ok(())
}

fn parents(folder: &Descriptor, inside: &str) -> Result<(), ErrorCode> {
    for (at, _) in inside.match_indices('/') {
        match folder.create_directory_at(&inside[..at]) {
            Ok(()) | Err(ErrorCode::Exist) => {}
            Err(other) => return Err(other),
        }
    }
    Ok(())
}

fn explain(path: &str, code: ErrorCode) -> String {
    match code {
        ErrorCode::NoEntry => format!("'{path}' does not exist"),
        ErrorCode::Access | ErrorCode::NotPermitted => format!("'{path}' is outside the work folder, or not readable"),
        ErrorCode::NotDirectory => format!("a part of '{path}' is no folder"),
        ErrorCode::IsDirectory => format!("'{path}' is a folder"),
        ErrorCode::NoSuchDevice => format!("'{path}' is neither a file nor a folder"),
        ErrorCode::ReadOnly => format!("'{path}' lies in a folder that is read only"),
        other => format!("'{path}': {}", other.message()),
    }
}
