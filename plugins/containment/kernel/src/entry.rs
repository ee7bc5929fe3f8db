//! What a process enters: made by an enclosure as bytes and descriptors, read by `enter`.

use std::os::fd::{BorrowedFd, RawFd};

use mur_plugin_api::ProcessLimits;
use serde::{Deserialize, Serialize};

use crate::root::{RootPlan, TmpPlan};

/// The bytes of a profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Bounds of the process.
    pub limits: ProcessLimits,
    /// How many of the descriptors are of the scope; they come first.
    pub scope: usize,
    /// Whether descriptors of the user, network, ipc and process namespace follow, in this order.
    pub namespaces: bool,
    /// Whether the descriptor of a ruleset follows.
    pub landlock: bool,
    /// The root to compose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<RootPlan>,
    /// The `/tmp` to cover, where no root is composed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tmp: Option<TmpPlan>,
    /// Whether sockets of family `AF_UNIX` may be made.
    #[serde(default)]
    pub unix_sockets: bool,
}

impl Entry {
    /// Bounds alone.
    pub fn of(limits: ProcessLimits) -> Self {
        Self { limits, scope: 0, namespaces: false, landlock: false, root: None, tmp: None, unix_sockets: false }
    }

    fn descriptors(&self) -> usize {
        self.scope.saturating_add(if self.namespaces { 4 } else { 0 }).saturating_add(usize::from(self.landlock))
    }
}

/// A process on its way into its confinement.
#[derive(Debug)]
pub struct Entering<'a> {
    /// What it enters.
    pub entry: &'a Entry,
    fds: Vec<BorrowedFd<'a>>,
    /// What the root is made of, once it has been opened.
    pub(crate) parts: Vec<crate::root::Opened>,
    /// Its parent's number, where that has one.
    pub(crate) parent: libc::pid_t,
    /// Descriptors above stderr that it still needs once it is confined.
    pub(crate) kept: Vec<RawFd>,
}

impl<'a> Entering<'a> {
    /// An entry with its descriptors; `None` when there are fewer than it speaks of.
    pub fn new(entry: &'a Entry, fds: &'a [RawFd]) -> Option<Self> {
        if fds.len() != entry.descriptors() || fds.iter().any(|fd| *fd < 0) {
            return None;
        }
        // SAFETY: the caller of `enter` owns these descriptors and keeps them open until it returns.
        let fds = fds.iter().map(|fd| unsafe { BorrowedFd::borrow_raw(*fd) }).collect();
        Some(Self { entry, fds, parts: Vec::new(), parent: 0, kept: Vec::new() })
    }

    pub(crate) fn scope(&self) -> &[BorrowedFd<'a>] {
        &self.fds[..self.entry.scope]
    }

    /// One of the four namespaces: user 0, network 1, ipc 2, process 3.
    pub(crate) fn namespace(&self, which: usize) -> Option<BorrowedFd<'a>> {
        self.entry.namespaces.then(|| self.fds[self.entry.scope + which])
    }

    pub(crate) fn ruleset(&self) -> Option<BorrowedFd<'a>> {
        if self.entry.landlock { self.fds.last().copied() } else { None }
    }
}
