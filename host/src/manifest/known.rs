//! The warning a key draws that the capsule reader does not know.

use crate::diagnostics::{Diagnostic, codes};
use crate::yaml::known;
use crate::yaml::{Doc, Node};

/// One `W-SEC-019` for every key the capsule reader does not know.
pub(super) fn unknown_keys(doc: &Doc) -> Vec<Diagnostic> {
    // A formation's members say it one beside the other, and not every line of theirs has the member's name before it.
    let capsule = doc.root().get("name").and_then(Node::text).unwrap_or("-");
    let warning = |unknown: known::Unknown| {
        let place = doc.place(unknown.mark);
        let message = format!("{unknown} (line {} of {}, capsule '{capsule}')", place.line, place.file);
        Diagnostic::new(codes::W_SEC_019, message)
    };
    known::unknown(doc.root(), super::keys::TOP).into_iter().map(warning).collect()
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
                "unrecognized key 'nmae' at the top level — did you mean 'name'? (line 2 of murmur.yaml, capsule '-')",
                "unrecognized key 'zebra' at the top level (line 1 of murmur.yaml, capsule '-')",
                "unrecognized key 'alow' in artifacts[0].capabilities.shell — did you mean 'allow'? (line 6 of murmur.yaml, capsule '-')",
                "unrecognized key 'scope' in network.authentication.credentials.ci — did you mean 'scopes'? (line 10 of murmur.yaml, capsule '-')",
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
