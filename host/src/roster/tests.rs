use proptest::prelude::*;

use super::admission::{Admitted, Installed, Reach, Reason, Source, admit};
use super::*;
use crate::artifacts::lock::{Bound, Lock};
use crate::artifacts::name::Digest;
use crate::manifest::read_capsule;

const GOOD: &str = "roster_version: 1
members:
  - name: lead
    capsule: local/lead
    version: 1.10
    entry: true
  - name: no
    capsule: local/worker
    version: 0x10
    entry:
reachability:
  - from: lead
    to: [no, no]
";

fn refused(text: &str) -> Diagnostic {
    match parse(text.as_bytes()) {
        Ok(roster) => roster.check().map(|_| ()).expect_err(text),
        Err(error) => error,
    }
}

#[test]
fn a_roster_reads_with_versions_as_written_and_edges_once() {
    let roster = parse(GOOD.as_bytes()).unwrap();
    let versions: Vec<&str> = roster.members.iter().map(|member| member.version.as_str()).collect();
    assert_eq!(versions, ["1.10", "0x10"]);
    let checked = roster.check().unwrap();
    assert_eq!((checked.entry, checked.edges), (0, Some(vec![(0, 1)])));
    for end in ["\r\n", "\r"] {
        let other = parse(GOOD.replace('\n', end).as_bytes()).unwrap();
        assert_eq!(other.members, roster.members);
    }
    assert_eq!(parse(GOOD.replace("[no, no]", "no").as_bytes()).unwrap_err().code(), codes::E_ROS_001);
}

