//! Admission of the roster seed, row by row, through the binary: the code, the place, the exit status, and that nothing
//! was started or written.

use mur_tests::live::capsule::{Capsule, roster};
use mur_tests::live::formation::{lead, worker};
use mur_tests::live::{Home, Output, trace};
use serde_json::json;

/// A roster of two members that only lacks its stores.
const SOUND: &str = "roster_version: 1
members:
  - name: planner
    capsule: local/planner
    version: 0.3.0
    entry: true
  - name: coder
    capsule: local/coder
    version: 1.2.0
reachability:
  - from: planner
    to: [coder]
";

#[track_caller]
fn refused(home: &Home, roster: &str, code: &str, parts: &[&str]) -> Output {
    home.write("roster.yaml", roster);
    let launched = home.mur(["run", "--roster"]).refused(code);
    for part in parts {
        assert!(launched.stderr.contains(part), "{part:?} not in\n{}", launched.stderr);
    }
    assert!(launched.stderr.contains("hint: "), "no hint in\n{}", launched.stderr);
    assert!(launched.stdout.is_empty(), "{}", launched.stdout);
    let checked = home.mur(["doctor"]).expect(1);
    assert!(checked.stderr.contains(&format!("[mur doctor] error[{code}]")), "{}\n{}", checked.stdout, checked.stderr);
    assert!(home.formations().is_empty());
    assert!(!home.project().join("murmur.lock").exists());
    launched
}

#[test]
fn shape_faults_name_the_key_the_line_and_show_a_caret() {
    let home = Home::new();
    let cases: &[(&str, &str, &[&str])] = &[
        ("roster_version: 1", "roster_version: 2", &["roster_version", "roster.yaml:1:"]),
        ("    entry: true\n", "    entry: yes\n", &["members[0].entry (member 'planner')", "roster.yaml:6:", "^"]),
        ("name: coder", "name: Coder", &["members[1].name", "'Coder'", "roster.yaml:7:"]),
        ("capsule: local/coder", "capsule: coder", &["local/coder", "members[1].capsule (member 'coder')"]),
        ("version: 1.2.0", "version: latest", &["members[1].version", "latest"]),
        ("version: 1.2.0", "sha: 1", &["members[1].sha", "unknown key"]),
        ("    to: [coder]", "    to: []", &["reachability[0].to"]),
        ("    to: [coder]", "    to: [planner]", &["reachability[0].to[0]", "planner"]),
        ("reachability:\n", "extra: 1\nreachability:\n", &["extra", "unknown key"]),
    ];
    for (from, to, parts) in cases {
        let text = SOUND.replacen(from, to, 1);
        assert_ne!(text, SOUND);
        refused(&home, &text, "E-ROS-001", parts);
    }
}

#[test]
fn what_is_not_yaml_or_not_plain_yaml_is_refused() {
    let home = Home::new();
    for text in [
        "",
        "- a",
        "roster_version: [",
        "roster_version: 1\nroster_version: 1\n",
        "a: &x 1\nb: *x\n",
        "roster_version: !!str 1\n",
        "<<: {a: 1}\n",
        "\u{feff}\u{feff}roster_version: 1",
    ] {
        refused(&home, text, "E-ROS-001", &["roster.yaml"]);
    }
    home.write("roster.yaml", [0xff, 0xfe, b'r', 0]);
    let output = home.mur(["run", "--roster"]).refused("E-ROS-001");
    assert!(output.stderr.contains("UTF-16"), "{}", output.stderr);
}

#[test]
fn an_alias_bomb_is_refused_without_being_expanded() {
    let home = Home::new();
    let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for level in 1..10 {
        let above = level - 1;
        text.push_str(&format!(
            "a{level}: &a{level} [*a{above}, *a{above}, *a{above}, *a{above}, *a{above}, *a{above}]\n"
        ));
    }
    refused(&home, &text, "E-ROS-001", &["roster.yaml"]);
}

