//! The worker side: what runs in `mur __guest-worker <kind>`.

/// Entry of the hidden subcommand.
pub fn main(_args: impl Iterator<Item = std::ffi::OsString>) -> u8 {
    1
}
