//! The environment of a command: shell commands, plan shell steps and native tools. Nothing is inherited; every name is
//! put there here, and what steers the session's folders has the last word.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::stripped_by;
use crate::session::order::NEVER_FROM_HOST;

/// What every command has of the host's, when it is set there.
const BASELINE: [&str; 9] = ["PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "CARGO_HOME", "RUSTUP_HOME", "TERM"];

/// The folders a command is told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folders {
    /// The session's home folder. A command without one is not run.
    pub home: PathBuf,
    /// The session's runtime folder.
    pub runtime: PathBuf,
    /// The session's records folder.
    pub records: PathBuf,
    /// Its folder for temporary files, as the command sees it: `/tmp` where that is mapped.
    pub tmp: PathBuf,
}

/// The lists of `capabilities.shell` that shape an environment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lists<'a> {
    /// `baseline_env`: further names of the host's.
    pub baseline: &'a [String],
    /// `strip_env`: patterns taken away beside those of credentials.
    pub strip: &'a [String],
}

/// The environment of one command, no name in it twice: the host's baseline; then what the call and the runtime set;
/// then further names of the host's; less what carries credentials; and last the session's own folders, which nothing
/// earlier can set. `host` looks a variable up.
pub fn command(
    host: impl Fn(&str) -> Option<OsString>,
    overrides: &[(OsString, OsString)],
    lists: Lists<'_>,
    folders: &Folders,
) -> Vec<(OsString, OsString)> {
    let mut all: Vec<(OsString, OsString)> = Vec::new();
    for name in BASELINE {
        set(&mut all, name, host(name));
    }
    for (name, value) in overrides {
        set(&mut all, name, Some(value.clone()));
    }
    for name in lists.baseline.iter().filter(|name| !NEVER_FROM_HOST.contains(&name.as_str())) {
        set(&mut all, name, host(name));
    }
    all.retain(|(name, _)| stripped_by(&name.to_string_lossy(), lists.strip).is_none());
    for (name, folder) in last_word(folders) {
        set(&mut all, name, Some(folder.as_os_str().to_owned()));
    }
    all
}