#[test]
fn structural_faults_come_before_any_store_is_read() {
    let home = Home::new();
    let twice = SOUND.replace("name: coder", "name: planner").replace("[coder]", "[other]");
    refused(&home, &twice, "E-ROS-003", &["planner"]);
    refused(&home, &SOUND.replace("    entry: true\n", ""), "E-ROS-002", &[]);
    refused(
        &home,
        &SOUND.replace("    version: 1.2.0\n", "    version: 1.2.0\n    entry: true\n"),
        "E-ROS-002",
        &["planner", "coder"],
    );
    refused(&home, &SOUND.replace("[coder]", "[nobody]"), "E-ROS-004", &["planner", "nobody"]);
    let back = SOUND.replace("from: planner", "from: coder").replace("[coder]", "[planner]");
    refused(&home, &back, "E-ROS-008", &["coder", "planner"]);
}

#[test]
fn a_member_that_is_not_installed_is_named_with_where_it_was_looked_for() {
    let home = Home::new();
    refused(&home, SOUND, "E-ROS-007", &["planner", "local/planner@0.3.0", "mur install"]);
}

#[test]
fn callees_must_serve_peers_and_doors_must_authenticate() {
    let home = Home::new();
    let open = Capsule::saying("open", "x");
    let closed = Capsule::saying("closed", "x").with(json!({"network": {"authentication": {"scheme": "bearer"}}}));
    let member = Capsule::saying("member", "x").member();
    for capsule in [&open, &closed, &member] {
        capsule.install(&home);
    }
    let rules = json!([{"from": "a", "to": ["b"]}]);
    refused(&home, &roster(&[("a", &member), ("b", &closed)], rules.clone()), "E-ROS-005", &["'b'"]);
    refused(&home, &roster(&[("a", &open), ("b", &member)], rules.clone()), "E-ROS-006", &["'a'"]);
    // A member on no edge must authenticate as well.
    refused(&home, &roster(&[("a", &member), ("b", &member), ("c", &open)], rules), "E-ROS-006", &["'c'"]);
    // Without an edge nobody needs to.
    home.write("roster.yaml", roster(&[("a", &open), ("b", &open)], json!([])));
    let checked = home.mur(["doctor"]).expect(0);
    assert!(checked.stdout.contains("reachability: none"), "{}", checked.stdout);
}

#[test]
fn a_lock_that_pins_a_member_to_something_else_refuses_the_roster() {
    let home = Home::new();
    let member = Capsule::saying("member", "x");
    member.install(&home);
    let lock = format!(
        "lock_version: 3\nartifacts:\n  - name: local/member\n    resolved_version: 1.0.0\n    sha256:\n      any: \"{}\"\n    origin: operator\n",
        "0".repeat(64)
    );
    home.write("murmur.lock", &lock);
    home.write("roster.yaml", roster(&[("a", &member)], json!([])));
    let output = home.mur(["run", "--roster"]).refused("E-REG-005");
    assert!(output.stderr.contains("local/member"), "{}", output.stderr);
    assert_eq!(std::fs::read_to_string(home.project().join("murmur.lock")).unwrap(), lock);
}

#[test]
fn versions_are_looked_up_as_they_are_written() {
    let home = Home::new();
    for version in ["1.20", "1e3", "0x10", "010", "1_0", ".5", "12:30", "2026-01-01"] {
        let text = format!(
            "roster_version: 1\nmembers:\n  - name: a\n    capsule: local/a\n    version: {version}\n    entry: true\n"
        );
        refused(&home, &text, "E-ROS-007", &[&format!("local/a@{version}")]);
    }
}

#[test]
fn names_that_yaml_could_take_for_something_else() {
    let home = Home::new();
    let member = Capsule::saying("member", "x");
    member.install(&home);
    for name in ["no", "on", "off", "y", "yes"] {
        let text = format!(
            "roster_version: 1\nmembers:\n  - name: {name}\n    capsule: local/member\n    version: 1.0.0\n    entry: true\n"
        );
        home.write("roster.yaml", text);
        home.mur(["doctor"]).expect(0);
    }
    for name in ["true", "null", "~"] {
        let text = format!(
            "roster_version: 1\nmembers:\n  - name: {name}\n    capsule: local/member\n    version: 1.0.0\n    entry: true\n"
        );
        refused(&home, &text, "E-ROS-001", &["members[0].name"]);
    }
}

