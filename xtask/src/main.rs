//! The project's only build script: `cargo xtask demo | test | bench | soak | kernels | dist | guests | fuzz | deny`.
//!
//! Each command does all of its own set-up, and says what it finds, installs and builds.

use std::process::ExitCode;

mod bench;
mod bundle;
mod demo;
mod deny;
mod dist;
mod fuzz;
mod guests;
mod kernels;
mod packages;
mod sh;
mod soak;
mod suite;
mod toolchain;

const USAGE: &str = "usage: cargo xtask <command>

  demo              build, then launch the counting house: three members, one real task
  test              everything that must hold: format, lints, all suites, the demo once
  bench [--runs N]  measure the budget on a release build and print a table
  soak [--launches N] [--minutes M] [--release]
                    launch in a row, and hold a formation under tasks, watching for what is left or grows
  kernels [--kernel 6.1|6.12]… [--suite NAME]… [--minutes N] [--refresh]
                    boot other kernels under qemu and run the containment suites there; downloads what it needs
  dist [--release]  build mur, its plugins and artifacts into target/dist/<profile>
  dist --escape-probe
                    the same into target/dist/probe, with the probe of the escape-conformance harness in mur
  guests            build the WASM artifacts alone
  fuzz [TARGET [SECONDS]] [--keep]
                    fuzz the readers of outside bytes; with --keep, add what widens the committed corpus to it
  deny [--no-advisories]
                    check the licences, sources and advisories of what is depended on
";

/// What a command returns: a reason in words when it fails.
type Outcome<T = ()> = Result<T, String>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["demo", rest @ ..] => demo::demo(rest),
        ["test"] => suite::test(),
        ["bench", rest @ ..] => bench::bench(rest),
        ["soak", rest @ ..] => soak::soak(rest),
        ["kernels", rest @ ..] => kernels::kernels(rest),
        ["dist"] => dist::dist(dist::Profile::Debug).map(|dist| sh::say(&format!("ready: {}", dist.root.display()))),
        ["dist", "--release"] => {
            dist::dist(dist::Profile::Release).map(|dist| sh::say(&format!("ready: {}", dist.root.display())))
        }
        ["dist", "--escape-probe"] => {
            dist::escape_probe().map(|dist| sh::say(&format!("ready: {}", dist.root.display())))
        }
        ["guests"] => guests::build().map(|built| {
            for guest in built {
                sh::say(&format!("{:<18} {:>7} bytes", guest.name, guest.component.len()));
            }
        }),
        ["fuzz", rest @ ..] => fuzz::fuzz(rest),
        ["deny", rest @ ..] => deny::deny(rest),
        ["help" | "--help" | "-h"] => {
            sh::print(USAGE);
            Ok(())
        }
        _ => {
            sh::say(USAGE.trim_end());
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            sh::say(&format!("failed: {reason}"));
            ExitCode::FAILURE
        }
    }
}