#[test]
fn every_fault_has_its_code_path_and_place() {
    let swap = |from: &str, to: &str| GOOD.replacen(from, to, 1);
    let cases: Vec<(String, &str, &str, (usize, usize))> = vec![
        ("a: [".into(), "E-ROS-001", "YAML syntax error at line 1", (1, 4)),
        ("- a\n".into(), "E-ROS-001", "the top level must be a mapping, found a sequence", (1, 1)),
        (String::new(), "E-ROS-001", "found an empty block", (1, 1)),
        (format!("zz: 1\naa: 2\n{GOOD}"), "E-ROS-001", "aa: unknown key; expected: roster_version", (2, 1)),
        (swap("roster_version: 1", "x: 1"), "E-ROS-001", "x: unknown key; ", (1, 1)),
        (swap("roster_version: 1\n", ""), "E-ROS-001", "roster_version: missing", (1, 1)),
        (
            swap("roster_version: 1", "roster_version: '1'"),
            "E-ROS-001",
            "must be the integer 1, found a string '1'",
            (1, 17),
        ),
        (swap("roster_version: 1", "roster_version: 1.0"), "E-ROS-001", "found a number '1.0'", (1, 17)),
        ("roster_version: 1\nmembers: []\n".into(), "E-ROS-001", "members: must list at least one", (2, 10)),
        ("roster_version: 1\nmembers: {a: 1}\n".into(), "E-ROS-001", "found a mapping", (2, 10)),
        (
            swap("  - name: no", "  - nmae: no"),
            "E-ROS-001",
            "members[1].nmae: unknown key; expected: name, capsule, version, entry",
            (7, 5),
        ),
        (swap("entry:\n", "sha: 1\n"), "E-ROS-001", "members[1].sha (member 'no'): unknown key", (10, 5)),
        (
            swap("name: no", "name: true"),
            "E-ROS-001",
            "members[1].name: must be a string, found a boolean 'true'",
            (7, 11),
        ),
        (swap("name: no", "name: Nö"), "E-ROS-001", "'Nö' does not match", (7, 11)),
        (swap("name: no", "name: null"), "E-ROS-001", "members[1].name: missing", (7, 5)),
        (swap("local/worker", "worker"), "E-ROS-001", "(member 'no'): 'worker' is not a full artifact name", (8, 14)),
        (swap("local/worker", "local/Worker"), "E-ROS-001", "is not a valid artifact name", (8, 14)),
        (
            swap("0x10", "latest"),
            "E-ROS-001",
            "members[1].version (member 'no'): 'latest' is a reserved version",
            (9, 14),
        ),
        (swap("0x10", "[1]"), "E-ROS-001", "must be a version, found a sequence", (9, 14)),
        (swap("0x10", ""), "E-ROS-001", "members[1].version (member 'no'): missing", (9, 5)),
        (swap("entry:\n", "entry: yes\n"), "E-ROS-001", "must be true or false, found a string 'yes'", (10, 12)),
        (
            swap("reachability:\n  - from: lead\n    to: [no, no]\n", "reachability: some\n"),
            "E-ROS-001",
            "must be all or a list of rules",
            (11, 15),
        ),
        (swap("to: [no, no]", "to: []"), "E-ROS-001", "reachability[0].to: must list at least one", (13, 9)),
        (
            swap("to: [no, no]", "to: [no, lead]"),
            "E-ROS-001",
            "reachability[0].to[1]: 'lead' is the rule's own from",
            (13, 14),
        ),
        (
            swap("to: [no, no]", "to: [no, 1]"),
            "E-ROS-001",
            "reachability[0].to[1]: must be a string, found a number '1'",
            (13, 14),
        ),
        (swap("name: no", "name: lead"), "E-ROS-003", "two members are named 'lead', the first on line 3", (7, 11)),
        (swap("entry: true", "entry: false"), "E-ROS-002", "no member has entry: true", (3, 11)),
        (swap("entry:\n", "entry: true\n"), "E-ROS-002", "2 members have entry: true: 'lead', 'no'", (10, 12)),
        (swap("to: [no, no]", "to: [no, nobody]"), "E-ROS-004", "the rule from 'lead' names 'nobody'", (13, 14)),
        (swap("from: lead", "from: nobody"), "E-ROS-004", "names 'nobody'", (12, 11)),
        (
            swap("from: lead\n    to: [no, no]", "from: no\n    to: [lead]"),
            "E-ROS-008",
            "lists the entry member 'lead'",
            (13, 10),
        ),
    ];
    for (text, code, words, place) in cases {
        let error = refused(&text);
        assert_eq!(error.code().as_str(), code, "{text}\n{error}");
        assert!(error.message().starts_with("roster.yaml: "), "{error}");
        assert!(error.message().contains(words), "{error}");
        let found = error.place().expect("a place");
        assert_eq!((found.line, found.column), place, "{error}");
    }
}

#[test]
fn a_slip_of_the_pen_is_answered_with_what_was_probably_meant() {
    let swap = |from: &str, to: &str| GOOD.replacen(from, to, 1);
    let rules = "reachability:\n  - from: lead\n    to: [no, no]\n";
    for (text, hint) in [
        (swap("entry: true", "entry: True"), "write entry: true, without quotes"),
        (swap("entry: true", "entry: 'yes'"), "write entry: true, without quotes"),
        (swap("to: [no, no]", "to: no"), "one is a list too: to: [no]"),
        (swap(rules, "reachability: ALL\n"), "did you mean 'all'?"),
        (swap(rules, "reachability: al\n"), "did you mean 'all'?"),
        (swap("to: [no, no]", "too: [no, no]"), "did you mean 'to'?"),
        (swap("from: lead", "from: laed"), "did you mean 'lead'?"),
    ] {
        assert_eq!(refused(&text).hint_text(), Some(hint), "{text}");
    }
}

#[test]
fn a_hint_says_what_would_help() {
    assert!(refused(&GOOD.replace("local/worker", "worker")).hint_text().unwrap().contains("'local/worker'"));
    assert_eq!(refused(&GOOD.replace("local/worker", "local/Worker")).hint_text(), None);
    assert_eq!(refused(&GOOD.replace("name: no", "name: true")).hint_text(), Some("put it in quotes: \"true\""));
    let look_alike = refused(&GOOD.replace("name: no", "name: n\u{200b}o"));
    assert!(look_alike.message().contains("n\\u{200b}o"), "{look_alike}");
}

