//! The tools the runtime itself answers: their manifests, and what they say.

use serde_json::{Value, json};

use crate::manifest::Install;
use crate::session::commands::line;

/// A tool the runtime provides in this session.
#[derive(Clone, Debug, PartialEq)]
pub struct ProvidedTool {
    /// The name the model calls.
    pub name: String,
    /// What it says of itself.
    pub description: String,
    /// JSON Schema of its input.
    pub input_schema: Value,
}

/// Names no artifact may have, granted or not.
pub const RESERVED: [&str; 11] = [
    "share-file",
    "fetch-peer-file",
    "delegate-task",
    "submit-plan",
    "switch-driver",
    CALL_MEMBER,
    END_WITHOUT_ANSWER,
    PULL_ARTIFACT,
    REMOVE_ARTIFACT,
    SESSION_STATUS,
    BACKGROUND_COMMAND,
];

/// Gives another member work.
pub const CALL_MEMBER: &str = "call-member";
/// Ends a member's task by saying that there is no answer.
pub const END_WITHOUT_ANSWER: &str = "end-without-answer";
/// Installs a tool or a skill while the session runs.
pub const PULL_ARTIFACT: &str = "pull-artifact";
/// Removes what was installed so.
pub const REMOVE_ARTIFACT: &str = "remove-artifact";
/// Tells time, turns, tokens and spend.
pub const SESSION_STATUS: &str = "session-status";

/// Asks about a command in the background.
pub const BACKGROUND_COMMAND: &str = "background-command";

/// What the runtime provides to an agent capsule that may call `callees` (in roster order) and run `shell`.
pub fn provided(callees: &[String], shell: &[String]) -> Vec<ProvidedTool> {
    let mut tools = vec![ProvidedTool {
        name: SESSION_STATUS.to_owned(),
        description: "Tells how much time, how many turns and how many tokens are used and left in this session."
            .into(),
        input_schema: json!({"type": "object", "properties": {}}),
    }];
    if !shell.is_empty() {
        tools.push(background_command());
    }
    if callees.is_empty() {
        return tools;
    }
    tools.push(ProvidedTool {
        name: CALL_MEMBER.to_owned(),
        description:
            "Gives another member of the formation a task. State the task in full: the member sees nothing of \
                      yours, files included. It works on its own; its answer comes to you once your turn has ended, \
                      together with the answers to all your other calls."
                .into(),
        input_schema: json!({
            "type": "object",
            "properties": {
                "member": {"type": "string", "enum": callees, "description": "The member to call."},
                "task": {"type": "string", "description": "The whole task, with every text the member needs."},
            },
            "required": ["member", "task"],
        }),
    });
    tools.push(ProvidedTool {
        name: END_WITHOUT_ANSWER.to_owned(),
        description:
            "Ends the task another member gave you and tells that member that you have no answer for it. Only \
                      for a task you cannot do; no call of yours may be open."
                .into(),
        input_schema: json!({
            "type": "object",
            "properties": {"reason": {"type": "string", "description": "Why there is no answer."}},
            "required": ["reason"],
        }),
    });
    tools
}

fn background_command() -> ProvidedTool {
    ProvidedTool {
        name: BACKGROUND_COMMAND.to_owned(),
        description: "Asks about a command that went to the background, waits for its end, or stops it.".into(),
        input_schema: json!({
            "type": "object",
            "properties": {
                "operation": {"type": "string", "enum": ["status", "wait", "stop"]},
                "work_id": {"type": "string", "description": "The id the command was given: wrk_ and 32 digits."},
                "wait_secs": {
                    "type": "integer", "minimum": 0,
                    "description": "How long wait waits at most, in seconds; 600 when it is not given.",
                },
            },
            "required": ["operation", "work_id"],
        }),
    }
}

/// The tool of a program of `capabilities.shell.allow`.
pub fn shell_tool(binary: &str) -> ProvidedTool {
    let (description, command) = if line::is_shell(binary) {
        (format!("Runs a command line with {binary} in the work folder."), "The whole command line.")
    } else {
        (
            format!(
                "Runs {binary} in the work folder. Arguments are split at white space; quotes and \\ group, nothing is expanded."
            ),
            "The arguments, without the program's name.",
        )
    };
    ProvidedTool {
        name: binary.to_owned(),
        description,
        input_schema: json!({
            "type": "object",
            "properties": {"command": {"type": "string", "description": command}},
            "required": ["command"],
        }),
    }
}

/// What the runtime provides to a capsule that may install.
pub fn provided_for_install(install: &Install) -> Vec<ProvidedTool> {
    let list = |patterns: &[String]| if patterns.is_empty() { "none".to_owned() } else { patterns.join(", ") };
    let schema = |what: &str| {
        json!({
            "type": "object",
            "properties": {"artifact": {"type": "string", "description": what}},
            "required": ["artifact"],
        })
    };
    vec![
        ProvidedTool {
            name: PULL_ARTIFACT.to_owned(),
            description: format!(
                "Installs a tool or a skill for the rest of this session; it can be called in the next turn. Tools: {}. \
                 Skills: {}.",
                list(&install.tool),
                list(&install.skill)
            ),
            input_schema: schema("<scope>/<name>, with @<version> for one version"),
        },
        ProvidedTool {
            name: REMOVE_ARTIFACT.to_owned(),
            description: "Removes an artifact that this session installed itself.".into(),
            input_schema: schema("<scope>/<name>"),
        },
    ]
}

