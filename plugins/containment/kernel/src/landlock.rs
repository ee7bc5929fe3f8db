//! Landlock: what the kernel has, and a domain that grants nothing.

use std::io;

use landlock::{ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetStatus, Scope};

use crate::Done;

/// The kernel's Landlock version; `None` where there is none, or it was not enabled at boot.
pub fn kernel_abi() -> Option<i32> {
    const VERSION: libc::c_uint = 1;
    // SAFETY: with this flag the call reads nothing and makes nothing.
    let abi = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0_usize, VERSION) };
    i32::try_from(abi).ok().filter(|abi| *abi > 0)
}

/// Enters a domain that handles everything the kernel can handle and grants nothing. Absent without Landlock; with it,
/// anything less than full enforcement is an error.
pub(crate) fn deny_all() -> io::Result<Done> {
    let Some(kernel) = kernel_abi() else { return Ok(Done::Absent) };
    let abi = ABI::from(kernel);
    let status = domain(abi).map_err(io::Error::other)?;
    if status == RulesetStatus::FullyEnforced {
        Ok(Done::Enforced)
    } else {
        Err(io::Error::other(format!("the kernel enforces Landlock only in part ({status:?})")))
    }
}

fn domain(abi: ABI) -> Result<RulesetStatus, landlock::RulesetError> {
    let mut ruleset =
        Ruleset::default().set_compatibility(CompatLevel::HardRequirement).handle_access(AccessFs::from_all(abi))?;
    let (net, scope) = (AccessNet::from_all(abi), Scope::from_all(abi));
    if !net.is_empty() {
        ruleset = ruleset.handle_access(net)?;
    }
    if !scope.is_empty() {
        ruleset = ruleset.scope(scope)?;
    }
    Ok(ruleset.create()?.restrict_self()?.ruleset)
}