#[test]
fn structure_is_checked_in_the_order_of_the_checks() {
    // Names twice, no entry and an unknown member at once: names come first.
    let text = GOOD.replace("name: no", "name: lead").replace("entry: true", "entry: false").replace("[no, no]", "[x]");
    assert_eq!(refused(&text).code(), codes::E_ROS_003);
    let text = GOOD.replace("entry: true", "entry: false").replace("[no, no]", "[x]");
    assert_eq!(refused(&text).code(), codes::E_ROS_002);
    let text = format!(
        "{}  - from: x\n    to: [no]\n",
        GOOD.replace("from: lead\n    to: [no, no]", "from: no\n    to: [lead]")
    );
    assert_eq!(refused(&text).code(), codes::E_ROS_004);
}

#[test]
fn a_fault_is_answered_by_its_cause() {
    let swap = |from: &str, to: &str| GOOD.replacen(from, to, 1);
    for (text, line, hint) in [
        (String::new(), 1, "a roster begins with roster_version: 1"),
        (swap("    capsule", "\tcapsule"), 4, "indent with spaces"),
        (swap("to: [no, no]", "to: [no, no"), 13, "close it"),
        (swap("roster_version: 1", "roster_version: 1\nroster_version: 1"), 2, "keep one of the two"),
        (swap("reachability", "reachabilty"), 11, "did you mean 'reachability'?"),
        (swap("to: [no, no]", "to: [nö]"), 13, "did you mean 'no'?"),
        (swap("to: [no, no]", "to: [NO]"), 13, "did you mean 'no'?"),
        (swap("to: [no, no]", "to: [local/worker]"), 13, "'no' runs it"),
    ] {
        let error = refused(&text);
        assert!(error.hint_text().is_some_and(|found| found.contains(hint)), "{text}\n{error}");
        assert_eq!(error.place().map(|place| place.line), Some(line), "{error}");
    }
}

/// Stores of a test: manifests by coordinate.
#[derive(Default)]
pub(super) struct Fake {
    manifests: Vec<(String, String)>,
    lock: Option<Lock>,
    asked: usize,
}

impl Fake {
    pub(super) fn with(mut self, coordinate: &str, tail: &str) -> Self {
        self.manifests.push((coordinate.to_owned(), format!("name: x\nversion: 1\n{tail}")));
        self
    }
}

impl Source for Fake {
    fn installed(&mut self, member: &Member) -> std::result::Result<Installed, Reason> {
        self.asked += 1;
        let coordinate = member.coordinate();
        let Some((_, text)) = self.manifests.iter().find(|(known, _)| *known == coordinate || known == "*") else {
            let same = |known: &str| known.split('@').next() == coordinate.split('@').next();
            let other_version = self.manifests.iter().any(|(known, _)| same(known));
            let text = "not installed in the project or global store".into();
            return Err(Reason { text, hint: None, other_version });
        };
        let sha256 = Digest::of(text.as_bytes());
        let bound = Bound {
            name: member.capsule.clone(),
            version: member.version.clone(),
            platform: None,
            sha256,
            owner_id: None,
        };
        let capsule = read_capsule(text.as_bytes(), "murmur.yaml").unwrap().0;
        Ok(Installed { sha256, manifest: text.clone(), capsule, bound })
    }

    fn lock(&mut self) -> Result<Option<Lock>> {
        Ok(self.lock.clone())
    }
}

pub(super) const SERVES: &str = "exports: {peer_tasks: {accept: true}}\n";
pub(super) const AUTH: &str = "network: {authentication: {scheme: bearer}}\n";

fn admitted(text: &str, source: &mut Fake) -> Result<Admitted> {
    let roster = parse(text.as_bytes())?;
    let checked = roster.check()?;
    admit(&roster, checked, source)
}

