//! Every key of a configuration file that somebody reads, those of later versions and of `mur config set` included.

use crate::manifest::keys::{CLASSES, CREDENTIAL_NAME};
use crate::shape::{Keys, Shape, key};

const PLUGIN: Shape = Shape::Either(&[
    Shape::Pattern("."),
    Shape::Block(&[
        key("plugin", Shape::Pattern("."), "The pinned plugin's name").required(),
        key("config", Shape::Map, "Handed to the plugin"),
    ]),
]);

const HOST_PATH: Shape = Shape::Either(&[
    Shape::Pattern("^/"),
    Shape::Block(&[
        key("path", Shape::Pattern("^/"), "Absolute; outside ~/.murmur").required(),
        key("write", Shape::Flag, "Writable too"),
    ]),
]);

/// The top level.
pub const TOP: Keys = &[
    key(
        "credentials",
        Shape::Named(CREDENTIAL_NAME, &Shape::Text),
        "Keys by name; counts in ~/.murmur/config.yaml only. mur config set -g writes them",
    ),
    key("containment", Shape::Words(CLASSES), "A floor for every session; a project's unconfined is ignored"),
    key(
        "inference",
        Shape::Block(&[
            key("provider", Shape::Text, "What mur new writes drivers for: anthropic, openai, scripted"),
            key("model", Shape::Text, "The model mur new writes"),
            key("endpoint", Shape::Text, "The endpoint mur new writes"),
            key("api_key", Shape::Any, "Nothing reads it; keys belong in credentials. Never in a project's file"),
        ]),
        "What mur new writes; counts in ~/.murmur/config.yaml only",
    ),
    key(
        "spend",
        Shape::Block(&[key(
            "machine_tokens_per_day",
            Shape::Whole(1, u64::MAX),
            "A ceiling over all sessions of a day (UTC); the lower of both files counts",
        )]),
        "Ceilings over all sessions",
    ),
    key(
        "plugins",
        Shape::Block(&[key(
            "containment",
            Shape::Named(CLASS_NAME, &Shape::Filled),
            "By class: the pinned plugin, by name or absolute path, that serves it",
        )]),
        "Which plugins serve what; counts in ~/.murmur/config.yaml only",
    ),
    key(
        "stores",
        Shape::List(0, &PLUGIN),
        "Stores asked after the two directory stores; counts in ~/.murmur/config.yaml only",
    ),
    key("sinks", Shape::List(0, &PLUGIN), "Trace sinks beside jsonl; counts in ~/.murmur/config.yaml only"),
    key(
        "host_paths",
        Shape::List(0, &HOST_PATH),
        "Host folders every tool sees, read-only unless write: true; counts in ~/.murmur/config.yaml only",
    ),
    key(
        "registry",
        Shape::Block(&[
            key(
                "sources",
                Shape::List(
                    0,
                    &Shape::Block(&[key("repo", Shape::Any, "<owner>/<repo>"), key("token", Shape::Any, "Its token")]),
                ),
                "Where artifacts are looked for; not read by this version",
            ),
            key("index_url", Shape::Any, "Set by mur config set; not read by this version"),
        ]),
        "Where artifacts come from",
    ),
    key(
        "beta",
        Shape::Block(&[key("enabled", Shape::Any, "Not read by this version")]),
        "What is not finished; not read by this version",
    ),
];

/// A containment class, as a key.
const CLASS_NAME: &str = "^(unconfined|advisory|scoped|sealed)$";
