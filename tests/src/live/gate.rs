//! A gate in front of members: while it is held no session gets past its staging.
//!
//! Sessions wait for whoever compiles a component they need. The gate takes the compiled forms out of the cache and holds
//! the compiler's locks, as another compiling process would.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use crate::live::capsule::BUNDLED;
use crate::live::home::Home;

/// A held gate; dropping it lets everybody pass.
pub struct Gate {
    forms: Vec<(PathBuf, PathBuf)>,
    locks: Vec<Flock<File>>,
}

impl Gate {
    /// Holds up every session of this home that is not staged yet and runs on the scripted driver.
    #[track_caller]
    pub fn close(home: &Home) -> Self {
        let driver = format!("lib/mur/artifacts/murmur/driver-scripted/{BUNDLED}/driver-scripted-{BUNDLED}.mur.zip");
        home.mur(["precompile".as_ref(), crate::dist().join(driver).as_os_str()]).expect(0);
        let aside = home.scratch("forms");
        let mut gate = Self { forms: Vec::new(), locks: Vec::new() };
        for form in compiled(&home.murmur()) {
            let lock = PathBuf::from(format!("{}.lock", form.display()));
            let lock = File::options().create(true).truncate(false).read(true).write(true).open(lock).expect("a lock");
            let held = Flock::lock(lock, FlockArg::LockExclusiveNonblock).expect("nobody compiles");
            let kept = aside.join(form.file_name().expect("a name"));
            fs::rename(&form, &kept).expect("the form is taken out");
            gate.forms.push((form, kept));
            gate.locks.push(held);
        }
        assert!(!gate.forms.is_empty(), "nothing is compiled, so nothing can be waited for");
        gate
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        for (form, kept) in self.forms.drain(..) {
            let _ = fs::rename(kept, form);
        }
        self.locks.clear();
    }
}

fn compiled(below: &Path) -> Vec<PathBuf> {
    let files = crate::live::trace::files(below).into_iter().map(|(path, _)| path);
    files.filter(|path| path.extension().is_some_and(|extension| extension == "cwasm")).collect()
}
