//! Entry. Hidden subcommands are decided here, before a runtime, a logger or a thread exists.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mur::process::wiping::Wiping = mur::process::wiping::Wiping;

fn main() -> ExitCode {
    mur::process::start::harden();
    let mut args = std::env::args_os().skip(1);
    let status = match args.next().as_deref().and_then(|name| name.to_str()) {
        // A worker's limit is what its artifacts meet: it is theirs to see as an error, not the worker's end.
        Some("__guest-worker") => {
            mur::process::start::ignore_file_size_signal();
            mur::worker::guest::main(args)
        }
        Some("__compile") => mur::artifacts::compile::main(args),
        Some("__admit") => mur::roster::admit::main(),
        Some("__enclosure") => mur::containment::enclosure::main(),
        Some("__enter") => mur::containment::enter::main(args),
        _ => {
            mur::process::start::ignore_file_size_signal();
            mur::cli::main()
        }
    };
    ExitCode::from(status)
}
