//! The `/dev` of a composed root: a few harmless devices, terminals of its own, and no shared memory.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::mount::{self, Tree};
use crate::step::{Done, StepError};

const NODES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

const LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];

pub(super) fn make(base: &Path) -> Result<Done, StepError> {
    let dev = base.join("dev");
    fs::create_dir(&dev)?;
    mount::tmpfs(&dev, libc::MS_NOSUID, "mode=0755,size=1m")?;
    for name in NODES {
        // A device the host does not have, or does not let us have, is left out.
        let Ok(tree) = Tree::device(&Path::new("/dev").join(name)) else { continue };
        let node = dev.join(name);
        fs::File::create_new(&node)?;
        if tree.attach(&node).is_err() {
            fs::remove_file(&node)?;
        }
    }
    let pts = dev.join("pts");
    fs::create_dir(&pts)?;
    let options = "newinstance,ptmxmode=0666,mode=0620";
    let _ = mount::file_system(c"devpts", &pts, libc::MS_NOSUID | libc::MS_NOEXEC, options);
    for (name, target) in LINKS {
        symlink(target, dev.join(name))?;
    }
    mount::read_only_devices(&dev)?;
    Ok(Done::Enforced)
}
