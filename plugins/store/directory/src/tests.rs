use super::*;

fn store(root: &Path) -> DirectoryStore {
    DirectoryStore::open(&serde_json::json!({ "root": root }).to_string()).unwrap()
}

fn new_entry(name: &str, version: &str, platform: &str, digest: char) -> StoredEntry {
    StoredEntry {
        name: name.into(),
        version: version.into(),
        platform: platform.into(),
        sha256: digest.to_string().repeat(64).into(),
        size: 0,
        media_type: MEDIA_TYPE.into(),
        metadata: r#"{"name":"x","tags":[]}"#.into(),
    }
}

fn contents(store: &DirectoryStore, found: &StoredEntry) -> String {
    let mut text = String::new();
    store.read(found).unwrap().read_to_string(&mut text).unwrap();
    text
}

fn files_under(dir: &Path) -> Vec<String> {
    let mut files = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(next) = dirs.pop() {
        for one in fs::read_dir(next).unwrap().flatten() {
            if one.path().is_dir() {
                dirs.push(one.path());
            } else {
                files.push(one.path().strip_prefix(dir).unwrap().display().to_string());
            }
        }
    }
    files.sort();
    files
}

#[test]
fn a_written_payload_lies_where_the_layout_says_and_reads_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    store.write(&new_entry("local/text-stats", "1.0.0", "", 'a'), &mut &b"payload"[..]).unwrap();
    assert_eq!(
        files_under(dir.path()),
        ["text-stats-1.0.0.meta.json", "text-stats-1.0.0.mur.zip", "text-stats-1.0.0.sha256"]
            .map(|file| format!("local/text-stats/1.0.0/{file}"))
    );
    let base = dir.path().join("local/text-stats/1.0.0");
    assert_eq!(fs::read_to_string(base.join("text-stats-1.0.0.sha256")).unwrap(), "a".repeat(64));
    assert_eq!(
        fs::read_to_string(base.join("text-stats-1.0.0.meta.json")).unwrap(),
        "{\n  \"meta\": {\n    \"name\": \"x\",\n    \"tags\": []\n  }\n}"
    );
    let found = store.find("local/text-stats", "1.0.0", "linux-x86_64").unwrap().unwrap();
    assert_eq!((found.size, found.platform.as_str()), (7, ""));
    assert_eq!(found.metadata.as_str(), r#"{"name":"x","tags":[]}"#);
    assert_eq!(contents(&store, &found), "payload");
}

#[test]
fn a_tagged_payload_wins_over_the_untagged_one() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    store.write(&new_entry("a/b", "1", "", 'a'), &mut &b"any"[..]).unwrap();
    store.write(&new_entry("a/b", "1", "linux-x86_64", 'b'), &mut &b"native"[..]).unwrap();
    let tagged = store.find("a/b", "1", "linux-x86_64").unwrap().unwrap();
    assert_eq!(contents(&store, &tagged), "native");
    let other = store.find("a/b", "1", "linux-aarch64").unwrap().unwrap();
    assert_eq!(contents(&store, &other), "any");
    assert_eq!(store.list("").unwrap().len(), 2);
}

