//! Packages of Debian, downloaded into folders of ours and unpacked there: nothing is installed, and the host's own apt is
//! neither read nor changed. A folder that was unpacked once is used again without asking anybody.

// As in `sh`.
#![allow(clippy::disallowed_methods)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Outcome, sh};

/// Where Debian's archive keys lie on a Debian host; apt checks every list against them.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
const MIRROR: &str = "http://deb.debian.org/debian";
const SECURITY: &str = "http://deb.debian.org/debian-security";

/// The last thing written into an unpacked folder.
const WHOLE: &str = ".whole";

/// What the machine runs beside the built binaries. Newer than any C library the binaries may be linked with, where the
/// host is a current Debian.
const USERLAND: [&str; 25] = [
    "base-files",
    "base-passwd",
    "bash",
    "coreutils",
    "curl",
    "dash",
    "dbus",
    "dbus-user-session",
    "findutils",
    "git",
    "grep",
    "gzip",
    "hostname",
    "iproute2",
    "kmod",
    "libc-bin",
    "libpam-systemd",
    "mount",
    "perl-base",
    "procps",
    "python3",
    "sed",
    "systemd",
    "systemd-sysv",
    "util-linux",
];

/// A release of Debian.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// Debian 12.
    Bookworm,
    /// Debian 13.
    Trixie,
}

impl Release {
    fn name(self) -> &'static str {
        match self {
            Self::Bookworm => "bookworm",
            Self::Trixie => "trixie",
        }
    }
}

/// The folders.
pub struct Store {
    root: PathBuf,
    refresh: bool,
}

impl Store {
    /// Below a folder; `refresh` downloads again what is there.
    pub fn new(root: &Path, refresh: bool) -> Outcome<Self> {
        sh::folder(root)?;
        Ok(Self { root: root.to_owned(), refresh })
    }

    /// The emulator and everything it is linked with.
    pub fn emulator(&self) -> Outcome<PathBuf> {
        self.closure(Release::Trixie, "qemu", &["qemu-system-x86"])
    }

    /// The machine's userland.
    pub fn userland(&self) -> Outcome<PathBuf> {
        self.closure(Release::Trixie, "userland", &USERLAND)
    }

    /// The newest kernel of a release: its bootable file.
    pub fn kernel(&self, release: Release) -> Outcome<PathBuf> {
        let folder = self.unpacked(&format!("kernel-{}", release.name()), |debs| {
            let apt = self.apt(release)?;
            let about = sh::text_of(apt.command("apt-cache").args(["show", "linux-image-amd64"]))
                .ok_or("apt-cache knows no linux-image-amd64")?;
            // A package that is only a name for the newest one.
            let depends = about.lines().find_map(|line| line.strip_prefix("Depends: "));
            let name = depends.and_then(|names| names.split([' ', ',']).next());
            let name = name.ok_or("linux-image-amd64 names no kernel")?;
            sh::say(&format!("downloading {name} of {}", release.name()));
            sh::run(apt.command("apt-get").args(["-qq", "download", name]).current_dir(debs))
        })?;
        let boot = folder.join("boot");
        let names = fs::read_dir(&boot).map_err(|fault| format!("{}: {fault}", boot.display()))?;
        let image = names
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-")));
        image.ok_or_else(|| format!("no kernel is in {}", boot.display()))
    }

    /// Packages with all they depend on, in one tree.
    fn closure(&self, release: Release, name: &str, packages: &[&str]) -> Outcome<PathBuf> {
        self.unpacked(name, |debs| {
            let apt = self.apt(release)?;
            sh::say(&format!(
                "downloading {name}: {} packages of {} and what they need",
                packages.len(),
                release.name()
            ));
            let mut command = apt.command("apt-get");
            let archives = format!("Dir::Cache::archives={}", debs.display());
            sh::folder(&debs.join("partial"))?;
            command.args(["-qq", "-y", "--download-only", "-o", &archives, "install"]).args(packages);
            sh::run(&mut command)
        })
    }

    /// A folder of unpacked packages; `download` puts them in place where it is not there yet.
    fn unpacked(&self, name: &str, download: impl FnOnce(&Path) -> Outcome) -> Outcome<PathBuf> {
        let folder = self.root.join(name);
        if !self.refresh && folder.join(WHOLE).exists() {
            return Ok(folder);
        }
        let say = |fault: std::io::Error| format!("{}: {fault}", folder.display());
        if folder.exists() {
            fs::remove_dir_all(&folder).map_err(say)?;
        }
        let debs = self.root.join("downloads").join(name);
        if debs.exists() {
            fs::remove_dir_all(&debs).map_err(say)?;
        }
        sh::folder(&debs)?;
        download(&debs)?;
        sh::folder(&folder)?;
        for entry in fs::read_dir(&debs).map_err(say)?.flatten() {
            let deb = entry.path();
            if deb.extension().is_some_and(|ending| ending == "deb") {
                sh::run(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(&folder))?;
            }
        }
        fs::remove_dir_all(&debs).map_err(say)?;
        fs::write(folder.join(WHOLE), "").map_err(say)?;
        Ok(folder)
    }

    /// An apt whose every folder is ours, with fresh lists.
    fn apt(&self, release: Release) -> Outcome<Apt> {
        for tool in ["apt-get", "apt-cache", "dpkg-deb"] {
            sh::which(tool).ok_or_else(|| format!("{tool} is not installed: this needs a host of Debian's family"))?;
        }
        if !Path::new(KEYRING).exists() {
            return Err(format!("{KEYRING} is missing: install debian-archive-keyring"));
        }
        let name = release.name();
        let root = self.root.join("apt").join(name);
        for folder in ["lists/partial", "cache/archives/partial"] {
            sh::folder(&root.join(folder))?;
        }
        let sources = format!(
            "deb [signed-by={KEYRING}] {MIRROR} {name} main\n\
             deb [signed-by={KEYRING}] {SECURITY} {name}-security main\n"
        );
        sh::write(&root.join("sources.list"), sources.as_bytes(), 0o644)?;
        // Nothing counts as installed, so what is asked for comes with all it needs.
        sh::write(&root.join("status"), b"", 0o644)?;
        let apt = Apt { root };
        sh::run(apt.command("apt-get").args(["-qq", "update"]))?;
        Ok(apt)
    }
}

struct Apt {
    root: PathBuf,
}

impl Apt {
    fn command(&self, program: &str) -> Command {
        let at = |name: &str| self.root.join(name).display().to_string();
        let mut command = Command::new(program);
        for option in [
            format!("Dir::Etc::sourcelist={}", at("sources.list")),
            "Dir::Etc::sourceparts=/nonexistent".to_owned(),
            format!("Dir::State={}", at("")),
            format!("Dir::State::lists={}", at("lists")),
            format!("Dir::State::status={}", at("status")),
            format!("Dir::Cache={}", at("cache")),
            "APT::Architecture=amd64".to_owned(),
            "APT::Architectures=amd64".to_owned(),
            "APT::Install-Recommends=false".to_owned(),
            "APT::Sandbox::User=".to_owned(),
            "Acquire::Languages=none".to_owned(),
            "Acquire::Retries=3".to_owned(),
        ] {
            command.args(["-o", &option]);
        }
        command
    }
}
