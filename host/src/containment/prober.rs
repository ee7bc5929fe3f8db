//! Asking what a host backs: the helper that will hold the session's enclosure tries it, with the configured libraries.

use mur_plugin_api::Class;

use super::{Helper, Report};
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::plugins::Registry;

/// Asks a helper, which is started with the first question.
#[derive(Debug)]
pub struct Prober<'a> {
    registry: &'a Registry,
    helper: Option<Helper>,
}

impl<'a> Prober<'a> {
    /// With the libraries of a registry.
    pub fn new(registry: &'a Registry) -> Self {
        Self { registry, helper: None }
    }

    /// What the host backs of a class: tried now, never remembered. The library stays loaded in the helper.
    pub fn report(&mut self, class: Class) -> Result<Report> {
        let library = self.registry.containment_library(class)?;
        let helper = match &self.helper {
            Some(helper) => helper,
            None => self.helper.insert(Helper::start().map_err(|error| {
                Diagnostic::new(codes::E_RUN_066, format!("the session's enclosure could not be started: {error}"))
            })?),
        };
        let asked = helper.load(class, &library).and_then(|()| helper.probe(class));
        asked.map_err(|why| {
            Diagnostic::new(
                codes::E_PLG_005,
                format!("the library of class '{class}' could not say what this host backs: {why}"),
            )
        })
    }

    /// The helper, when any question was asked.
    pub fn into_helper(self) -> Option<Helper> {
        self.helper
    }
}
