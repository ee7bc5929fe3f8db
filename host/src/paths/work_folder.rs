//! Folders that no session may work in: what it did there would reach the host's programs, the kernel's switches, or what
//! `mur` itself keeps.

use std::path::Path;

use nix::sys::statfs::statfs;

use super::MurmurHome;
use crate::diagnostics::{Diagnostic, Result, codes};

/// Folders of the host that are refused themselves; a project may lie below.
const TREES: [&str; 12] =
    ["/", "/dev", "/etc", "/home", "/proc", "/run", "/sys", "/usr", "/usr/local", "/usr/share", "/var", "/var/lib"];

/// Folders of programs, what they are loaded with, and the kernel's switches: refused with everything below.
const SYSTEM: [&str; 18] = [
    "/bin",
    "/boot",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/sbin",
    "/usr/bin",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/libexec",
    "/usr/libx32",
    "/usr/sbin",
    "/usr/local/bin",
    "/usr/local/sbin",
    "/proc",
    "/sys",
];

/// File systems of the kernel's own, whose files are switches and processes. By the numbers of `statfs`.
const OF_THE_KERNEL: [(u32, &str); 18] = [
    (0x9fa0, "proc"),
    (0x6265_6572, "sysfs"),
    (0x0027_e0eb, "cgroup"),
    (0x6367_7270, "cgroup2"),
    (0x1cd1, "devpts"),
    (0x6462_6720, "debugfs"),
    (0x7472_6163, "tracefs"),
    (0x7363_6673, "securityfs"),
    (0xf97c_ff8c, "selinuxfs"),
    (0xcafe_4a11, "bpf"),
    (0x6165_676c, "pstore"),
    (0x1980_0202, "mqueue"),
    (0x6265_6570, "configfs"),
    (0xde5e_81e4, "efivarfs"),
    (0x6e73_6673, "nsfs"),
    (0x4249_4e4d, "binfmt_misc"),
    (0x6573_5543, "fusectl"),
    (0x0765_5821, "resctrl"),
];

/// Refuses a folder, links resolved, that is no place to work in. `named` is how the user named it, with the flag if there
/// was one.
///
/// # Errors
/// `E-IO-003`.
pub fn check(home: &MurmurHome, folder: &Path, named: &str) -> Result<()> {
    match unfit(home, folder) {
        None => Ok(()),
        Some(why) => Err(Diagnostic::new(codes::E_IO_003, format!("{named} cannot be a work folder: {why}"))
            .hint("use a folder of your own, such as the project's or a new one; nothing was written")),
    }
}

fn unfit(home: &MurmurHome, folder: &Path) -> Option<String> {
    if let Some(kind) = of_the_kernel(folder) {
        return Some(format!("it is on a file system of the kernel's ({kind})"));
    }
    if TREES.iter().any(|tree| folder == Path::new(tree)) {
        return Some("it is a folder of the host's own system".to_owned());
    }
    // `/dev` is memory like any other; of what lies in it only `shm` is for everybody's files.
    let device = folder.starts_with("/dev") && !folder.starts_with("/dev/shm") || folder == Path::new("/dev/shm");
    if device || SYSTEM.iter().any(|tree| folder.starts_with(tree)) {
        return Some("the host's own programs, libraries, devices or switches lie in it".to_owned());
    }
    let own = super::resolve_through_existing(home.root());
    let below = folder.strip_prefix(&own).ok()?;
    // Peers of a formation work below its directory.
    let of_a_formation = below.starts_with("formations") && below.components().count() > 2;
    (!of_a_formation).then(|| format!("mur keeps its own files in {}", own.display()))
}

/// By the nearest folder that is there.
fn of_the_kernel(folder: &Path) -> Option<&'static str> {
    let there = folder.ancestors().find(|path| path.exists())?;
    let found = statfs(there).ok()?.filesystem_type().0;
    OF_THE_KERNEL.iter().find(|(number, _)| i64::from(*number) == i64::from(found as u32)).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_the_host_the_kernel_and_mur_are_refused_and_others_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let home = MurmurHome::at(dir.path().canonicalize().unwrap());
        home.prepare().unwrap();
        let own = |below: &str| home.root().join(below);
        let refused = [
            "/",
            "/usr",
            "/usr/bin",
            "/usr/lib/x",
            "/etc",
            "/proc",
            "/proc/self",
            "/proc/self/fd",
            "/sys",
            "/sys/fs/cgroup",
            "/dev",
            "/dev/pts",
            "/dev/shm",
            "/dev/new",
            "/var",
            "/proc/none/workdir",
        ];
        for path in refused.iter().map(Path::new).map(Path::to_owned).chain([
            home.root().to_owned(),
            own("records"),
            own("sessions/x"),
            own("formations"),
            own("formations/frm_1"),
        ]) {
            let fault = check(&home, &path, "x").expect_err(&path.display().to_string());
            assert_eq!(fault.code(), codes::E_IO_003);
        }
        for path in ["/tmp", "/usr/src/app", "/opt", "/srv", "/mnt", "/etc/nginx", "/root/x", "/dev/shm/x", "/binx"] {
            assert!(check(&home, Path::new(path), "x").is_ok(), "{path}");
        }
        assert!(check(&home, &own("formations/frm_1/peer"), "x").is_ok());
        assert!(check(&home, home.home(), "x").is_ok(), "a home folder is warned of, by its class");
    }
}
