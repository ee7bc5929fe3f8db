//! One pull, from the name to the lock: each check before anything is changed, in one order.

use serde_json::json;

use super::Ground;
use crate::artifacts::archive::Payload;
use crate::artifacts::compiled::CompiledForm;
use crate::artifacts::lock::Lock;
use crate::artifacts::name::Version;
use crate::artifacts::store::{Found, Place, Verified};
use crate::artifacts::{ArtifactName, level};
use crate::diagnostics::{Diagnostic, codes};
use crate::manifest::{Execution, FILE_NAME, Install};
use crate::paths::{beneath, make_new_private, tree};
use crate::session::agent::provided::RESERVED;
use crate::session::context::{Tool, ToolKind};
use crate::session::staging::required_of;

/// Precedes what a pulled artifact says of itself.
const UNVERIFIED: &str = "[installed while the session runs; untrusted description] ";

/// What a pull came to.
pub(super) enum Answer {
    /// It was here already.
    Held { name: ArtifactName, version: String },
    /// It is here now.
    Fetched(Box<Fetched>),
}

/// What was pulled.
pub(super) struct Fetched {
    pub(super) name: ArtifactName,
    pub(super) tool: Tool,
    pub(super) compiled: Option<CompiledForm>,
    pub(super) fetched_from: String,
    pub(super) owner_id: Option<u64>,
}

/// Pulls one artifact; blocking. `taken` are the names the model may call already, `held` gives the version of what was
/// pulled before.
pub(super) fn fetch(
    ground: &Ground,
    reference: &str,
    taken: &[String],
    held: impl Fn(&ArtifactName) -> Option<String>,
) -> Result<Answer, String> {
    let (name, wanted) = parse(reference)?;
    if !granted(&ground.grant.tool, &name) && !granted(&ground.grant.skill, &name) {
        return Err(format!("not-granted: '{name}' is covered by no pattern of capabilities.install"));
    }
    if let Some(version) = held(&name) {
        if wanted.as_ref().is_none_or(|wanted| wanted.as_str() == version) {
            return Ok(Answer::Held { name, version });
        }
        return Err(format!("not-granted: '{name}' is here in version {version}; remove it before pulling another"));
    }
    if RESERVED.contains(&name.bare()) || taken.iter().any(|other| other == name.bare()) {
        return Err(format!("not-granted: the name '{}' is taken", name.bare()));
    }
    let fault = |what: &'static str| move |fault: Diagnostic| format!("{what}: [{}] {}", fault.code(), fault.message());
    let lock = ground.project.as_deref().map(Lock::read).transpose().map_err(fault("not-fetched"))?.flatten();
    let pinned = lock.as_ref().and_then(|lock| lock.pin(&name)).map(|pin| pin.version.clone());
    let (found, verified) = choose(ground, &name, wanted.or(pinned))?;
    check_kind(&ground.grant, &verified)?;
    let bound = found.bound();
    if let Some(lock) = &lock {
        lock.agrees(&bound).map_err(fault("not-fetched"))?;
    }
    let tool = tool(&verified);
    let mut compiled = None;
    let mut skill = None;
    match verified.payload().map_err(fault("not-fetched"))? {
        Payload::Static(Some(text)) => skill = Some(text),
        Payload::Wasm { .. } => compiled = Some(ground.forms.of(&verified).map_err(fault("not-fetched"))?),
        _ => return Err(format!("not-fetched: {} holds nothing that can be called", verified.reference())),
    }
    stage(ground, &verified, skill.as_deref())?;
    if let Some(project) = &ground.project {
        let session = ground.session.as_str();
        let pinned = Lock::update(project, |lock| lock.pull(bound.clone(), session));
        if let Err(conflict) = pinned {
            let _ = tree::remove(&ground.runtime.join("tools").join(name.bare()));
            return Err(fault("not-fetched")(conflict));
        }
    }
    let fetched_from = match &found.place {
        Place::Project => "project store".to_owned(),
        Place::Global => "global store".to_owned(),
        other => format!("{} store", other.as_str()),
    };
    Ok(Answer::Fetched(Box::new(Fetched { name, tool, compiled, fetched_from, owner_id: bound.owner_id })))
}

fn parse(reference: &str) -> Result<(ArtifactName, Option<Version>), String> {
    let (name, version) = match reference.split_once('@') {
        Some((name, version)) => (name, Some(version)),
        None => (reference, None),
    };
    let name = ArtifactName::parse_argument(name.trim()).map_err(|fault| format!("not-found: {}", fault.message()))?;
    let version = version.map(|version| {
        Version::parse(version.trim()).map_err(|fault| format!("not-found: {}", fault.diagnostic().message()))
    });
    Ok((name, version.transpose()?))
}

/// Whether a pattern covers a name: `*`, `<scope>/*`, `<scope>/<prefix>*`, or the name itself.
fn granted(patterns: &[String], name: &ArtifactName) -> bool {
    patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
        Some(prefix) => name.as_str().starts_with(prefix),
        None => pattern == name.as_str(),
    })
}

