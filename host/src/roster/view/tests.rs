use std::collections::BTreeSet;
use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::diagnostics::codes;
use crate::roster::parse;
use crate::roster::survey::survey;
use crate::roster::tests::{AUTH, Fake, SERVES};

fn rendered(text: &str, source: &mut Fake, format: Format) -> Result<String> {
    let roster = parse(text.as_bytes()).unwrap();
    let survey = survey(&roster, roster.check().unwrap(), source);
    View { file: Path::new("/p/roster.yaml"), roster: &roster, survey: &survey }.render(format)
}

/// `count` members, the first the entry member.
fn members(count: usize) -> String {
    let mut text = String::from("roster_version: 1\nmembers:\n");
    for n in 0..count {
        let entry = if n == 0 { ", entry: true" } else { "" };
        text.push_str(&format!("  - {{name: m{n}, capsule: local/c{n}, version: 1{entry}}}\n"));
    }
    text
}

fn with_edges(count: usize, edges: &BTreeSet<(usize, usize)>) -> String {
    let mut text = members(count);
    text.push_str("reachability:\n");
    for (from, to) in edges {
        text.push_str(&format!("  - {{from: m{from}, to: [m{to}]}}\n"));
    }
    text
}

/// Elements of an SVG open and close in turn, and no text breaks out of its place.
fn assert_well_formed(svg: &str) {
    let mut open: Vec<&str> = Vec::new();
    for piece in svg.split('<').skip(1) {
        let (tag, text) = piece.split_once('>').expect("a tag ends");
        assert!(!text.contains('>') && !text.replace("&amp;", "").replace("&lt;", "").contains("&&"), "{piece}");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "{tag} in {open:?}");
        } else if !tag.ends_with('/') {
            open.push(tag.split([' ', '\n']).next().unwrap());
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

const HOSTILE: &str = "roster_version: 1
members:
  - {name: lead, capsule: local/lead, version: '1\"<script>&', entry: true}
  - {name: worker, capsule: local/worker, version: \"2'];--\"}
reachability: [{from: lead, to: [worker]}]
";

#[test]
fn what_a_roster_says_stays_text_in_every_form() {
    let mut source = Fake::default().with("*", &format!("{SERVES}{AUTH}"));
    let svg = rendered(HOSTILE, &mut source, Format::Svg).unwrap();
    assert_well_formed(&svg);
    assert!(svg.contains("local/lead@1&quot;&lt;script&gt;&amp;") && !svg.contains("<script"), "{svg}");
    let mermaid = rendered(HOSTILE, &mut source, Format::Mermaid).unwrap();
    assert!(mermaid.contains("m0([\"lead<br/>local/lead@1#34;#60;script#62;#38;\"])"), "{mermaid}");
    assert!(mermaid.contains("m1[\"worker<br/>local/worker@2']#59;--\"]"), "{mermaid}");
    assert!(mermaid.contains("\n  m0 --> m1\n"));
    let dot = rendered(HOSTILE, &mut source, Format::Dot).unwrap();
    assert!(dot.contains("m0 [label=\"lead\\nlocal/lead@1\\\"<script>&\", penwidth=2, peripheries=2];"), "{dot}");
    assert!(dot.contains("\n  m0 -> m1;\n") && dot.ends_with("}\n"));
}

#[test]
fn json_has_these_keys() {
    let text = members(3) + "reachability: [{from: m0, to: [m1]}]\n";
    let mut source = Fake::default().with("local/c0@1", AUTH).with("local/c1@1", &format!("{SERVES}{AUTH}"));
    let shown: Value = serde_json::from_str(&rendered(&text, &mut source, Format::Json).unwrap()).unwrap();
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&shown), ["roster", "admitted", "refusal", "reachability", "members", "edges", "warnings"]);
    assert_eq!(
        keys(&shown["members"][0]),
        [
            "name",
            "capsule",
            "version",
            "entry",
            "sha256",
            "serves_peers",
            "authenticated",
            "credentials",
            "holds",
            "task_acceptance",
            "after_task",
            "queue_depth",
            "reaches_doors",
            "refusal"
        ]
    );
    assert_eq!(shown["admitted"], false);
    assert_eq!(shown["refusal"]["code"], "E-ROS-007");
    assert_eq!(shown["edges"], json!([{"from": "m0", "to": "m1", "line": 6}]));
    assert_eq!(shown["members"][1]["task_acceptance"], "single");
    assert_eq!(shown["members"][1]["sha256"].as_str().unwrap().len(), 64);
    assert!(shown["members"][2]["sha256"].is_null() && shown["members"][2]["refusal"]["line"] == 5);
    // The book names every key.
    let book = include_str!("../../../../docs/src/reference/commands.md");
    for key in keys(&shown).into_iter().chain(keys(&shown["members"][0])).chain(keys(&shown["refusal"])) {
        let named = book.contains(&format!("`{key}`")) || book.contains(&format!("`{key}[]`"));
        assert!(named, "the book does not name {key}");
    }
}

#[test]
fn a_warning_says_which_depth_holds_every_caller() {
    let text = members(4) + "reachability: all\n";
    let mut source = Fake::default().with("*", &format!("{SERVES}{AUTH}"));
    let shown: Value = serde_json::from_str(&rendered(&text, &mut source, Format::Json).unwrap()).unwrap();
    assert_eq!(shown["admitted"], true);
    let first = &shown["warnings"][0];
    assert_eq!(first["member"], "m1");
    assert_eq!((&first["callers"], &first["holds"], &first["queue_depth"]), (&json!(3), &json!(1), &json!(2)));
    let plain = rendered(&text, &mut source, Format::Text).unwrap();
    assert!(plain.contains("W-ROS-001  roster.yaml: member 'm1' may be called by 3 members (m0, m2, m3)"), "{plain}");
    assert!(plain.contains("asks for a token of: operator, member:m0, member:m2, member:m3"), "{plain}");
}