#[test]
fn members_are_installed_agree_with_the_lock_serve_and_authenticate_in_that_order() {
    let lead = "local/lead@1.10";
    let worker = "local/worker@0x10";
    let error = admitted(GOOD, &mut Fake::default().with(worker, "")).unwrap_err();
    assert_eq!(error.code(), codes::E_ROS_007);
    assert!(error.message().contains("member 'lead' (local/lead@1.10): not installed in the project or global store"));
    let hint = "build it (mur build <directory>) and install the file: mur install -g <directory>/lead-1.10.mur.zip, or change";
    assert!(error.hint_text().unwrap().starts_with(hint), "{error}");
    assert_eq!(error.place().unwrap().line, 3);

    let error = admitted(GOOD, &mut Fake::default().with("local/lead@1.9", "").with(worker, "")).unwrap_err();
    assert_eq!((error.code(), error.place().unwrap().line), (codes::E_ROS_007, 5), "the version is what is wrong");
    assert!(error.hint_text().unwrap().starts_with("change the member's version"), "{error}");

    let error = admitted(GOOD, &mut Fake::default().with(lead, "").with(worker, "")).unwrap_err();
    assert_eq!((error.code(), error.place().unwrap().line), (codes::E_ROS_005, 7));

    let error =
        admitted(GOOD, &mut Fake::default().with(lead, "").with(worker, &format!("{SERVES}{AUTH}"))).unwrap_err();
    assert_eq!((error.code(), error.place().unwrap().line), (codes::E_ROS_006, 3));

    let text = format!("{SERVES}{AUTH}trace: {{retain: {{max_sessions: 2}}}}\n");
    let mut source = Fake::default().with(lead, &text).with(worker, &format!("{SERVES}{AUTH}"));
    let good = admitted(GOOD, &mut source).unwrap();
    assert_eq!(good.edges().collect::<Vec<_>>(), [(0, 1)]);
    assert_eq!(good.retain.unwrap().max_sessions, Some(2));
    assert!(good.warnings.is_empty());

    let other = "lock_version: 3\nartifacts:\n- name: local/lead\n  resolved_version: '1.9'\n  origin: operator\n  sha256: {any: '";
    let lock = Lock::parse(format!("{other}{}'}}\n", "0".repeat(64)).as_bytes()).unwrap();
    source.lock = Some(lock);
    let error = admitted(GOOD, &mut source).unwrap_err();
    assert_eq!(error.code(), codes::E_REG_005);
    assert!(error.message().starts_with("roster.yaml: member 'lead' (local/lead@1.10): "), "{error}");
    assert!(error.message().contains("1.9") && error.message().contains("1.10"), "{error}");
}

#[test]
fn all_pairs_serving_members_except_into_the_entry_member() {
    let text = GOOD.replace("reachability:\n  - from: lead\n    to: [no, no]\n", "reachability: all\n") + "";
    let text = text.replace(
        "reachability",
        "  - {name: c, capsule: local/worker, version: 0x10}\n  - {name: mute, capsule: local/mute, version: 1}\nreachability",
    );
    let serving = format!("{SERVES}{AUTH}");
    let mut source = Fake::default()
        .with("local/lead@1.10", &serving)
        .with("local/worker@0x10", &serving)
        .with("local/mute@1", AUTH);
    let all = admitted(&text, &mut source).unwrap();
    assert_eq!(source.asked, 3, "members of one coordinate share what was read");
    assert_eq!(all.edges().collect::<Vec<_>>(), [(0, 1), (0, 2), (1, 2), (2, 1)]);
    assert_eq!(all.warnings.len(), 2);
    assert!(all.warnings[0].message.contains("'no' may be called by 2 members (lead, c) and holds 1 task at once"));
    assert!(all.warnings[0].message.contains("lifecycle.queue_depth: 1"), "{}", all.warnings[0].message);
    assert!(all.warnings[0].fix.starts_with("no (local/worker@0x10): "));

    let mut alone = Fake::default().with("*", "");
    let none = admitted(&text, &mut alone).unwrap();
    assert!(!none.has_edges() && none.edges().next().is_none());
}

