//! `inference`, and the rules between it and the `artifacts` entries.

use super::super::fields::{Block, Field, Stem};
use super::super::{
    Alternate, ArtifactEntry, Capabilities, Compaction, DriverChoice, Inference, Prompt, Retry, Role, Transport, keys,
};
use crate::artifacts::name::ArtifactName;
use crate::diagnostics::Result;

const STEM: Stem = Stem::Of("inference config");

/// Keys that mean nothing to a harness program.
const HTTP_ONLY: [&str; 4] = ["max_tokens", "tool_refresh", "alternates", "retry"];

pub(super) fn inference(top: &Block<'_>, artifacts: &[ArtifactEntry]) -> Result<Option<Inference>> {
    let Some(block) = top.key("inference").worded(STEM).block()? else { return Ok(None) };
    refuse_retired(&block)?;
    let transport = transport(&block.key("transport"))?;
    let model_field = block.key("model");
    let model = match (transport, model_field.nonblank()?) {
        (_, Some(model)) => model,
        (Transport::Process, None) => String::new(),
        (Transport::Http, None) => return Err(model_field.fault("is required")),
    };
    let driver_block = block.key("driver").block_or_empty()?;
    let driver = DriverChoice {
        artifact: driver_named(&driver_block.key("artifact"), artifacts)?,
        config: driver_block.key("config").json_map()?,
    };
    let compaction = compaction(&block.key("compaction"))?;
    if transport == Transport::Process {
        let compaction = block.key("compaction").block_or_empty()?;
        let fields = HTTP_ONLY.map(|key| block.key(key)).into_iter();
        let within = ["max_tokens", "driver_config"].map(|key| compaction.key(key));
        if let Some(field) = fields.chain(within).find(|field| field.value().is_some()) {
            return Err(field.fault("is not valid with transport: process"));
        }
    }
    Ok(Some(Inference {
        max_turns: block.key("max_turns").positive()?,
        max_tokens: block.key("max_tokens").positive()?,
        max_session_tokens: block.key("max_session_tokens").positive()?,
        system_prompt: prompt(&block, true)?,
        retry: retry(&block.key("retry"))?,
        tool_refresh_immediate: tool_refresh(&block.key("tool_refresh"))?,
        alternates: alternates(&block.key("alternates"), artifacts, &model, &driver.artifact)?,
        command: block.key("command").nonblank()?,
        transport,
        model,
        driver,
        compaction,
    }))
}

fn refuse_retired(block: &Block<'_>) -> Result<()> {
    let driver = block.key("driver").value().and_then(|driver| driver.get("artifact")).and_then(|name| name.text());
    for (key, instead) in [("endpoint", "gateway.endpoint"), ("api_key", "gateway.api_key")] {
        let field = block.key(key);
        if field.is_written() {
            let entry = match driver {
                Some(name) => format!("entry '{name}' instead"),
                None => "entry inference.driver.artifact names".to_owned(),
            };
            return Err(field.fault(&format!("was removed; set {instead} on the artifacts: {entry}")));
        }
    }
    let reopens = block.key("max_task_reopens");
    if reopens.is_written() {
        return Err(reopens.fault("was removed; set lifecycle.max_task_reopens instead"));
    }
    Ok(())
}

fn transport(field: &Field<'_>) -> Result<Transport> {
    let process = field.one_of(keys::TRANSPORTS)?.as_deref() == Some("process");
    Ok(if process { Transport::Process } else { Transport::Http })
}