#[test]
fn a_roster_too_large_for_a_picture_is_refused_and_no_other_form_is() {
    let text = members(201);
    let mut source = Fake::default().with("*", "");
    assert_eq!(rendered(&text, &mut source, Format::Svg).unwrap_err().code(), codes::E_IO_003);
    for format in [Format::Text, Format::Mermaid, Format::Dot, Format::Json] {
        rendered(&text, &mut source, format).unwrap();
    }
}

#[test]
fn a_dense_graph_of_many_members_is_drawn_without_being_laid_out_in_layers() {
    let edges: BTreeSet<_> = (0..200).flat_map(|a| (1..200).filter(move |b| a != *b).map(move |b| (a, b))).collect();
    let mut source = Fake::default().with("*", &format!("{SERVES}{AUTH}"));
    let svg = rendered(&with_edges(200, &edges), &mut source, Format::Svg).unwrap();
    assert_well_formed(&svg);
    // A pair that may call each other is one line.
    assert_eq!(svg.matches(" marker-end=").count(), 199 + 199 * 198 / 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_picture_of_any_roster_shows_every_member_and_is_the_same_every_time(
        count in 2_usize..65,
        pairs in proptest::collection::btree_set((0_usize..64, 1_usize..64), 0..90),
        all in any::<bool>(),
        serve in any::<bool>(),
    ) {
        let edges: BTreeSet<_> = pairs.into_iter().filter(|(a, b)| a != b && *a < count && *b < count).collect();
        let text = if all { members(count) + "reachability: all\n" } else { with_edges(count, &edges) };
        let manifest = if serve { format!("{SERVES}{AUTH}") } else { String::new() };
        let mut source = Fake::default().with("*", &manifest);
        let svg = rendered(&text, &mut source, Format::Svg).unwrap();
        assert_well_formed(&svg);
        prop_assert!(!svg.contains("NaN") && !svg.contains("inf"));
        for n in 0..count {
            let title = format!("<title>m{n} · local/c{n}@1 · ");
            prop_assert!(svg.contains(&title), "{}", title);
        }
        prop_assert_eq!(svg, rendered(&text, &mut source, Format::Svg).unwrap());
    }

    #[test]
    fn members_of_a_layer_stand_apart_and_every_edge_has_a_line(
        count in 2_usize..40,
        pairs in proptest::collection::btree_set((0_usize..40, 1_usize..40), 1..60),
    ) {
        let edges: Vec<_> = pairs.into_iter().filter(|(a, b)| a != b && *a < count && *b < count).collect();
        let layers = layout::layers(count, &edges, 0);
        let on: BTreeSet<usize> = edges.iter().flat_map(|(a, b)| [*a, *b]).collect();
        for a in &on {
            prop_assert!(layers.nodes[*a].y >= layout::BOX_HEIGHT / 2.0 - 0.01);
            prop_assert!(layers.nodes[*a].y <= layers.height - layout::BOX_HEIGHT / 2.0 + 0.01);
            for b in on.iter().filter(|b| *b > a && layers.nodes[**b].layer == layers.nodes[*a].layer) {
                let apart = (layers.nodes[*a].y - layers.nodes[*b].y).abs();
                prop_assert!(apart >= layout::BOX_HEIGHT, "m{} and m{} are {} apart", a, b, apart);
            }
        }
        for (from, to) in &edges {
            let drawn = layers.lines.iter().any(|line| {
                let (left, right) = (line.through[0], line.through[line.through.len() - 1]);
                (line.forward && (left, right) == (*from, *to)) || (line.back && (right, left) == (*from, *to))
            });
            prop_assert!(drawn, "no line from m{} to m{}", from, to);
        }
        for line in &layers.lines {
            let layer = |node: &usize| layers.nodes[*node].layer;
            prop_assert!(line.through.windows(2).all(|pair| layer(&pair[0]) + 1 == layer(&pair[1])));
        }
    }

    #[test]
    fn whom_a_member_may_call_is_the_same_however_it_is_asked(
        pairs in proptest::collection::btree_set((0_usize..8, 1_usize..8), 0..20),
        all in any::<bool>(),
        serving in proptest::collection::vec(any::<bool>(), 8),
    ) {
        let edges: BTreeSet<_> = pairs.into_iter().filter(|(a, b)| a != b).collect();
        let text = if all { members(8) + "reachability: all\n" } else { with_edges(8, &edges) };
        let mut source = Fake::default();
        for (n, serves) in serving.iter().enumerate() {
            source = source.with(&format!("local/c{n}@1"), if *serves { SERVES } else { AUTH });
        }
        let roster = parse(text.as_bytes()).unwrap();
        let survey = survey(&roster, roster.check().unwrap(), &mut source);
        let listed: BTreeSet<_> = survey.seen.edges().collect();
        for from in 0..8 {
            for to in 0..8 {
                prop_assert_eq!(survey.seen.may_call(from, to), listed.contains(&(from, to)));
            }
        }
        prop_assert_eq!(survey.seen.has_edges(), !listed.is_empty());
        if !all { prop_assert_eq!(listed, edges); }
    }
}
