//! Kernel means that the containment classes share: namespaces, cgroup scopes, the composed root, Landlock, system call
//! filters, capabilities and limits, and the enclosure and host probe made of them.
//!
//! A privileged sequence is data: an ordered table of named steps, which the process that runs it, the book and the tests
//! read alike. A step that fails says its name and error number, and the sequence stops: nothing runs half confined.

#![allow(unsafe_code)]

pub mod children;
pub mod command;
pub mod enclosure;
pub mod entry;
pub mod filter;
pub mod landlock;
#[cfg(feature = "leave-out")]
mod left_out;
pub mod namespaces;
pub mod network;
mod pass;
pub mod probe;
pub mod process;
pub mod relay;
pub mod root;
pub mod scope;
pub mod seccomp;
pub mod sequence;
mod server;
pub mod step;
pub mod syscalls;
pub mod watcher;
pub mod wrapped;

pub use children::Children;
pub use enclosure::KernelEnclosure;
pub use entry::{Entering, Entry};
pub use probe::probe;
pub use sequence::{deny_all, enter};
pub use step::{Done, Step, StepError};

use mur_plugin_api::Class;

/// Which class these means serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Namespaces, scope and filter, with no kernel claim on files.
    Advisory,
    /// That, and Landlock.
    Scoped,
    /// That, inside a composed root.
    Sealed,
}

impl Tier {
    /// The class.
    pub fn class(self) -> Class {
        match self {
            Self::Advisory => Class::Advisory,
            Self::Scoped => Class::Scoped,
            Self::Sealed => Class::Sealed,
        }
    }

    /// What it holds with, as traces show it.
    pub fn mechanism(self) -> &'static str {
        match self {
            Self::Advisory => "seccomp-only",
            Self::Scoped => "landlock+seccomp",
            Self::Sealed => "mountns+pivot_root+landlock+seccomp",
        }
    }
}
