//! The signals that end a formation.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::diagnostics::{Diagnostic, Result, codes};

/// What the launcher catches: name and number.
const CAUGHT: [(&str, u8); 3] = [("SIGINT", 2), ("SIGTERM", 15), ("SIGHUP", 1)];

/// The signals, taken over from their default action.
pub struct Signals(Vec<(u8, Signal)>);

impl Signals {
    /// Takes them over.
    pub fn catch() -> Result<Self> {
        let caught = CAUGHT.iter().map(|(_, number)| Ok((*number, signal(SignalKind::from_raw(i32::from(*number)))?)));
        caught.collect::<std::io::Result<_>>().map(Self).map_err(|error| {
            Diagnostic::new(codes::E_IO_003, format!("the launcher could not catch its signals: {error}"))
        })
    }

    /// Waits for the next one and returns its number.
    pub async fn next(&mut self) -> u8 {
        let waits = self.0.iter_mut().map(|(number, signal)| {
            Box::pin(async move {
                signal.recv().await;
                *number
            })
        });
        futures_util::future::select_all(waits).await.0
    }
}

/// A caught signal's name.
pub fn name(number: u8) -> &'static str {
    CAUGHT.iter().find(|(_, known)| *known == number).map_or("a signal", |(name, _)| name)
}