/// The version asked for, else the newest that fits.
fn choose(ground: &Ground, name: &ArtifactName, wanted: Option<Version>) -> Result<(Found, Verified), String> {
    let missing = || {
        let others = ground.stores.others(name);
        format!("not-fetched: '{name}' is in no store{others}")
    };
    let read = |version: &Version| -> Result<Option<(Found, Verified)>, String> {
        let say = |fault: Diagnostic| format!("not-fetched: [{}] {}", fault.code(), fault.message());
        let Some(found) = ground.stores.find(name, version).map_err(say)? else { return Ok(None) };
        let verified = ground.stores.read(&found).map_err(say)?;
        Ok(Some((found, verified)))
    };
    if let Some(version) = wanted {
        let (found, verified) = read(&version)?.ok_or_else(missing)?;
        return match misfit(&verified) {
            Some(why) => Err(why),
            None => Ok((found, verified)),
        };
    }
    let mut first = None;
    for version in ground.stores.versions(name).iter().rev() {
        let Some((found, verified)) = read(version)? else { continue };
        match misfit(&verified) {
            None => return Ok((found, verified)),
            Some(why) => first = first.or(Some(why)),
        }
    }
    Err(first.unwrap_or_else(missing))
}

/// Why a component cannot run here, if that is so.
fn misfit(verified: &Verified) -> Option<String> {
    let misfits = verified.interfaces()?.misfits();
    (!misfits.is_empty()).then(|| {
        let fault = level::does_not_fit(&verified.name, &verified.version, &misfits);
        format!("does-not-fit: [{}] {}", codes::E_WIT_LEVEL_001, fault.message())
    })
}

/// Drivers and hooks are never pulled, and each kind has a list of its own.
fn check_kind(grant: &Install, verified: &Verified) -> Result<(), String> {
    let reference = verified.reference();
    let (patterns, list) = match verified.manifest.runtime.as_str() {
        "skill" => (&grant.skill, "skill"),
        "tool" => (&grant.tool, "tool"),
        other => {
            return Err(format!("not-granted: {reference} is a {other}, and only tools and skills can be installed"));
        }
    };
    if !granted(patterns, &verified.name) {
        return Err(format!("not-granted: {reference} is a {list}, and capabilities.install.{list} does not cover it"));
    }
    if verified.manifest.execution == Execution::Native {
        return Err(format!(
            "not-granted: {reference} is a native tool, and only components can be installed while a session runs"
        ));
    }
    if list == "tool" {
        let exports = verified.interfaces().map(|interfaces| interfaces.exports).unwrap_or_default();
        if !exports.iter().any(|name| name.starts_with("murmur:tool/run")) {
            return Err(format!(
                "does-not-fit: {reference} does not export murmur:tool/run, which a tool is called by"
            ));
        }
    }
    Ok(())
}

/// The artifact as the model sees it.
fn tool(verified: &Verified) -> Tool {
    let own = &verified.manifest;
    let skill = own.runtime == "skill";
    let empty = || json!({"type": "object", "properties": {}});
    let (input_schema, required) = match &own.input_schema {
        Some(Ok(schema)) => (schema.clone(), required_of(schema).ok()),
        Some(Err(_)) => (empty(), None),
        None => (empty(), Some(Vec::new())),
    };
    Tool {
        name: verified.name.bare().to_owned(),
        full: verified.name.as_str().to_owned(),
        version: verified.version.as_str().to_owned(),
        kind: if skill { ToolKind::Skill } else { ToolKind::Wasm },
        description: format!("{UNVERIFIED}{}", own.description.as_deref().unwrap_or_default()),
        input_schema,
        required,
    }
}

/// Writes its manifest, and a skill's text, into the runtime directory.
fn stage(ground: &Ground, verified: &Verified, skill: Option<&str>) -> Result<(), String> {
    let tools = ground.runtime.join("tools");
    let folder = tools.join(verified.name.bare());
    let manifest = verified
        .archive
        .manifest_text()
        .map_err(|error| format!("not-fetched: {}", error.diagnostic(&verified.reference()).message()))?;
    let written = (|| {
        match make_new_private(&folder) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(error.to_string());
            }
            _ => {}
        }
        let put = |name: &str, bytes: &[u8]| {
            beneath::write(&tools, verified.name.bare(), name, bytes).map_err(|refusal| refusal.to_string())
        };
        put(FILE_NAME, manifest.as_bytes())?;
        skill.map_or(Ok(()), |text| put("skill.md", text.as_bytes()))
    })();
    written.map_err(|error: String| {
        let _ = tree::remove(&folder);
        format!("not-fetched: it could not be staged: {error}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_covers_what_it_says() {
        let name = |text: &str| ArtifactName::parse(text).unwrap();
        let covers = |pattern: &str, text: &str| granted(&[pattern.to_owned()], &name(text));
        assert!(covers("*", "local/x") && covers("local/*", "local/x") && covers("local/x*", "local/xy"));
        assert!(covers("local/x", "local/x"));
        assert!(!covers("local/*", "other/x") && !covers("local/x", "local/xy") && !covers("local/y*", "local/x"));
        assert!(!granted(&[], &name("local/x")));
    }

    #[test]
    fn a_reference_has_a_scope_and_perhaps_a_version() {
        let (name, version) = parse(" local/x@1.0 ").unwrap();
        assert_eq!((name.as_str(), version.unwrap().as_str()), ("local/x", "1.0"));
        assert!(parse("local/x").unwrap().1.is_none());
        for bad in ["x", "", "local/", "local/x@latest", "a/b/c"] {
            assert!(parse(bad).unwrap_err().starts_with("not-found: "), "{bad}");
        }
    }
}
