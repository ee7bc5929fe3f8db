//! The contract of a hook: checked before its component is compiled, so that one which could never be honoured is refused
//! by name.

use crate::artifacts::level::{self, Interfaces};
use crate::artifacts::store::Verified;
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::manifest::{HookBinding, HookContract};
use crate::session::hooks::Hook;
use crate::worker::hook::LIFECYCLE;

use super::Part;

/// Events this version has none of: a hook bound to one would never be called.
const UNDELIVERED: [HookBinding; 2] = [HookBinding::OnShell, HookBinding::OnCompaction];

/// Reads the contract of a hook.
pub(super) fn contract(verified: &Verified) -> Result<HookContract> {
    let contract = verified.manifest.hook.clone().map_err(|why| {
        Diagnostic::new(codes::E_MAN_003, format!("hook {} invalid config: {why}", verified.reference()))
            .hint("install another release of the hook")
    })?;
    check(&verified.reference(), &contract)?;
    Ok(contract)
}

fn check(reference: &str, contract: &HookContract) -> Result<()> {
    let undelivered = |what: String| {
        Err(Diagnostic::new(
            codes::E_MAN_003,
            format!("hook {reference} {what}, which this version of mur does not deliver"),
        )
        .hint("remove the hook, or run the capsule with a version that does"))
    };
    match contract.binding {
        Some(binding) if UNDELIVERED.contains(&binding) => undelivered(format!("is bound to {}", binding.as_str())),
        _ if contract.commit_policy == "replace-context" => {
            undelivered("declares commit_policy replace-context for on-compaction".to_owned())
        }
        _ => Ok(()),
    }
}

/// A hook must export the interface it is called by, at the version served.
pub(super) fn check_interfaces(verified: &Verified, interfaces: &Interfaces) -> Result<()> {
    if interfaces.exports.iter().any(|name| name == LIFECYCLE) {
        return Ok(());
    }
    let misfits = interfaces.misfits();
    if interfaces.exports.iter().any(|name| name.starts_with("murmur:hook/")) && !misfits.is_empty() {
        return Err(level::does_not_fit(&verified.name, &verified.version, &misfits));
    }
    let message = format!("hook {} does not export {LIFECYCLE}, which hooks are called by", verified.reference());
    Err(Diagnostic::new(codes::E_IO_003, message).hint("declare it with the runtime it was built for"))
}

/// The hooks of a launch, in manifest order.
pub(crate) fn of(parts: &[Part]) -> Vec<Hook> {
    let hooks = parts.iter().filter_map(|part| {
        let contract = part.hook.clone()?;
        let own = part.entry.capabilities.as_ref();
        let full = format!("{}@{}", part.entry.name, part.version);
        let mut hook = Hook::new(part.entry.bare().to_owned(), full, contract, part.entry.on_overflow_block);
        hook.reads_task = own.is_some_and(|own| own.task_io_read);
        hook.reads_conversation = own.is_some_and(|own| own.conversation_read);
        Some(hook)
    });
    hooks.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_never_delivered_is_refused_by_name() {
        let contract =
            |binding, policy: &str| HookContract { binding, asynchronous: false, commit_policy: policy.to_owned() };
        for (binding, policy, named) in [
            (Some(HookBinding::OnShell), "deny", "on-shell"),
            (Some(HookBinding::OnCompaction), "none", "on-compaction"),
            (None, "replace-context", "replace-context"),
        ] {
            let fault = check("local/h@1", &contract(binding, policy)).unwrap_err();
            assert!(fault.message().contains(named) && fault.message().contains("local/h@1"), "{fault}");
        }
        for binding in HookBinding::ALL.into_iter().filter(|binding| !UNDELIVERED.contains(binding)) {
            assert!(check("local/h@1", &contract(Some(binding), "none")).is_ok());
        }
        assert!(check("local/h@1", &contract(None, "none")).is_ok());
    }
}
