//! The first line of a session's trace.

use sha2::{Digest as _, Sha256};

use crate::containment::host::userns_grant;
use crate::manifest::Capsule;
use crate::session::context::SessionContext;
use crate::session::grants;
use crate::session::staging::Plan;
use crate::trace::records::SessionStart;

/// What `session_start` says.
pub fn session_start(plan: &Plan, context: &SessionContext) -> SessionStart {
    let capsule = &plan.capsule;
    let inference = context.inference();
    let member = plan.membership.as_deref();
    SessionStart {
        capsule_name: capsule.name.clone(),
        capsule_version: capsule.version.clone(),
        model: context.driver.model.clone(),
        max_turns: inference.max_turns.map(|turns| u32::try_from(turns).unwrap_or(u32::MAX)),
        model_limits: Some(context.driver.limits.view()),
        max_session_tokens: inference.max_session_tokens,
        machine_tokens_per_day: plan.machine_tokens_per_day,
        deadline: context.deadline.as_ref().map(|deadline| deadline.view()),
        capabilities: capabilities(capsule),
        tools_declared: context.inventory.names(),
        containment_declared: plan.in_force.declared.as_str().to_owned(),
        containment_achieved: plan.in_force.achieved.as_str().to_owned(),
        workdir_exec: capsule.capabilities.filesystem.workdir_exec,
        userns_grant: Some(userns_grant().to_owned()),
        effective_grants: grants::effective(&plan.facts()),
        system_prompt_source: context.system_prompt.source(),
        system_prompt_sha256: context.system_prompt.text.as_deref().map(sha256),
        credential_source: plan.networks.credential_source.clone(),
        gateways: plan.networks.gateways.clone(),
        tool_refresh: Some(if inference.tool_refresh_immediate { "immediate" } else { "compaction" }.to_owned()),
        runtime_artifacts: Vec::new(),
        host_facts: Vec::new(),
        resumed_from: plan.resumed.as_ref().map(|resumed| resumed.session.to_string()),
        context_id: context.launch_context.as_ref().map(ToString::to_string),
        spawned_by: plan.spawner.as_ref().map(|spawner| spawner.session.to_string()),
        delegation_id: plan.spawner.as_ref().and_then(|spawner| spawner.delegation.as_ref()).map(ToString::to_string),
        formation_id: context.formation.as_ref().map(ToString::to_string),
        formation_member: member.map(|member| member.member.to_string()),
        formation_callees: member.map(|member| member.callees.iter().map(|callee| callee.name.to_string()).collect()),
    }
}

/// What the capsule may do, in words.
pub fn capabilities(capsule: &Capsule) -> Vec<&'static str> {
    let mut words = Vec::new();
    if !capsule.capabilities.network.allow.is_empty() {
        words.push("network");
    }
    words.push("filesystem");
    if capsule.capabilities.shell.is_some() {
        words.push("shell");
    }
    words
}

fn sha256(text: &str) -> String {
    use std::fmt::Write as _;
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().fold(String::with_capacity(64), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}
