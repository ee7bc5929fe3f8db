//! The small blocks: `context`, `trace`, `observability`, `network`, `lifecycle`, `exports`, `control`.

use super::super::fields::{Block, Field, Stem};
use super::super::{
    Acceptance, AfterTask, Authentication, Capture, Context, ContextRetain, Control, Conversation, Credential,
    DoneCheck, ExportedFiles, Exports, Inference, KeepWorking, Lifecycle, Network, Observability, PeerFiles, Retain,
    SCOPES, Shell, TraceConfig, gateway, keys,
};
use crate::diagnostics::{Result, nearest};

pub(super) fn context(top: &Block<'_>) -> Result<Context> {
    let block = top.key("context").worded(Stem::Of("inference config")).block_or_empty()?;
    let default = Context::default();
    let retain = block.key("retain");
    Ok(Context {
        max_tokens: block.key("max_tokens").positive()?,
        seed_budget: fraction(&block.key("seed_budget"), default.seed_budget)?,
        seed_overflow_margin: fraction(&block.key("seed_overflow_margin"), default.seed_overflow_margin)?,
        record: on_off(&block.key("record"))?,
        record_store: block.key("record_store").text()?,
        retain: retain.is_written().then(|| context_retain(&retain)).transpose()?,
    })
}

fn fraction(field: &Field<'_>, default: f64) -> Result<f64> {
    match field.number()? {
        None => Ok(default),
        Some(value) if (0.0..=1.0).contains(&value) => Ok(value),
        Some(value) => Err(field.fault(&format!("must be between 0.0 and 1.0; got {value}"))),
    }
}

fn on_off(field: &Field<'_>) -> Result<bool> {
    Ok(field.one_of(keys::ON_OFF)?.as_deref() != Some("off"))
}

/// A retain block: written, so it must say something, and nothing but these two keys.
fn retain_block<'a>(field: &Field<'a>, keys: [&str; 2]) -> Result<Block<'a>> {
    let block = field.block_or_empty()?;
    let expected = keys.join(", ");
    for (key, unknown) in block.keys() {
        if !keys.contains(&key) {
            return Err(unknown.fault(&format!("unknown key '{key}'; expected: {expected}")));
        }
    }
    if keys.iter().all(|key| block.key(key).value().is_none()) {
        return Err(field.fault(&format!("must set at least one of: {expected}")));
    }
    Ok(block)
}

fn context_retain(field: &Field<'_>) -> Result<ContextRetain> {
    let block = retain_block(field, ["max_messages", "max_age"])?;
    Ok(ContextRetain { max_messages: block.key("max_messages").positive()?, max_age: block.key("max_age").duration()? })
}

pub(super) fn trace(top: &Block<'_>) -> Result<TraceConfig> {
    let block = top.key("trace").worded(Stem::Of("trace config")).block_or_empty()?;
    let capture = match block.key("capture").one_of(Capture::WORDS)?.as_deref() {
        Some("none") => Capture::None,
        Some("content") => Capture::Content,
        _ => Capture::Meta,
    };
    let retain_field = block.key("retain");
    let retain = if retain_field.is_written() {
        let block = retain_block(&retain_field, ["max_sessions", "max_age"])?;
        Some(Retain { max_sessions: block.key("max_sessions").positive()?, max_age: block.key("max_age").duration()? })
    } else {
        None
    };
    Ok(TraceConfig { capture, retain })
}

pub(super) fn observability(top: &Block<'_>) -> Result<Observability> {
    let block = top.key("observability").block_or_empty()?;
    Ok(Observability {
        otel_endpoint: block.key("otel_endpoint").nonblank()?,
        eval: block.key("eval").value().map(|node| node.to_json()),
    })
}

/// Scopes as older manifests spelt them.
const RETIRED_SCOPES: [(&str, &str); 7] = [
    ("message/send", "SendMessage"),
    ("message/stream", "SendStreamingMessage"),
    ("tasks/get", "GetTask"),
    ("tasks/cancel", "CancelTask"),
    ("agent/getAuthenticatedExtendedCard", "GetExtendedAgentCard, which every credential may call"),
    ("stream/watch", "murmur.WatchSession"),
    ("session/stop", "murmur.StopSession"),
];

pub(super) fn network(top: &Block<'_>, spawns: bool) -> Result<Network> {
    let block = top.key("network").worded(Stem::Of("network config")).block_or_empty()?;
    let port_field = block.key("internal_port");
    let out_of_range = |_| port_field.fault("must be a port, 0 to 65535");
    let internal_port = port_field.whole()?.map(u16::try_from).transpose().map_err(out_of_range)?;
    let authentication_field = block.key("authentication");
    let authentication = authentication_field.block()?.map(|block| authentication(&block)).transpose()?;
    if authentication.is_some() && spawns {
        return Err(authentication_field
            .fault("cannot stand beside a non-empty capabilities.spawn.allow")
            .hint("a capsule that delegates to children has a public door; remove one of the two"));
    }
    Ok(Network { internal_port, authentication })
}

