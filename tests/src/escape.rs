//! The escape-conformance harness: it puts a probe where code that has escaped would be, lets it try to get out, and
//! records what the kernel answered.
//!
//! It refuses rather than skips: there is no disabled case, and a host on which nothing can be measured is told so before
//! the first case. See the book's page "Measuring the classes".

pub mod cases;
pub mod grade;
pub mod host;
pub mod launch;
pub mod listeners;
pub mod look;
pub mod member;
pub mod options;
pub mod program;
pub mod record;
pub mod routes;
pub mod stage;

pub use cases::{Case, Category, Class, Expect, Verdict};
pub use grade::{Graded, Result};
pub use options::Options;
pub use program::{Summary, run};
