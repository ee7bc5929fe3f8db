//! Every key of `murmur.yaml`.
//!
//! [`TOP`] is what the capsule reader knows; a key outside it draws `W-SEC-019`. [`ARTIFACT`] is what only the artifact
//! reader knows.

use std::ops::RangeInclusive;

use mur_plugin_api::Class;

use super::{Acceptance, AfterTask, Capture, HookBinding, SCOPES};
use crate::shape::{Key, Keys, Shape, key};

use Shape::{Any, Block, Bool, Duration, Filled, Flag, Fraction, List, Map, Named, Pattern, Size, Text, Words};

/// What names a credential.
pub const CREDENTIAL_NAME: &str = "^[A-Z_][A-Z0-9_]*$";
/// What names a credential of a door.
pub const DOOR_CREDENTIAL: &str = "^[a-z][a-z0-9_-]{0,31}$";
/// What names an alternate.
pub const ALTERNATE_NAME: &str = "^[a-z][a-z0-9-]{0,62}$";
/// Every containment class.
pub const CLASSES: &[&str] =
    &[Class::Unconfined.as_str(), Class::Advisory.as_str(), Class::Scoped.as_str(), Class::Sealed.as_str()];
/// The floors a capsule may ask for.
pub const FLOORS: &[&str] = &[Class::Advisory.as_str(), Class::Scoped.as_str(), Class::Sealed.as_str()];
/// `artifacts[].runtime`.
pub const ROLES: &[&str] = &["tool", "driver", "hook", "skill"];
/// `runtime` of an artifact's own manifest.
pub const RUNTIMES: &[&str] = &["capsule", "tool", "driver", "hook", "skill"];
/// `artifacts[].on_overflow`.
pub const ON_OVERFLOW: &[&str] = &["drop", "block"];
/// `inference.transport`.
pub const TRANSPORTS: &[&str] = &["http", "process"];
/// `inference.tool_refresh`.
pub const TOOL_REFRESH: &[&str] = &["compaction", "immediate"];
/// `context.record`.
pub const ON_OFF: &[&str] = &["on", "off"];
/// `lifecycle.conversation`.
pub const CONVERSATION: &[&str] = &["stateless", "threaded"];
/// `network.authentication.scheme`.
pub const SCHEMES: &[&str] = &["bearer"];
/// `exports.files.mode`.
pub const EXPORT_MODES: &[&str] = &["read-only"];
/// Settings a control surface can name.
pub const SETTINGS: &[&str] = &["inference.max_tokens", "inference.driver"];
/// Settings the model can be allowed to change.
pub const AGENT_SETTINGS: &[&str] = &["inference.driver"];
/// `execution` of an artifact.
pub const EXECUTIONS: &[&str] = &["wasm", "native", "static"];
/// `execution_mode` of a hook.
pub const HOOK_MODES: &[&str] = &["blocking", "async"];
/// `commit_policy` of a hook.
pub const HOOK_POLICIES: &[&str] =
    &["none", "write-manifests", "replace-context", "reopen-task", "seed-context", "deny"];
/// `inference.retry.max_retries`.
pub const MAX_RETRIES: RangeInclusive<u64> = 0..=20;
/// `inference.retry.initial_delay_ms`.
pub const INITIAL_DELAY_MS: RangeInclusive<u64> = 1..=60_000;
/// `inference.retry.max_delay_ms`.
pub const MAX_DELAY_MS: RangeInclusive<u64> = 1..=3_600_000;

const WHOLE: Shape = Shape::Whole(0, u64::MAX);
const POSITIVE: Shape = Shape::Whole(1, u64::MAX);
const SMALL: Shape = Shape::Whole(0, u32::MAX as u64);
const TEXTS: Shape = List(0, &Text);

const fn within(range: &RangeInclusive<u64>) -> Shape {
    Shape::Whole(*range.start(), *range.end())
}

/// The keys of both readers.
pub fn all() -> Vec<Key> {
    TOP.iter().chain(ARTIFACT).copied().collect()
}