impl ProvidedTool {
    /// The text of its `murmur.yaml` in the runtime directory. JSON is YAML, so nothing needs quoting rules.
    pub fn manifest(&self) -> String {
        let quoted = |text: &str| Value::from(text).to_string();
        format!(
            "name: {}\nversion: \"0.0.0\"\nruntime: tool\nimplementation: native\ndescription: {}\ninput_schema: {}\n",
            quoted(&self.name),
            quoted(&self.description),
            self.input_schema
        )
    }
}

/// What `session-status` reports.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Since the session began.
    pub elapsed_secs: u64,
    /// Since the task began.
    pub task_elapsed_secs: u64,
    /// When the session ends, and in how many seconds.
    pub deadline: Option<(String, u64)>,
    /// Turns the task has used.
    pub turns_used: u32,
    /// `inference.max_turns`.
    pub turns_cap: Option<u64>,
    /// How often `keep_working` sent its message, and its limit.
    pub keep_working: Option<(u64, u64)>,
    /// Tokens of the conversation as last sent.
    pub context_used: u64,
    /// The model's window.
    pub window: Option<u64>,
    /// What a request may hold, and what decides it.
    pub budget: Option<(u64, &'static str)>,
    /// `driver` when the driver reported the last count, else `estimate`.
    pub measured_by: &'static str,
    /// Sums of the session.
    pub tokens: Tokens,
    /// Spend and its ceiling.
    pub spend: (u64, Option<u64>),
    /// The machine's ceiling.
    pub machine: Option<u64>,
}

/// Token sums as the driver reported them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Fresh input.
    pub input: u64,
    /// Output.
    pub output: u64,
    /// Read from the provider's cache.
    pub cached: u64,
    /// Written to it.
    pub cache_write: u64,
    /// Calls whose driver reported no counts.
    pub unreported_calls: u64,
}

impl Report {
    /// The object the tool returns.
    pub fn json(&self) -> Value {
        let deadline = match &self.deadline {
            Some((at, left)) => json!({"at": at, "left_secs": left}),
            None => json!("none"),
        };
        json!({
            "time": {
                "elapsed_secs": self.elapsed_secs, "task_elapsed_secs": self.task_elapsed_secs, "deadline": deadline,
            },
            "turns": {"used": self.turns_used, "cap": or_word(self.turns_cap, "none")},
            "keep_working": self.keep_working.map_or_else(
                || json!("none"),
                |(used, limit)| json!({"used": used, "limit": limit}),
            ),
            "done_check": "none",
            "context": {
                "used_tokens": self.context_used,
                "window_tokens": or_word(self.window, "unknown"),
                "budget_tokens": or_word(self.budget.map(|(tokens, _)| tokens), "unknown"),
                "budget_basis": self.budget.map_or("unknown", |(_, basis)| basis),
                "measured_by": self.measured_by,
            },
            "tokens": {
                "input": self.tokens.input, "output": self.tokens.output, "cached": self.tokens.cached,
                "cache_write": self.tokens.cache_write, "unreported_calls": self.tokens.unreported_calls,
            },
            "spend": {
                "tokens": self.spend.0,
                "ceiling": or_word(self.spend.1, "none"),
                "machine": or_word(self.machine, "none"),
            },
        })
    }
}

fn or_word(value: Option<u64>, word: &str) -> Value {
    value.map_or_else(|| json!(word), |value| json!(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_called_only_where_there_are_callees() {
        let names = |callees: &[String], shell: &[String]| {
            provided(callees, shell).into_iter().map(|tool| tool.name).collect::<Vec<_>>()
        };
        assert_eq!(names(&[], &[]), [SESSION_STATUS]);
        assert_eq!(names(&[], &["sh".into()]), [SESSION_STATUS, BACKGROUND_COMMAND]);
        let tools = provided(&["coder".into(), "a".into()], &[]);
        assert_eq!(tools[1].name, CALL_MEMBER);
        assert_eq!(tools[1].input_schema["properties"]["member"]["enum"], json!(["coder", "a"]), "roster order");
        assert!(tools.iter().all(|tool| RESERVED.contains(&tool.name.as_str())));
    }

    #[test]
    fn a_manifest_is_read_by_the_artifact_reader() {
        let shells = ["bash", "git", "python3.11", "c++"].map(shell_tool);
        for tool in provided(&["coder".into()], &["sh".into()]).into_iter().chain(shells) {
            let read = crate::manifest::read_artifact(tool.manifest().as_bytes(), "murmur.yaml").unwrap();
            assert_eq!((read.name.as_str(), read.version.as_str()), (tool.name.as_str(), "0.0.0"));
            assert_eq!(read.input_schema, Some(Ok(tool.input_schema.clone())));
            assert_eq!(read.description.as_deref(), Some(tool.description.as_str()));
        }
    }

    #[test]
    fn absent_values_are_words() {
        let report = Report { measured_by: "estimate", ..Report::default() }.json();
        assert_eq!(report["time"]["deadline"], "none");
        assert_eq!(report["turns"]["cap"], "none");
        assert_eq!(report["context"]["window_tokens"], "unknown");
        assert_eq!(report["spend"]["ceiling"], "none");
    }
}
