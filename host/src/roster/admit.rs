//! `mur __admit`: admits a roster for the launcher and answers one frame.

/// Entry of the hidden subcommand.
pub fn main() -> u8 {
    1
}

/// Admits a roster in a process of its own, so that the launcher loads no plugin. Used by the launcher.
///
/// # Errors
/// The diagnostic of admission; `E-ROS-007` when the helper died or overran.
pub fn admit_in_child(
    project: &std::path::Path,
    text: &[u8],
) -> crate::diagnostics::Result<super::admission::Admitted> {
    let _ = (project, text);
    Err(crate::diagnostics::Diagnostic::new(crate::diagnostics::codes::E_IO_003, "admission is not built yet"))
}