fn last_word(folders: &Folders) -> [(&'static str, &Path); 7] {
    [
        ("HOME", &folders.home),
        ("USERPROFILE", &folders.home),
        ("MURMUR_RUNTIME_DIR", &folders.runtime),
        ("MURMUR_RECORDS_DIR", &folders.records),
        ("TMPDIR", &folders.tmp),
        ("TMP", &folders.tmp),
        ("TEMP", &folders.tmp),
    ]
}

/// Sets a variable; what no environment can hold is left out.
fn set(all: &mut Vec<(OsString, OsString)>, name: impl AsRef<OsStr>, value: Option<OsString>) {
    let name = name.as_ref();
    let has = |text: &OsStr, byte: u8| text.as_encoded_bytes().contains(&byte);
    let Some(value) = value.filter(|value| !has(value, 0)) else { return };
    if name.is_empty() || has(name, b'=') || has(name, 0) {
        return;
    }
    match all.iter_mut().find(|(known, _)| known == name) {
        Some((_, known)) => *known = value,
        None => all.push((name.to_owned(), value)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn folders() -> Folders {
        Folders {
            home: "/s/home".into(),
            runtime: "/s/runtime".into(),
            records: "/s/records".into(),
            tmp: "/tmp".into(),
        }
    }

    /// Every variable is set on this host, to its own name in lower case.
    fn everything(name: &str) -> Option<OsString> {
        Some(name.to_lowercase().into())
    }

    fn built(
        host: impl Fn(&str) -> Option<OsString>,
        overrides: &[(&str, &str)],
        baseline: &[&str],
        strip: &[&str],
    ) -> BTreeMap<String, String> {
        let owned = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let (baseline, strip) = (owned(baseline), owned(strip));
        let overrides: Vec<_> = overrides.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let all = command(host, &overrides, Lists { baseline: &baseline, strip: &strip }, &folders());
        let count = all.len();
        let map: BTreeMap<String, String> = all
            .into_iter()
            .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
            .collect();
        assert_eq!(map.len(), count, "a name stands there twice");
        map
    }

    #[test]
    fn a_command_has_the_baseline_and_the_sessions_folders_and_nothing_else() {
        let found = built(everything, &[], &[], &[]);
        let expected = [
            ("CARGO_HOME", "cargo_home"),
            ("HOME", "/s/home"),
            ("LANG", "lang"),
            ("LC_ALL", "lc_all"),
            ("LOGNAME", "logname"),
            ("MURMUR_RECORDS_DIR", "/s/records"),
            ("MURMUR_RUNTIME_DIR", "/s/runtime"),
            ("PATH", "path"),
            ("RUSTUP_HOME", "rustup_home"),
            ("TEMP", "/tmp"),
            ("TERM", "term"),
            ("TMP", "/tmp"),
            ("TMPDIR", "/tmp"),
            ("USER", "user"),
            ("USERPROFILE", "/s/home"),
        ];
        assert_eq!(found, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
        // What the host does not have is absent, not empty.
        let bare = built(|_| None, &[], &["EDITOR"], &[]);
        assert_eq!(bare.len(), 7, "{bare:?}");
    }

    #[test]
    fn a_later_source_wins_and_the_sessions_folders_over_all() {
        let overrides = [
            ("LANG", "C"),
            ("OWN", "1"),
            ("EDITOR", "of the call"),
            ("HOME", "/elsewhere"),
            ("TMPDIR", "/elsewhere"),
            ("MURMUR_RECORDS_DIR", "/elsewhere"),
        ];
        let found = built(everything, &overrides, &["EDITOR", "HOME", "TMP", "USERPROFILE"], &[]);
        for (name, value) in [
            ("LANG", "C"),
            ("OWN", "1"),
            ("EDITOR", "editor"),
            ("HOME", "/s/home"),
            ("TMPDIR", "/tmp"),
            ("TMP", "/tmp"),
            ("USERPROFILE", "/s/home"),
            ("MURMUR_RECORDS_DIR", "/s/records"),
        ] {
            assert_eq!(found[name], value, "{name}");
        }
    }

    #[test]
    fn no_list_and_no_call_brings_a_credential() {
        let credentials = [
            "ANTHROPIC_API_KEY",
            "OPENAI_API_KEY",
            "GOOGLE_API_KEY",
            "HUGGING_FACE_HUB_TOKEN",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_PROFILE",
            "GITHUB_TOKEN",
            "GH_TOKEN",
            "DOCKER_AUTH_CONFIG",
            "KUBECONFIG",
            "NPM_TOKEN",
            "PYPI_TOKEN",
            "CARGO_REGISTRY_TOKEN",
            "MY_OWN_API_KEY",
        ];
        let overrides: Vec<(&str, &str)> = credentials.iter().map(|name| (*name, "x")).collect();
        for found in [built(everything, &overrides, &[], &[]), built(everything, &[], &credentials, &[])] {
            assert!(credentials.iter().all(|name| !found.contains_key(*name)), "{found:?}");
        }
        let near = ["AWSX", "XGITHUB_TOKEN", "API_KEYS", "DOCKER", "gh_token"];
        let found = built(everything, &[], &near, &[]);
        assert!(near.iter().all(|name| found.contains_key(*name)), "{found:?}");
    }

    #[test]
    fn strip_env_takes_names_away_by_every_form_of_a_pattern_but_not_the_sessions_folders() {
        let names = ["EXACT", "EXACTLY", "START_X", "X_END", "AMIDST"];
        let found =
            built(everything, &[("LANG", "C")], &names, &["EXACT", "START_*", "*_END", "*MID*", "LANG", "HOME"]);
        let kept: Vec<&str> = names.into_iter().filter(|name| found.contains_key(*name)).collect();
        assert_eq!(kept, ["EXACTLY"]);
        assert!(!found.contains_key("LANG"));
        assert_eq!(found["HOME"], "/s/home");
        let everything_stripped = built(everything, &[("OWN", "1")], &names, &["*"]);
        assert_eq!(everything_stripped.len(), 7);
    }

    #[test]
    fn what_belongs_to_a_formation_or_a_spawner_is_never_taken_from_the_host() {
        let found = built(everything, &[], &NEVER_FROM_HOST, &[]);
        assert!(NEVER_FROM_HOST.iter().all(|name| !found.contains_key(*name)), "{found:?}");
    }

    #[test]
    fn what_no_environment_can_hold_is_left_out_and_bytes_are_kept() {
        let odd = OsString::from_vec(vec![b'a', 0xff]);
        let overrides: Vec<(OsString, OsString)> = [("", "x"), ("A=B", "x"), ("N\0", "x"), ("V", "x\0")]
            .map(|(name, value)| (name.into(), value.into()))
            .into_iter()
            .chain([("RAW".into(), odd.clone())])
            .collect();
        let all = command(|_| None, &overrides, Lists::default(), &folders());
        assert_eq!(all.len(), 8, "{all:?}");
        assert!(all.contains(&("RAW".into(), odd)));
    }
}
