//! Publishers' signatures of plugins, by the built binary: an author signs, an operator trusts, `mur` loads or refuses.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use mur_tests::{Done, World};

/// What the suites' plugin says on stderr when it was loaded and opened with `panic-thread`.
const LOADED: &str = "plugin 'faulty' panicked in a thread of its own";

/// A library as cargo built it.
fn built(name: &str) -> Vec<u8> {
    let test = std::env::current_exe().unwrap();
    let path = test.ancestors().nth(2).unwrap().join(name);
    fs::read(&path).unwrap_or_else(|fault| panic!("{}: {fault}: run `cargo xtask dist`", path.display()))
}

/// An author, an operator, and a plugin between them.
struct Stage {
    world: World,
    library: PathBuf,
    key: PathBuf,
    /// The author's public key.
    public: String,
}

impl Stage {
    fn new() -> Self {
        let world = World::new();
        let folder = world.project().join("plugins");
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        let library = folder.join("libfaulty.so");
        fs::write(&library, built("libmur_test_plugin_faulty.so")).unwrap();
        fs::set_permissions(&library, fs::Permissions::from_mode(0o644)).unwrap();
        let key = world.project().join("author.key");
        let public = world.mur(["plugin", "keygen"]).arg(&key).ok().stdout.trim().to_owned();
        Self { world, library, key, public }
    }

    fn signature(&self) -> PathBuf {
        self.library.with_file_name("libfaulty.so.sig")
    }

    fn sign(&self) -> Done {
        self.world.mur(["plugin", "sign", "--key"]).arg(&self.key).arg(&self.library).ok()
    }

    fn trust_publisher(&self) {
        self.world.mur(["plugin", "publisher", "trust", "acme", &self.public]).ok();
    }

    /// Has the configuration name the library as a store, by its path.
    fn configure(&self) {
        let path = self.library.display();
        self.world.config(&format!("stores:\n  - plugin: {path}\n    config: {{fault: panic-thread}}\n"));
    }

    /// A command that opens every store.
    fn open_stores(&self) -> Done {
        self.world.mur(["list", "-g"]).run()
    }

    #[track_caller]
    fn loads(&self) {
        let done = self.open_stores();
        assert!(done.status.success() && done.stderr.contains(LOADED), "{}{}", done.stdout, done.stderr);
    }

