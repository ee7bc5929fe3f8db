//! The installed form that is tested.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The prefix of the `mur` under test.
///
/// # Panics
/// When there is none: the message says how to make it.
pub fn dist() -> &'static Path {
    static DIST: OnceLock<PathBuf> = OnceLock::new();
    DIST.get_or_init(|| {
        let root = match std::env::var_os("MUR_DIST") {
            Some(dir) => PathBuf::from(dir),
            None => {
                let workspace =
                    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the workspace");
                let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
                workspace.join(target).join("dist/debug")
            }
        };
        assert!(root.join("bin/mur").is_file(), "no mur in {}: run 'cargo xtask dist' first", root.display());
        root.canonicalize().expect("the prefix is there")
    })
}

/// The binary under test.
pub fn mur_binary() -> PathBuf {
    dist().join("bin/mur")
}

/// The component of a bundled artifact, by its bare name.
///
/// # Panics
/// When there is no such artifact.
pub fn bundled_component(name: &str) -> Vec<u8> {
    let version = bundled_version(name);
    let archive = dist().join(format!("lib/mur/artifacts/murmur/{name}/{version}/{name}-{version}.mur.zip"));
    let file = std::fs::File::open(&archive).unwrap_or_else(|fault| panic!("{}: {fault}", archive.display()));
    let mut archive = zip::ZipArchive::new(file).expect("an archive");
    let mut component = Vec::new();
    let mut entry = archive.by_name("capsule.wasm").expect("a component");
    std::io::Read::read_to_end(&mut entry, &mut component).expect("a whole component");
    component
}

/// The version of a bundled artifact, by its bare name.
///
/// # Panics
/// When there is no such artifact, or more than one version of it.
pub fn bundled_version(name: &str) -> String {
    let folder = dist().join("lib/mur/artifacts/murmur").join(name);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|fault| panic!("{}: {fault}", folder.display()));
    let versions: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    match versions.as_slice() {
        [version] => version.clone(),
        other => panic!("murmur/{name} is bundled in {} versions", other.len()),
    }
}
