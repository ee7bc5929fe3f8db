use std::fs;
use std::os::unix::fs::PermissionsExt;

use proptest::prelude::*;

use super::set::{Target, edit, set};
use super::*;
use crate::diagnostics::codes;

struct Place {
    dir: tempfile::TempDir,
    home: MurmurHome,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let home = MurmurHome::at(dir.path().join("home"));
        fs::create_dir_all(home.root()).unwrap();
        fs::create_dir_all(dir.path().join("project/.murmur")).unwrap();
        Self { dir, home }
    }

    fn project(&self) -> PathBuf {
        self.dir.path().join("project")
    }

    fn load(&self, global: &str, project: &str) -> Result<Config> {
        fs::write(self.home.config(), global).unwrap();
        fs::write(self.project().join(PROJECT_FILE), project).unwrap();
        Config::load(&self.home, &self.project())
    }
}

#[test]
fn the_two_files_merge_key_by_key() {
    let place = Place::new();
    let config = place
        .load(
            "credentials: {A_KEY: one, EMPTY: '', N: 12}\ncontainment: scoped\nspend: {machine_tokens_per_day: 10}\n\
             inference: {provider: openai, model: g}\nunknown: 1\nstores: [mine, {plugin: other, config: {a: 1}}]\n\
             plugins: {containment: {advisory: my-advisory}}\n",
            "containment: advisory\nspend: {machine_tokens_per_day: 7}\ninference: {model: p, endpoint: ''}\n",
        )
        .unwrap();
    assert_eq!(config.credentials["A_KEY"].expose(), "one");
    assert_eq!(config.credentials["N"].expose(), "12");
    assert!(!config.credentials.contains_key("EMPTY"));
    assert_eq!(format!("{:?}", config.credentials["A_KEY"]), "***");
    assert_eq!(config.containment, Some(Class::Scoped));
    assert_eq!(config.machine_tokens_per_day, Some(7));
    assert_eq!(config.inference.model.as_deref(), Some("g"), "a project's is not read");
    assert!(
        config
            .unknown
            .iter()
            .any(|line| line.contains("project/.murmur/config.yaml: inference.model is not read here"))
    );
    assert_eq!(config.inference.provider.as_deref(), Some("openai"));
    assert_eq!(config.stores[1].config.to_string(), r#"{"a":1}"#);
    assert_eq!(config.plugins.containment[&Class::Advisory], "my-advisory");
    assert!(config.warnings.is_empty());
}

#[test]
fn what_a_project_may_not_set_is_ignored_with_a_warning_that_shows_no_value() {
    let place = Place::new();
    let config = place
        .load(
            "",
            "credentials: {A_KEY: secret}\nhost_paths: [/]\nstores: [x]\nsinks: [x]\nplugins: {containment: {sealed: x}}\n\
             containment: unconfined\ninference: {api_key: secret}\n",
        )
        .unwrap();
    assert!(config.credentials.is_empty() && config.host_paths.is_empty() && config.stores.is_empty());
    assert!(config.plugins.containment.is_empty() && config.containment.is_none());
    assert_eq!(config.warnings.len(), 7);
    assert!(
        config.warnings.iter().all(|line| line.contains("project/.murmur/config.yaml") && !line.contains("secret"))
    );
    let quiet = place.load("containment: unconfined\n", "credentials: {}\nhost_paths: []\n").unwrap();
    assert_eq!(quiet.containment, Some(Class::Unconfined));
    assert!(quiet.warnings.is_empty());
}

#[test]
fn a_bad_file_is_refused_by_name_without_showing_its_text() {
    let place = Place::new();
    for (text, words) in [
        ("credentials: [topsecret\n", "YAML syntax error"),
        ("credentials: {lower: topsecret}\n", "'lower'"),
        ("credentials: {A: [topsecret]}\n", "credentials.A must be text"),
        ("containment: strong\n", "must be one of"),
        ("spend: {machine_tokens_per_day: 0}\n", "above 0"),
        ("host_paths: [relative]\n", "absolute"),
        ("host_paths: [/proc/none/x]\n", "cannot be used"),
        ("host_paths: [/]\n", "overlaps"),
        ("- a\n", "must be a mapping"),
        ("stores: [{config: {}}]\n", "stores[0]"),
    ] {
        let error = place.load(text, "").unwrap_err();
        assert_eq!(error.code(), codes::E_IO_003, "{text}");
        let printed = error.to_string();
        assert!(printed.contains("config.yaml") && printed.contains(words), "{printed}");
        assert!(!printed.contains("topsecret"), "{printed}");
        assert!(error.hint_text().is_some(), "{printed}");
    }
}

#[test]
fn host_paths_are_absolute_exist_and_may_be_writable() {
    let place = Place::new();
    let data = place.dir.path().join("data");
    fs::create_dir(&data).unwrap();
    let shown = data.display();
    let config = place.load(&format!("host_paths: [{shown}, {{path: {shown}, write: true}}]\n"), "").unwrap();
    let writes: Vec<bool> = config.host_paths.iter().map(|path| path.write).collect();
    assert_eq!(writes, [false, true]);
    let inside = place.home.artifacts();
    fs::create_dir_all(&inside).unwrap();
    assert!(place.load(&format!("host_paths: [{}]\n", inside.display()), "").is_err());
}

#[test]
fn credentials_that_others_may_read_are_warned_about() {
    let place = Place::new();
    fs::write(place.home.config(), "credentials: {A: b}\n").unwrap();
    for (mode, warned) in [(0o600, false), (0o640, true), (0o601, true)] {
        fs::set_permissions(place.home.config(), fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(Config::load_global(&place.home).unwrap().readable_by_others.is_some(), warned, "{mode:o}");
    }
}

#[test]
fn setting_a_value_keeps_everything_else() {
    let text = "# mine\ninference:\n  # why\n  model: old # trailing\n  other: 1.20\nunknown: {x: [1, 2]}\n";
    let path = ["inference", "model"];
    assert_eq!(
        edit(text, &path, "a \"b\"\n").unwrap(),
        "# mine\ninference:\n  # why\n  model: \"a \\\"b\\\"\\n\"\n  other: 1.20\nunknown: {x: [1, 2]}\n"
    );
    assert_eq!(edit("", &path, "m").unwrap(), "inference:\n  model: \"m\"\n");
    assert_eq!(edit("inference:\n", &path, "m").unwrap(), "inference:\n  model: \"m\"\n");
    assert_eq!(edit("inference:\n  b: 1\n", &path, "m").unwrap(), "inference:\n  model: \"m\"\n  b: 1\n");
    assert_eq!(edit("inference: {b: 1.20}\n", &path, "m").unwrap(), "inference:\n  b: 1.20\n  model: \"m\"\n");
    assert_eq!(
        edit("inference:\n  model: |\n    two\n    lines\n  b: x\n", &path, "m").unwrap(),
        "inference:\n  model: \"m\"\n  b: x\n"
    );
    assert!(edit("inference: [1]\n", &path, "m").is_err());
    assert!(edit("a: [", &path, "m").is_err());
}

#[test]
fn a_credential_goes_into_the_owners_file_only() {
    let place = Place::new();
    fs::set_permissions(place.home.root(), fs::Permissions::from_mode(0o755)).unwrap();
    set(Target::Global(&place.home), "credentials.A_KEY", "k").unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(place.home.root()), mode(&place.home.config())), (0o700, 0o600));
    assert_eq!(credential_now(&place.home, "A_KEY").unwrap().expose(), "k");
    for (target, key) in [
        (Target::Project(&place.project()), "credentials.A_KEY"),
        (Target::Project(&place.project()), "inference.api_key"),
        (Target::Global(&place.home), "credentials.lower"),
        (Target::Global(&place.home), "host_paths"),
        (Target::Global(&place.home), "inference"),
    ] {
        assert_eq!(set(target, key, "v").unwrap_err().code(), codes::E_CFG_002, "{key}");
    }
    assert!(!place.project().join(PROJECT_FILE).exists(), "a refused key is written nowhere");
    fs::write(place.home.config(), "a: [").unwrap();
    assert_eq!(set(Target::Global(&place.home), "inference.model", "m").unwrap_err().code(), codes::E_IO_003);
    assert_eq!(fs::read_to_string(place.home.config()).unwrap(), "a: [", "nothing is written over what cannot be read");
}

