//! Calling into plugins: on threads of their own and under a deadline.
//!
//! A call that overruns cannot be ended, only left behind: its thread stays with it, the plugin is named, and it is not
//! called again. Threads that come back are used again, so an ordinary session has one.

use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use mur_plugin_api::{ErrorKind, HeaderInfo, PluginError};

use crate::diagnostics::{Diagnostic, Result, codes};

/// Threads kept for the next call; more are made when calls overlap, and end after theirs.
const MAX_IDLE: usize = 2;

/// Runs on a plugin thread; what it returns runs once the thread is ready for the next call.
type Job = Box<dyn FnOnce() -> Box<dyn FnOnce() + Send> + Send>;

static IDLE: Mutex<Vec<SyncSender<Job>>> = Mutex::new(Vec::new());

/// Calls one opened object of a plugin's, and remembers that it overran.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    info: Arc<HeaderInfo>,
    /// Where the object is, for messages; empty when that says nothing.
    place: Arc<str>,
    overran: Arc<OnceLock<&'static str>>,
}

impl Caller {
    pub(super) fn new(info: &HeaderInfo) -> Self {
        Self { info: Arc::new(info.clone()), place: "".into(), overran: Arc::default() }
    }

    pub(super) fn at(mut self, place: &str) -> Self {
        self.place = place.into();
        self
    }

    pub(super) fn name(&self) -> &str {
        &self.info.name
    }

    /// Makes a call; `what` is its name in messages.
    pub(super) fn call<T: Send + 'static>(
        &self,
        what: &'static str,
        within: Duration,
        body: impl FnOnce() -> std::result::Result<T, PluginError> + Send + 'static,
    ) -> Result<T> {
        self.call_plain(what, within, body)?.map_err(|error| self.failed(what, &error))
    }

    /// Makes a call whose outcome is the host's own.
    pub(super) fn call_plain<T: Send + 'static>(
        &self,
        what: &'static str,
        within: Duration,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        if let Some(before) = self.overran.get() {
            return Err(self.fault(&format!("is not called again after '{before}' overran its deadline")));
        }
        let (done, outcome) = mpsc::sync_channel(1);
        run(Box::new(move || {
            let value = body();
            Box::new(move || {
                let _ = done.send(value);
            })
        }))
        .map_err(|error| self.fault(&format!("could not be called: no thread for it ({error})")))?;
        match outcome.recv_timeout(within) {
            Ok(value) => Ok(value),
            Err(RecvTimeoutError::Timeout) => {
                let _ = self.overran.set(what);
                Err(self.fault(&format!("did not answer '{what}' within {} s", within.as_secs_f64())))
            }
            // The body never unwinds out of a plugin; this is a panic of the host's own closure.
            Err(RecvTimeoutError::Disconnected) => Err(self.fault(&format!("was lost in '{what}'"))),
        }
    }

    fn subject(&self) -> String {
        let HeaderInfo { kind, name, version, .. } = &*self.info;
        let place = if self.place.is_empty() { String::new() } else { format!(" at {}", self.place) };
        format!("{kind} plugin '{name}' {version}{place}")
    }

    /// `E-PLG-005`: the plugin itself is at fault.
    pub(super) fn fault(&self, why: &str) -> Diagnostic {
        Diagnostic::new(codes::E_PLG_005, format!("{} {why}", self.subject()))
            .hint("this is the plugin's own fault; report it to its author, or configure another")
    }

    /// What a call's error is to the operator.
    pub(super) fn failed(&self, what: &str, error: &PluginError) -> Diagnostic {
        let text: String = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
        let message = format!("{} ('{what}'): {text}", self.subject());
        match error.kind() {
            ErrorKind::Panicked => self.fault(&format!("panicked in '{what}': {text}")),
            ErrorKind::Denied => {
                Diagnostic::new(codes::E_IO_002, message).hint("check the owner and mode of that path")
            }
            ErrorKind::Invalid => {
                Diagnostic::new(codes::E_IO_003, message).hint("correct what was asked or configured")
            }
            ErrorKind::Corrupt => {
                Diagnostic::new(codes::E_IO_003, message).hint("install or fetch the damaged thing again")
            }
            ErrorKind::Unavailable => Diagnostic::new(codes::E_IO_003, message).hint("try again"),
            _ => Diagnostic::new(codes::E_IO_003, message),
        }
    }
}

