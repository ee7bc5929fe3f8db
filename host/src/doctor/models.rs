//! `Model limits`: whether the driver's table and the manifest leave a budget.

use super::Report;
use crate::diagnostics::{Diagnostic, codes};
use crate::manifest::{ArtifactManifest, Capsule, Inference};
use crate::session::staging::{check_compaction, settle};

/// Checks the primary choice against its driver's table.
pub(super) fn block(capsule: &Capsule, driver: Option<&ArtifactManifest>, report: &mut Report) {
    let (Some(inference), Some(driver)) = (&capsule.inference, driver) else { return };
    report.out("Model limits:");
    match limits(capsule, inference, driver) {
        Ok((line, warning)) => {
            report.out(format!("  ✓  {line}"));
            if let Some(warning) = warning {
                report.warning(&warning);
            }
        }
        Err(fault) => {
            report.out(format!("  ✗  error[{}]: {}", fault.code(), fault.message()));
            report.count_error(fault.hint_text().unwrap_or(fault.message()));
        }
    }
    report.out("");
}

fn limits(
    capsule: &Capsule,
    inference: &Inference,
    driver: &ArtifactManifest,
) -> Result<(String, Option<Diagnostic>), Diagnostic> {
    let (name, model) = (&inference.driver.artifact, &inference.model);
    let table = driver.models.as_ref().map_err(|why| {
        Diagnostic::new(codes::E_RUN_052, format!("the models table of {name} is malformed: {why}"))
            .hint("use another release of the driver")
    })?;
    let row = table.get(model);
    let budget = settle(inference.max_tokens, capsule.context.max_tokens, row).ok_or_else(|| {
        Diagnostic::new(codes::E_RUN_052, format!("{name} lists no output cap for model '{model}'"))
            .hint("set inference.max_tokens")
    })?;
    let no_room = |key: &str| {
        Diagnostic::new(codes::E_RUN_055, format!("{key} leaves no room for input to model '{model}'"))
            .hint(format!("lower {key}"))
    };
    if budget.input_budget() == Some(0) {
        return Err(no_room("inference.max_tokens"));
    }
    check_compaction(name, inference, capsule.context.max_tokens, table)?;
    let window = budget.context_window.map_or("no window known".to_owned(), |window| format!("window {window}"));
    let line = format!("{model} by {name}: at most {} output tokens, {window}", budget.max_output_tokens);
    let unknown = budget.context_window.is_none().then(|| {
        Diagnostic::new(codes::W_RUN_009, format!("{name} lists no limits for model '{model}'"))
            .hint("set context.max_tokens to the model's window")
    });
    Ok((line, unknown))
}