proptest! {
    #[test]
    fn an_edit_reads_back_as_the_value_and_changes_nothing_else(
        before in "(#[a-z ]{0,9}\n)?(inference:( \\{\\}| ~|\n  [a-n]{1,4}: ['\"]?[a-z0-9 .]{0,8}['\"]?( #x)?)?\n)?(other: [a-z0-9.]{0,6}\n)?",
        value in any::<String>(),
    ) {
        let path = ["inference", "model"];
        if let Ok(text) = edit(&before, &path, &value) {
            let doc = crate::yaml::parse("f", text.as_bytes(), MAX_BYTES).unwrap();
            prop_assert_eq!(doc.root().get("inference").unwrap().get("model").unwrap().string(), Some(value.as_str()));
            let old = crate::yaml::parse("f", before.as_bytes(), MAX_BYTES).unwrap();
            prop_assert_eq!(
                old.root().get("other").map(|node| node.to_json()),
                doc.root().get("other").map(|node| node.to_json())
            );
        }
    }

    #[test]
    fn any_text_is_a_configuration_or_a_fault(text in "((credentials|containment|stores|host_paths|inference|spend|plugins):[ \n]{1,2}[-a-zA-Z0-9{}\\[\\]:, /]{0,20}\n){0,4}") {
        fuzz(text.as_bytes());
    }
}