#[test]
fn line_ends_do_not_matter() {
    let home = Home::new();
    for ends in ["\r\n", "\r", "\n"] {
        let text = SOUND.replace('\n', ends).trim_end().to_owned();
        let output = refused(&home, &text, "E-ROS-007", &["'planner'"]);
        assert!(!output.stderr.contains('\r'));
        let broken = SOUND.replace("name: coder", "name: Coder").replace('\n', ends);
        refused(&home, &broken, "E-ROS-001", &["roster.yaml:7:11"]);
    }
}

#[test]
fn the_path_names_a_directory_or_its_roster_file() {
    let home = Home::new();
    home.write("other.yaml", SOUND);
    for path in ["other.yaml", "missing", "missing/roster.yaml"] {
        home.mur(["run", "--roster", path]).refused("E-ROS-001");
    }
}

#[test]
fn flags_that_belong_to_one_capsule_are_usage_errors() {
    let home = Home::new();
    home.write("roster.yaml", SOUND);
    for flags in [
        &["--manifest", "x"][..],
        &["--capsule", "local/x", "--capsule-version", "1"],
        &["--resume"],
        &["--context", "c"],
        &["--workdir", "."],
        &["--bind", "127.0.0.1"],
        &["--system-prompt", "x"],
        &["--lifecycle-task-acceptance", "queue"],
        &["--explain-scope"],
    ] {
        let mut args = vec!["run", "--roster"];
        args.extend_from_slice(flags);
        home.mur(&args).expect(2);
    }
}

#[test]
fn a_run_without_the_flag_reads_no_roster() {
    let home = Home::new();
    home.write("roster.yaml", "this: is no roster");
    let alone = Capsule::saying("alone", "here");
    home.write("murmur.yaml", serde_json::to_string(&alone.manifest).unwrap());
    home.mur(["run", "--task", "x"]).expect(0);
    assert_eq!(trace::sessions(home.murmur().join("records")).len(), 1);
}

#[test]
fn what_mur_new_writes_is_admitted_as_written_and_runs() {
    let home = Home::new();
    home.mur(["new", "--roster", "team"]).expect(0);
    let project = home.project().join("team");
    for member in ["lead", "worker"] {
        let source = project.join(member);
        assert!(source.join("murmur.yaml").is_file());
        home.mur(["build".as_ref(), source.as_os_str()]).expect(0);
        let archive = source.join(format!("team-{member}-0.1.0.mur.zip"));
        home.mur(["install".as_ref(), archive.as_os_str(), "-g".as_ref()]).expect(0);
    }
    let args = |rest: &[&str]| {
        let all = ["run", "--roster", "team"].iter().chain(rest);
        all.map(|arg| (*arg).to_owned()).collect::<Vec<_>>()
    };
    // The lead serves no peers, and may call all the same.
    let output = home.mur(args(&["--task", "say this"])).expect(0);
    assert!(!output.stderr.contains("error["), "{}", output.stderr);
    assert_eq!(trace::sessions(home.murmur().join("records")).len(), 2);
}

#[test]
fn a_reachability_that_is_absent_empty_or_without_a_value_makes_no_edge() {
    let home = Home::new();
    let open = Capsule::saying("open", "x");
    open.install(&home);
    let text = "roster_version: 1\nmembers:\n  - {name: a, capsule: local/open, version: 1.0.0, entry: true}\n  - {name: \
                b, capsule: local/open, version: 1.0.0, entry: }\n";
    // `all` pairs nobody here, since nobody serves peers; and without an edge no door need authenticate.
    for reachability in ["", "reachability: []\n", "reachability:\n", "reachability: all\n"] {
        home.write("roster.yaml", format!("{text}{reachability}"));
        let checked = home.mur(["doctor"]).expect(0);
        assert!(checked.stdout.contains("reachability: none"), "{reachability}: {}", checked.stdout);
    }
}

#[test]
fn a_version_that_names_no_one_artifact_is_refused() {
    let home = Home::new();
    for version in ["latest", "stable", "edge", "''", "' '"] {
        let text = SOUND.replace("version: 1.2.0", &format!("version: {version}"));
        refused(&home, &text, "E-ROS-001", &["members[1].version", "roster.yaml:9:"]);
    }
}

