use super::*;

struct Place {
    dir: tempfile::TempDir,
    home: MurmurHome,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for driver in ["driver-scripted/0.1.0-mur", "driver-anthropic/0.1.0-mur", "driver-anthropic/0.2.0-mur"] {
            fs::create_dir_all(dir.path().join("bundled/murmur").join(driver)).unwrap();
        }
        let home = MurmurHome::at(dir.path().join("home"));
        Self { dir, home }
    }

    fn plan(&self, request: &Request, config: &InferenceDefaults) -> Result<Scaffold> {
        Scaffold::plan(request, config, self.dir.path(), &self.home, Some(&self.dir.path().join("bundled")))
    }

    fn named(&self, name: &str) -> Result<Scaffold> {
        self.plan(&Request { name: name.to_owned(), ..Request::default() }, &InferenceDefaults::default())
    }
}

#[test]
fn a_scaffold_without_configuration_needs_neither_key_nor_network() {
    let place = Place::new();
    let scaffold = place.named("team").unwrap();
    assert_eq!((scaffold.provider, &scaffold.origin), (Provider::Scripted, &Origin::Bundled));
    let files = scaffold.files().unwrap();
    let (capsule, warnings) = read_capsule(files[1].1.as_bytes(), "murmur.yaml").unwrap();
    assert_eq!((capsule.name.as_str(), capsule.version.as_str()), ("team-lead", "0.1.0"));
    assert!(warnings.is_empty());
    assert!(crate::manifest::covers_loopback_http(&capsule.capabilities.network_rules().unwrap()));
    assert!(capsule.network.authentication.is_some() && !capsule.exports.peer_tasks);
    let (worker, _) = read_capsule(files[2].1.as_bytes(), "murmur.yaml").unwrap();
    assert!(worker.exports.peer_tasks);
    assert_eq!(worker.artifacts[0].reference(), "murmur/driver-scripted@0.1.0-mur");
}

#[test]
fn a_provider_comes_from_the_flag_then_the_configuration() {
    let place = Place::new();
    let config = InferenceDefaults {
        provider: Some("anthropic".into()),
        model: Some("a \"model\"".into()),
        endpoint: Some("https://proxy.test/x".into()),
    };
    let request =
        |provider: Option<&str>| Request { name: "t".into(), index: None, provider: provider.map(str::to_owned) };
    let configured = place.plan(&request(None), &config).unwrap();
    assert_eq!((configured.provider, configured.version.as_str()), (Provider::Anthropic, "0.2.0-mur"));
    let files = configured.files().unwrap();
    let (capsule, _) = read_capsule(files[1].1.as_bytes(), "murmur.yaml").unwrap();
    assert_eq!(capsule.inference.unwrap().model, "a \"model\"");
    assert_eq!(capsule.artifacts[0].gateway.as_ref().unwrap().endpoint, "https://proxy.test/x");
    let flagged = place.plan(&request(Some("scripted")), &config).unwrap();
    assert_eq!((flagged.provider, flagged.model.as_str()), (Provider::Scripted, "scripted"));
    assert_eq!(place.plan(&request(Some("acme")), &config).unwrap_err().code(), codes::E_NEW_004);
    assert_eq!(place.plan(&request(Some("openai")), &config).unwrap_err().code(), codes::E_NEW_007);
    let bad = InferenceDefaults { endpoint: Some("http://proxy.test".into()), ..config };
    assert_eq!(place.plan(&request(None), &bad).unwrap_err().code(), codes::E_MAN_003);
}

#[test]
fn a_name_that_cannot_be_is_refused_before_anything_is_written() {
    let place = Place::new();
    for (name, code) in [
        ("", codes::E_NEW_002),
        ("Team", codes::E_NEW_002),
        ("a/b", codes::E_NEW_002),
        ("-a", codes::E_NEW_002),
        (&"a".repeat(95), codes::E_NEW_002),
        ("bundled", codes::E_NEW_003),
    ] {
        assert_eq!(place.named(name).unwrap_err().code(), code, "{name}");
    }
    std::os::unix::fs::symlink("/nonexistent", place.dir.path().join("dangling")).unwrap();
    assert_eq!(place.named("dangling").unwrap_err().code(), codes::E_NEW_003);
    let local = Request { name: "t".into(), index: Some("local".into()), provider: None };
    assert_eq!(place.plan(&local, &InferenceDefaults::default()).unwrap_err().code(), codes::E_NEW_005);
    let missing = Request { index: Some("/nonexistent/i.json".into()), ..local };
    assert_eq!(place.plan(&missing, &InferenceDefaults::default()).unwrap_err().code(), codes::E_NEW_006);
}

#[test]
fn files_appear_whole_under_their_name_or_not_at_all() {
    let place = Place::new();
    let scaffold = place.named("team").unwrap();
    scaffold.write(place.dir.path()).unwrap();
    for file in ["roster.yaml", "lead/murmur.yaml", "worker/murmur.yaml"] {
        assert!(place.dir.path().join("team").join(file).is_file(), "{file}");
    }
    assert_eq!(scaffold.write(place.dir.path()).unwrap_err().code(), codes::E_NEW_003);
    fs::create_dir(place.dir.path().join("other")).unwrap();
    let late = Scaffold { name: "other".into(), ..scaffold };
    assert_eq!(late.write(place.dir.path()).unwrap_err().code(), codes::E_NEW_003);
    assert!(late.write(&place.dir.path().join("nowhere")).is_err());
    let left: Vec<_> = fs::read_dir(place.dir.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains(".tmp-")), "{left:?}");
}
