//! The roster as a picture: layers for a few members, a circle for many, and a frame where all may call all.

use std::f64::consts::{PI, TAU};
use std::fmt::Write as _;

use super::View;
use super::layout::{self, BOX_HEIGHT};
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::roster::admission::Reach;

/// More members than these are no picture.
const MAX_DRAWN: usize = 200;
/// Most members of a picture in layers, and most that stand above one another in it.
const LAYERED: (usize, usize) = (24, 12);
const MARGIN: f64 = 28.0;
/// Title and verdict.
const HEAD: f64 = 58.0;
/// The key of the marks.
const FOOT: f64 = 40.0;
/// Widest a box gets; what does not fit is cut.
const WIDEST: f64 = 268.0;
/// Between two layers.
const BETWEEN: f64 = 110.0;
/// Between boxes of a grid.
const GAP: f64 = 22.0;

const STYLE: &str = "text{font-family:ui-sans-serif,system-ui,'Segoe UI','DejaVu Sans',Arial,sans-serif;fill:#1d2733}\
    .t{font-size:17px;font-weight:600}.s{font-size:12px;fill:#5b6b7d}.n{font-size:14px;font-weight:600}\
    .c{font-size:11px;fill:#5b6b7d}.b{fill:#fff;stroke:#9aaabc;stroke-width:1.3}\
    .entry .b{fill:#1f4e9c;stroke:#163a75}.entry text{fill:#fff}.entry .c{fill:#d5e2f7}\
    .crowded .b{fill:#fff8e8;stroke:#c98a12;stroke-width:1.8}\
    .missing .b{fill:#fff4f4;stroke:#c0392b;stroke-dasharray:5 3}\
    .e{fill:none;stroke:#4a6076;stroke-width:1.5}.r{stroke:#8a4fa3}\
    .f{fill:#f6f8fb;stroke:#b9c6d4;stroke-width:1.2}";

/// What a picture is put together from.
struct Picture<'a> {
    view: &'a View<'a>,
    body: String,
}

pub(super) fn render(view: &View<'_>) -> Result<String> {
    let count = view.members().len();
    if count > MAX_DRAWN {
        return Err(Diagnostic::new(
            codes::E_IO_003,
            format!("a roster of {count} members is too large for a picture, which holds {MAX_DRAWN}"),
        )
        .hint("--format dot for a program that lays out large graphs, or --format json"));
    }
    let mut picture = Picture { view, body: String::new() };
    let (width, height) = match &view.survey.seen.reach {
        Reach::All if view.survey.seen.has_edges() => picture.framed(),
        Reach::All => picture.grid(&(0..count).collect::<Vec<_>>(), MARGIN, HEAD),
        Reach::Rules(edges) => {
            let edges: Vec<(usize, usize)> = edges.iter().map(|(from, to)| (*from as usize, *to as usize)).collect();
            picture.ruled(&edges)
        }
    };
    Ok(picture.finish(width, height))
}

