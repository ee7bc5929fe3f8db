//! `mur __enclosure`: its place; the classes that use it come with `scoped` and `sealed`.

/// Entry of the hidden subcommand: refuses until a class needs it.
pub fn main() -> u8 {
    crate::diagnostics::output::stderr_line("mur __enclosure: no containment class of this build uses it");
    1
}
