//! An inference driver that asks no model: it plays a script.
//!
//! The script is the driver's configuration (`inference.driver.config`), the language is described in the book under
//! "The scripted driver". A call has no memory, so everything a script can know is in the request: which rule fits is
//! decided by the last message from outside, and which of its turns by how often the driver answered since.

mod builtin;
mod condition;
mod play;
mod scene;
mod script;
mod template;
mod text;

use mur_guest_kit::Answer;
use mur_guest_kit::provider::{Failure, Request};
pub use play::Stage;
pub use script::Script;

#[cfg(target_family = "wasm")]
mod host;

#[cfg(target_family = "wasm")]
mur_guest_kit::artifact!(super::host::call);

/// Plays one turn: the request as JSON text, the script's text (none for the built-in one), and the world around.
pub fn run(request: &str, script: Option<&str>, stage: &mut dyn Stage) -> Answer {
    turn(request, script, stage).unwrap_or_else(Failure::answer)
}

fn turn(request: &str, script: Option<&str>, stage: &mut dyn Stage) -> Result<Answer, Failure> {
    let request = Request::read(request)?;
    let script = match script {
        Some(text) => Script::read(text).map_err(|fault| Failure::fixed(format!("the script: {fault}")))?,
        None => builtin::script(),
    };
    play::play(&request, &script, stage)
}

#[cfg(test)]
mod tests;
