//! `mur __admit`: admits a roster for the launcher and answers one frame.

/// Entry of the hidden subcommand.
pub fn main() -> u8 {
    1
}