fn authentication(block: &Block<'_>) -> Result<Authentication> {
    let scheme = block.key("scheme");
    let text = scheme.required()?;
    if text != "bearer" {
        return Err(scheme.fault(&format!("must be bearer; got '{text}'")));
    }
    let mut credentials = Vec::new();
    for (name, field) in block.key("credentials").block_or_empty()?.keys() {
        if !is_credential(name) {
            return Err(field.fault(&format!("'{name}' must match ^[a-z][a-z0-9_-]{{0,31}}$")));
        }
        if name == "operator" {
            return Err(field.fault("'operator' is always there and cannot be declared"));
        }
        credentials.push(Credential { name: name.to_owned(), scopes: scopes(&field.block_or_empty()?.key("scopes"))? });
    }
    credentials.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(Authentication { credentials })
}

fn is_credential(name: &str) -> bool {
    let mut chars = name.chars();
    name.len() <= 32
        && chars.next().is_some_and(|c| c.is_ascii_lowercase())
        && chars.all(|c| matches!(c, 'a'..='z' | '0'..='9' | '_' | '-'))
}

fn scopes(field: &Field<'_>) -> Result<Vec<String>> {
    let mut found: Vec<String> = Vec::new();
    for item in field.list()?.unwrap_or_default() {
        let scope = item.text()?.ok_or_else(|| item.type_fault("text"))?;
        if let Some((_, now)) = RETIRED_SCOPES.iter().find(|(old, _)| *old == scope) {
            return Err(item.fault(&format!("'{scope}' is retired")).hint(format!("write {now}")));
        }
        if !SCOPES.contains(&scope.as_str()) {
            return Err(item.fault(&format!("'{scope}' is no scope; the scopes are {}", SCOPES.join(", "))));
        }
        if found.contains(&scope) {
            return Err(item.fault(&format!("'{scope}' is listed twice")));
        }
        found.push(scope);
    }
    if found.is_empty() { Err(field.fault("must contain at least one scope")) } else { Ok(found) }
}

pub(super) fn lifecycle(top: &Block<'_>, shell: Option<&Shell>) -> Result<Lifecycle> {
    let block = top.key("lifecycle").worded(Stem::Of("lifecycle config")).block_or_empty()?;
    let default = Lifecycle::default();
    let task_acceptance =
        word(&block.key("task_acceptance"), default.task_acceptance, Acceptance::parse, Acceptance::WORDS)?;
    let depth_field = block.key("queue_depth");
    let queue_depth = depth_field.small()?.unwrap_or(default.queue_depth);
    if task_acceptance == Acceptance::Queue && queue_depth == 0 {
        return Err(depth_field.fault("must be at least 1 with task_acceptance: queue"));
    }
    let conversation = |text: &str| match text {
        "stateless" => Some(Conversation::Stateless),
        "threaded" => Some(Conversation::Threaded),
        _ => None,
    };
    Ok(Lifecycle {
        task_acceptance,
        after_task: word(&block.key("after_task"), default.after_task, AfterTask::parse, AfterTask::WORDS)?,
        queue_depth,
        input_timeout_secs: block.key("input_timeout_secs").whole()?,
        conversation: word(&block.key("conversation"), default.conversation, conversation, keys::CONVERSATION)?,
        max_task_reopens: block.key("max_task_reopens").small()?.unwrap_or(default.max_task_reopens),
        shell_grace_secs: block.key("shell_grace_secs").whole()?.unwrap_or(default.shell_grace_secs),
        delegation_deadline_secs: block
            .key("delegation_deadline_secs")
            .whole()?
            .unwrap_or(default.delegation_deadline_secs),
        deadline_notice_secs: block.key("deadline_notice_secs").whole()?,
        keep_working: keep_working(&block.key("keep_working"))?,
        done_check: done_check(&block.key("done_check"), shell)?,
    })
}

/// One of a few words; another is reported as a fault of the YAML.
fn word<T>(field: &Field<'_>, default: T, parse: impl Fn(&str) -> Option<T>, words: &[&str]) -> Result<T> {
    match field.text()? {
        None => Ok(default),
        Some(text) => parse(&text).ok_or_else(|| {
            let all = words.join(", ");
            let fault = field.yaml_fault(&format!("{}: must be one of: {all}; got '{text}'", field.path()));
            match nearest(&text, words.iter().copied()) {
                Some(near) => fault.hint(format!("did you mean '{near}'?")),
                None => fault,
            }
        }),
    }
}

