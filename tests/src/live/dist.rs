//! Where the assembled distribution lies.

use std::path::PathBuf;

/// The distribution's directory: `MUR_DIST`, else the one beside the target directory this test was built into.
///
/// # Panics
/// When there is none: `cargo xtask dist` makes it.
pub fn dir() -> PathBuf {
    let dir = match std::env::var_os("MUR_DIST") {
        Some(dir) => PathBuf::from(dir),
        None => {
            let test = std::env::current_exe().expect("a test has a path");
            // target/<profile>/deps/<test>
            let target = test.ancestors().nth(3).expect("a test lies three levels deep");
            let profile = test.ancestors().nth(2).and_then(|dir| dir.file_name()).expect("a profile directory");
            target.join("dist").join(profile)
        }
    };
    assert!(dir.join("bin/mur").is_file(), "no mur in {}: run `cargo xtask dist`", dir.display());
    dir
}

/// The binary under test.
pub fn mur() -> PathBuf {
    dir().join("bin/mur")
}
