//! `mur __enter`: its place; backends that are programs will use it.

/// Entry of the hidden subcommand: refuses until a class needs it.
pub fn main() -> u8 {
    crate::diagnostics::output::stderr_line("mur __enter: no containment class of this build uses it");
    1
}
