//! The probe as a program: a native tool. The text that names its plan is on its standard input or command line.

use std::io::Read;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut text = std::env::args().collect::<Vec<_>>().join(" ");
    if !text.contains(mur_escape_probe::MARKER) {
        let _ = std::io::stdin().take(1 << 20).read_to_string(&mut text);
    }
    match mur_escape_probe::run(&text, &mut |_, _| None) {
        Some(lines) => {
            println!("{lines}");
            ExitCode::SUCCESS
        }
        None => ExitCode::from(2),
    }
}