/// The top level of a capsule's manifest.
pub const TOP: Keys = &[
    key("name", Shape::Pattern(r"\S"), "The artifact's bare name").required(),
    key("version", Shape::Pattern(r"\S"), "Its exact version, in quotes where YAML would read a number").required(),
    key("runtime", Text, "What it is: capsule, tool, driver, hook, skill"),
    key("execution", Words(EXECUTIONS), "How it is packed; a capsule is static"),
    key("implementation", Any, "native: a tool that is a program"),
    key("requires_files", TEXTS, "What mur build packs beside the manifest"),
    key("artifacts", List(0, &Block(ENTRY)), "The driver, tools, hooks and skills of a capsule"),
    key("capabilities", Block(CAPABILITIES), "What the capsule as a whole may reach"),
    key("inference", Block(INFERENCE), "Which model answers, through which driver, within which bounds"),
    key("context", Block(CONTEXT), "How the conversation is kept and seeded"),
    key(
        "observability",
        Block(&[
            key("otel_endpoint", Text, "OTLP/HTTP base URL spans are exported to"),
            key("eval", Any, "Handed to hooks"),
        ]),
        "Where spans are exported to",
    ),
    key("trace", Block(TRACE), "What the trace captures, and how long it is kept"),
    key("network", Block(NETWORK), "The capsule's own door"),
    key("lifecycle", Block(LIFECYCLE), "Which tasks are taken, and when the session ends"),
    key("exports", Block(EXPORTS), "What other members and clients may ask for"),
    key(
        "control",
        Block(&[
            key("settings", List(0, &Words(SETTINGS)), "Settings the operator may change"),
            key("agent_settings", List(0, &Words(AGENT_SETTINGS)), "Settings the model may change"),
            key("secrets", List(0, &Pattern(CREDENTIAL_NAME)), "Credentials the operator may replace"),
        ]),
        "What may be changed while the session runs",
    ),
    key("deploy", Any, "For other programs; nothing here reads it"),
];

const TRACE: Keys = &[
    key("capture", Words(Capture::WORDS), "What of the content is captured (default meta)"),
    key(
        "retain",
        Shape::Some(&[
            key("max_sessions", POSITIVE, "Keep so many, newest first"),
            key("max_age", Duration, "Remove what is older"),
        ]),
        "How much is kept; absent, nothing is ever removed",
    ),
];

const ENTRY: Keys = &[
    key("name", Filled, "<scope>/<name> of an installed artifact; a bare name with a source").required(),
    key("version", Text, "Its exact version; not with a source"),
    key("runtime", Words(ROLES), "Its role (default tool)"),
    key("source", Text, "A skill's file or folder in the project; needs local_source: true"),
    key("local_source", Bool, "The artifact comes from source (default true for a skill)"),
    key("prompt_payload", Bool, "Its text can be a system prompt (default true for a skill)"),
    key("config", Any, "A mapping handed to the component as MURMUR_ARTIFACT_CONFIG, at most 64 KiB as JSON"),
    key(
        "gateway",
        Block(&[
            key("endpoint", Text, "Where the provider lives: https://host[:port][/path]; http on this machine only")
                .required(),
            key("api_key", Text, "${NAME} of a credential, or the key itself"),
            key("keyless", Flag, "No key is attached (default false)"),
        ]),
        "Where a driver's provider lives, and which key its requests carry",
    ),
    key("on_overflow", Words(ON_OVERFLOW), "What a hook's full queue does (default drop)"),
    key("capabilities", Block(CAPABILITIES), "Narrows what this artifact may reach"),
];