/// Runs something on a plugin thread and does not wait for it: dropping a plugin's object may block as any call may.
pub(super) fn detach(body: impl FnOnce() + Send + 'static) {
    let _ = run(Box::new(move || {
        body();
        Box::new(|| {})
    }));
}

/// Has a plugin thread started, while the caller does what comes before its first call.
pub(super) fn warm() {
    if idle().is_empty() {
        detach(|| {});
    }
}

fn idle() -> std::sync::MutexGuard<'static, Vec<SyncSender<Job>>> {
    // Nothing is left half done under this lock.
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run(job: Job) -> std::io::Result<()> {
    let known = idle().pop();
    let job = match known {
        Some(thread) => match thread.send(job) {
            Ok(()) => return Ok(()),
            Err(mpsc::SendError(job)) => job,
        },
        None => job,
    };
    let (sender, jobs) = mpsc::sync_channel::<Job>(1);
    let own = sender.clone();
    std::thread::Builder::new().name("plugin".to_owned()).spawn(move || {
        // The sender is in this thread's hand or on the idle list, so the channel never closes; the thread ends itself.
        let mut own = Some(own);
        while let Ok(job) = jobs.recv() {
            let deliver = job();
            let sender = own.take();
            let keep = {
                let mut idle = idle();
                if idle.len() < MAX_IDLE {
                    idle.extend(sender.clone());
                    true
                } else {
                    false
                }
            };
            own = sender;
            deliver();
            if !keep {
                break;
            }
        }
    })?;
    sender.send(job).map_err(|_| std::io::Error::other("the thread ended at once"))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use mur_plugin_api::PluginHeader;

    use super::*;

    fn caller() -> Caller {
        let header = PluginHeader::new(mur_plugin_api::Kind::Store, "slow", "1.2", "");
        Caller::new(&HeaderInfo::parse(&header.to_bytes()).unwrap()).at("/x")
    }

    #[test]
    fn a_call_that_overruns_is_a_fault_by_name_and_the_last_one() {
        let caller = caller();
        let (release, held) = channel::<()>();
        let error = caller
            .call("find", Duration::from_millis(20), move || {
                let _ = held.recv();
                Ok(())
            })
            .unwrap_err();
        assert_eq!(error.code(), codes::E_PLG_005);
        assert_eq!(error.message(), "store plugin 'slow' 1.2 at /x did not answer 'find' within 0.02 s");
        let error = caller.call("list", Duration::from_secs(1), || Ok(())).unwrap_err();
        assert!(error.message().contains("is not called again after 'find'"), "{error}");
        drop(release);
    }

    #[test]
    fn errors_keep_one_line_and_get_the_code_of_their_kind() {
        for (kind, code) in [
            (ErrorKind::Panicked, codes::E_PLG_005),
            (ErrorKind::Denied, codes::E_IO_002),
            (ErrorKind::Corrupt, codes::E_IO_003),
        ] {
            let error = caller()
                .call::<()>("read", Duration::from_secs(5), move || Err(PluginError::new(kind, "a\nb")))
                .unwrap_err();
            assert_eq!(error.code(), code);
            assert!(error.message().ends_with("a b") && error.message().contains("'slow' 1.2"), "{error}");
        }
    }

    #[test]
    fn many_calls_at_once_all_answer() {
        let caller = caller();
        let results: Vec<_> = std::thread::scope(|scope| {
            let handles: Vec<_> = (0..8)
                .map(|n| {
                    (
                        n,
                        scope.spawn({
                            let caller = &caller;
                            move || caller.call("x", Duration::from_secs(5), move || Ok(n))
                        }),
                    )
                })
                .collect();
            handles.into_iter().map(|(n, handle)| (n, handle.join().unwrap().unwrap())).collect()
        });
        assert!(results.iter().all(|(asked, got)| asked == got), "{results:?}");
        assert!(idle().len() <= MAX_IDLE);
    }
}