#[test]
fn a_lock_binds_the_members_it_pins_and_no_others_and_is_never_written() {
    let home = Home::new();
    let (lead, worker) = (lead(), worker());
    lead.install(&home);
    worker.install(&home);
    let pin = |name: &str, version: &str| {
        format!(
            "lock_version: 3\nartifacts:\n  - name: {name}\n    resolved_version: {version}\n    sha256:\n      any: \
             \"{}\"\n    origin: operator\n",
            "0".repeat(64)
        )
    };
    let members = [("lead", &lead), ("coder", &worker)];
    home.write("roster.yaml", roster(&members, json!([{"from": "lead", "to": ["coder"]}])));
    // Another version, under the same name.
    home.write("murmur.lock", pin("local/worker", "9.9.9"));
    let output = home.mur(["run", "--roster", "--task", "x"]).refused("E-REG-005");
    assert!(output.stderr.contains("9.9.9") && output.stderr.contains("'coder'"), "{}", output.stderr);
    // A pin of something else.
    let lock = pin("local/stranger", "1.0.0");
    home.write("murmur.lock", &lock);
    let checked = home.mur(["doctor"]).expect(0);
    assert!(checked.stdout.contains("lead → coder"), "{}", checked.stdout);
    assert_eq!(std::fs::read_to_string(home.project().join("murmur.lock")).unwrap(), lock);
}

#[test]
fn the_projects_store_comes_before_the_global_one_for_every_member() {
    let home = Home::new();
    let (lead, global) = (lead(), Capsule::saying("worker", "from the global store").member());
    lead.install(&home);
    global.install(&home);
    home.write("roster.yaml", "placeholder");
    // The same name and version, other bytes, and only in the project.
    let own = Capsule::saying("worker", "from the project").member();
    let dir = home.scratch("own").join("worker");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("murmur.yaml"), serde_json::to_string(&own.manifest).unwrap()).unwrap();
    home.mur(["build".as_ref(), dir.as_os_str()]).expect(0);
    home.mur(["install".as_ref(), dir.join("worker-1.0.0.mur.zip").as_os_str()]).expect(0);
    let _ = std::fs::remove_file(home.project().join("murmur.lock"));
    // The peer's work folder is elsewhere, and the project's store serves it all the same.
    let members = [("lead", &lead), ("coder", &own)];
    home.write("roster.yaml", roster(&members, json!([{"from": "lead", "to": ["coder"]}])));
    home.mur(["run", "--roster", "--task", "x"]).expect(0);
    let results: Vec<String> = trace::sessions(home.murmur().join("records"))
        .iter()
        .filter_map(|session| std::fs::read_to_string(session.join("out/result.txt")).ok())
        .collect();
    assert!(results.iter().any(|text| text == "from the project"), "{results:?}");
}

#[test]
fn a_capsule_beside_the_roster_is_a_member_only_when_a_member_names_it() {
    let home = Home::new();
    let member = Capsule::saying("member", "x");
    member.install(&home);
    let stranger = Capsule::saying("stranger", "x");
    home.write("murmur.yaml", serde_json::to_string(&stranger.manifest).unwrap());
    home.write("roster.yaml", roster(&[("a", &member)], json!([])));
    home.mur(["run", "--roster", "--task", "x"]).expect(0);
    let sessions = trace::sessions(home.murmur().join("records"));
    let names: Vec<_> = sessions.iter().map(|session| trace::read(session)[0]["capsule_name"].clone()).collect();
    assert_eq!(names, ["member"]);
}

/// The example the reference shows.
const EXAMPLE: &str = "roster_version: 1
members:
  - name: planner
    capsule: local/planner
    version: 0.3.0
    entry: true
  - name: coder
    capsule: local/coder
    version: 1.2.0
  - name: reviewer
    capsule: local/reviewer
    version: 0.9.0
reachability:
  - from: planner
    to: [coder, reviewer]
  - from: reviewer
    to: [coder]
";

#[test]
fn the_example_of_the_schema_is_admitted() {
    let home = Home::new();
    for (name, version) in [("planner", "0.3.0"), ("coder", "1.2.0"), ("reviewer", "0.9.0")] {
        let mut capsule = Capsule::saying(name, "x").member().with(json!({"version": version}));
        capsule.version = version.to_owned();
        capsule.install(&home);
    }
    home.write("roster.yaml", EXAMPLE);
    let checked = home.mur(["doctor"]).expect(0);
    assert!(checked.stdout.contains("planner → coder, planner → reviewer, reviewer → coder"), "{}", checked.stdout);
}
