//! Where the members of a small roster stand: in layers from the callers to the called.
//!
//! The usual four steps: edges that close a cycle are turned round, members get the layer of their longest chain of
//! callers, members are ordered within their layers so that few lines cross, and lines that pass a layer get a gap of
//! their own in it. Everything is decided by roster order where nothing else decides, so one roster has one picture.

use std::collections::BTreeSet;

/// Height of a member's box.
pub(super) const BOX_HEIGHT: f64 = 62.0;
/// Between two boxes of a layer.
const GAP: f64 = 20.0;
/// What a passing line takes of a layer.
const PASSING: f64 = 10.0;
/// Times members are ordered by their neighbours, there and back.
const SWEEPS: usize = 12;

/// The layers of a roster that has edges.
pub(super) struct Layers {
    /// By node: members first, then the gaps of passing lines.
    pub nodes: Vec<Slot>,
    /// Number of layers.
    pub count: usize,
    /// Height of the highest layer.
    pub height: f64,
    /// One for each pair of members with an edge.
    pub lines: Vec<Line>,
}

/// A member's place, or the gap of a line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    /// From the left.
    pub layer: usize,
    /// Its middle, from the top.
    pub y: f64,
    member: bool,
}

/// A line between two members, through the gaps it passes, from left to right.
#[derive(Clone, Debug)]
pub(super) struct Line {
    /// Nodes from left to right: a member, gaps, a member.
    pub through: Vec<usize>,
    /// The left member may call the right one.
    pub forward: bool,
    /// The right member may call the left one.
    pub back: bool,
}

/// Lays out `count` members that have these edges. Members on no edge get a place too, and are not meant to be drawn.
pub(super) fn layers(count: usize, edges: &[(usize, usize)], entry: usize) -> Layers {
    let set: BTreeSet<(usize, usize)> = edges.iter().copied().collect();
    let forward = without_cycles(count, &set, entry);
    let rank = ranks(count, &forward);
    let mut nodes: Vec<Slot> = rank.iter().map(|layer| Slot { layer: *layer, y: 0.0, member: true }).collect();
    let mut lines = Vec::new();
    for (from, to) in forward {
        let mut through = vec![from];
        for layer in rank[from] + 1..rank[to] {
            through.push(nodes.len());
            nodes.push(Slot { layer, y: 0.0, member: false });
        }
        through.push(to);
        lines.push(Line { through, forward: set.contains(&(from, to)), back: set.contains(&(to, from)) });
    }
    let on_edge: BTreeSet<usize> = edges.iter().flat_map(|(from, to)| [*from, *to]).collect();
    let drawn = |node: usize| node >= count || on_edge.contains(&node);
    let layers = rank.iter().max().map_or(1, |last| last + 1);
    let mut order: Vec<Vec<usize>> = (0..layers)
        .map(|layer| (0..nodes.len()).filter(|node| nodes[*node].layer == layer && drawn(*node)).collect())
        .collect();
    let near = neighbours(nodes.len(), &lines);
    sort(&mut order, &nodes, &near);
    let height = place(&order, &mut nodes, &near);
    Layers { nodes, count: layers, height, lines }
}

/// The edges with those that close a cycle turned round, each pair once.
fn without_cycles(count: usize, edges: &BTreeSet<(usize, usize)>, entry: usize) -> BTreeSet<(usize, usize)> {
    let mut state = vec![0_u8; count];
    let mut forward = BTreeSet::new();
    for start in std::iter::once(entry).chain(0..count) {
        if state[start] != 0 {
            continue;
        }
        // A walk with a stack of its own: the node, and its callees that are left.
        let callees = |from: usize| edges.range((from, 0)..(from + 1, 0)).map(|(_, to)| *to).collect::<Vec<_>>();
        state[start] = 1;
        let mut walk = vec![(start, callees(start).into_iter())];
        while let Some((from, left)) = walk.last_mut() {
            let from = *from;
            let Some(to) = left.next() else {
                state[from] = 2;
                walk.pop();
                continue;
            };
            // A callee that is still being walked has led here: the line is drawn the other way.
            forward.insert(if state[to] == 1 { (to, from) } else { (from, to) });
            if state[to] == 0 {
                state[to] = 1;
                walk.push((to, callees(to).into_iter()));
            }
        }
    }
    forward
}

