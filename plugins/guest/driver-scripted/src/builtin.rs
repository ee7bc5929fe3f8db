//! What is played where no script is given: a capsule that may call others hands its task to all of them and returns
//! their answers; one that may not answers with what it was told.

use serde_json::json;

use crate::script::Script;

/// The built-in script.
pub fn script() -> Script {
    let value = json!({
        "usage": "estimate",
        "rules": [
            {
                "when": {"contains": "[call-member] call "},
                "turns": [[
                    {"for_each": "{{answers}}", "as": "one", "do": [
                        {"if": {"matches": " to {{one.member}} ended completed:"},
                         "then": [{"say": "{{one.member}} answered: {{one.text}}"}],
                         "else": [
                            {"if": {"matches": " to {{one.member}} ended (?<how>[a-z_]+)"}},
                            {"say": "No answer from {{one.member}} ({{how}}): {{one.text}}"}
                         ]}
                    ]},
                    // One whose call ended as it was made is not among those the message brings.
                    {"for_each": "{{peers}}", "as": "peer", "do": [
                        {"if": {"not": {"contains": " to {{peer}} ended "}},
                         "then": [{"say": "No answer from {{peer}}: it did not take the task."}]}
                    ]}
                ]]
            },
            {
                "when": {"has_tool": "call-member"},
                "turns": [
                    [{"for_each": "{{peers}}", "as": "peer", "do": [
                        {"call": "call-member", "input": {"member": "{{peer}}", "task": "{{text}}"}}
                    ]}],
                    // The last word where nobody took it; otherwise the answers follow.
                    [{"for_each": "{{results}}", "as": "one", "do": [
                        {"if": {"of": "{{one.is_error}}", "equals": "true"},
                         "then": [{"say": "No answer from {{one.text.member | default \"a member\"}} \
    ({{one.text.status | default \"failed\"}}): {{one.text.output | default \"it could not be called\"}}"}],
                         "else": [{"say": "Handed to {{one.text.member}}."}]}
                    ]}]
                ]
            },
            {"turns": [[{"say": "The scripted driver was given {{text | words | len}} words and says them back: {{text}}"}]]}
        ]
    });
    Script::of(value).unwrap_or_default()
}
