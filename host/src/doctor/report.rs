//! What a check found, in the order in which it is printed.

use crate::diagnostics::{Code, Diagnostic, codes, output};

/// What a launch refuses and a check only warns of: what the host or a flag may change before the launch.
const ONLY_WARNED: [Code; 6] =
    [codes::E_CAP_002, codes::E_CAP_004, codes::E_CAP_005, codes::E_CAP_006, codes::E_CAP_016, codes::E_RUN_019];

/// One line and where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// Data.
    Out(String),
    /// Talk.
    Err(String),
}

/// The lines and the tally.
#[derive(Debug, Default)]
pub struct Report {
    lines: Vec<Line>,
    passed: usize,
    errors: Vec<String>,
    warnings: Vec<String>,
}

impl Report {
    /// A line of the report itself.
    pub fn out(&mut self, line: impl Into<String>) {
        self.lines.push(Line::Out(line.into()));
    }

    /// A heading with its lines, and an empty line after.
    pub fn block(&mut self, heading: &str, lines: impl IntoIterator<Item = String>) {
        self.out(heading);
        for line in lines {
            self.out(line);
        }
        self.out("");
    }

    /// A line beside the report.
    pub fn err(&mut self, line: impl Into<String>) {
        self.lines.push(Line::Err(line.into()));
    }

    /// Something a launch would warn of too.
    pub fn warning(&mut self, warning: &Diagnostic) {
        let line = warning.warning_line();
        match warning.code() {
            codes::W_SEC_019 => self.err(format!("[murmur-artifact] {line}")),
            codes::W_SEC_032 => self.out(line),
            _ => self.err(format!("[mur doctor] {line}")),
        }
        self.warnings.push(warning.hint_text().unwrap_or(warning.message()).to_owned());
    }

    /// Something a launch would be refused for, while a check goes on: an error, but for the few that are warnings here.
    pub fn prediction(&mut self, refusal: &Diagnostic) {
        if !ONLY_WARNED.contains(&refusal.code()) {
            return self.error(refusal);
        }
        self.err(format!("[mur doctor] warning{}", printed(refusal)));
        self.warnings.push(refusal.hint_text().unwrap_or(refusal.message()).to_owned());
    }

    /// Something that is wrong.
    pub fn error(&mut self, fault: &Diagnostic) {
        self.err(format!("[mur doctor] error{}", printed(fault)));
        self.count_error(fault.hint_text().unwrap_or(fault.message()));
    }

    /// Counts an error whose line is in the report already.
    pub fn count_error(&mut self, fix: &str) {
        self.errors.push(fix.to_owned());
    }

    /// Counts a warning whose line is in the report already.
    pub fn count_warning(&mut self, fix: &str) {
        self.warnings.push(fix.to_owned());
    }

    /// Counts a line of the checklist that is as it should be.
    pub fn pass(&mut self) {
        self.passed += 1;
    }

    /// Ends the report: the tally and what to do. Returns the exit status.
    pub fn tally(&mut self) -> u8 {
        let (errors, warnings) = (std::mem::take(&mut self.errors), std::mem::take(&mut self.warnings));
        if errors.is_empty() && warnings.is_empty() {
            self.out("All checks passed.");
            return 0;
        }
        let plural = |count: usize, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
        let mut line = format!("{} passed, {} found", plural(self.passed, "check"), plural(errors.len(), "error"));
        if !warnings.is_empty() {
            line.push_str(&format!(", {}", plural(warnings.len(), "warning")));
        }
        line.push('.');
        self.out(line);
        self.out("");
        for fix in errors.iter().chain(&warnings) {
            self.out(format!("Fix: {fix}"));
        }
        u8::from(!errors.is_empty())
    }

    /// Every line so far.
    pub fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// Prints every line.
    pub fn print(&self) {
        for line in &self.lines {
            match line {
                Line::Out(line) => output::stdout_line(line),
                Line::Err(line) => output::stderr_line(line),
            }
        }
    }
}

/// `[code]: message`, then the hint, indented.
fn printed(diagnostic: &Diagnostic) -> String {
    let mut text = format!("[{}]: ", diagnostic.code());
    for (index, line) in diagnostic.message().lines().enumerate() {
        if index > 0 {
            text.push_str("\n  ");
        }
        text.push_str(line);
    }
    if let Some(hint) = diagnostic.hint_text() {
        text.push_str(&format!("\n  hint: {hint}"));
    }
    text
}
