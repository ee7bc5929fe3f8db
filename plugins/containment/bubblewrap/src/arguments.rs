//! The arguments that make `bwrap` compose the root of `sealed`: the same rows as the class composes itself.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use mur_containment_kernel::root::{ETC, MASKED, READ_ONLY, RootPlan, SYSTEM};

/// What bubblewrap covers of `/proc` by itself.
const OWN_READ_ONLY: [&str; 4] = ["sys", "sysrq-trigger", "irq", "bus"];

#[derive(Default)]
struct Arguments(Vec<Vec<u8>>);

impl Arguments {
    fn add(&mut self, words: &[&dyn AsRef<OsStr>]) {
        self.0.extend(words.iter().map(|word| word.as_ref().as_bytes().to_vec()));
    }
}

/// The program and its arguments, up to what it is to execute; `accounts` are descriptors of the text of `/etc/passwd` and
/// `/etc/group`.
pub(crate) fn of(program: &Path, plan: &RootPlan, accounts: [i32; 2]) -> Vec<Vec<u8>> {
    let mut made = Arguments::default();
    // The first process inside is the session's own: it waits for whatever is left there.
    made.add(&[&program, &"--die-with-parent", &"--unshare-pid", &"--as-pid-1"]);
    system(&mut made);
    for (number, name) in accounts.iter().zip(["/etc/passwd", "/etc/group"]) {
        made.add(&[&"--perms", &"0644", &"--file", &number.to_string(), &name]);
    }
    made.add(&[&"--dev", &"/dev", &"--proc", &"/proc"]);
    for name in READ_ONLY.iter().filter(|name| !OWN_READ_ONLY.contains(name)) {
        let path = Path::new("/proc").join(name);
        if path.exists() {
            made.add(&[&"--ro-bind", &path, &path]);
        }
    }
    for path in MASKED.iter().map(|name| Path::new("/proc").join(name)).filter(|path| path.exists()) {
        made.add(&[&"--dev-bind", &"/dev/null", &path]);
    }
    for bind in &plan.binds {
        made.add(&[&if bind.write { "--bind" } else { "--ro-bind" }, &bind.source, &bind.target]);
    }
    made.add(&[&"--remount-ro", &"/dev", &"--remount-ro", &"/", &"--chdir", &"/", &"--"]);
    made.0
}

/// System folders and what of `/etc` says nothing about accounts, read only.
fn system(made: &mut Arguments) {
    for path in SYSTEM.iter().map(PathBuf::from) {
        match fs::read_link(&path) {
            // A link of the host's is a link here too.
            Ok(to) => made.add(&[&"--symlink", &to, &path]),
            Err(_) if path.exists() => made.add(&[&"--ro-bind", &path, &path]),
            Err(_) => {}
        }
    }
    for path in ETC.iter().map(|name| Path::new("/etc").join(name)).filter(|path| path.exists()) {
        made.add(&[&"--ro-bind", &path, &path]);
    }
}
