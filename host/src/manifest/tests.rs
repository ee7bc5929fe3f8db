use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn read(text: &str) -> Capsule {
    read_capsule(text.as_bytes(), FILE_NAME).unwrap_or_else(|error| panic!("{text}\n{error}")).0
}

fn refused(text: &str) -> (String, String) {
    let error = read_capsule(text.as_bytes(), FILE_NAME).expect_err(text);
    (error.code().as_str().to_owned(), error.message().to_owned())
}

/// A whole agent capsule, and a place to add to.
const AGENT: &str = "name: a\nversion: 1.20\nartifacts:\n  - name: murmur/driver-x\n    version: 0.1.0\n    runtime: driver\n    \
                     gateway: {endpoint: 'https://api.x.test/v1/', api_key: '${X_KEY}'}\n";
const INFERENCE: &str = "inference:\n  model: m\n  driver: {artifact: murmur/driver-x, config: {b: 1, a: [x, 1.5]}}\n";

#[test]
fn a_minimal_agent_capsule_gets_every_default() {
    let capsule = read(&format!("{AGENT}{INFERENCE}"));
    assert_eq!((capsule.name.as_str(), capsule.version.as_str()), ("a", "1.20"));
    let entry = &capsule.artifacts[0];
    assert_eq!((entry.bare(), entry.reference().as_str()), ("driver-x", "murmur/driver-x@0.1.0"));
    let gateway = entry.gateway.as_ref().unwrap();
    assert_eq!((gateway.authority().as_str(), gateway.path.as_str()), ("api.x.test:443", "/v1"));
    assert_eq!(gateway.api_key, ApiKey::Named("X_KEY".into()));
    let inference = capsule.inference.unwrap();
    assert_eq!(serde_json::to_string(&inference.driver.config).unwrap(), r#"{"b":1,"a":["x",1.5]}"#);
    assert_eq!((inference.max_turns, inference.retry), (None, Retry::default()));
    assert_eq!(capsule.lifecycle, Lifecycle::default());
    assert_eq!(capsule.lifecycle.holds(), 1);
    assert!(!capsule.exports.peer_tasks && capsule.network.authentication.is_none());
    assert_eq!(capsule.capabilities.limits.memory_bytes, 536_870_912);
}

#[test]
fn text_is_taken_as_written_and_null_is_absent() {
    assert_eq!(read("name: 0x10\nversion: true\n").name, "0x10");
    for name in ["~", "null", "", "'  '"] {
        let (code, message) = refused(&format!("name: {name}\nversion: 1\n"));
        assert_eq!((code.as_str(), message.as_str()), ("E-MAN-001", "murmur.yaml: missing required field 'name'"));
    }
    assert!(!read("name: a\nversion: 1\ncontext: {record: off}\n").context.record);
}

#[test]
fn a_fault_has_its_code_and_names_its_field() {
    let cases = [
        ("a: [", "E-MAN-002", "YAML syntax error at line 1"),
        ("name: a\nname: b\n", "E-MAN-002", "twice, on lines 1 and 2"),
        ("name: a\nversion: 1\nregistry:\n", "E-MAN-003", "'registry' is not a manifest key"),
        ("name: a\nversion: 1\nmur_version: 1\n", "E-MAN-003", "mur_version"),
        ("name: a\nversion: 1\nartifacts: null\n", "E-MAN-002", "artifacts: expected a list"),
        (
            "name: a\nversion: 1\nartifacts: [{name: x, version: 1}]\n",
            "E-MAN-003",
            "in 'artifacts[0].name': 'x' is not a full",
        ),
        (
            "name: a\nversion: 1\nartifacts: [{name: a/X, version: 1}]\n",
            "E-MAN-003",
            "'a/X' is not a valid artifact name",
        ),
        ("name: a\nversion: 1\nartifacts: [{name: a/x}]\n", "E-MAN-003", "artifacts[0].version is required"),
        ("name: a\nversion: 1\nartifacts: [{name: a/x, version: 1, runtime: wasm}]\n", "E-MAN-003", "got 'wasm'"),
        (
            "name: a\nversion: 1\nartifacts: [{name: a/x, version: 1, gateway: }]\n",
            "E-MAN-003",
            "gateway.endpoint is required",
        ),
        ("name: a\nversion: 1\nlifecycle: {task_acceptance: many}\n", "E-MAN-002", "got 'many'"),
        (
            "name: a\nversion: 1\nlifecycle: {task_acceptance: queue, queue_depth: 0}\n",
            "E-MAN-003",
            "'lifecycle.queue_depth'",
        ),
        ("name: a\nversion: 1\nlifecycle: {queue_depth: -1}\n", "E-MAN-002", "lifecycle.queue_depth"),
        ("name: a\nversion: 1\ntrace: {retain: }\n", "E-MAN-003", "'trace.retain'"),
        ("name: a\nversion: 1\ntrace: {retain: {max_age: 1w}}\n", "E-MAN-003", "'1w' must be a duration"),
        (
            "name: a\nversion: 1\ntrace: {retain: {keep: 1}}\n",
            "E-MAN-003",
            "unknown key 'keep'; expected: max_sessions, max_age",
        ),
        ("name: a\nversion: 1\ntrace: {capture: all}\n", "E-MAN-003", "must be one of: none, meta, content; got 'all'"),
        (
            "name: a\nversion: 1\ncapabilities: {containment: unconfined}\n",
            "E-MAN-003",
            "must be one of: advisory, scoped, sealed; got 'unconfined'",
        ),
        ("name: a\nversion: 1\ncapabilities: {shell: {allow: []}}\n", "E-MAN-003", "must contain at least one binary"),
        (
            "name: a\nversion: 1\ncapabilities: {shell: {allow: [ls, /bin/sh]}}\n",
            "E-MAN-003",
            "'capabilities.shell.allow[1]': is a path",
        ),
        ("name: a\nversion: 1\ncapabilities: {limits: {instances: 0}}\n", "E-MAN-003", "must be greater than zero"),
        ("name: a\nversion: 1\ncapabilities: {network: {unix_sockets: }}\n", "E-MAN-002", "unix_sockets"),
        ("name: a\nversion: 1\ncapabilities: {network: {allow: ~}}\n", "E-MAN-002", "network.allow"),
        ("name: a\nversion: 1\ncapabilities: {filesystem: {records: true}}\n", "E-MAN-003", "filesystem.records"),
        ("name: a\nversion: 1\ncapabilities: {install: {tool: [x]}}\n", "E-MAN-003", "'capabilities.install.tool[0]'"),
        ("name: a\nversion: 1\ncapabilities: {install: {tool: ['a/b*c']}}\n", "E-MAN-003", "install.tool[0]"),
        ("name: a\nversion: 1\nnetwork: {authentication: {scheme: basic}}\n", "E-MAN-003", "must be bearer"),
        (
            "name: a\nversion: 1\nnetwork: {authentication: {scheme: bearer, credentials: {ci: {scopes: [tasks/get]}}}}\n",
            "E-MAN-003",
            "'tasks/get' is retired",
        ),
        (
            "name: a\nversion: 1\nnetwork: {authentication: {scheme: bearer}}\ncapabilities: {spawn: {allow: [a/b]}}\n",
            "E-MAN-003",
            "spawn.allow",
        ),
        ("name: a\nversion: 1\nexports: {peer_tasks: {}}\n", "E-MAN-003", "'exports.peer_tasks.accept'"),
        ("name: a\nversion: 1\nexports: {files: {root: ../x, mode: read-only}}\n", "E-MAN-003", "'exports.files.root'"),
        ("name: a\nversion: 1\ninference: {endpoint: }\n", "E-MAN-003", "set gateway.endpoint on the artifacts:"),
        ("name: a\nversion: 1\ninference: {model: m}\n", "E-MAN-003", "'inference.driver.artifact': is required"),
        (
            "name: a\nversion: 1\ninference: {model: m, driver: {artifact: a/b}}\n",
            "E-MAN-003",
            "artifact 'a/b' is not declared in artifacts:",
        ),
    ];
    for (text, code, words) in cases {
        let (found, message) = refused(text);
        assert_eq!(found, code, "{text}\n{message}");
        assert!(message.contains(words), "{text}\n{message}");
    }
}

#[test]
fn a_gateway_is_refused_where_it_would_leak_or_mean_nothing() {
    for (endpoint, words) in [
        ("http://api.x.test", "loopback"),
        ("http://0.0.0.0:1", "loopback"),
        ("http://[::ffff:127.0.0.1]:1", "loopback"),
        ("ftp://x", "must begin https://"),
        ("x", "is not a URL"),
        ("https://", "has no host"),
        ("https://u:secret@x.test/", "'https://***@x.test/'"),
        ("https://x.test/?a", "query"),
        ("https://x.test/#a", "fragment"),
        ("https://${HOST}", "not interpolated"),
        ("https://x:99999", "is no port"),
    ] {
        let text = AGENT.replace("https://api.x.test/v1/", endpoint);
        let error = read_capsule(text.as_bytes(), FILE_NAME).unwrap_err();
        assert_eq!(error.code(), codes::E_MAN_003, "{error}");
        let printed = error.to_string();
        assert!(printed.contains(words) && !printed.contains("secret"), "{printed}");
    }
    for good in ["http://localhost:8080", "http://127.9.9.9/x", "http://[::1]:1", "https://x.test:8443/a/b"] {
        read(&format!("{}{INFERENCE}", AGENT.replace("https://api.x.test/v1/", good)));
    }
}

#[test]
fn a_gateway_has_a_key_or_says_it_needs_none() {
    for (key, code) in [
        ("", "E-CAP-018"),
        (", api_key: ", "E-CAP-018"),
        (", api_key: ' '", "E-CAP-018"),
        (", keyless: true, api_key: ", "E-MAN-003"),
        (", keyless: maybe", "E-MAN-003"),
    ] {
        let (found, message) = refused(&AGENT.replace(", api_key: '${X_KEY}'", key));
        assert_eq!(found, code, "{message}");
    }
    let keyless = read(&format!("{}{INFERENCE}", AGENT.replace("api_key: '${X_KEY}'", "keyless: true")));
    assert_eq!(keyless.artifacts[0].gateway.as_ref().unwrap().api_key, ApiKey::Keyless);
    let literal = read(&format!("{}{INFERENCE}", AGENT.replace("${X_KEY}", "${x}")));
    assert!(matches!(literal.artifacts[0].gateway.as_ref().unwrap().api_key, ApiKey::Literal(_)));
    assert!(!format!("{:?}", literal.artifacts[0].gateway).contains("${x}"), "a literal key is never shown");
}

#[test]
fn only_drivers_that_inference_names_have_gateways_and_the_primary_must() {
    let (code, message) = refused(AGENT);
    assert_eq!(code, "E-MAN-003");
    assert!(message.contains("is for a driver that inference names"), "{message}");
    let without = AGENT.replace("    gateway: {endpoint: 'https://api.x.test/v1/', api_key: '${X_KEY}'}\n", "");
    let (_, message) = refused(&format!("{without}{INFERENCE}"));
    assert!(message.contains("artifacts[0].gateway is required"), "{message}");
}

#[test]
fn an_entrys_grants_depend_on_its_role() {
    let entry = |role: &str, grants: &str| {
        format!(
            "name: a\nversion: 1\nartifacts: [{{name: a/x, version: 1, runtime: {role}, capabilities: {grants}}}]\n"
        )
    };
    for (role, grants, words) in [
        ("tool", "{task_io: {read: true}}", "for hooks only"),
        ("tool", "{filesystem: {records: true}}", "for hooks only"),
        ("hook", "{filesystem: {records: true, scope: x}}", "cannot stand beside"),
        ("hook", "{task_io: {}}", "is required"),
        ("tool", "{install: {tool: ['*']}}", "not for one artifact"),
        ("skill", "{}", "is not for a skill"),
    ] {
        let (code, message) = refused(&entry(role, grants));
        assert_eq!(code, "E-MAN-003", "{message}");
        assert!(message.contains(words), "{message}");
    }
    let hook = read(&entry(
        "hook",
        "{network: {allow: [a.test]}, state: {}, env: {allow: [X]}, limits: {deadline_seconds: 5}}",
    ));
    let grants = hook.artifacts[0].capabilities.clone().unwrap();
    assert_eq!(grants.network_allow, Some(vec!["a.test".to_owned()]));
    assert_eq!(grants.state, Some(State { store: "a".into() }));
    assert_eq!((grants.deadline_seconds, grants.inert.as_slice()), (Some(5), ["env"].as_slice()));
    assert_eq!(read(&entry("tool", "{state: }")).artifacts[0].capabilities.clone().unwrap().state, None);
    let empty = read(&entry("tool", "{network: {allow: }}")).artifacts[0].capabilities.clone().unwrap();
    assert_eq!(empty.network_allow, Some(Vec::new()));
}

#[test]
fn an_entrys_config_is_json_or_refused_at_staging() {
    let entry = |config: &str| {
        let text = format!("name: a\nversion: 1\nartifacts:\n  - name: a/x\n    version: 1\n    config: {config}\n");
        read(&text).artifacts.remove(0).config_json()
    };
    assert_eq!(entry("{z: 1, a: 1.5, t: '1'}").unwrap().unwrap(), r#"{"z":1,"a":1.5,"t":"1"}"#);
    for bad in ["", "[1]", "x", "{1: x}", &format!("{{k: {}}}", "x".repeat(MAX_CONFIG_BYTES))] {
        assert_eq!(entry(bad).unwrap_err().code(), codes::E_CAP_010, "{bad}");
    }
}

#[test]
fn retention_and_lifecycle_read_their_units() {
    let capsule = read(
        "name: a\nversion: 1\ntrace: {retain: {max_sessions: 3, max_age: 7d}}\n\
         lifecycle: {task_acceptance: queue, after_task: sleep, queue_depth: 4}\nexports: {peer_tasks: {accept: true}}\n\
         network: {authentication: {scheme: bearer}}\n",
    );
    let retain = capsule.trace.retain.unwrap();
    assert_eq!((retain.max_sessions, retain.max_age), (Some(3), Some(Duration::from_secs(7 * 86_400))));
    assert_eq!(capsule.lifecycle.holds(), 5);
    assert!(capsule.exports.peer_tasks && capsule.network.authentication.is_some());
}

#[test]
fn a_scope_stays_in_the_work_folder() {
    for good in [".", "a", "a/../b", "./x/./y"] {
        assert!(check_scope("f", good).is_ok(), "{good}");
    }
    for bad in ["/a", "..", "a/../../b", "a\0b"] {
        assert_eq!(check_scope("f", bad).unwrap_err().code(), codes::E_CAP_002, "{bad}");
    }
}

#[test]
fn an_allow_entry_is_read_by_the_port_it_wrote() {
    let rule = |entry: &str| NetworkRule::parse(entry).unwrap();
    assert!(rule("http://x.test").matches("http", "X.test", 80));
    assert!(!rule("http://x.test").matches("http", "x.test", 8080));
    assert!(!rule("http://x.test").matches("https", "x.test", 80));
    assert!(rule("x.test:80").matches("https", "x.test", 80) && !rule("x.test:80").matches("http", "x.test", 81));
    assert!(rule("x.test").matches("https", "x.test", 12345) && !rule("x.test").matches("https", "a.x.test", 443));
    assert!(rule("[::1]:90").matches("http", "[::1]", 90));
    assert!(!rule("localhost").matches("http", "127.0.0.1", 80));
    assert!(rule("*").matches("http", "*", 1) && !rule("*").matches("http", "x.test", 1));
    for bad in [
        "",
        "ftp://x",
        "http://x/y",
        "x?y",
        "x#y",
        "x:y",
        "x:70000",
        "http://",
        "a b",
        "[::1",
        "u@x",
        "x:1:2",
        "http://x:",
    ] {
        assert_eq!(NetworkRule::parse(bad).unwrap_err().code(), codes::E_CAP_001, "{bad}");
    }
    assert!(rule("api.x").covers(&rule("https://api.x")) && !rule("https://api.x").covers(&rule("api.x")));
    assert!(covers_loopback_http(&[rule("localhost")]));
    assert!(!covers_loopback_http(&[rule("http://localhost"), rule("localhost:80"), rule("127.0.0.1")]));
}

#[test]
fn an_artifacts_own_manifest_needs_text_where_numbers_would_change() {
    let error = read_artifact(b"name: a\nversion: 1.10\nruntime: tool\n", FILE_NAME).unwrap_err();
    assert_eq!(error.code(), codes::E_MAN_003);
    assert_eq!(error.message(), "murmur.yaml: field 'version' has invalid type (expected string, got number)");
    let manifest = read_artifact(b"name: a\nversion: 1.1.0\nruntime: skill\n", FILE_NAME).unwrap();
    assert_eq!((manifest.execution, manifest.requires_files), (Execution::Static, vec!["skill.md".to_owned()]));
    let native = read_artifact(b"name: a\nversion: v1\nruntime: tool\nimplementation: native\n", FILE_NAME).unwrap();
    assert_eq!(native.execution, Execution::Native);
    let capsule =
        read_artifact(b"name: a\nversion: v1\nruntime: capsule\nexecution: STATIC\nlifecycle: {}\n", FILE_NAME)
            .unwrap();
    assert_eq!((capsule.execution, capsule.requires_files.len()), (Execution::Static, 0));
    assert_eq!(read_artifact(b"name: a\nversion: v1\n", FILE_NAME).unwrap_err().code(), codes::E_MAN_001);
    let schema = "name: a\nversion: v1\nruntime: tool\ninput_schema: '{\"type\":\"object\",\"required\":[\"x\"]}'\n";
    assert!(read_artifact(schema.as_bytes(), FILE_NAME).unwrap().input_schema.unwrap().is_ok());
    let broken = schema.replace("[\"x\"]", "3");
    assert!(read_artifact(broken.as_bytes(), FILE_NAME).unwrap().input_schema.unwrap().is_err());
}

#[test]
fn a_drivers_table_and_key_header_are_checked_by_who_needs_them() {
    let driver = |tail: &str| {
        read_artifact(format!("name: d\nversion: v1\nruntime: driver\n{tail}").as_bytes(), FILE_NAME).unwrap()
    };
    let table = driver(
        "models: {m: {max_output_tokens: 10, context_window: 100}}\nupstream_auth: {header: x-api-key, value: '{key}'}\n",
    );
    assert_eq!(table.models.unwrap()["m"].context_window, 100);
    assert_eq!(table.upstream_auth.unwrap().unwrap().value_with("k"), "k");
    for bad in [
        "models: {m: {max_output_tokens: 10}}",
        "models: {m: {max_output_tokens: 0, context_window: 1}}",
        "models: {m: {max_output_tokens: 1, context_window: 5, max_input_tokens: 6}}",
        "models: {m: {max_output_tokens: 1, context_window: 5, price: 6}}",
        "models: [m]",
    ] {
        assert!(driver(bad).models.is_err(), "{bad}");
    }
    for bad in [
        "{header: Host, value: '{key}'}",
        "{header: 'a b', value: '{key}'}",
        "{header: x, value: k}",
        "{header: x, value: '{key}{key}'}",
        "x",
    ] {
        assert!(driver(&format!("upstream_auth: {bad}")).upstream_auth.unwrap().is_err(), "{bad}");
    }
}

#[test]
fn a_hooks_policy_fits_its_binding() {
    let hook = |tail: &str| {
        read_artifact(format!("name: h\nversion: v1\nruntime: hook\n{tail}").as_bytes(), FILE_NAME).unwrap().hook
    };
    assert!(hook("").is_ok());
    assert!(hook("binding: on-shell\ncommit_policy: deny\n").is_ok());
    for bad in [
        "commit_policy: deny\n",
        "binding: on-inference\ncommit_policy: deny\n",
        "binding: on-stage\nexecution_mode: async\n",
        "binding: on-task-end\ncommit_policy: reopen-task\nexecution_mode: async\n",
        "binding: on-lunch\n",
        "commit_policy: everything\n",
    ] {
        assert!(hook(bad).is_err(), "{bad}");
    }
}

proptest! {
    #[test]
    fn any_text_is_a_manifest_or_a_fault(text in "(name: a\nversion: 1\n)?[a-z_]{0,12}:( \\[?\\{?[a-z0-9:, ~'-]{0,30}\\}?\\]?)?\n([ ]{0,4}[a-z_]{0,12}: ?[a-z0-9\\[\\]{},~]{0,12}\n){0,6}") {
        fuzz(text.as_bytes());
    }

    #[test]
    fn any_known_key_with_any_value_is_read_or_refused(
        block in prop::sample::select(vec!["artifacts", "capabilities", "inference", "context", "trace", "network", "lifecycle", "exports", "control"]),
        key in prop::sample::select(vec!["allow", "network", "shell", "driver", "model", "retain", "authentication", "queue_depth", "peer_tasks", "files", "limits", "name", "gateway", "settings"]),
        value in prop::sample::select(vec!["", "~", "0", "-1", "1.5", "true", "x", "[]", "{}", "[x]", "{x: 1}", "{allow: [x]}", "'*'"]),
    ) {
        fuzz(format!("name: a\nversion: 1\n{block}:\n  {key}: {value}\n").as_bytes());
        fuzz(format!("name: a\nversion: 1\n{block}:\n  - {key}: {value}\n").as_bytes());
    }
}
