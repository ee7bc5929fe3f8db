//! Processes as `mur` handles them: started by one function, named by pidfds, tied to their parent by pipes.

pub mod fds;
pub mod lifeline;
pub mod limits;
pub mod pidfd;
pub mod spawn;
pub mod start;
pub mod wiping;

pub use lifeline::{Lifeline, LifelineHolder};
pub use pidfd::{Exit, Pidfd, process_start};
pub use spawn::{Child, Spawn, Stream};
