use super::super::survey::survey;
use super::super::tests::{AUTH, Fake, SERVES};
use super::*;
use crate::roster::parse;

const MEMBERS: &str = "roster_version: 1
members:
  - {name: lead, capsule: local/lead, version: 1, entry: true}
  - {name: coder, capsule: local/coder, version: 1}
  - {name: tester, capsule: local/tester, version: 1}
";

const MODEL: &str = "artifacts: [{name: a/d, version: 1, runtime: driver, gateway: {endpoint: 'https://x', keyless: true}}]\n\
                     inference: {model: m, driver: {artifact: a/d}}\n";
const REACHES: &str = "capabilities: {network: {allow: [localhost]}}\n";
const GOES_ON: &str = "lifecycle: {task_acceptance: queue, after_task: sleep}\n";

fn explained(reachability: &str, source: &mut Fake, from: &str, to: &str) -> Explanation {
    let roster = parse(format!("{MEMBERS}reachability: {reachability}\n").as_bytes()).unwrap();
    let survey = survey(&roster, roster.check().unwrap(), source);
    Explanation::of(&roster, &survey, from, to).unwrap()
}

fn states(explanation: &Explanation) -> Vec<(&'static str, State)> {
    explanation.needs.iter().map(|need| (need.what, need.state)).collect()
}

#[test]
fn a_rule_is_named_by_every_place_that_writes_it() {
    let full = format!("{MODEL}{REACHES}{SERVES}{AUTH}{GOES_ON}");
    let rules = "\n  - from: lead\n    to: [tester, coder]\n  - {from: lead, to: [coder]}";
    let explanation = explained(rules, &mut Fake::default().with("*", &full), "lead", "coder");
    let places = [Written { rule: 0, position: 1, line: 8 }, Written { rule: 1, position: 0, line: 9 }].to_vec();
    assert_eq!(explanation.edge, Edge::Rules(places));
    assert!(explanation.can_call() && explanation.refusal.is_none());
    assert!(states(&explanation).iter().all(|(_, state)| *state == State::Met), "{explanation:?}");
    let text = explanation.text();
    assert!(text.starts_with("May lead call coder? yes\n"), "{text}");
    assert!(text.contains("roster.yaml:8: reachability[0].to[1]"), "{text}");
}

#[test]
fn a_no_says_which_no_it_is() {
    let full = format!("{MODEL}{REACHES}{SERVES}{AUTH}{GOES_ON}");
    let rules = "[{from: lead, to: [coder]}]";
    let cases = [
        (rules, "lead", "lead", "itself", "no member calls itself"),
        (rules, "coder", "lead", "entry", "lead is the entry member"),
        (rules, "lead", "tester", "no_rule", "no rule from lead lists tester"),
        ("[]", "lead", "tester", "no_reachability", "no reachability"),
        ("all", "coder", "lead", "entry", "lead is the entry member"),
    ];
    for (reachability, from, to, kind, words) in cases {
        let explanation = explained(reachability, &mut Fake::default().with("*", &full), from, to);
        let Edge::None(found, why) = &explanation.edge else { panic!("{from} may call {to}") };
        assert!(*found == kind && why.contains(words), "{found}: {why}");
        assert!(!explanation.can_call() && explanation.needs.is_empty());
        assert_eq!(explanation.json()["by"], kind);
    }
    let mut source = Fake::default().with("local/tester@1", AUTH).with("*", &full);
    let explanation = explained("all", &mut source, "tester", "coder");
    assert!(
        matches!(&explanation.edge, Edge::None("no_peer_tasks", why) if why.starts_with("tester does not declare"))
    );
    let all = explained("all", &mut Fake::default().with("*", &full), "coder", "tester");
    assert!(all.can_call() && all.edge == Edge::All);
}

#[test]
fn what_a_call_lacks_is_said_with_the_code_that_says_it_elsewhere() {
    let rules = "[{from: lead, to: [coder]}, {from: tester, to: [coder]}]";
    let bare = format!("{SERVES}{AUTH}");
    let explanation = explained(rules, &mut Fake::default().with("*", &bare), "lead", "coder");
    assert!(explanation.may_call() && !explanation.can_call());
    let found: Vec<_> = explanation.needs.iter().map(|need| (need.what, need.state, need.code)).collect();
    assert_eq!(
        found,
        [
            ("tool", State::Missing, None),
            ("turns", State::Met, None),
            ("network", State::Missing, Some(codes::W_RUN_008)),
            ("time", State::Met, None),
            ("peer_tasks", State::Met, None),
            ("authentication", State::Met, None),
            ("room", State::Limited, Some(codes::W_ROS_001)),
            ("lifecycle", State::Limited, None),
        ]
    );
    assert!(explanation.needs[6].text.contains("queue_depth: 1 would hold"), "{:?}", explanation.needs[6]);
    let full = format!("{}{REACHES}", MODEL.replace("model: m", "model: m, max_turns: 1"));
    let closed = format!("{AUTH}{SERVES}lifecycle: {{task_acceptance: none}}\n");
    let mut source = Fake::default().with("local/coder@1", &closed).with("*", &format!("{full}{AUTH}"));
    let explanation = explained(rules, &mut source, "lead", "coder");
    let limited: Vec<_> = states(&explanation).into_iter().filter(|(_, state)| *state != State::Met).collect();
    assert_eq!(limited, [("turns", State::Limited), ("room", State::Missing), ("lifecycle", State::Limited)]);
}

#[test]
fn what_admission_refuses_is_part_of_the_answer() {
    let rules = "[{from: lead, to: [coder]}]";
    let mut source = Fake::default().with("local/lead@1", &format!("{MODEL}{REACHES}{AUTH}"));
    let explanation = explained(rules, &mut source, "lead", "coder");
    assert_eq!(explanation.refusal.as_ref().unwrap().code(), codes::E_ROS_007);
    assert_eq!(states(&explanation).last(), Some(&("callee", State::Unknown)));
    assert!(explanation.may_call() && !explanation.can_call());
    assert_eq!(explanation.json()["refusal"]["code"], "E-ROS-007");
    assert_eq!(explanation.json()["refusal"]["line"], 4);
    let mut source = Fake::default().with("*", &format!("{MODEL}{AUTH}"));
    let explanation = explained(rules, &mut source, "lead", "coder");
    assert_eq!(explanation.refusal.as_ref().unwrap().code(), codes::E_ROS_005);
    assert!(states(&explanation).contains(&("peer_tasks", State::Missing)));
}

#[test]
fn an_unknown_member_is_refused_with_the_nearest_name() {
    let roster = parse(MEMBERS.as_bytes()).unwrap();
    let survey = survey(&roster, roster.check().unwrap(), &mut Fake::default().with("*", ""));
    let refusal = Explanation::of(&roster, &survey, "codre", "lead").unwrap_err();
    assert_eq!(refusal.code(), codes::E_ROS_009);
    assert!(refusal.hint_text().unwrap().starts_with("did you mean 'coder'?"));
    let far = Explanation::of(&roster, &survey, "lead", "somebody-else").unwrap_err();
    assert!(!far.hint_text().unwrap().contains("did you mean"));
}
