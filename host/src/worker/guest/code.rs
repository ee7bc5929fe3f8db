//! Machine code from the descriptor of a compiled form, without a path and without a copy.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::Arc;

use wasmtime::component::Component;
use wasmtime::{CustomCodeMemory, Engine};

use super::super::engine::{self, Reservation};

/// Most bytes of one compiled form.
const MAX_CODE: u64 = 1 << 30;

/// Most artifacts a worker loads in its life: the code of a replaced one stays mapped.
pub(super) const MAX_LOADED: usize = 4096;

/// The engine of this worker.
pub(super) fn engine(reservation: Reservation) -> Result<Engine, String> {
    let mut config = engine::config(reservation);
    config.with_custom_code_memory(Some(Arc::new(Pages)));
    Engine::new(&config).map_err(|error| format!("the WASM engine cannot be made: {error:#}"))
}

/// Makes the text of a mapped compiled form executable.
struct Pages;

impl CustomCodeMemory for Pages {
    fn required_alignment(&self) -> usize {
        4096
    }

    fn publish_executable(&self, start: *const u8, len: usize) -> wasmtime::Result<()> {
        protect(start, len, libc::PROT_READ | libc::PROT_EXEC)
    }

    fn unpublish_executable(&self, start: *const u8, len: usize) -> wasmtime::Result<()> {
        protect(start, len, libc::PROT_READ)
    }
}

fn protect(start: *const u8, len: usize, rights: i32) -> wasmtime::Result<()> {
    // SAFETY: wasmtime hands over the page-aligned text of an image that `map` mapped and that is never unmapped; the
    // image is not writable, so no right is taken from anybody who writes.
    let result = unsafe { libc::mprotect(start.cast_mut().cast(), len, rights) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error().into()) }
}

/// Loads a compiled form.
pub(super) fn load(engine: &Engine, file: impl AsFd) -> Result<Component, String> {
    let image = map(file).map_err(|error| format!("the compiled form cannot be mapped: {error}"))?;
    // SAFETY: the descriptor is of a file that `mur` itself compiled or checked, written once and never changed; the
    // mapping is private, read only, and lives as long as the process.
    unsafe { Component::deserialize_raw(engine, image) }.map_err(|error| format!("{error:#}"))
}

/// Maps a whole file privately and read only, for the rest of the process's life. Where the file's mount forbids
/// executable mappings, its bytes are copied instead.
fn map(file: impl AsFd) -> io::Result<NonNull<[u8]>> {
    let fd = file.as_fd();
    let size = nix::sys::stat::fstat(fd)?.st_size;
    let size = u64::try_from(size).ok().filter(|size| (1..=MAX_CODE).contains(size));
    let len = size.and_then(|size| usize::try_from(size).ok());
    let len = len.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no compiled form has that size"))?;
    let flags = nix::sys::statvfs::fstatvfs(fd)?.flags();
    let copy = flags.contains(nix::sys::statvfs::FsFlags::ST_NOEXEC);
    let (rights, kind, number) = if copy {
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    } else {
        (libc::PROT_READ, libc::MAP_PRIVATE, fd.as_raw_fd())
    };
    // SAFETY: a new mapping at an address of the kernel's choice.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), len, rights, kind, number, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let start = NonNull::new(start.cast::<u8>()).ok_or_else(|| io::Error::other("a mapping at zero"))?;
    if copy {
        // SAFETY: the mapping is new, anonymous, writable and of this length, and nobody else knows of it.
        let bytes = unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len) };
        read_all(fd, bytes)?;
        // SAFETY: the same mapping; nothing writes to it from here on.
        if unsafe { libc::mprotect(start.as_ptr().cast(), len, libc::PROT_READ) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(NonNull::slice_from_raw_parts(start, len))
}

fn read_all(fd: impl AsFd, mut bytes: &mut [u8]) -> io::Result<()> {
    let mut offset = 0;
    while !bytes.is_empty() {
        match nix::sys::uio::pread(fd.as_fd(), bytes, offset)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => {
                offset += i64::try_from(count).map_err(io::Error::other)?;
                bytes = &mut bytes[count..];
            }
        }
    }
    Ok(())
}
