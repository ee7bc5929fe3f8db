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
                "turns": [[{"say": "{{answers | each \"{{it.member}} answered: {{it.text}}\n\"}}{{text | find \"No answer came from: (.*)\" | default \"\"}}"}]]
            },
            {
                "when": {"has_tool": "call-member"},
                "turns": [
                    [{"for_each": "{{peers}}", "as": "peer", "do": [
                        {"call": "call-member", "input": {"member": "{{peer}}", "task": "{{text}}"}}
                    ]}],
                    [{"say": "Handed to {{peers | join \", \"}}."}]
                ]
            },
            {"turns": [[{"say": "The scripted driver was given {{text | words | len}} words and says them back: {{text}}"}]]}
        ]
    });
    Script::of(value).unwrap_or_default()
}
