//! Every key of a roster.

use crate::artifacts::name::FULL_NAME;
use crate::shape::{Keys, Shape, key};

/// What names a member.
pub const MEMBER_NAME: &str = "^[a-z][a-z0-9-]{0,31}$";

/// The top level.
pub const TOP: Keys = &[
    key("roster_version", Shape::One, "Version of the format: 1").required(),
    key("members", Shape::List(1, &Shape::Block(MEMBER)), "The capsules that run together").required(),
    key(
        "reachability",
        Shape::Either(&[Shape::Words(&["all"]), Shape::List(0, &Shape::Block(RULE))]),
        "Which members may call which: all, or a list of rules; absent, nobody may call anybody",
    ),
];

/// One entry of `members`.
pub const MEMBER: Keys = &[
    key("name", Shape::Pattern(MEMBER_NAME), "Its name in this roster, once").required(),
    key("capsule", Shape::Pattern(FULL_NAME), "The installed capsule it runs: <scope>/<name>").required(),
    key("version", Shape::Version, "The capsule's exact version, as its text stands").required(),
    key("entry", Shape::Flag, "true on exactly one member: the one that takes the formation's task"),
];

/// One entry of `reachability`.
pub const RULE: Keys = &[
    key("from", Shape::String, "The calling member").required(),
    key("to", Shape::List(1, &Shape::String), "The members it may call; never itself, never the entry member")
        .required(),
];
