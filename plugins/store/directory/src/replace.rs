//! Putting a payload in place and taking a version away, so that nobody sees half of either.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use mur_plugin_api::{ErrorKind, PluginError};

use crate::fault;
use crate::layout::Files;

const CHUNK: usize = 128 << 10;

/// Files that disappear unless they are put in place.
struct Pending {
    files: Vec<(PathBuf, PathBuf)>,
}

impl Pending {
    fn new() -> Self {
        Self { files: Vec::new() }
    }

    /// A new file beside its final place.
    fn create(&mut self, place: &Path, kind: &str, seed: &str) -> Result<File, PluginError> {
        let temporary = beside(place, &format!("{kind}.{seed}.tmp"));
        let file = OpenOptions::new().write(true).create_new(true).open(&temporary);
        let file = file.map_err(|error| fault(&temporary, &error))?;
        self.files.push((temporary, place.to_owned()));
        Ok(file)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        for (temporary, _) in &self.files {
            let _ = fs::remove_file(temporary);
        }
    }
}

/// `.<file>.<suffix>` in the same directory.
fn beside(place: &Path, suffix: &str) -> PathBuf {
    let name = place.file_name().unwrap_or_default().to_string_lossy();
    place.with_file_name(format!(".{name}.{suffix}"))
}

/// A text nobody else uses: the standard library seeds each of its hashers from the system.
fn seed() -> String {
    format!("{:016x}", RandomState::new().build_hasher().finish())
}

/// Writes the new files beside their places, then swaps them in under the directory's lock. On any failure the old files
/// are where they were. `size` 0 takes any length.
pub fn replace(
    dir: &Path,
    files: &Files,
    payload: &mut dyn Read,
    size: u64,
    digest: &str,
    metadata: &str,
) -> Result<(), PluginError> {
    let seed = seed();
    let mut pending = Pending::new();
    let file = pending.create(&files.payload, "payload", &seed)?;
    let written = copy(payload, &file, &files.payload)?;
    if size != 0 && written != size {
        let what = format!("the payload has {written} bytes, not the {size} announced");
        return Err(PluginError::new(ErrorKind::Invalid, what));
    }
    write_small(&mut pending, &files.digest, "sha", &seed, digest)?;
    if !metadata.is_empty() {
        write_small(&mut pending, &files.metadata, "meta", &seed, metadata)?;
    }
    let lock = File::open(dir).map_err(|error| fault(dir, &error))?;
    let _ = lock.lock();
    swap(files, pending, &seed)?;
    // The renames themselves; a filesystem that cannot sync a directory keeps its own order.
    let _ = lock.sync_all();
    Ok(())
}

fn copy(payload: &mut dyn Read, mut file: &File, place: &Path) -> Result<u64, PluginError> {
    let mut buffer = vec![0; CHUNK];
    let mut written = 0;
    loop {
        let size = match payload.read(&mut buffer) {
            Ok(0) => break,
            Ok(size) => size,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(PluginError::io("the payload could not be read", &error)),
        };
        file.write_all(&buffer[..size]).map_err(|error| fault(place, &error))?;
        written += size as u64;
    }
    file.sync_all().map_err(|error| fault(place, &error))?;
    Ok(written)
}

fn write_small(pending: &mut Pending, place: &Path, kind: &str, seed: &str, text: &str) -> Result<(), PluginError> {
    let mut file = pending.create(place, kind, seed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(|error| fault(place, &error))
}

/// Old files aside, new ones in, old ones away; back again when something fails between.
fn swap(files: &Files, pending: Pending, seed: &str) -> Result<(), PluginError> {
    let mut aside: Vec<(PathBuf, &Path)> = Vec::new();
    let mut placed: Vec<&Path> = Vec::new();
    let outcome = (|| {
        for place in files.all() {
            let backup = beside(place, &format!("{seed}.bak"));
            match fs::rename(place, &backup) {
                Ok(()) => aside.push((backup, place)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(fault(place, &error)),
            }
        }
        for (temporary, place) in &pending.files {
            fs::rename(temporary, place).map_err(|error| fault(place, &error))?;
            placed.push(place);
        }
        Ok(())
    })();
    if outcome.is_err() {
        for place in placed {
            let _ = fs::remove_file(place);
        }
    }
    for (backup, place) in aside {
        let _ = if outcome.is_ok() { fs::remove_file(&backup) } else { fs::rename(&backup, place) };
    }
    outcome
}

/// Moves a version's directory out of the tree in one step, then deletes it, and its parents as far as they are empty.
pub fn remove(root: &Path, dir: &Path) -> Result<bool, PluginError> {
    // No scope starts with a dot, so what is moved here is nobody's.
    let aside = root.join(format!(".removed.{}", seed()));
    match fs::rename(dir, &aside) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(fault(dir, &error)),
    }
    fs::remove_dir_all(&aside).map_err(|error| fault(&aside, &error))?;
    for parent in dir.ancestors().skip(1).take(2) {
        if fs::remove_dir(parent).is_err() {
            break;
        }
    }
    Ok(true)
}
