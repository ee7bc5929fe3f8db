//! The contract of a hook: checked before its component is compiled, so that one which could never be honoured is refused
//! by name.

use crate::artifacts::level::{self, Interfaces};
use crate::artifacts::store::Verified;
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::manifest::HookContract;
use crate::session::hooks::Hook;
use crate::worker::hook::LIFECYCLE;

use super::Part;

/// Reads the contract of a hook.
pub(super) fn contract(verified: &Verified) -> Result<HookContract> {
    verified.manifest.hook.clone().map_err(|why| {
        Diagnostic::new(codes::E_MAN_003, format!("hook {} invalid config: {why}", verified.reference()))
            .hint("install another release of the hook")
    })
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
