//! A session's records directory: made owner-only at staging, kept after the session.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use crate::diagnostics::{Diagnostic, Result, codes, output};
use crate::ids::SessionId;
use crate::paths::{MurmurHome, make_new_private};

/// Folders every session has from the start.
const PARTS: [&str; 2] = ["out", "logs"];

/// Makes `~/.murmur/records/<work root>/<ses_id>` with its parts and sends refused output lines to its log.
pub fn make(home: &MurmurHome, work_root: &Path, session: &SessionId) -> Result<PathBuf> {
    let group = home.records_group(work_root);
    let made = (|| {
        make_beneath(&home.records(), &group)?;
        let dir = group.join(session.as_str());
        make_new_private(&dir).at(&dir)?;
        for part in PARTS.map(|part| dir.join(part)) {
            make_new_private(&part).at(&part)?;
        }
        Ok(dir)
    })();
    let dir = made.map_err(|(path, error): (PathBuf, io::Error)| refused(&path, &error))?;
    if let Err(error) = output::set_fallback(&dir.join("logs/bootstrap.log")) {
        output::stderr_line(&format!("[capsule-runtime] logs/bootstrap.log cannot be opened: {error}"));
    }
    Ok(dir)
}

fn refused(path: &Path, error: &io::Error) -> Diagnostic {
    Diagnostic::new(codes::E_RUN_050, format!("the records directory {} cannot be made: {error}", path.display()))
        .hint("every part of it below ~/.murmur/records has to be a plain directory that you own")
}

/// Makes every missing directory between `base` and `dir` at mode 0700. A link or another kind of file on the way is
/// refused: what lies behind it is not ours.
fn make_beneath(base: &Path, dir: &Path) -> std::result::Result<(), (PathBuf, io::Error)> {
    let rest = dir.strip_prefix(base).unwrap_or(dir);
    let mut at = base.to_owned();
    for part in rest.components() {
        let Component::Normal(name) = part else { continue };
        at.push(name);
        match make_new_private(&at) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match fs::symlink_metadata(&at) {
                Ok(meta) if meta.is_dir() => {}
                Ok(_) => {
                    let error = io::Error::new(io::ErrorKind::NotADirectory, "a link or a file stands there");
                    return Err((at, error));
                }
                Err(error) => return Err((at, error)),
            },
            Err(error) => return Err((at, error)),
        }
    }
    Ok(())
}

trait At<T> {
    fn at(self, path: &Path) -> std::result::Result<T, (PathBuf, io::Error)>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, path: &Path) -> std::result::Result<T, (PathBuf, io::Error)> {
        self.map_err(|error| (path.to_owned(), error))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn every_part_is_owner_only_and_mirrors_the_work_root() {
        let dir = tempfile::tempdir().unwrap();
        let home = MurmurHome::at(fs::canonicalize(dir.path()).unwrap());
        home.prepare().unwrap();
        let root = home.home().join("prøject/deep");
        let session = SessionId::mint();
        let made = make(&home, &root, &session).unwrap();
        assert_eq!(made, home.records().join(root.strip_prefix("/").unwrap()).join(session.as_str()));
        for path in made.ancestors().take_while(|path| *path != home.root()) {
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o700, "{}", path.display());
        }
        assert!(made.join("out").is_dir() && made.join("logs").is_dir());
    }

    #[test]
    fn a_link_on_the_way_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let home = MurmurHome::at(fs::canonicalize(dir.path()).unwrap());
        home.prepare().unwrap();
        std::os::unix::fs::symlink("/tmp", home.records().join("w")).unwrap();
        let fault = make(&home, Path::new("/w/x"), &SessionId::mint()).unwrap_err();
        assert_eq!(fault.code(), codes::E_RUN_050);
    }
}
