//! Opening files for an artifact: a pipe in a file's place is refused, since opening it would wait for its other end for
//! as long as the call may take.

use wasmtime::component::{Linker, Resource};
use wasmtime_wasi::filesystem::{Descriptor, WasiFilesystemView as _};
use wasmtime_wasi::p2::bindings::filesystem::types::{
    DescriptorFlags, DescriptorType, ErrorCode, Host as _, HostDescriptor as _, OpenFlags, PathFlags,
};

use super::state::State;

/// The interface that bindings of this WASI offer.
const TYPES: &str = "wasi:filesystem/types@0.2.12";

type Arguments = (Resource<Descriptor>, PathFlags, String, OpenFlags, DescriptorFlags);

/// Puts our `open-at` in the place of WASI's. Shadowing must be allowed.
pub(super) fn link(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    linker.instance(TYPES)?.func_wrap_async("[method]descriptor.open-at", |mut store, arguments: Arguments| {
        Box::new(async move {
            let (folder, path_flags, path, open_flags, flags) = arguments;
            let mut view = store.data_mut().filesystem();
            let again = Resource::new_borrow(folder.rep());
            // What is put there after this look costs its call's deadline, as any other wait does.
            let is_pipe = match view.stat_at(again, path_flags, path.clone()).await {
                Ok(stat) => {
                    [DescriptorType::Fifo, DescriptorType::Socket, DescriptorType::Unknown].contains(&stat.type_)
                }
                Err(_) => false,
            };
            if is_pipe {
                return Ok((Err(ErrorCode::NoSuchDevice),));
            }
            Ok((match view.open_at(folder, path_flags, path, open_flags, flags).await {
                Ok(opened) => Ok(opened),
                Err(error) => Err(view.convert_error_code(error)?),
            },))
        })
    })
}
