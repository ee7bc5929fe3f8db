//! What a plugin's call fails with, and the guard that turns panics into it.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use abi_stable::StableAbi;
use abi_stable::std_types::{RErr, ROk, RResult, RString};

/// What sort of failure it was; the host decides by it which code and remedy to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Anything else.
    Failed,
    /// The plugin panicked: its own fault.
    Panicked,
    /// The configuration or request does not say what the plugin needs.
    Invalid,
    /// The operating system or a server refused by permission.
    Denied,
    /// What the plugin keeps is damaged.
    Corrupt,
    /// The place behind the plugin does not answer.
    Unavailable,
    /// The plugin does not offer this.
    Unsupported,
    /// The thing asked for is not there.
    Missing,
}

impl ErrorKind {
    const ALL: [Self; 8] = [
        Self::Failed,
        Self::Panicked,
        Self::Invalid,
        Self::Denied,
        Self::Corrupt,
        Self::Unavailable,
        Self::Unsupported,
        Self::Missing,
    ];
}

/// The error of every exported function: a kind, as a number so that kinds can be added, and one line of text.
#[derive(Clone, PartialEq, Eq, StableAbi)]
#[repr(C)]
pub struct PluginError {
    kind: u32,
    message: RString,
}

impl PluginError {
    /// An error of a kind, with one line that names the thing at fault.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind: kind as u32, message: RString::from(message.into()) }
    }

    /// What a caught panic becomes.
    pub fn panicked(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Panicked, message)
    }

    /// An error of the operating system about a thing.
    pub fn io(thing: impl fmt::Display, error: &std::io::Error) -> Self {
        let kind = match error.kind() {
            std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => ErrorKind::Denied,
            std::io::ErrorKind::NotFound => ErrorKind::Missing,
            _ => ErrorKind::Failed,
        };
        Self::new(kind, format!("{thing}: {error}"))
    }

    /// The kind; a number of a later time reads as [`ErrorKind::Failed`].
    pub fn kind(&self) -> ErrorKind {
        ErrorKind::ALL.into_iter().find(|kind| *kind as u32 == self.kind).unwrap_or(ErrorKind::Failed)
    }

    /// The text.
    pub fn message(&self) -> &str {
        self.message.as_str()
    }
}

impl fmt::Debug for PluginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind(), self.message)
    }
}

impl fmt::Display for PluginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message.as_str())
    }
}

impl std::error::Error for PluginError {}

thread_local! {
    /// How many guarded calls this thread is inside.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// Where the last panic of a guarded call happened.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// A guarded call, for as long as this lives.
struct Inside;

impl Inside {
    fn new() -> Self {
        DEPTH.with(|depth| depth.set(depth.get() + 1));
        Self
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        DEPTH.with(|depth| depth.set(depth.get().saturating_sub(1)));
    }
}

/// Makes a library's root module; for the export macro. A panic goes on to the caller, who reports the load as failed.
pub fn initialise<M>(plugin: &'static str, module: impl FnOnce() -> M) -> M {
    install_panic_hook(plugin);
    let _inside = Inside::new();
    module()
}

/// Runs the body of an exported function: a panic becomes an error, and nothing unwinds across the boundary.
pub fn guarded<T>(body: impl FnOnce() -> Result<T, PluginError>) -> RResult<T, PluginError> {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let _inside = Inside::new();
        body()
    }));
    match outcome {
        Ok(Ok(value)) => ROk(value),
        Ok(Err(error)) => RErr(error),
        Err(payload) => {
            let text = payload_text(&*payload);
            // Dropping a payload may itself panic; leaking one after a panic costs nothing.
            std::mem::forget(payload);
            let place = PLACE.with(RefCell::take).map(|place| format!(" at {place}")).unwrap_or_default();
            RErr(PluginError::panicked(format!("{text}{place}")))
        }
    }
}

fn payload_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    // One line, whatever the panic said.
    text.map_or_else(|| "no message".to_owned(), |text| text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Makes panics of this library quiet inside guarded calls, where the host reports them, and one line with the plugin's
/// name in threads of its own. A library carries its own copy of the standard library, so this touches nothing of the
/// host's.
fn install_panic_hook(plugin: &'static str) {
    std::panic::set_hook(Box::new(move |info| {
        let place = info.location().map(|at| format!("{}:{}", at.file(), at.line()));
        if DEPTH.try_with(|depth| depth.get() > 0).unwrap_or(false) {
            let _ = PLACE.try_with(|slot| *slot.borrow_mut() = place);
            return;
        }
        let text = payload_text(info.payload());
        let place = place.map(|place| format!(" at {place}")).unwrap_or_default();
        eprintln!("[mur] plugin '{plugin}' panicked in a thread of its own: {text}{place}");
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_of_one_line() {
        let result: RResult<(), _> = guarded(|| panic!("two\nlines {}", 1));
        let error = result.into_result().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Panicked);
        assert!(error.message().starts_with("two lines 1"), "{error}");
        let result: RResult<(), _> = guarded(|| std::panic::panic_any(7_u8));
        assert!(result.into_result().unwrap_err().message().starts_with("no message"));
        assert_eq!(guarded(|| Ok(3)).into_result().unwrap(), 3);
    }

    #[test]
    fn a_kind_of_a_later_time_reads_as_failed() {
        let error = PluginError { kind: 4000, message: "x".into() };
        assert_eq!(error.kind(), ErrorKind::Failed);
        for kind in ErrorKind::ALL {
            assert_eq!(PluginError::new(kind, "x").kind(), kind);
        }
    }
}