#[test]
fn a_thousand_members_and_a_hundred_thousand_edges_are_linear() {
    let mut text = String::from("roster_version: 1\nmembers:\n");
    for n in 0..1000 {
        let entry = if n == 0 { ", entry: true" } else { "" };
        text.push_str(&format!("  - {{name: m{n}, capsule: local/c{n}, version: 1{entry}}}\n"));
    }
    let all = format!("{text}reachability: all\n");
    let mut source = Fake::default().with("*", &format!("{SERVES}{AUTH}"));
    let admitted_all = admitted(&all, &mut source).unwrap();
    assert_eq!(admitted_all.edges().count(), 999 * 999);
    assert!(serde_json::to_vec(&admitted_all).unwrap().len() < 1 << 20);
    text.push_str("reachability:\n");
    for from in 0..100 {
        let to: Vec<String> = (1..1000).filter(|to| *to != from).map(|to| format!("m{to}")).collect();
        text.push_str(&format!("  - {{from: m{from}, to: [{}]}}\n", to.join(", ")));
    }
    let rules = admitted(&text, &mut source).unwrap();
    assert!(matches!(&rules.reach, Reach::Rules(edges) if edges.len() > 99_000));
    assert_eq!(rules.callees(1).next(), Some(2));
}

/// A roster as data, to be written down and read back.
fn model() -> impl Strategy<Value = (Vec<(String, String)>, Vec<(usize, Vec<usize>)>)> {
    let members = proptest::collection::btree_map("[a-z][a-z0-9-]{0,5}", "[a-z0-9.]{1,6}", 1..6)
        .prop_map(|members| members.into_iter().collect::<Vec<_>>());
    members.prop_flat_map(|members| {
        let count = members.len();
        let rules = proptest::collection::vec((0..count, proptest::collection::vec(0..count, 1..4)), 0..5);
        (Just(members), rules)
    })
}

proptest! {
    #[test]
    fn what_is_written_is_what_is_read((members, rules) in model()) {
        let mut text = String::from("roster_version: 1\nmembers:\n");
        for (index, (name, version)) in members.iter().enumerate() {
            text.push_str(&format!("  - name: '{name}'\n    capsule: a/b\n    version: '{version}'\n    entry: {}\n", index == 0));
        }
        text.push_str("reachability:\n");
        let mut edges = Vec::new();
        for (from, to) in &rules {
            let to: Vec<usize> = to.iter().copied().filter(|to| to != from && *to != 0).collect();
            if to.is_empty() { continue; }
            let names: Vec<String> = to.iter().map(|to| format!("'{}'", members[*to].0)).collect();
            text.push_str(&format!("  - from: '{}'\n    to: [{}]\n", members[*from].0, names.join(", ")));
            edges.extend(to.iter().map(|to| (*from as u32, *to as u32)));
        }
        edges.sort_unstable();
        edges.dedup();
        match parse(text.as_bytes()) {
            Ok(roster) => {
                let read: Vec<_> = roster.members.iter().map(|m| (m.name.clone(), m.version.as_str().to_owned())).collect();
                prop_assert_eq!(&read, &members);
                prop_assert_eq!(roster.check().unwrap().edges, Some(edges));
            }
            // A version such as `.x` is no directory name.
            Err(error) => prop_assert!(error.message().contains("version"), "{}", error),
        }
    }

    #[test]
    fn any_bytes_are_a_roster_or_a_placed_fault(text in "(roster_version: 1\n)?(members:\n( - [a-z]{1,8}: [a-z0-9/~\\[\\]{}]{0,8}\n){0,4})?(reachability: ?[a-z\\[\\]{}:, ]{0,20}\n)?") {
        fuzz(text.as_bytes());
    }
}