    /// Refused with this code, by the session's way and by `check`, and nothing of the library ran.
    #[track_caller]
    fn refused(&self, code: &str, words: &[&str]) {
        let check = self.world.mur(["plugin", "check"]).arg(&self.library).run();
        for done in [self.open_stores(), check] {
            done.refused(code);
            assert!(!done.stderr.contains(LOADED), "{}", done.stderr);
            let lines: Vec<&str> = done.stderr.lines().collect();
            assert_eq!(lines.len(), 2, "{}", done.stderr);
            assert!(lines[1].starts_with("  hint: "), "{}", done.stderr);
            for word in words {
                assert!(lines[0].contains(word), "no '{word}' in {}", lines[0]);
            }
        }
    }
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn what_a_trusted_publisher_signed_is_loaded_without_a_pin() {
    let stage = Stage::new();
    stage.configure();
    stage.refused("E-PLG-001", &["is not pinned and has no signature beside it"]);
    let signed = stage.sign();
    assert!(signed.stdout.starts_with("Signed store 'faulty' 0.1.0 (sha256 "), "{}", signed.stdout);
    stage.refused("E-PLG-009", &[&stage.public, "a publisher you do not trust"]);
    stage.trust_publisher();
    stage.loads();
    stage.world.mur(["plugin", "check"]).arg(&stage.library).ok();
    assert!(!stage.world.murmur().join("plugins.lock").exists());
    let listed = stage.world.mur(["plugin", "list"]).ok();
    assert!(listed.stdout.contains("trusted (signed by acme)"), "{}", listed.stdout);
    let lines = stage.world.mur(["plugin", "list", "--json"]).ok().stdout;
    let one = lines.lines().find(|line| line.contains("libfaulty.so")).expect("it is listed");
    assert!(one.contains("\"publisher\":\"acme\"") && one.contains("\"trusted\":true"), "{one}");
    // Trust ends with the publisher's removal.
    stage.world.mur(["plugin", "publisher", "remove", "acme"]).ok();
    stage.refused("E-PLG-009", &[&stage.public]);
    // And a pin needs no signature.
    stage.world.mur(["plugin", "trust"]).arg(&stage.library).ok();
    fs::remove_file(stage.signature()).unwrap();
    stage.loads();
}

#[test]
fn a_signed_update_replaces_a_pinned_build_and_an_unsigned_one_does_not() {
    let stage = Stage::new();
    stage.configure();
    stage.world.mur(["plugin", "trust"]).arg(&stage.library).ok();
    stage.trust_publisher();
    let mut update = fs::read(&stage.library).unwrap();
    update.push(0);
    fs::write(&stage.library, update).unwrap();
    stage.refused("E-PLG-001", &["is not the one pinned in"]);
    stage.sign();
    stage.loads();
}

#[test]
fn a_signature_that_does_not_hold_or_is_of_something_else_is_refused() {
    let stage = Stage::new();
    stage.configure();
    stage.trust_publisher();
    stage.sign();
    stage.loads();
    let good = fs::read_to_string(stage.signature()).unwrap();
    let write = |text: &str| fs::write(stage.signature(), text).unwrap();
    // Somebody else's name, version or kind under a signature of the author's.
    for (from, to) in [("name faulty", "name better"), ("version 0.1.0", "version 9.9.9"), ("kind store", "kind sink")]
    {
        write(&good.replace(from, to));
        stage.refused("E-PLG-008", &["does not hold", &stage.public]);
    }
    let last = good.trim_end().chars().next_back().unwrap();
    write(&format!("{}{}\n", &good[..good.len() - 2], if last == '0' { '1' } else { '0' }));
    stage.refused("E-PLG-008", &["does not hold"]);
    // Another key in the place of the one that signed.
    let other = stage.world.project().join("other.key");
    let stranger = stage.world.mur(["plugin", "keygen"]).arg(&other).ok().stdout.trim().to_owned();
    write(&good.replace(&stage.public, &stranger));
    stage.refused("E-PLG-008", &["does not hold", &stranger]);
    for (bad, line) in [
        (String::new(), "line 1"),
        ("hello\n".to_owned(), "line 1"),
        (good.replace('\n', "\r\n"), "line 1"),
        (good.replace("publisher", "published"), "line 2"),
        (format!("{good}{good}"), "line 8"),
    ] {
        write(&bad);
        stage.refused("E-PLG-008", &["cannot be read", line]);
    }
    write(&"x".repeat(5000));
    stage.refused("E-PLG-008", &["is larger than 1024 bytes"]);
    // A build that was never signed, under the signature of the one that was.
    write(&good);
    let mut changed = fs::read(&stage.library).unwrap();
    changed.push(0);
    fs::write(&stage.library, changed).unwrap();
    stage.refused("E-PLG-008", &["is of another library"]);
    // The signature of another plugin of the same author's.
    fs::write(&stage.library, built("libmur_test_plugin_load_panic.so")).unwrap();
    stage.sign();
    let another = fs::read_to_string(stage.signature()).unwrap();
    fs::write(&stage.library, built("libmur_test_plugin_faulty.so")).unwrap();
    write(&another);
    stage.refused("E-PLG-008", &["is of another library"]);
    write(&good);
    stage.loads();
}

#[test]
fn files_that_others_can_change_speak_for_nothing() {
    let stage = Stage::new();
    stage.configure();
    stage.sign();
    stage.trust_publisher();
    let publishers = stage.world.murmur().join("plugin-publishers");
    assert_eq!(fs::metadata(&publishers).unwrap().permissions().mode() & 0o777, 0o600);
    mode(&publishers, 0o620);
    stage.refused("E-PLG-002", &["list of publishers", "it has mode 0620"]);
    mode(&publishers, 0o600);
    mode(&stage.signature(), 0o666);
    stage.refused("E-PLG-002", &["plugin signature", "it has mode 0666"]);
    mode(&stage.signature(), 0o644);
    stage.loads();
    let text = fs::read_to_string(&publishers).unwrap();
    fs::write(&publishers, format!("{text}acme2 ed25519:00\n")).unwrap();
    stage.refused("E-PLG-007", &["list of publishers", "line 3"]);
}

#[test]
fn a_signing_key_is_the_authors_alone_and_never_shown() {
    let stage = Stage::new();
    let secret = fs::read_to_string(&stage.key).unwrap();
    let secret = secret.lines().nth(1).unwrap();
    assert_eq!(fs::metadata(&stage.key).unwrap().permissions().mode() & 0o777, 0o600);
    let sign = || stage.world.mur(["plugin", "sign", "--key"]).arg(&stage.key).arg(&stage.library).run();
    let signed = sign();
    assert!(signed.status.success() && !format!("{}{}", signed.stdout, signed.stderr).contains(secret));
    assert!(!fs::read_to_string(stage.signature()).unwrap().contains(secret));
    fs::remove_file(stage.signature()).unwrap();
    mode(&stage.key, 0o644);
    let refused = sign();
    refused.refused("E-PLG-010");
    assert!(refused.stderr.contains("has mode 0644, so others may have read it"), "{}", refused.stderr);
    mode(&stage.key, 0o600);
    stage.world.mur(["plugin", "keygen"]).arg(&stage.key).run().refused("E-PLG-010");
    fs::write(&stage.key, "mur-plugin-key 1\nabc\n").unwrap();
    sign().refused("E-PLG-010");
    assert!(!stage.signature().exists());
}

#[test]
fn a_publisher_is_named_once_and_by_a_sound_key() {
    let stage = Stage::new();
    let trust = |name: &str, key: &str| stage.world.mur(["plugin", "publisher", "trust", name, key]).run();
    let weak = format!("ed25519:{}", "00".repeat(32));
    for (name, key) in [("acme", "hello"), ("acme", weak.as_str()), ("Acme", stage.public.as_str())] {
        trust(name, key).refused("E-PLG-010");
    }
    assert!(!stage.world.murmur().join("plugin-publishers").exists());
    stage.trust_publisher();
    trust("other", &stage.public).refused("E-PLG-010");
    let listed = stage.world.mur(["plugin", "publisher", "list"]).ok();
    assert_eq!(listed.stdout.split_whitespace().collect::<Vec<_>>(), ["acme", stage.public.as_str()]);
    stage.world.mur(["plugin", "publisher", "remove", "nobody"]).run().refused("E-PLG-006");
}

#[test]
fn a_signature_gives_nobody_the_name_or_place_of_mur_s_own() {
    let stage = Stage::new();
    stage.configure();
    stage.trust_publisher();
    fs::write(&stage.library, built("libmur_store_directory.so")).unwrap();
    stage.sign();
    stage.refused("E-PLG-001", &["is the name of this mur's own plugin"]);
    // A store where a sink or a class is wanted.
    fs::write(&stage.library, built("libmur_test_plugin_faulty.so")).unwrap();
    stage.sign();
    let path = stage.library.display();
    stage.world.config(&format!("plugins:\n  containment:\n    unconfined: {path}\n"));
    let agent = mur_tests::Agent::scripted("agent", serde_json::Value::Null);
    let name = stage.world.install(&agent);
    let version = ["--capsule-version", agent.version()];
    let args = ["run", "--capsule", &name, "--task", "x", "--containment", "unconfined"];
    let done = stage.world.mur(args.into_iter().chain(version)).run();
    done.refused("E-PLG-006");
    assert!(done.stderr.contains("is store 'faulty' 0.1.0, not a containment"), "{}", done.stderr);
}

#[test]
fn untrusted_code_runs_only_where_it_is_asked_for_by_name() {
    let stage = Stage::new();
    stage.configure();
    stage.refused("E-PLG-001", &["is not pinned"]);
    let config = r#"{"fault": "panic-thread"}"#;
    let check = ["plugin", "check", "--run-untrusted-code", "--config", config];
    let done = stage.world.mur(check).arg(&stage.library).ok();
    assert!(done.stderr.contains(LOADED) && done.stderr.contains("runs as you now"), "{}", done.stderr);
    assert!(done.stdout.contains("store 'faulty' 0.1.0: ok ("), "{}", done.stdout);
    // It was this once.
    stage.refused("E-PLG-001", &["is not pinned"]);
    // The file itself is held to the same rules, and it must be named.
    mode(&stage.library, 0o666);
    stage.world.mur(check).arg(&stage.library).run().refused("E-PLG-002");
    mode(&stage.library, 0o644);
    assert_eq!(stage.world.mur(["plugin", "check", "--run-untrusted-code"]).run().code(), Some(2));
}
