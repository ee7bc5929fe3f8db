//! `cargo run -p mur-tests --bin escape-conformance -- --class scoped`: the harness by hand.

use std::io::Write;
use std::process::ExitCode;

use mur_tests::escape::{Options, options, run};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|arg| arg == "--help" || arg == "-h") {
        let _ = std::io::stdout().write_all(options::USAGE.as_bytes());
        return ExitCode::SUCCESS;
    }
    match Options::read(args) {
        Ok(options) => {
            let summary = run(&options);
            // A closed stdout changes nothing about the run.
            let _ = writeln!(std::io::stdout(), "{}", summary.said.trim_end());
            ExitCode::from(summary.status)
        }
        Err(why) => {
            let _ = writeln!(std::io::stderr(), "escape-conformance: {why}\n\n{}", options::USAGE);
            ExitCode::from(1)
        }
    }
}