impl Picture<'_> {
    /// Rules: layers while they are readable, else a circle.
    fn ruled(&mut self, edges: &[(usize, usize)]) -> (f64, f64) {
        let count = self.view.members().len();
        let entry = self.view.survey.seen.entry();
        let (on, off): (Vec<usize>, Vec<usize>) =
            (0..count).partition(|member| edges.iter().any(|(from, to)| from == member || to == member));
        if on.is_empty() {
            return self.grid(&off, MARGIN, HEAD);
        }
        // Decided before layers are laid out: for a dense graph of many members that takes minutes.
        if on.len() > LAYERED.0 {
            return self.circle(edges, entry);
        }
        let layers = layout::layers(count, edges, entry);
        let stacked = (0..layers.count)
            .map(|layer| on.iter().filter(|member| layers.nodes[**member].layer == layer).count())
            .max();
        if stacked.unwrap_or(0) > LAYERED.1 {
            return self.circle(edges, entry);
        }
        let (width, bottom) = self.layered(&layers, &on);
        match off.is_empty() {
            true => (width, bottom),
            false => {
                self.text(MARGIN, bottom + 30.0, "s", "on no edge");
                let (wide, high) = self.grid(&off, MARGIN, bottom + 42.0);
                (width.max(wide), high)
            }
        }
    }

    fn layered(&mut self, layers: &layout::Layers, on: &[usize]) -> (f64, f64) {
        let mut left = Vec::with_capacity(layers.count);
        let mut wide = Vec::with_capacity(layers.count);
        let mut x = MARGIN;
        for layer in 0..layers.count {
            let own = on.iter().filter(|member| layers.nodes[**member].layer == layer);
            let width = own.map(|member| self.box_width(*member)).fold(0.0, f64::max);
            left.push(x);
            wide.push(width);
            x += width + BETWEEN;
        }
        let ends = self.ends(layers);
        for (line, (start, end)) in layers.lines.iter().zip(ends) {
            let mut path = String::new();
            let mut at = (0.0, 0.0);
            for (index, node) in line.through.iter().enumerate() {
                let slot = layers.nodes[*node];
                let (near, far) = (left[slot.layer], left[slot.layer] + wide[slot.layer]);
                if index == 0 {
                    at = (far, slot.y + HEAD + start);
                    let _ = write!(path, "M{:.1} {:.1}", at.0, at.1);
                    continue;
                }
                let last = index + 1 == line.through.len();
                let to = (near, slot.y + HEAD + if last { end } else { 0.0 });
                let bend = (to.0 - at.0) / 2.0;
                let _ = write!(
                    path,
                    "C{:.1} {:.1} {:.1} {:.1} {:.1} {:.1}",
                    at.0 + bend,
                    at.1,
                    to.0 - bend,
                    to.1,
                    to.0,
                    to.1
                );
                if !last {
                    let _ = write!(path, "H{far:.1}");
                }
                at = (far, to.1);
            }
            let ends = [line.through[0], line.through[line.through.len() - 1]];
            self.line(&path, ends, line.forward, line.back);
        }
        for member in on {
            let slot = layers.nodes[*member];
            let width = wide[slot.layer];
            self.member(*member, left[slot.layer], slot.y + HEAD - BOX_HEIGHT / 2.0, width);
        }
        (x - BETWEEN + MARGIN, HEAD + layers.height)
    }

    /// Where along the side of its boxes each line begins and ends: spread out, in the order of the other ends.
    fn ends(&self, layers: &layout::Layers) -> Vec<(f64, f64)> {
        let mut ends = vec![(0.0, 0.0); layers.lines.len()];
        for member in 0..self.view.members().len() {
            for side in [false, true] {
                let own = |line: &layout::Line| match side {
                    false => (line.through[0] == member).then(|| line.through[1]),
                    true => (line.through.last() == Some(&member)).then(|| line.through[line.through.len() - 2]),
                };
                let mut lines: Vec<(usize, f64)> = layers
                    .lines
                    .iter()
                    .enumerate()
                    .filter_map(|(index, line)| own(line).map(|next| (index, layers.nodes[next].y)))
                    .collect();
                lines.sort_by(|a, b| a.1.total_cmp(&b.1));
                let room = BOX_HEIGHT - 22.0;
                let step = (room / lines.len() as f64).min(14.0);
                let count = lines.len();
                for (at, (index, _)) in lines.into_iter().enumerate() {
                    let offset = (at as f64 - (count as f64 - 1.0) / 2.0) * step;
                    match side {
                        false => ends[index].0 = offset,
                        true => ends[index].1 = offset,
                    }
                }
            }
        }
        ends
    }

    /// Many members: points on a circle, their names outside it, calls as arcs within.
    fn circle(&mut self, edges: &[(usize, usize)], entry: usize) -> (f64, f64) {
        let count = self.view.members().len();
        let label = (0..count).map(|member| text_width(&self.circle_label(member), 7.4)).fold(0.0, f64::max) + 18.0;
        let radius = (count as f64 * 26.0 / TAU).max(170.0);
        let middle = (MARGIN + label + radius, HEAD + label + radius);
        // The entry member stands at the top, the others clockwise in roster order.
        let angle = |member: usize| {
            let turns = (member + count - entry) % count;
            turns as f64 / count as f64 * TAU - PI / 2.0
        };
        let point = |member: usize, radius: f64| {
            let angle = angle(member);
            (middle.0 + radius * angle.cos(), middle.1 + radius * angle.sin())
        };
        let both = |from: usize, to: usize| edges.binary_search(&(to, from)).is_ok();
        for (from, to) in edges {
            if both(*from, *to) && to < from {
                continue;
            }
            let (a, b) = (point(*from, radius - 9.0), point(*to, radius - 9.0));
            // Drawn towards the middle, the more so the closer the two stand.
            let pull = |p: (f64, f64)| (p.0 + (middle.0 - p.0) * 0.55, p.1 + (middle.1 - p.1) * 0.55);
            let (c, d) = (pull(a), pull(b));
            let path =
                format!("M{:.1} {:.1}C{:.1} {:.1} {:.1} {:.1} {:.1} {:.1}", a.0, a.1, c.0, c.1, d.0, d.1, b.0, b.1);
            let colour = *from as f64 / count as f64 * 360.0;
            let back = both(*from, *to);
            let start = if back { " marker-start=\"url(#a)\"" } else { "" };
            let _ = writeln!(
                self.body,
                "<path d=\"{path}\" class=\"e\" style=\"stroke:hsl({colour:.0},45%,45%);stroke-width:1.2\" opacity=\".75\" \
                 marker-end=\"url(#a)\"{start}>{}</path>",
                self.called(*from, *to, back)
            );
        }
        for member in 0..count {
            let ((x, y), degrees) = (point(member, radius), angle(member).to_degrees());
            let turned = degrees > 90.0;
            let (turn, anchor, dx) = if turned { (degrees + 180.0, "end", -13.0) } else { (degrees, "start", 13.0) };
            let size = if member == entry { 8 } else { 6 };
            let _ = writeln!(
                self.body,
                "<g class=\"{}\">{}<circle class=\"b\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{size}\"/></g><text class=\"s\" \
                 style=\"fill:#1d2733{}\" text-anchor=\"{anchor}\" transform=\"translate({x:.1} {y:.1}) rotate({turn:.1})\" \
                 x=\"{dx}\" y=\"4\">{}</text>",
                self.classes(member),
                self.tip(member),
                if member == entry { ";font-weight:700" } else { "" },
                escaped(&self.circle_label(member)),
            );
        }
        (2.0 * middle.0, HEAD + 2.0 * (label + radius))
    }

    fn circle_label(&self, member: usize) -> String {
        let name = self.view.name(member);
        let warned = self.view.survey.seen.warnings.iter().find(|crowded| crowded.member == member);
        match (&self.view.survey.declared[member], warned) {
            (Err(refusal), _) => format!("{name} · {}", refusal.code()),
            (Ok(_), Some(crowded)) => format!("{name} · {} callers", crowded.callers),
            (Ok(_), None) => name.to_owned(),
        }
    }

    /// `all`: who may call each other stand in one frame, the entry member before it, the others below.
    fn framed(&mut self) -> (f64, f64) {
        let members = self.view.members();
        let (mut inside, mut outside) = (Vec::new(), Vec::new());
        for (index, member) in members.iter().enumerate() {
            let which = if member.serves_peers && !member.entry { &mut inside } else { &mut outside };
            which.push(index);
        }
        let entry = self.view.survey.seen.entry();
        let calls = members[entry].serves_peers;
        let mut x = MARGIN;
        if calls {
            outside.retain(|member| *member != entry);
            x += self.box_width(entry) + BETWEEN * 0.7;
        }
        let start = self.body.len();
        let (right, bottom) = self.grid(&inside, x + GAP, HEAD + 40.0);
        let grid = self.body.split_off(start);
        let (right, bottom) = (right - MARGIN + GAP, bottom + GAP);
        let _ = writeln!(
            self.body,
            "<rect class=\"f\" x=\"{x:.1}\" y=\"{HEAD:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"12\"/>",
            right - x,
            bottom - HEAD
        );
        let words = if inside.len() > 1 { "each of these may call every other" } else { "serves peers" };
        self.text(x + GAP, HEAD + 25.0, "s", words);
        self.body.push_str(&grid);
        if calls {
            let (y, wide) = ((HEAD + bottom) / 2.0, self.box_width(entry));
            let path = format!("M{:.1} {y:.1}H{:.1}", MARGIN + wide, x);
            let _ = writeln!(
                self.body,
                "<path d=\"{path}\" class=\"e\" marker-end=\"url(#a)\"><title>{} may call each of these</title></path>",
                escaped(self.view.name(entry))
            );
            self.member(entry, MARGIN, y - BOX_HEIGHT / 2.0, wide);
        }
        if outside.is_empty() {
            return (right + MARGIN, bottom);
        }
        self.text(MARGIN, bottom + 30.0, "s", "on no edge");
        let (wide, high) = self.grid(&outside, MARGIN, bottom + 42.0);
        (wide.max(right + MARGIN), high)
    }

    /// Boxes in rows, about as wide as high; the right and lower end.
    fn grid(&mut self, members: &[usize], x: f64, y: f64) -> (f64, f64) {
        let width = members.iter().map(|member| self.box_width(*member)).fold(0.0, f64::max);
        let columns = (members.len() as f64 * BOX_HEIGHT / width.max(1.0) * 1.6).sqrt().ceil().max(1.0) as usize;
        for (at, member) in members.iter().enumerate() {
            let (column, row) = (at % columns, at / columns);
            let (left, top) = (x + column as f64 * (width + GAP), y + row as f64 * (BOX_HEIGHT + GAP));
            self.member(*member, left, top, width);
        }
        let (columns, rows) = (columns.min(members.len()), members.len().div_ceil(columns));
        let right = x + columns as f64 * (width + GAP) - GAP + MARGIN;
        (right, y + rows as f64 * (BOX_HEIGHT + GAP) - GAP)
    }

    fn member(&mut self, index: usize, x: f64, y: f64, width: f64) {
        let _ = write!(
            self.body,
            "<g class=\"{}\">{}<rect class=\"b\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BOX_HEIGHT}\" \
             rx=\"8\"/>",
            self.classes(index),
            self.tip(index)
        );
        let name = cut(self.view.name(index), width, 8.6);
        let coordinate = cut(&self.coordinate(index), width, 6.3);
        let facts = cut(&self.facts(index), width, 6.3);
        for (class, dy, text) in [("n", 21.0, name), ("c", 37.0, coordinate), ("c", 52.0, facts)] {
            self.text(x + 14.0, y + dy, class, &text);
        }
        self.body.push_str("</g>\n");
    }

    fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        let _ = writeln!(self.body, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escaped(text));
    }

    fn line(&mut self, path: &str, [left, right]: [usize; 2], forward: bool, back: bool) {
        let class = if forward { "e" } else { "e r" };
        let (start, end) = (if back { " marker-start=\"url(#a)\"" } else { "" }, forward);
        let end = if end { " marker-end=\"url(#a)\"" } else { "" };
        let title = if forward { self.called(left, right, back) } else { self.called(right, left, false) };
        let _ = writeln!(self.body, "<path d=\"{path}\" class=\"{class}\"{start}{end}>{title}</path>");
    }

    fn called(&self, from: usize, to: usize, both: bool) -> String {
        let (from, to) = (escaped(self.view.name(from)), escaped(self.view.name(to)));
        match both {
            true => format!("<title>{from} and {to} may call each other</title>"),
            false => format!("<title>{from} may call {to}</title>"),
        }
    }

    fn coordinate(&self, index: usize) -> String {
        let member = &self.view.members()[index];
        format!("{}@{}", member.capsule, member.version)
    }

    /// One line about a member.
    fn facts(&self, index: usize) -> String {
        let member = &self.view.members()[index];
        let tasks = || match member.holds {
            0 => "no task".to_owned(),
            1 => "1 task".to_owned(),
            holds => format!("1 task and {} waiting", holds - 1),
        };
        let warned = self.view.survey.seen.warnings.iter().find(|crowded| crowded.member == index);
        let text = match (&self.view.survey.declared[index], warned) {
            (Err(refusal), _) => return format!("missing: {}", refusal.code()),
            (Ok(_), _) if member.entry => "takes the task".to_owned(),
            (Ok(_), Some(crowded)) => format!("{}, {} callers", tasks(), crowded.callers),
            (Ok(_), None) if !member.serves_peers => "refuses peers".to_owned(),
            (Ok(_), None) => tasks(),
        };
        if member.authenticated { text } else { format!("{text} · public door") }
    }

    fn tip(&self, index: usize) -> String {
        let member = &self.view.members()[index];
        format!(
            "<title>{} · {} · {}</title>",
            escaped(&member.name),
            escaped(&self.coordinate(index)),
            self.facts(index)
        )
    }

    fn classes(&self, index: usize) -> String {
        let classes = [
            (self.view.members()[index].entry, "entry"),
            (self.view.crowded(index), "crowded"),
            (self.view.declared(index).is_none(), "missing"),
        ];
        let of: Vec<&str> = classes.into_iter().filter(|(applies, _)| *applies).map(|(_, class)| class).collect();
        if of.is_empty() { "m".to_owned() } else { of.join(" ") }
    }

    fn box_width(&self, index: usize) -> f64 {
        let name = text_width(self.view.name(index), 8.6);
        let below = text_width(&self.coordinate(index), 6.3).max(text_width(&self.facts(index), 6.3));
        (name.max(below) + 28.0).clamp(120.0, WIDEST)
    }

    /// The whole file: head, body, and the key of the marks that are used.
    fn finish(mut self, width: f64, bottom: f64) -> String {
        let view = self.view;
        let (members, edges) = (view.members().len(), view.survey.seen.edges().count());
        let verdict = match &view.survey.refusal {
            None => "admitted".to_owned(),
            Some(refusal) => format!("refused: {}", refusal.code()),
        };
        let line = format!("{members} members, {edges} edges ({}), {verdict}", view.reachability());
        self.text(MARGIN, 28.0, "t", "roster.yaml");
        self.text(MARGIN, 46.0, "s", &line);
        let mut key = vec![("entry", "entry member")];
        if (0..members).any(|index| view.crowded(index)) {
            key.push(("crowded", "more callers than tasks held (W-ROS-001)"));
        }
        if (0..members).any(|index| view.declared(index).is_none()) {
            key.push(("missing", "not usable as installed"));
        }
        let mut x = MARGIN;
        let y = bottom + FOOT - 18.0;
        for (class, words) in key {
            let _ = writeln!(
                self.body,
                "<g class=\"{class}\"><rect class=\"b\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"20\" height=\"12\" rx=\"3\"/></g>"
            );
            self.text(x + 27.0, y + 10.5, "s", words);
            x += 27.0 + text_width(words, 6.6) + 24.0;
        }
        let (width, height) =
            (width.max(x).max(MARGIN * 2.0 + text_width(&line, 6.8)).ceil(), (bottom + FOOT + 12.0).ceil());
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
             role=\"img\">\n<title>roster.yaml: {line}</title>\n<defs><style>{STYLE}</style>\n<marker id=\"a\" viewBox=\"0 0 10 10\" \
             refX=\"9\" refY=\"5\" markerWidth=\"7\" markerHeight=\"7\" orient=\"auto-start-reverse\"><path d=\"M0 1L9 5L0 9z\" \
             fill=\"#4a6076\"/></marker></defs>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{}</svg>",
            self.body
        )
    }
}

/// About how wide a text is; fonts differ, so boxes are generous.
fn text_width(text: &str, each: f64) -> f64 {
    text.chars().map(|c| if u32::from(c) >= 0x1100 { each * 1.8 } else { each }).sum()
}

/// A text as far as it fits a box.
fn cut(text: &str, width: f64, each: f64) -> String {
    let most = ((width - 22.0) / each).floor().max(4.0) as usize;
    if text_width(text, each) <= width - 20.0 {
        return text.to_owned();
    }
    let mut out: String = text.chars().take(most.saturating_sub(1)).collect();
    out.push('…');
    out
}

/// Text as XML has it; what XML cannot hold is shown as missing.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            _ if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            _ => out.push(c),
        }
    }
    out
}