/// A full name that an entry with `runtime: driver` declares.
fn driver_named(field: &Field<'_>, artifacts: &[ArtifactEntry]) -> Result<String> {
    let text = field.required()?;
    ArtifactName::parse(&text).map_err(|fault| {
        let bare = artifacts.iter().find(|entry| entry.bare() == text);
        let hint = bare.map(|entry| format!("'{}' is declared", entry.name)).or(fault.hint());
        field.name_fault(&fault.message(), hint)
    })?;
    match artifacts.iter().find(|entry| entry.name == text) {
        Some(entry) if entry.runtime == Role::Driver => Ok(text),
        Some(entry) => {
            let fault = field.fault(&format!("artifact '{text}' is a {}, not a driver", entry.runtime.as_str()));
            Err(fault.hint("give its entry under artifacts: runtime: driver"))
        }
        None => {
            let bare = text.rsplit('/').next().unwrap_or(&text);
            let mut alike = artifacts.iter().filter(|entry| entry.bare() == bare);
            let fault = field.fault(&format!("artifact '{text}' is not declared in artifacts:"));
            Err(match (alike.next(), alike.next()) {
                (Some(entry), None) => fault.hint(format!("'{}' is declared; did you mean it?", entry.name)),
                _ => fault.hint("declare it under artifacts: with runtime: driver"),
            })
        }
    }
}

/// At most one source of a prompt.
fn prompt(block: &Block<'_>, artifact_too: bool) -> Result<Prompt> {
    let inline = block.key("system_prompt").text()?.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    let file = block.key("system_prompt_file").nonblank()?;
    let artifact = if artifact_too { block.key("system_prompt_artifact").nonblank()? } else { None };
    let all = [inline.map(Prompt::Inline), file.map(Prompt::File), artifact.map(Prompt::Artifact)];
    let mut given = all.into_iter().flatten();
    match (given.next(), given.next()) {
        (None, _) => Ok(Prompt::None),
        (Some(prompt), None) => Ok(prompt),
        (Some(_), Some(_)) => {
            let keys = if artifact_too {
                "system_prompt, system_prompt_file and system_prompt_artifact"
            } else {
                "system_prompt and system_prompt_file"
            };
            Err(block.key("system_prompt").fault(&format!("at most one of {keys} may be set")))
        }
    }
}

fn retry(field: &Field<'_>) -> Result<Retry> {
    let block = field.block_or_empty()?;
    let default = Retry::default();
    let within = |key: &str, range: std::ops::RangeInclusive<u64>, default: u64| {
        let field = block.key(key);
        match field.whole()? {
            None => Ok(default),
            Some(value) if range.contains(&value) => Ok(value),
            Some(value) => {
                Err(field.fault(&format!("must be between {} and {}; got {value}", range.start(), range.end())))
            }
        }
    };
    let retries = within("max_retries", keys::MAX_RETRIES, default.max_retries.into())?;
    let initial_delay_ms = within("initial_delay_ms", keys::INITIAL_DELAY_MS, default.initial_delay_ms)?;
    let max_delay_ms = within("max_delay_ms", keys::MAX_DELAY_MS, default.max_delay_ms)?;
    if max_delay_ms < initial_delay_ms {
        let why = format!("must be at least initial_delay_ms ({initial_delay_ms}); got {max_delay_ms}");
        return Err(block.key("max_delay_ms").fault(&why));
    }
    Ok(Retry { max_retries: u32::try_from(retries).unwrap_or(20), initial_delay_ms, max_delay_ms })
}

fn tool_refresh(field: &Field<'_>) -> Result<bool> {
    Ok(field.one_of(keys::TOOL_REFRESH)?.as_deref() == Some("immediate"))
}

fn compaction(field: &Field<'_>) -> Result<Compaction> {
    let block = field.block_or_empty()?;
    let default = Compaction::default();
    let threshold_field = block.key("threshold");
    let threshold = threshold_field.number()?.unwrap_or(default.threshold);
    if !(threshold > 0.0 && threshold <= 1.0) {
        return Err(threshold_field.fault("must be greater than 0 and at most 1"));
    }
    Ok(Compaction {
        threshold,
        model: block.key("model").nonblank()?,
        system_prompt: prompt(&block, false)?,
        dump_summaries: block.key("dump_summaries").bool_or(false)?,
        max_tokens: block.key("max_tokens").positive()?,
        driver_config: block.key("driver_config").json_map()?,
    })
}