#[test]
fn a_payload_that_fails_to_arrive_changes_nothing() {
    struct Broken(usize);
    impl Read for Broken {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.0 += 1;
            if self.0 > 2 { Err(io::Error::other("gone")) } else { Ok(buffer.len()) }
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    store.write(&new_entry("a/b", "1", "", 'a'), &mut &b"old"[..]).unwrap();
    let before = files_under(dir.path());
    assert!(store.write(&new_entry("a/b", "1", "", 'b'), &mut Broken(0)).is_err());
    let mut announced = new_entry("a/b", "1", "", 'b');
    announced.size = 4;
    assert_eq!(store.write(&announced, &mut &b"new"[..]).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(files_under(dir.path()), before);
    assert_eq!(contents(&store, &store.find("a/b", "1", "").unwrap().unwrap()), "old");
}

#[test]
fn replacing_is_seen_whole_and_what_was_found_before_is_not_mixed_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    store.write(&new_entry("a/b", "1", "", 'a'), &mut &b"old"[..]).unwrap();
    let old = store.find("a/b", "1", "").unwrap().unwrap();
    let mut opened = store.read(&old).unwrap();
    store.write(&new_entry("a/b", "1", "", 'b'), &mut &b"new"[..]).unwrap();
    let mut text = String::new();
    opened.read_to_string(&mut text).unwrap();
    assert_eq!(text, "old");
    assert_eq!(store.read(&old).err().unwrap().kind(), ErrorKind::Unavailable);
    assert_eq!(files_under(dir.path()).len(), 3);
}

#[test]
fn names_and_versions_that_are_no_place_reach_nothing() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("secret"), "x").unwrap();
    let store = store(&dir.path().join("root"));
    for (name, version) in
        [("../..", "1"), ("a/..", "1"), ("a/b", ".."), ("a/b", "../x"), ("b", "1"), ("A/b", "1"), ("a/b", "")]
    {
        assert_eq!(store.find(name, version, "").unwrap(), None, "{name} {version}");
        assert_eq!(store.find(name, version, "../x").unwrap(), None);
        assert!(!store.remove(name, version).unwrap());
        let error = store.write(&new_entry(name, version, "", 'a'), &mut &b"x"[..]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{name} {version}");
    }
    assert_eq!(files_under(dir.path()), ["secret"]);
}

#[test]
fn odd_versions_are_kept_as_written() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    for version in [".5", "1.20", "1e3", "v 1", "latest-1"] {
        store.write(&new_entry("a/b", version, "", 'a'), &mut &b"x"[..]).unwrap();
        assert!(store.find("a/b", version, "").unwrap().is_some(), "{version}");
    }
    assert_eq!(store.list("a").unwrap().len(), 5);
    assert!(store.remove("a/b", ".5").unwrap());
    assert!(!store.remove("a/b", ".5").unwrap());
    assert_eq!(store.list("").unwrap().len(), 4);
}

#[test]
fn damage_and_the_old_layout_are_told_apart_from_absence() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    store.write(&new_entry("a/b", "1", "", 'a'), &mut &b"x"[..]).unwrap();
    store.write(&new_entry("a/c", "1", "", 'a'), &mut &b"x"[..]).unwrap();
    let base = dir.path().join("a/b/1");
    fs::write(base.join("b-1.sha256"), "  \n").unwrap();
    assert_eq!(store.find("a/b", "1", "").unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(store.list("").unwrap().len(), 1);
    fs::remove_file(base.join("b-1.sha256")).unwrap();
    assert_eq!(store.find("a/b", "1", "").unwrap(), None);
    fs::write(base.join("b-1.sha256"), format!(" {}\n", "c".repeat(64))).unwrap();
    fs::write(base.join("b-1.meta.json"), "not json").unwrap();
    assert_eq!(store.find("a/b", "1", "").unwrap().unwrap().metadata.as_str(), "");
    fs::create_dir_all(dir.path().join("tool_x/1.0.0")).unwrap();
    assert_eq!(store.list("").unwrap().len(), 2);
}

#[test]
fn a_read_only_store_refuses_to_change() {
    let dir = tempfile::tempdir().unwrap();
    let config = serde_json::json!({ "root": dir.path(), "writable": false }).to_string();
    let store = DirectoryStore::open(&config).unwrap();
    assert_eq!(store.remove("a/b", "1").unwrap_err().kind(), ErrorKind::Denied);
    assert_eq!(store.write(&new_entry("a/b", "1", "", 'a'), &mut &b"x"[..]).unwrap_err().kind(), ErrorKind::Denied);
    for config in ["{}", "{\"root\":\"x\"}", "{\"root\":\"/x\",\"rot\":1}", "nonsense"] {
        assert!(DirectoryStore::open(config).is_err(), "{config}");
    }
}
