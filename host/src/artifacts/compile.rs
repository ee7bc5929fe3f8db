//! `mur __compile`: one component into machine code, confined.

/// Entry of the hidden subcommand.
pub fn main() -> u8 {
    1
}
