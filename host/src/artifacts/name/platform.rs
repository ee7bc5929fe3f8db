//! The machines native payloads are built for.

use std::fmt;

/// What machine a native payload is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Platform {
    /// `linux-x86_64`
    LinuxX86_64,
    /// `linux-aarch64`
    LinuxAarch64,
    /// `darwin-x86_64`
    DarwinX86_64,
    /// `darwin-aarch64`
    DarwinAarch64,
    /// Any other host.
    Unknown,
}

impl Platform {
    /// Those that have a tag.
    pub const TAGGED: [Self; 4] = [Self::LinuxX86_64, Self::LinuxAarch64, Self::DarwinX86_64, Self::DarwinAarch64];

    /// This machine.
    pub const fn host() -> Self {
        if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
            Self::LinuxX86_64
        } else if cfg!(all(target_os = "linux", target_arch = "aarch64")) {
            Self::LinuxAarch64
        } else if cfg!(all(target_os = "macos", target_arch = "x86_64")) {
            Self::DarwinX86_64
        } else if cfg!(all(target_os = "macos", target_arch = "aarch64")) {
            Self::DarwinAarch64
        } else {
            Self::Unknown
        }
    }

    /// The tag in file names, the lock and messages.
    pub const fn tag(self) -> &'static str {
        match self {
            Self::LinuxX86_64 => "linux-x86_64",
            Self::LinuxAarch64 => "linux-aarch64",
            Self::DarwinX86_64 => "darwin-x86_64",
            Self::DarwinAarch64 => "darwin-aarch64",
            Self::Unknown => "unknown",
        }
    }

    /// By tag.
    pub fn from_tag(tag: &str) -> Option<Self> {
        Self::TAGGED.into_iter().find(|platform| platform.tag() == tag)
    }

    /// The tag a file name ends with before `.mur.zip`.
    pub fn of_file_name(name: &str) -> Option<Self> {
        let stem = name.strip_suffix(".mur.zip")?;
        Self::TAGGED
            .into_iter()
            .find(|platform| stem.strip_suffix(platform.tag()).is_some_and(|rest| rest.ends_with('-')))
    }

    /// Operating system and architecture apart.
    pub fn parts(self) -> Option<(&'static str, &'static str)> {
        self.tag().split_once('-')
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.tag())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_name_tells_its_platform() {
        let of = Platform::of_file_name;
        assert_eq!(of("x-1.0.0-linux-aarch64.mur.zip"), Some(Platform::LinuxAarch64));
        assert_eq!(of("x-1.0.0.mur.zip"), None);
        assert_eq!(of("linux-x86_64.mur.zip"), None);
        assert_eq!(of("x-linux-x86_64.zip"), None);
    }
}
