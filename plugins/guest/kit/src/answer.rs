//! What a call returns.

use serde_json::Value;

/// How a call went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It did what was asked.
    Passed,
    /// It ran and says no: a server refused, a file is not there.
    Failed,
    /// It could not run: the input makes no sense, the host refused.
    Error,
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// How it went.
    pub status: Status,
    /// What the caller sees.
    pub data: String,
    /// Whether the output was cut.
    pub truncated: bool,
    /// Notes to the host, by reserved key.
    pub metadata: Vec<(String, String)>,
}

impl Answer {
    /// A call that did what was asked.
    pub fn passed(data: impl Into<String>) -> Self {
        Self { status: Status::Passed, data: data.into(), truncated: false, metadata: Vec::new() }
    }

    /// The same, with a JSON value.
    pub fn json(value: &Value) -> Self {
        Self::passed(value.to_string())
    }

    /// A call that ran and says no.
    pub fn failed(data: impl Into<String>) -> Self {
        Self { status: Status::Failed, ..Self::passed(data) }
    }

    /// A call that could not run.
    pub fn error(data: impl Into<String>) -> Self {
        Self { status: Status::Error, ..Self::passed(data) }
    }

    /// Adds a note to the host.
    pub fn note(mut self, key: &str, value: impl Into<String>) -> Self {
        self.metadata.push((key.to_owned(), value.into()));
        self
    }

    /// Says that the output was cut.
    pub fn cut(mut self, truncated: bool) -> Self {
        self.truncated = truncated;
        self
    }
}