fn keep_working(field: &Field<'_>) -> Result<Option<KeepWorking>> {
    let Some(block) = field.block()? else { return Ok(None) };
    let limit_field = block.key("limit");
    let limit = limit_field.positive()?.ok_or_else(|| limit_field.fault("is required"))?;
    Ok(Some(KeepWorking { message: block.key("message").required()?, limit }))
}

fn done_check(field: &Field<'_>, shell: Option<&Shell>) -> Result<Option<DoneCheck>> {
    let Some(block) = field.block()? else { return Ok(None) };
    let command_field = block.key("command");
    let command = command_field.required()?;
    let binary = command.split_whitespace().next().unwrap_or_default();
    if !shell.is_some_and(|shell| shell.allow.iter().any(|allowed| allowed == binary)) {
        return Err(command_field.fault(&format!("'{binary}' is not in capabilities.shell.allow")));
    }
    let limit_field = block.key("limit");
    let limit = limit_field.whole()?.ok_or_else(|| limit_field.fault("is required"))?;
    Ok(Some(DoneCheck { command, limit, timeout_secs: block.key("timeout_secs").positive()?.unwrap_or(600) }))
}

/// Bytes of one exported file unless declared.
const EXPORT_MAX_BYTES: u64 = 10_485_760;

pub(super) fn exports(top: &Block<'_>) -> Result<Exports> {
    let block = top.key("exports").worded(Stem::Of("exports config")).block_or_empty()?;
    let peer_tasks = match block.key("peer_tasks").block()? {
        None => false,
        Some(block) => block.key("accept").required_bool()?,
    };
    let files = block.key("files").block()?.map(|block| exported_files(&block)).transpose()?;
    let peer_files = block.key("peer_files").block()?.map(|block| -> Result<PeerFiles> {
        Ok(PeerFiles {
            root: export_root(&block.key("root"))?,
            max_ttl: block.key("max_ttl").duration()?,
            max_bytes: block.key("max_bytes").size()?.unwrap_or(EXPORT_MAX_BYTES),
        })
    });
    Ok(Exports { peer_tasks, files, peer_files: peer_files.transpose()? })
}

fn exported_files(block: &Block<'_>) -> Result<ExportedFiles> {
    let root = export_root(&block.key("root"))?;
    let mode_field = block.key("mode");
    let mode = mode_field.required()?;
    if mode != "read-only" {
        return Err(mode_field.fault(&format!("must be read-only; got '{mode}'")));
    }
    Ok(ExportedFiles { root, max_bytes: block.key("max_bytes").size()?.unwrap_or(EXPORT_MAX_BYTES) })
}

fn export_root(field: &Field<'_>) -> Result<String> {
    let root = field.required()?;
    let path = std::path::Path::new(&root);
    let plain =
        path.components().all(|part| matches!(part, std::path::Component::Normal(_) | std::path::Component::CurDir));
    if plain && !root.contains('\0') {
        Ok(root)
    } else {
        Err(field.fault(&format!("'{root}' must be relative, without '..'")))
    }
}

pub(super) fn control(top: &Block<'_>, inference: Option<&Inference>) -> Result<Option<Control>> {
    let field = top.key("control").worded(Stem::Of("control config"));
    let block = field.block_or_empty()?;
    let control = Control {
        settings: each_one_of(&block.key("settings"), keys::SETTINGS)?,
        agent_settings: each_one_of(&block.key("agent_settings"), keys::AGENT_SETTINGS)?,
        secrets: secrets(&block.key("secrets"))?,
    };
    let selectable = control.settings.iter().chain(&control.agent_settings).any(|name| name == "inference.driver");
    if !selectable && inference.is_some_and(|inference| !inference.alternates.is_empty()) {
        return Err(field.fault("must let somebody select inference.driver, since inference.alternates is set"));
    }
    if control == Control::default() {
        return Ok(None);
    }
    if inference.is_none() {
        return Err(field.fault("needs an inference block"));
    }
    Ok(Some(control))
}

fn each_one_of(field: &Field<'_>, allowed: &[&str]) -> Result<Vec<String>> {
    for item in field.list()?.unwrap_or_default() {
        let text = item.text()?.ok_or_else(|| item.type_fault("text"))?;
        if !allowed.contains(&text.as_str()) {
            return Err(item.not_one_of(allowed, &text));
        }
    }
    field.texts()
}

fn secrets(field: &Field<'_>) -> Result<Vec<String>> {
    for item in field.list()?.unwrap_or_default() {
        let text = item.text()?.ok_or_else(|| item.type_fault("text"))?;
        if !gateway::is_credential_name(&text) {
            return Err(item.fault(&format!("'{text}' must match [A-Z_][A-Z0-9_]*")));
        }
    }
    field.texts()
}