const CAPABILITIES: Keys = &[
    key(
        "network",
        Block(&[
            key(
                "allow",
                TEXTS,
                "Destinations: scheme://host[:port], host:port or host; localhost reaches members' doors",
            ),
            key("unix_sockets", Bool, "Commands may create Unix sockets (default false)"),
        ]),
        "Where requests may go",
    ),
    key("peer_fetch", Block(&[key("allow", TEXTS, "Peers whose files may be fetched")]), "Files of peers"),
    key(
        "filesystem",
        Block(&[
            key("scope", Text, "The one folder below the work folder that is seen"),
            key("read_only", TEXTS, "Paths of the work folder that calls must not write to"),
            key("workdir_exec", Bool, "Files in the work folder may be executed (default false)"),
            key("records", Bool, "On a hook's entry: it sees the records folder's hooks/ (default false)"),
        ]),
        "What of the work folder is reachable",
    ),
    key("shell", Block(SHELL), "Commands the model may run"),
    key("env", Block(&[key("allow", TEXTS, "Names of host variables components see")]), "Variables handed on"),
    key(
        "install",
        Block(&[
            key("tool", TEXTS, "Tools that may be pulled: <scope>/<name>, <scope>/<prefix>*, *"),
            key("skill", TEXTS, "Skills that may be pulled"),
            key("from", List(0, &Words(&["stores", "sources"])), "[stores] or [stores, sources]"),
        ]),
        "What the model may install while running",
    ),
    key("spawn", Block(&[key("allow", TEXTS, "Full names of capsules this one may delegate to")]), "Delegation"),
    key("limits", Block(LIMITS), "Bounds of each component call"),
    key("resources", Block(RESOURCES), "Bounds of processes"),
    key("containment", Words(FLOORS), "The floor the capsule asks for (default advisory)"),
    key("plan", Block(&[key("submit", Bool, "The capsule may submit plans").required()]), "Plans"),
    key("state", Block(&[key("store", Text, "Its name (default the capsule's)")]), "A folder that outlives sessions"),
    key(
        "conversation",
        Block(&[key("read", Bool, "A hook may read the conversation").required()]),
        "On a hook's entry: the conversation",
    ),
    key(
        "task_io",
        Block(&[key("read", Bool, "A hook may read tasks and answers").required()]),
        "On a hook's entry: tasks",
    ),
];

const SHELL: Keys = &[
    key("allow", List(1, &Text), "Bare names of binaries").required(),
    key("strip_env", TEXTS, "Patterns of variables stripped beside the credential patterns"),
    key("baseline_env", TEXTS, "Further host variables for commands"),
    key(
        "interpreter_runtime",
        List(
            0,
            &Block(&[
                key("binary", Filled, "A binary of allow").required(),
                key(
                    "dirs",
                    List(
                        1,
                        &Block(&[
                            key("path", Pattern("^/"), "Absolute").required(),
                            key("list_dir", Bool, "It may be listed").required(),
                        ]),
                    ),
                    "Folders it may read",
                )
                .required(),
            ]),
        ),
        "Folders an interpreter may read",
    ),
    key(
        "staged_runtime",
        List(
            0,
            &Block(&[
                key("binary", Filled, "A binary of allow").required(),
                key("source_path", Pattern("^/"), "Absolute").required(),
                key("pin", Filled, "What the staged runtime is pinned to").required(),
            ]),
        ),
        "Runtimes staged into a composed root",
    ),
];

const LIMITS: Keys = &[
    key("memory_bytes", POSITIVE, "Memory of one call (default 536870912)"),
    key("table_elements", POSITIVE, "Elements of all its tables (default 100000)"),
    key("instances", POSITIVE, "Instances it makes (default 1000)"),
    key("deadline_seconds", POSITIVE, "How long it may take (default 600; a hook's 30)"),
];

const RESOURCES: Keys = &[
    key("max_processes", POSITIVE, "Processes (default 128)"),
    key("max_open_files", POSITIVE, "Open files (default 1024)"),
    key("max_file_size_bytes", POSITIVE, "Bytes of any file that is written (default 4294967296)"),
    key("cpu_seconds", POSITIVE, "Processor seconds (default 3600)"),
    key("memory_bytes", POSITIVE, "Memory of one process (default 2147483648)"),
    key("cgroup_memory_bytes", POSITIVE, "Memory of the session's scope (default 4294967296)"),
    key("cgroup_pids_max", POSITIVE, "Processes of the session's scope (default 256)"),
    key("cgroup_cpu_percent", POSITIVE, "Processor share of the session's scope (default 200)"),
    key("cgroup_io_bytes_per_sec", POSITIVE, "Disk traffic of the session's scope (default 104857600)"),
    key("workdir_max_bytes", POSITIVE, "The session's folders; one that outgrows it ends (default 10737418240)"),
];

