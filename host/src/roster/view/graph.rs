//! The roster for other programs that draw: Mermaid and Graphviz.

use std::fmt::Write as _;

use super::View;

pub(super) fn mermaid(view: &View<'_>) -> String {
    let mut out = String::from("flowchart LR\n");
    for (index, member) in view.members().iter().enumerate() {
        let label = format!("{}<br/>{}", in_mermaid(&member.name), in_mermaid(&coordinate(view, index)));
        let (open, close) = if member.entry { ("([", "])") } else { ("[", "]") };
        let _ = writeln!(out, "  m{index}{open}\"{label}\"{close}");
    }
    for (from, to) in view.survey.seen.edges() {
        let _ = writeln!(out, "  m{from} --> m{to}");
    }
    out.push_str("  classDef entry stroke-width:3px\n  classDef missing stroke-dasharray:4 3\n");
    out.push_str("  classDef crowded stroke:#b7791f\n");
    for (index, member) in view.members().iter().enumerate() {
        let classes =
            [(member.entry, "entry"), (view.declared(index).is_none(), "missing"), (view.crowded(index), "crowded")];
        for (_, class) in classes.iter().filter(|(applies, _)| *applies) {
            let _ = writeln!(out, "  class m{index} {class}");
        }
    }
    out
}

pub(super) fn dot(view: &View<'_>) -> String {
    let mut out =
        String::from("digraph roster {\n  rankdir=LR;\n  node [shape=box, style=rounded, fontname=\"sans-serif\"];\n");
    for (index, member) in view.members().iter().enumerate() {
        let label = format!("{}\\n{}", in_dot(&member.name), in_dot(&coordinate(view, index)));
        let mut more = String::new();
        if member.entry {
            more.push_str(", penwidth=2, peripheries=2");
        }
        if view.declared(index).is_none() {
            more.push_str(", style=\"rounded,dashed\"");
        }
        if view.crowded(index) {
            more.push_str(", color=\"#b7791f\"");
        }
        let _ = writeln!(out, "  m{index} [label=\"{label}\"{more}];");
    }
    for (from, to) in view.survey.seen.edges() {
        let _ = writeln!(out, "  m{from} -> m{to};");
    }
    out.push_str("}\n");
    out
}

fn coordinate(view: &View<'_>, index: usize) -> String {
    let member = &view.members()[index];
    let missing = if view.declared(index).is_none() { " (missing)" } else { "" };
    format!("{}@{}{missing}", member.capsule, member.version)
}

/// Text within a quoted Mermaid label: what could end it or be read as mark-up is written as its entity.
fn in_mermaid(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            _ if c.is_control() => out.push('\u{fffd}'),
            '"' | '#' | '<' | '>' | '&' | '`' | ';' => {
                let _ = write!(out, "#{};", u32::from(c));
            }
            _ => out.push(c),
        }
    }
    out
}

/// Text within a quoted DOT string.
fn in_dot(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            _ if c.is_control() => out.push('\u{fffd}'),
            '"' | '\\' => out.extend(['\\', c]),
            _ => out.push(c),
        }
    }
    out
}
