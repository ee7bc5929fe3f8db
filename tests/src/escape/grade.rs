//! Grading: what a class claims, what the probe saw, and what the same attempt came to where nothing held it.

use super::cases::{Case, Category, Class, Expect, ROOT_ONLY, Route, Verdict};
use super::launch::Seen;

/// How a case went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Result {
    /// As the class claims.
    Pass,
    /// Not as the class claims, or nothing was proven.
    Fail,
    /// The class claims nothing.
    NotAsserted,
    /// Refused, and refused as well where no class is in force: the refusal is not the class's.
    Unattributed,
}

impl Result {
    /// As records show it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Fail => "FAIL",
            Self::NotAsserted => "not asserted",
            Self::Unattributed => "UNATTRIBUTED",
        }
    }
}

/// A case on a route, graded.
#[derive(Clone, Debug)]
pub struct Graded {
    /// The case's id; `worker-posture` is the look from outside.
    pub id: &'static str,
    /// The case, unless it is the look.
    pub case: Option<&'static Case>,
    /// The route.
    pub route: Route,
    /// What the class claims.
    pub expected: Expect,
    /// What was seen.
    pub seen: Seen,
    /// What the same attempt came to at `unconfined`.
    pub unconfined: Option<Seen>,
    /// The grade.
    pub result: Result,
    /// Where manifest, plan, output and trace lie.
    pub folder: std::path::PathBuf,
}

impl Graded {
    /// The category.
    pub fn category(&self) -> Category {
        self.case.map_or(Category::Boundary, |case| case.category)
    }

    /// Whether it makes the run a failure.
    pub fn fails(&self, euid: u32) -> bool {
        match self.result {
            Result::Fail => true,
            // What needs root is refused to others anyway, and everybody knows.
            Result::Unattributed => euid == 0 || !ROOT_ONLY.contains(&self.id),
            Result::Pass | Result::NotAsserted => false,
        }
    }

    /// The control's account: the probe's own, and that of the run at `unconfined`.
    pub fn control(&self) -> String {
        match &self.unconfined {
            Some(seen) => format!("{}; unconfined: {}", self.seen.control, seen.verdict.as_str()),
            None => self.seen.control.clone(),
        }
    }
}

/// Grades a case.
pub fn grade(case: &Case, class: Class, route: Route, seen: &Seen, unconfined: Option<&Seen>) -> Result {
    let Some(Expect::Graded(claimed)) = case.expect(class, route) else { return Result::NotAsserted };
    if seen.verdict != claimed {
        return Result::Fail;
    }
    let held_by_class = claimed == Verdict::Refused && case.by_class && case.category == Category::Boundary;
    let gone_through = |seen: &Seen| matches!(seen.verdict, Verdict::Allowed | Verdict::Success);
    if held_by_class && !unconfined.is_some_and(gone_through) { Result::Unattributed } else { Result::Pass }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::escape::cases::find;

    fn seen(verdict: Verdict) -> Seen {
        Seen::new(verdict, "-", "-")
    }

    #[test]
    fn a_refusal_counts_only_where_the_same_attempt_goes_through_unconfined() {
        let case = find("read-etc-shadow").unwrap();
        let at = |class, verdict, control: Option<Verdict>| {
            grade(case, class, Route::Tools, &seen(verdict), control.map(seen).as_ref())
        };
        use Verdict::{Allowed, Inconclusive, Refused, Success};
        assert_eq!(at(Class::Scoped, Refused, Some(Allowed)), Result::Pass);
        assert_eq!(at(Class::Scoped, Refused, Some(Success)), Result::Pass);
        assert_eq!(at(Class::Scoped, Refused, Some(Refused)), Result::Unattributed);
        assert_eq!(at(Class::Scoped, Refused, Some(Inconclusive)), Result::Unattributed);
        assert_eq!(at(Class::Scoped, Refused, None), Result::Unattributed);
        assert_eq!(at(Class::Scoped, Allowed, Some(Allowed)), Result::Fail);
        assert_eq!(at(Class::Scoped, Inconclusive, Some(Allowed)), Result::Fail);
        assert_eq!(at(Class::Advisory, Allowed, None), Result::NotAsserted);
        let key = find("worker-key-in-memory").unwrap();
        assert_eq!(grade(key, Class::Scoped, Route::Driver, &seen(Refused), None), Result::Pass);
    }

    #[test]
    fn what_is_not_attributed_fails_a_run_unless_it_needs_root_and_the_run_is_not_roots() {
        let graded = |id: &'static str, result| Graded {
            id,
            case: find(id),
            route: Route::Tools,
            expected: Expect::Graded(Verdict::Refused),
            seen: seen(Verdict::Refused),
            unconfined: None,
            result,
            folder: std::path::PathBuf::new(),
        };
        let bpf = graded("syscall-bpf", Result::Unattributed);
        assert!(bpf.fails(0) && !bpf.fails(1000));
        assert!(graded("syscall-keyctl", Result::Unattributed).fails(1000));
        assert!(graded("syscall-bpf", Result::Fail).fails(1000));
        assert!(!graded("syscall-bpf", Result::Pass).fails(0));
    }
}
