//! Pages of tasks: filters, order and page tokens.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::book::Book;
use super::model::{Owner, State, TaskView};
use crate::ids::TaskId;

/// Tasks on a page when the caller names no number.
pub const DEFAULT_PAGE: usize = 50;
/// Most tasks on a page.
pub const LARGEST_PAGE: usize = 100;

/// Which tasks a caller wants.
#[derive(Clone, Debug)]
pub struct ListQuery {
    /// Only this context.
    pub context: Option<String>,
    /// Only these states.
    pub states: StateFilter,
    /// Only tasks changed at or after this time, in Unix nanoseconds.
    pub changed_since_ns: Option<i128>,
    /// Most tasks on the page.
    pub page_size: usize,
    /// Where the page before ended.
    pub after: Option<PageToken>,
}

impl Default for ListQuery {
    fn default() -> Self {
        Self { context: None, states: StateFilter::Any, changed_since_ns: None, page_size: DEFAULT_PAGE, after: None }
    }
}

/// A filter on states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateFilter {
    /// Every state.
    Any,
    /// One.
    Only(State),
    /// A state no task here is ever in.
    Never,
}

impl StateFilter {
    /// Reads a state's wire name as a filter.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "TASK_STATE_UNSPECIFIED" => Some(Self::Any),
            "TASK_STATE_AUTH_REQUIRED" => Some(Self::Never),
            _ => State::ALL.into_iter().find(|state| state.wire() == text).map(Self::Only),
        }
    }

    fn admits(self, state: State) -> bool {
        match self {
            Self::Any => true,
            Self::Only(only) => only == state,
            Self::Never => false,
        }
    }
}

/// Where a page ended: opaque to clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageToken {
    revision: u64,
    task: TaskId,
}

impl PageToken {
    /// Unpadded base64url of `<revision>:<task id>`.
    pub fn to_text(&self) -> String {
        URL_SAFE_NO_PAD.encode(format!("{}:{}", self.revision, self.task))
    }

    /// Reads exactly what [`PageToken::to_text`] writes.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (revision, task) = std::str::from_utf8(&bytes).ok()?.split_once(':')?;
        let token = Self { revision: revision.parse().ok()?, task: TaskId::parse(task)? };
        (token.to_text() == text).then_some(token)
    }
}

/// One page.
#[derive(Debug)]
pub struct TaskPage {
    /// Newest change first.
    pub tasks: Vec<TaskView>,
    /// Where the next page starts, when there is one.
    pub next: Option<PageToken>,
    /// Tasks that match, on all pages.
    pub total: usize,
}

/// The page names a place this registry has not reached: no token of its.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownPage;

pub(super) fn list(book: &Book, caller: &Owner, query: &ListQuery) -> Result<TaskPage, UnknownPage> {
    if query.after.as_ref().is_some_and(|token| token.revision == 0 || token.revision > book.revision) {
        return Err(UnknownPage);
    }
    let before = query.after.as_ref().map_or(u64::MAX, |token| token.revision);
    let matching = book.order.values().rev().filter_map(|id| book.records.get(id)).filter(|record| {
        caller.reaches(&record.facts.owner)
            && query.states.admits(record.state)
            && query.context.as_ref().is_none_or(|context| context == record.facts.context.as_str())
            && query.changed_since_ns.is_none_or(|since| i128::from(record.changed_ms) * 1_000_000 >= since)
    });
    let mut page = TaskPage { tasks: Vec::new(), next: None, total: 0 };
    let mut last = None;
    for record in matching {
        page.total += 1;
        if record.revision >= before {
            continue;
        }
        if page.tasks.len() < query.page_size {
            page.tasks.push(record.view());
            last = Some(PageToken { revision: record.revision, task: record.facts.id.clone() });
        } else if page.next.is_none() {
            page.next = last.take();
        }
    }
    Ok(page)
}
