//! The warning a key draws that the capsule reader does not know.

use crate::diagnostics::{Diagnostic, codes};
use crate::yaml::Doc;
use crate::yaml::known;

/// One `W-SEC-019` for every key the capsule reader does not know.
pub(super) fn unknown_keys(doc: &Doc) -> Vec<Diagnostic> {
    let warning = |unknown: known::Unknown| Diagnostic::new(codes::W_SEC_019, unknown.to_string());
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
