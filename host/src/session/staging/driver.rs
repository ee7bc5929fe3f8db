//! The driver choice: which artifact is asked, for which model, within which token limits.

use std::collections::BTreeMap;

use super::Part;
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::manifest::{Capsule, Inference, ModelLimits, Role};
use crate::session::context::{CompactionChoice, Driver, ModelBudget};

/// Chooses the driver of an agent capsule and settles its limits.
pub fn choose(capsule: &Capsule, parts: &[Part], warnings: &mut Vec<Diagnostic>) -> Result<Driver> {
    let Some(inference) = &capsule.inference else {
        return Err(Diagnostic::new(codes::E_RUN_005, "an agent capsule needs inference.driver.artifact"));
    };
    let wanted = &inference.driver.artifact;
    let part = parts.iter().find(|part| part.entry.runtime == Role::Driver && part.entry.name == *wanted).ok_or_else(
        || {
            Diagnostic::new(
                codes::E_RUN_005,
                format!("inference.driver.artifact names '{wanted}', which is no driver here"),
            )
            .hint("declare it in artifacts: with runtime: driver")
        },
    )?;
    let limits = budget(capsule, inference, part, warnings)?;
    let table = part.models.clone().unwrap_or_default();
    check_compaction(&part.entry.reference(), inference, capsule.context.max_tokens, &table)?;
    Ok(Driver {
        full: part.entry.name.clone(),
        bare: part.entry.bare().to_owned(),
        version: part.version.clone(),
        endpoint: part.entry.gateway.as_ref().map(|gateway| gateway.endpoint.clone()).unwrap_or_default(),
        model: inference.model.clone(),
        config_json: inference
            .driver
            .config
            .as_ref()
            .map(|config| serde_json::Value::Object(config.clone()).to_string()),
        limits,
        ceilings: table.into_iter().map(|(model, row)| (model, u64::from(row.max_output_tokens))).collect(),
        compaction: CompactionChoice { system_prompt: None, config_json: compaction_config(inference) },
    })
}

/// The driver's configuration with the compaction's keys over it.
fn compaction_config(inference: &Inference) -> Option<String> {
    let over = inference.compaction.driver_config.clone()?;
    let mut config = inference.driver.config.clone().unwrap_or_default();
    config.extend(over);
    Some(serde_json::Value::Object(config).to_string())
}

/// Whether the model that compacts can answer as much as its cap says, and still be asked something.
pub(crate) fn check_compaction(
    driver: &str,
    inference: &Inference,
    window: Option<u64>,
    table: &BTreeMap<String, ModelLimits>,
) -> Result<()> {
    let compaction = &inference.compaction;
    let Some(cap) = compaction.max_tokens else { return Ok(()) };
    let model = compaction.model.as_ref().unwrap_or(&inference.model);
    let row = table.get(model);
    if let Some(ceiling) = row.map(|row| u64::from(row.max_output_tokens)).filter(|ceiling| cap > *ceiling) {
        let message = format!(
            "inference.compaction.max_tokens is {cap}, and driver {driver} lists at most {ceiling} output tokens for \
             model '{model}'"
        );
        return Err(Diagnostic::new(codes::E_RUN_054, message).hint(format!("lower it to {ceiling}")));
    }
    let window = window.or(row.map(|row| u64::from(row.context_window)));
    if let Some(window) = window.filter(|window| cap >= *window) {
        let message = format!(
            "inference.compaction.max_tokens of {cap} leaves no room for input in a window of {window} tokens of model \
             '{model}'"
        );
        return Err(Diagnostic::new(codes::E_RUN_055, message).hint("lower inference.compaction.max_tokens"));
    }
    Ok(())
}

fn budget(
    capsule: &Capsule,
    inference: &Inference,
    part: &Part,
    warnings: &mut Vec<Diagnostic>,
) -> Result<ModelBudget> {
    let reference = part.entry.reference();
    let table = part.models.as_ref().map_err(|why| {
        Diagnostic::new(codes::E_RUN_052, format!("the models: table of driver {reference} is malformed: {why}"))
            .hint("use another release of the driver")
    })?;
    let row = table.get(&inference.model);
    let budget = settle(inference.max_tokens, capsule.context.max_tokens, row).ok_or_else(|| {
        Diagnostic::new(
            codes::E_RUN_052,
            format!(
                "driver {reference} lists no output cap for model '{}', and inference.max_tokens sets none",
                inference.model
            ),
        )
        .hint("set inference.max_tokens")
    })?;
    if budget.input_budget() == Some(0) {
        return Err(Diagnostic::new(
            codes::E_RUN_055,
            format!(
                "an output cap of {} tokens leaves no room for input in a window of {} tokens",
                budget.max_output_tokens,
                budget.context_window.unwrap_or_default()
            ),
        )
        .hint("lower inference.max_tokens"));
    }
    if budget.context_window.is_none() {
        warnings.push(Diagnostic::new(
            codes::W_RUN_009,
            format!(
                "driver {reference} lists no limits for model '{}' and context.max_tokens is not set",
                inference.model
            ),
        ));
    }
    Ok(budget)
}

/// The manifest's own numbers first, the driver's table behind them; `None` without an output cap.
pub(crate) fn settle(max_tokens: Option<u64>, window: Option<u64>, row: Option<&ModelLimits>) -> Option<ModelBudget> {
    let (max_output_tokens, max_output_tokens_source) = match (max_tokens, row) {
        (Some(own), _) => (own, "manifest"),
        (None, Some(row)) => (u64::from(row.max_output_tokens), "driver"),
        (None, None) => return None,
    };
    let (context_window, context_window_source) = match (window, row) {
        (Some(own), _) => (Some(own), Some("manifest")),
        (None, Some(row)) => (Some(u64::from(row.context_window)), Some("driver")),
        (None, None) => (None, None),
    };
    let max_input_tokens = row.and_then(|row| row.max_input_tokens).map(u64::from);
    Some(ModelBudget {
        max_output_tokens,
        max_output_tokens_source,
        context_window,
        context_window_source,
        max_input_tokens,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_decides_before_the_drivers_table() {
        let row = ModelLimits { max_output_tokens: 100, context_window: 1000, max_input_tokens: Some(800) };
        let from_driver = settle(None, None, Some(&row)).unwrap();
        assert_eq!((from_driver.max_output_tokens, from_driver.max_output_tokens_source), (100, "driver"));
        assert_eq!(from_driver.input_budget(), Some(800));
        let own = settle(Some(50), Some(500), Some(&row)).unwrap();
        assert_eq!((own.max_output_tokens, own.context_window_source), (50, Some("manifest")));
        assert_eq!(own.input_budget(), Some(450));
        assert_eq!(settle(None, Some(500), None), None);
        assert_eq!(settle(Some(5), None, None).unwrap().input_budget(), None);
    }
}