const DRIVER_CHOICE: Keys = &[
    key("artifact", Filled, "Full name of an artifacts entry with runtime: driver").required(),
    key("config", Map, "The driver's own settings"),
];

const INFERENCE: Keys = &[
    key("transport", Words(TRANSPORTS), "How the driver is reached (default http)"),
    key("model", Text, "The model to ask for; required with http"),
    key("driver", Block(DRIVER_CHOICE), "The driver").required(),
    key("max_turns", POSITIVE, "Driver calls one task may make (default no cap)"),
    key("max_tokens", POSITIVE, "Output cap of a turn (default by the driver's table)"),
    key("max_session_tokens", POSITIVE, "Tokens of the session (default no ceiling)"),
    key("system_prompt", Text, "The system prompt; at most one of the three keys"),
    key("system_prompt_file", Text, "A file that holds it, relative to the manifest"),
    key("system_prompt_artifact", Text, "An artifact with prompt_payload: true that holds it"),
    key(
        "retry",
        Block(&[
            key("max_retries", within(&MAX_RETRIES), "Retries of a provider call (default 6)"),
            key("initial_delay_ms", within(&INITIAL_DELAY_MS), "Wait before the first (default 1000)"),
            key("max_delay_ms", within(&MAX_DELAY_MS), "Longest wait, also one a provider asks for (default 60000)"),
        ]),
        "Retries of a provider call",
    ),
    key("tool_refresh", Words(TOOL_REFRESH), "When newly installed tools are seen (default compaction)"),
    key("compaction", Block(COMPACTION), "When and how the conversation is compacted"),
    key(
        "alternates",
        List(
            0,
            &Block(&[
                key("name", Pattern(ALTERNATE_NAME), "Its name; never primary").required(),
                key("model", Filled, "The model").required(),
                key("driver", Block(DRIVER_CHOICE), "The driver; without a config of its own").required(),
            ]),
        ),
        "Further choices a control surface may switch to",
    ),
    key("command", Text, "The harness program, with transport: process"),
];

const COMPACTION: Keys = &[
    key("threshold", Fraction(true), "Share of the window at which it begins (default 0.98)"),
    key("model", Text, "The model that compacts (default the primary)"),
    key("system_prompt", Text, "Its prompt; at most one of the two keys"),
    key("system_prompt_file", Text, "A file that holds it"),
    key("dump_summaries", Bool, "Append each summary to out/compaction-summaries.jsonl (default false)"),
    key("max_tokens", POSITIVE, "Output cap of the compaction call"),
    key("driver_config", Map, "Merged over the driver's config for these calls"),
];

const CONTEXT: Keys = &[
    key("max_tokens", POSITIVE, "The window (default by the driver's table)"),
    key("seed_budget", Fraction(false), "Share of the input a seed may take (default 0.10)"),
    key("seed_overflow_margin", Fraction(false), "Slack within which a seed is trimmed (default 0.10)"),
    key("record", Words(ON_OFF), "Whether the conversation is recorded (default on)"),
    key("record_store", Text, "The folder of the records (default the capsule's name)"),
    key(
        "retain",
        Shape::Some(&[
            key("max_messages", POSITIVE, "Keep so many, newest first"),
            key("max_age", Duration, "Remove records not written for so long"),
        ]),
        "What is kept of a record",
    ),
];

const NETWORK: Keys = &[
    key("internal_port", Shape::Whole(0, u16::MAX as u64), "The door's port (default: the system picks)"),
    key(
        "authentication",
        Block(&[
            key("scheme", Words(SCHEMES), "bearer").required(),
            key(
                "credentials",
                Named(
                    DOOR_CREDENTIAL,
                    &Block(&[key("scopes", List(1, &Words(&SCOPES)), "What its bearer may call").required()]),
                ),
                "Tokens beside the operator's, by name",
            ),
        ]),
        "What the door asks for; absent, it is public",
    ),
];

