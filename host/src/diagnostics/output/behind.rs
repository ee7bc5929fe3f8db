//! Standard error behind a thread of its own: whoever reads it may stop reading, and holds up nothing but the lines.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, SemaphorePermit};

/// Lines that may wait. One more is refused: it goes where a line goes that standard error does not take.
const WAITING: usize = 1024;

/// How many of them may be others' (a formation's peers). Who relays waits for room, so that the peers keep the rest.
static ROOM: Semaphore = Semaphore::const_new(256);

/// The thread writes one line and waits for the next.
const STACK: usize = 128 << 10;

static BEHIND: OnceLock<Behind> = OnceLock::new();

#[derive(Default)]
struct Behind {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    lines: VecDeque<(String, Option<SemaphorePermit<'static>>)>,
    /// Whether a line is being written.
    busy: bool,
}

impl Behind {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_all(&self) -> ! {
        loop {
            let mut waiting = self.waiting();
            waiting.busy = false;
            self.changed.notify_all();
            let (line, permit) = loop {
                if let Some(next) = waiting.lines.pop_front() {
                    break next;
                }
                waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
            };
            waiting.busy = true;
            drop(waiting);
            super::write_line(&line);
            drop(permit);
        }
    }
}

/// Takes the lines of this process from now on. Without the thread they are written as before.
pub fn start() {
    let started = std::thread::Builder::new().name("stderr".to_owned()).stack_size(STACK).spawn(|| {
        BEHIND.get_or_init(Behind::default).write_all();
    });
    if started.is_ok() {
        BEHIND.get_or_init(Behind::default);
    }
}

/// Hands a line over; gives it back when nobody takes it, and `None` in its place when it has to be given up.
pub(super) fn offer(line: String, permit: Option<SemaphorePermit<'static>>) -> Result<(), Option<String>> {
    let Some(behind) = BEHIND.get() else { return Err(Some(line)) };
    let mut waiting = behind.waiting();
    if waiting.lines.len() >= WAITING {
        drop(waiting);
        super::log(line.trim_end());
        return Err(None);
    }
    waiting.lines.push_back((line, permit));
    behind.changed.notify_all();
    Ok(())
}

/// Waits for room among the lines of others.
pub(super) async fn room() -> Option<SemaphorePermit<'static>> {
    BEHIND.get()?;
    ROOM.acquire().await.ok()
}

/// Waits until every line is written, or is not in that time.
pub fn settle(within: Duration) {
    let Some(behind) = BEHIND.get() else { return };
    let until = Instant::now() + within;
    let mut waiting = behind.waiting();
    while waiting.busy || !waiting.lines.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        waiting = behind.changed.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner).0;
    }
}
