//! Asking what a host backs: the helper that will hold the session's enclosure tries it, with the configured libraries.

use mur_plugin_api::{Class, EnclosureRequest};

use super::{Helper, Host, Report};
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::plugins::Registry;

/// Asks a helper, which is started with the first question.
///
/// For a launch it makes the session's enclosure instead of trying one and making it again: the best proof, and half the
/// work. Only where that fails is it tried step by step, for the account of what is short.
#[derive(Debug)]
pub struct Prober<'a> {
    registry: &'a Registry,
    helper: Option<Helper>,
    opening: Option<EnclosureRequest>,
    opened: bool,
}

impl<'a> Prober<'a> {
    /// Only asks, with the libraries of a registry.
    pub fn new(registry: &'a Registry) -> Self {
        Self::opening(registry, None)
    }

    /// Makes the session's enclosure of the class that is taken.
    pub fn opening(registry: &'a Registry, request: Option<EnclosureRequest>) -> Self {
        Self { registry, helper: None, opening: request, opened: false }
    }

    /// What the host backs of a class: tried now, never remembered. The library stays loaded in the helper.
    pub fn report(&mut self, class: Class) -> Result<Report> {
        let helper = self.loaded(class)?;
        helper.probe(class).map_err(|why| no_answer(class, &why))
    }

    /// The helper, when it holds the session's enclosure.
    pub fn into_opened(self) -> Option<Helper> {
        self.helper.filter(|_| self.opened)
    }

    fn loaded(&mut self, class: Class) -> Result<&Helper> {
        let library = self.registry.containment_library(class)?;
        if self.helper.is_none() {
            let started = Helper::start().map_err(|error| {
                Diagnostic::new(codes::E_RUN_066, format!("the session's enclosure could not be started: {error}"))
            });
            self.helper = Some(started?);
        }
        let Some(helper) = &self.helper else { return Err(no_answer(class, "it is not there")) };
        helper.load(class, &library).map_err(|why| no_answer(class, &why))?;
        Ok(helper)
    }
}

impl Host for Prober<'_> {
    fn probe(&mut self, class: Class) -> Result<Report> {
        self.report(class)
    }

    fn take(&mut self, class: Class) -> Result<Report> {
        let Some(mut request) = self.opening.clone() else { return self.report(class) };
        // The host's own libraries share their means, so one can speak for the other; a configured one speaks for itself.
        request.rehearse_root = class == Class::Scoped && self.registry.serves_itself(Class::Sealed);
        match self.loaded(class)?.open(class, request) {
            Ok(report) => {
                self.opened = true;
                Ok(report)
            }
            Err(why) => match self.report(class)? {
                report if report.is_short() => Ok(report),
                _ => Err(Diagnostic::new(
                    codes::E_RUN_066,
                    format!("the session's enclosure could not be opened: {why}"),
                )
                .hint("nothing was run; 'mur doctor' says what this host can back")),
            },
        }
    }
}

fn no_answer(class: Class, why: &str) -> Diagnostic {
    Diagnostic::new(
        codes::E_PLG_005,
        format!("the library of class '{class}' could not say what this host backs: {why}"),
    )
}