/// The longest chain to each member; a caller that nobody calls stands just before its first callee.
fn ranks(count: usize, edges: &BTreeSet<(usize, usize)>) -> Vec<usize> {
    let mut rank = vec![0; count];
    // Without cycles no chain is longer than the members.
    for _ in 0..count {
        let mut moved = false;
        for (from, to) in edges {
            if rank[*to] <= rank[*from] {
                rank[*to] = rank[*from] + 1;
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    for member in 0..count {
        let called = edges.iter().any(|(_, to)| *to == member);
        let first = edges.iter().filter(|(from, _)| *from == member).map(|(_, to)| rank[*to]).min();
        if let (false, Some(first)) = (called, first) {
            rank[member] = first - 1;
        }
    }
    rank
}

/// The nodes each node has a line to: left, right.
type Near = Vec<[Vec<usize>; 2]>;

fn neighbours(count: usize, lines: &[Line]) -> Near {
    let mut near: Near = vec![Default::default(); count];
    for line in lines {
        for pair in line.through.windows(2) {
            near[pair[1]][0].push(pair[0]);
            near[pair[0]][1].push(pair[1]);
        }
    }
    near
}

/// Orders each layer by where its neighbours stand; of all sweeps the order with the fewest crossings stays.
fn sort(order: &mut Vec<Vec<usize>>, nodes: &[Slot], near: &Near) {
    let mut best = (crossings(order, nodes.len(), near), order.clone());
    for sweep in 0..SWEEPS {
        let side = sweep % 2;
        let mut position = vec![0.0; nodes.len()];
        let layers: Vec<usize> = if side == 0 { (0..order.len()).collect() } else { (0..order.len()).rev().collect() };
        for layer in layers {
            let own = &mut order[layer];
            for (at, node) in own.iter().enumerate() {
                let others = &near[*node][side];
                let sum: f64 = others.iter().map(|other| position[*other]).sum();
                // Within 0 and 1, so that layers of other sizes compare.
                position[*node] = match others.len() {
                    0 => (at as f64 + 0.5) / own.len() as f64,
                    count => sum / count as f64,
                };
            }
            own.sort_by(|a, b| position[*a].total_cmp(&position[*b]));
            for (at, node) in own.iter().enumerate() {
                position[*node] = (at as f64 + 0.5) / own.len() as f64;
            }
        }
        let crossed = crossings(order, nodes.len(), near);
        if crossed < best.0 {
            best = (crossed, order.clone());
        }
    }
    *order = best.1;
}

fn crossings(order: &[Vec<usize>], count: usize, near: &Near) -> usize {
    let mut at = vec![0; count];
    for (place, node) in order.iter().flat_map(|layer| layer.iter().enumerate()) {
        at[*node] = place;
    }
    let mut crossed = 0;
    for layer in order {
        let pairs: Vec<(usize, usize)> =
            layer.iter().flat_map(|node| near[*node][1].iter().map(|to| (at[*node], at[*to]))).collect();
        for (index, a) in pairs.iter().enumerate() {
            crossed +=
                pairs[index + 1..].iter().filter(|b| (a.0 < b.0 && a.1 > b.1) || (a.0 > b.0 && a.1 < b.1)).count();
        }
    }
    crossed
}

/// Gives every node its height, near its neighbours and clear of its layer; returns the height of all.
fn place(order: &[Vec<usize>], nodes: &mut [Slot], near: &Near) -> f64 {
    let tall = |node: &Slot| if node.member { BOX_HEIGHT } else { PASSING };
    let heights: Vec<f64> =
        order.iter().map(|layer| layer.iter().map(|node| tall(&nodes[*node]) + GAP).sum::<f64>() - GAP).collect();
    let height = heights.iter().copied().fold(BOX_HEIGHT, f64::max);
    for (layer, own) in order.iter().zip(&heights) {
        let mut top = (height - own) / 2.0;
        for node in layer {
            nodes[*node].y = top + tall(&nodes[*node]) / 2.0;
            top += tall(&nodes[*node]) + GAP;
        }
    }
    for sweep in 0..SWEEPS {
        for index in 0..order.len() {
            let layer = &order[if sweep % 2 == 0 { index } else { order.len() - 1 - index }];
            let wanted: Vec<f64> = layer
                .iter()
                .map(|node| {
                    let others = near[*node].iter().flatten();
                    let sum: f64 = others.clone().map(|other| nodes[*other].y).sum();
                    match others.count() {
                        0 => nodes[*node].y,
                        count => sum / count as f64,
                    }
                })
                .collect();
            let sizes: Vec<f64> = layer.iter().map(|node| tall(&nodes[*node])).collect();
            for (node, y) in layer.iter().zip(apart(&wanted, &sizes, height)) {
                nodes[*node].y = y;
            }
        }
    }
    height
}

/// The places nearest to the wanted ones that keep their order and the gap, within the height.
fn apart(wanted: &[f64], sizes: &[f64], height: f64) -> Vec<f64> {
    // Runs of nodes that touch move together, to the mean of what they want.
    let mut runs: Vec<(f64, f64, usize)> = Vec::new();
    let (mut offset, mut offsets) = (0.0, Vec::with_capacity(sizes.len()));
    for (index, size) in sizes.iter().enumerate() {
        if index > 0 {
            offset += (sizes[index - 1] + size) / 2.0 + GAP;
        }
        offsets.push(offset);
        runs.push((wanted[index] - offset, 1.0, 1));
        while let [.., before, last] = runs.as_slice() {
            if before.0 <= last.0 {
                break;
            }
            let (before, last) = (*before, *last);
            let weight = before.1 + last.1;
            runs.truncate(runs.len() - 2);
            runs.push(((before.0 * before.1 + last.0 * last.1) / weight, weight, before.2 + last.2));
        }
    }
    let (first, last) = (sizes.first().copied().unwrap_or(0.0), sizes.last().copied().unwrap_or(0.0));
    let (low, high) = (first / 2.0, (height - last / 2.0 - offset).max(first / 2.0));
    let shifts = runs.iter().flat_map(|(shift, _, count)| std::iter::repeat_n(shift.clamp(low, high), *count));
    offsets.iter().zip(shifts).map(|(offset, shift)| offset + shift).collect()
}
