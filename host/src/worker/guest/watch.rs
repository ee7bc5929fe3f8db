//! Who watches the running thread: a guest that computes reads no connection and no clock.
//!
//! While the running thread runs, this one ticks, so that a guest yields and its deadline is looked at; makes it yield
//! early when something waits to be read; and ends the process when `mur` hangs up. While the running thread waits it hears
//! all of that itself, and this one sleeps. It falls asleep late, so that calls in a row wake nobody.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use wasmtime::Engine;

use super::connection;

/// How often a running artifact yields and its deadline is looked at.
const TICK: Duration = Duration::from_millis(100);

/// How often it is looked whether something waits to be read, in milliseconds.
const STEP: u8 = 10;

/// Steps without anything running after which there is nothing to watch.
const IDLE: u32 = 10;

/// Stack of the thread.
const STACK: usize = 128 << 10;

/// The running thread's side of it. Cheap to clone.
#[derive(Clone)]
pub(super) struct Watch {
    state: Arc<State>,
    thread: Thread,
}

#[derive(Default)]
struct State {
    running: AtomicBool,
    asleep: AtomicBool,
}

impl Watch {
    /// Starts the thread.
    pub(super) fn start(socket: Arc<UnixStream>, engine: Engine) -> std::io::Result<Self> {
        let state = Arc::new(State { running: AtomicBool::new(true), asleep: AtomicBool::new(false) });
        let thread = std::thread::Builder::new().name("watch".to_owned()).stack_size(STACK).spawn({
            let state = state.clone();
            move || watch(&state, &socket, &engine)
        })?;
        Ok(Self { state, thread: thread.thread().clone() })
    }

    /// The running thread runs.
    pub(super) fn begin(&self) {
        self.state.running.store(true, Ordering::SeqCst);
        if self.state.asleep.load(Ordering::SeqCst) && self.state.asleep.swap(false, Ordering::SeqCst) {
            self.thread.unpark();
        }
    }

    /// The running thread waits.
    pub(super) fn rest(&self) {
        self.state.running.store(false, Ordering::SeqCst);
    }
}

impl State {
    /// Sleeps until something runs.
    fn sleep(&self) {
        self.asleep.store(true, Ordering::SeqCst);
        // What began meanwhile saw nobody asleep.
        if self.running.load(Ordering::SeqCst) {
            self.asleep.store(false, Ordering::SeqCst);
        }
        while self.asleep.load(Ordering::SeqCst) {
            std::thread::park();
        }
    }
}

fn watch(state: &State, socket: &UnixStream, engine: &Engine) {
    let mut ticked = Instant::now();
    let mut idle = 0;
    loop {
        // Nothing is asked for, so that only a hang-up ends it early.
        if found(socket, PollFlags::empty(), STEP).intersects(PollFlags::POLLHUP | PollFlags::POLLERR) {
            connection::leave();
        }
        if !state.running.load(Ordering::SeqCst) {
            idle += 1;
            if idle >= IDLE {
                state.sleep();
                idle = 0;
            }
            continue;
        }
        idle = 0;
        let waits = found(socket, PollFlags::POLLIN, 0).contains(PollFlags::POLLIN);
        if waits || ticked.elapsed() >= TICK {
            engine.increment_epoch();
            ticked = Instant::now();
        }
    }
}

/// What a socket shows within so many milliseconds.
fn found(socket: &UnixStream, wanted: PollFlags, millis: u8) -> PollFlags {
    let mut fds = [PollFd::new(socket.as_fd(), wanted)];
    match poll(&mut fds, PollTimeout::from(millis)) {
        Ok(0) | Err(_) => PollFlags::empty(),
        Ok(_) => fds[0].revents().unwrap_or(PollFlags::empty()),
    }
}