const LIFECYCLE: Keys = &[
    key("task_acceptance", Words(Acceptance::WORDS), "Which tasks are taken (default single)"),
    key("after_task", Words(AfterTask::WORDS), "What follows the last; sleep acts with queue (default exit)"),
    key("queue_depth", SMALL, "Tasks that wait under queue (default 1)"),
    key("input_timeout_secs", WHOLE, "How long an answer to a question is waited for (default without end)"),
    key("conversation", Words(CONVERSATION), "threaded: a task with a context id loads its record (default stateless)"),
    key("max_task_reopens", SMALL, "Reopens a hook may ask for, a task (default 1)"),
    key("shell_grace_secs", WHOLE, "Foreground time of a command (default 10)"),
    key("delegation_deadline_secs", WHOLE, "How long a call to a member may take (default 600)"),
    key("deadline_notice_secs", WHOLE, "How long before the deadline tool results say so"),
    key(
        "keep_working",
        Block(&[
            key("message", Filled, "Sent as the next user message when a turn ends").required(),
            key("limit", POSITIVE, "How often").required(),
        ]),
        "Goes on after a turn ends",
    ),
    key(
        "done_check",
        Block(&[
            key("command", Filled, "Its first word is a binary of capabilities.shell.allow").required(),
            key("limit", WHOLE, "Reopens; 0 records only").required(),
            key("timeout_secs", POSITIVE, "How long it may take (default 600)"),
        ]),
        "A command that decides whether a task is done",
    ),
];

const EXPORTS: Keys = &[
    key(
        "peer_tasks",
        Block(&[key("accept", Bool, "Other members may send tasks").required()]),
        "Tasks of other members",
    ),
    key(
        "files",
        Block(&[
            key("root", Filled, "A folder below the work folder").required(),
            key("mode", Words(EXPORT_MODES), "read-only").required(),
            key("max_bytes", Size, "A larger file is listed and not served (default 10Mi)"),
        ]),
        "Files clients may read",
    ),
    key(
        "peer_files",
        Block(&[
            key("root", Filled, "A folder below the work folder").required(),
            key("max_ttl", Duration, "How long an offer lasts"),
            key("max_bytes", Size, "Bytes of a file (default 10Mi)"),
        ]),
        "Files peers may fetch",
    ),
];

/// What only the artifact reader knows: tools, drivers, hooks and skills.
pub const ARTIFACT: Keys = &[
    key("description", Text, "What it says of itself; shown to the model"),
    key("tags", TEXTS, "Free words"),
    key("input_schema", Shape::Either(&[Map, Shape::String]), "JSON Schema of a tool's input"),
    key("output_schema", Shape::Either(&[Map, Shape::String]), "JSON Schema of a tool's output"),
    key(
        "models",
        Named(
            "",
            &Block(&[
                key("max_output_tokens", Shape::Whole(1, u32::MAX as u64), "Most tokens of an answer").required(),
                key("context_window", Shape::Whole(1, u32::MAX as u64), "Input and output together").required(),
                key("max_input_tokens", Shape::Whole(1, u32::MAX as u64), "Most input; at most the window"),
            ]),
        ),
        "A driver's models and their limits",
    ),
    key(
        "upstream_auth",
        Block(&[
            key("header", Filled, "The header that carries the gateway's key").required(),
            key("value", Pattern(r"\{key\}"), "Its value, with {key} once").required(),
        ]),
        "How a driver's gateway key is attached",
    ),
    key("binding", Words(HookBinding::WORDS), "The event a hook is called at; absent, every one but on-stage"),
    key("execution_mode", Words(HOOK_MODES), "Whether a hook is waited for (default blocking)"),
    key("commit_policy", Words(HOOK_POLICIES), "What a hook may change (default none)"),
];