fn alternates(
    field: &Field<'_>,
    artifacts: &[ArtifactEntry],
    primary_model: &str,
    primary_driver: &str,
) -> Result<Vec<Alternate>> {
    let mut found: Vec<Alternate> = Vec::new();
    for item in field.list()?.unwrap_or_default() {
        let block = item.block_or_empty()?;
        let name_field = block.key("name");
        let name = name_field.required()?;
        let mut chars = name.chars();
        let plain = |c: char| matches!(c, 'a'..='z' | '0'..='9' | '-');
        if name.len() > 63 || !chars.next().is_some_and(|c| c.is_ascii_lowercase()) || !chars.all(plain) {
            return Err(name_field.fault(&format!("'{name}' must match [a-z][a-z0-9-]{{0,62}}")));
        }
        if name == "primary" || found.iter().any(|other| other.name == name) {
            return Err(name_field.fault(&format!("'{name}' names another choice")));
        }
        let model = block.key("model").required()?;
        let driver_block = block.key("driver").block_or_empty()?;
        if driver_block.key("config").is_written() {
            return Err(driver_block.key("config").fault("is not for an alternate; the primary's config reaches it"));
        }
        let driver = driver_named(&driver_block.key("artifact"), artifacts)?;
        let repeated = found.iter().any(|other| other.model == model && other.driver == driver);
        if repeated || (model == primary_model && driver == primary_driver) {
            return Err(name_field.fault(&format!("'{name}' repeats a model and driver")));
        }
        found.push(Alternate { name, model, driver });
    }
    Ok(found)
}

/// Rules that need the inference block and the entries together.
pub(super) fn across_entries(
    top: &Block<'_>,
    inference: Option<&Inference>,
    artifacts: &[ArtifactEntry],
    capabilities: &Capabilities,
) -> Result<()> {
    let fields = top.key("artifacts").list()?.unwrap_or_default();
    for (index, (entry, field)) in artifacts.iter().zip(fields).enumerate() {
        let block = field.worded(Stem::Entry(index)).block_or_empty()?;
        check_driver_entry(entry, &block, inference)?;
    }
    let Some(inference) = inference else { return Ok(()) };
    let block = top.key("inference").worded(STEM).block_or_empty()?;
    if let Prompt::Artifact(name) = &inference.system_prompt {
        let field = block.key("system_prompt_artifact");
        match artifacts.iter().find(|entry| entry.name == *name) {
            Some(entry) if entry.prompt_payload => {}
            Some(_) => return Err(field.fault(&format!("artifact '{name}' does not set prompt_payload: true"))),
            None => return Err(field.fault(&format!("artifact '{name}' is not declared in artifacts:"))),
        }
    }
    if inference.transport == Transport::Process && capabilities.install.is_some() {
        let install = top.key("capabilities").worded(Stem::Of("capability config")).block_or_empty()?.key("install");
        return Err(install.fault("is not valid with transport: process"));
    }
    Ok(())
}

/// Who must, may and may not have a gateway; what a harness's driver may not have.
fn check_driver_entry(entry: &ArtifactEntry, block: &Block<'_>, inference: Option<&Inference>) -> Result<()> {
    if entry.runtime != Role::Driver {
        return Ok(());
    }
    let primary = inference.is_some_and(|inference| inference.driver.artifact == entry.name);
    let chosen = primary
        || inference.is_some_and(|inference| inference.alternates.iter().any(|choice| choice.driver == entry.name));
    let process = inference.is_some_and(|inference| inference.transport == Transport::Process);
    let gateway = block.key("gateway");
    if process && primary {
        for key in ["capabilities", "config", "gateway"] {
            if block.key(key).is_written() {
                return Err(block.key(key).fault("is not valid on the driver of transport: process"));
            }
        }
        return Ok(());
    }
    match (chosen && !process, entry.gateway.is_some()) {
        (true, false) => {
            Err(gateway.fault("is required: it says where the driver's provider lives and which key it takes"))
        }
        (false, true) => Err(gateway.fault("is for a driver that inference names")),
        _ => Ok(()),
    }
}
