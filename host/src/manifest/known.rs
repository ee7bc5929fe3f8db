//! Every key the capsule reader knows, as one table, and the warning a key outside it draws.

use crate::diagnostics::{Diagnostic, codes};
use crate::yaml::Doc;
use crate::yaml::known::Below::{Any, Block, List, Named};
use crate::yaml::known::{self, Keys};

const TOP: Keys = &[
    ("name", Any),
    ("version", Any),
    ("artifacts", List(ENTRY)),
    ("capabilities", Block(CAPABILITIES)),
    ("inference", Block(INFERENCE)),
    ("context", Block(CONTEXT)),
    ("observability", Block(&[("otel_endpoint", Any), ("eval", Any)])),
    ("trace", Block(&[("capture", Any), ("retain", Any)])),
    ("network", Block(NETWORK)),
    ("lifecycle", Block(LIFECYCLE)),
    ("exports", Block(EXPORTS)),
    ("control", Block(&[("settings", Any), ("agent_settings", Any), ("secrets", Any)])),
    ("deploy", Any),
    ("runtime", Any),
    ("implementation", Any),
    ("execution", Any),
    ("requires_files", Any),
];

const ENTRY: Keys = &[
    ("name", Any),
    ("version", Any),
    ("runtime", Any),
    ("source", Any),
    ("local_source", Any),
    ("prompt_payload", Any),
    ("capabilities", Block(CAPABILITIES)),
    ("config", Any),
    ("gateway", Block(&[("endpoint", Any), ("api_key", Any), ("keyless", Any)])),
    ("on_overflow", Any),
];

const CAPABILITIES: Keys = &[
    ("network", Block(&[("allow", Any), ("unix_sockets", Any)])),
    ("peer_fetch", Block(&[("allow", Any)])),
    ("filesystem", Block(&[("scope", Any), ("read_only", Any), ("workdir_exec", Any), ("records", Any)])),
    ("shell", Block(SHELL)),
    ("env", Block(&[("allow", Any)])),
    ("install", Block(&[("tool", Any), ("skill", Any), ("from", Any)])),
    ("spawn", Block(&[("allow", Any)])),
    ("limits", Block(LIMITS)),
    ("resources", Block(RESOURCES)),
    ("containment", Any),
    ("plan", Block(&[("submit", Any)])),
    ("state", Block(&[("store", Any)])),
    ("conversation", Block(&[("read", Any)])),
    ("task_io", Block(&[("read", Any)])),
];

const SHELL: Keys = &[
    ("allow", Any),
    ("strip_env", Any),
    ("baseline_env", Any),
    ("interpreter_runtime", List(&[("binary", Any), ("dirs", List(&[("path", Any), ("list_dir", Any)]))])),
    ("staged_runtime", List(&[("binary", Any), ("source_path", Any), ("pin", Any)])),
];

const LIMITS: Keys = &[("memory_bytes", Any), ("table_elements", Any), ("instances", Any), ("deadline_seconds", Any)];

const RESOURCES: Keys = &[
    ("max_processes", Any),
    ("max_open_files", Any),
    ("max_file_size_bytes", Any),
    ("cpu_seconds", Any),
    ("memory_bytes", Any),
    ("cgroup_memory_bytes", Any),
    ("cgroup_pids_max", Any),
    ("cgroup_cpu_percent", Any),
    ("cgroup_io_bytes_per_sec", Any),
    ("workdir_max_bytes", Any),
];

const INFERENCE: Keys = &[
    ("transport", Any),
    ("model", Any),
    ("driver", Block(&[("artifact", Any), ("config", Any)])),
    ("max_turns", Any),
    ("max_tokens", Any),
    ("max_session_tokens", Any),
    ("system_prompt", Any),
    ("system_prompt_file", Any),
    ("system_prompt_artifact", Any),
    ("retry", Block(&[("max_retries", Any), ("initial_delay_ms", Any), ("max_delay_ms", Any)])),
    ("tool_refresh", Any),
    ("compaction", Block(COMPACTION)),
    ("alternates", List(&[("name", Any), ("model", Any), ("driver", Block(&[("artifact", Any), ("config", Any)]))])),
    ("command", Any),
];

const COMPACTION: Keys = &[
    ("threshold", Any),
    ("model", Any),
    ("system_prompt", Any),
    ("system_prompt_file", Any),
    ("dump_summaries", Any),
    ("max_tokens", Any),
    ("driver_config", Any),
];

const CONTEXT: Keys = &[
    ("max_tokens", Any),
    ("seed_budget", Any),
    ("seed_overflow_margin", Any),
    ("record", Any),
    ("record_store", Any),
    ("retain", Any),
];

const NETWORK: Keys = &[
    ("internal_port", Any),
    ("authentication", Block(&[("scheme", Any), ("credentials", Named(&[("scopes", Any)]))])),
];

const LIFECYCLE: Keys = &[
    ("task_acceptance", Any),
    ("after_task", Any),
    ("queue_depth", Any),
    ("input_timeout_secs", Any),
    ("conversation", Any),
    ("max_task_reopens", Any),
    ("shell_grace_secs", Any),
    ("delegation_deadline_secs", Any),
    ("deadline_notice_secs", Any),
    ("keep_working", Block(&[("message", Any), ("limit", Any)])),
    ("done_check", Block(&[("command", Any), ("limit", Any), ("timeout_secs", Any)])),
];

const EXPORTS: Keys = &[
    ("peer_tasks", Block(&[("accept", Any)])),
    ("files", Block(&[("root", Any), ("mode", Any), ("max_bytes", Any)])),
    ("peer_files", Block(&[("root", Any), ("max_ttl", Any), ("max_bytes", Any)])),
];

/// One `W-SEC-019` for every key the capsule reader does not know.
pub(super) fn unknown_keys(doc: &Doc) -> Vec<Diagnostic> {
    let warning = |unknown: known::Unknown| Diagnostic::new(codes::W_SEC_019, unknown.to_string());
    known::unknown(doc.root(), TOP).into_iter().map(warning).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warnings(text: &str) -> Vec<String> {
        let doc = crate::yaml::parse("murmur.yaml", text.as_bytes(), 1 << 20).unwrap();
        unknown_keys(&doc).iter().map(|warning| warning.message().to_owned()).collect()
    }

    #[test]
    fn an_unknown_key_is_named_with_its_block_and_the_nearest_known_one() {
        let text = "zebra: 1\nnmae: x\nartifacts:\n  - name: a/b\n    capabilities:\n      shell: {alow: []}\n\
                    network:\n  authentication:\n    credentials:\n      ci: {scope: []}\n";
        assert_eq!(
            warnings(text),
            [
                "unrecognized key 'nmae' at the top level — did you mean 'name'?",
                "unrecognized key 'zebra' at the top level",
                "unrecognized key 'alow' in artifacts[0].capabilities.shell — did you mean 'allow'?",
                "unrecognized key 'scope' in network.authentication.credentials.ci — did you mean 'scopes'?",
            ]
        );
    }

    #[test]
    fn the_artifacts_own_keys_and_free_blocks_draw_nothing() {
        let text = "name: a\nruntime: capsule\nexecution: static\nrequires_files: []\nimplementation: x\n\
                    artifacts:\n  - config: {anything: {goes: here}}\nobservability: {eval: {x: 1}}\n";
        assert_eq!(warnings(text), Vec::<String>::new());
    }
}
