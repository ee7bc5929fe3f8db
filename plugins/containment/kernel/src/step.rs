//! A privileged sequence as data: named steps, run in order; the first that fails stops the sequence and says its name.

use std::fmt;
use std::io;

use nix::errno::Errno;

/// How a step ended when it did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// It is in force.
    Enforced,
    /// This kernel does not have it and the sequence holds without it.
    Absent,
}

/// One step of a sequence over what it works on.
pub struct Step<C> {
    /// The name that refusals and reports use.
    pub name: &'static str,
    /// What holds after it, one line.
    pub effect: &'static str,
    pub(crate) run: fn(&mut C) -> Result<Done, StepError>,
}

impl<C> fmt::Debug for Step<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// The step that failed, and with what.
#[derive(Debug)]
pub struct StepError {
    /// Name of the step.
    pub step: String,
    /// The error of the operating system.
    pub error: io::Error,
}

impl StepError {
    /// A step and its error.
    pub fn new(step: impl Into<String>, error: impl Into<io::Error>) -> Self {
        Self { step: step.into(), error: error.into() }
    }

    /// Says what the step was part of, or what exactly it was at.
    pub(crate) fn within(self, name: &str) -> Self {
        let step = if self.step.is_empty() { name.to_owned() } else { format!("{name}: {}", self.step) };
        Self { step, error: self.error }
    }

    /// The error number; 0 when there is none.
    pub fn errno(&self) -> i32 {
        self.error.raw_os_error().unwrap_or(0)
    }
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.error.raw_os_error() {
            Some(number) => {
                let errno = Errno::from_raw(number);
                write!(f, "{} failed with {errno:?} ({})", self.step, errno.desc())
            }
            None => write!(f, "{} failed: {}", self.step, self.error),
        }
    }
}

impl std::error::Error for StepError {}

impl From<io::Error> for StepError {
    fn from(error: io::Error) -> Self {
        Self { step: String::new(), error }
    }
}

impl From<Errno> for StepError {
    fn from(errno: Errno) -> Self {
        io::Error::from(errno).into()
    }
}

/// Runs a sequence. Returns the names of the steps this kernel does not have; after an error the process is partly confined
/// and must end.
pub fn run<C>(steps: &[Step<C>], on: &mut C) -> Result<Vec<&'static str>, StepError> {
    let mut absent = Vec::new();
    for step in steps {
        #[cfg(feature = "leave-out")]
        if crate::left_out::is(step.name) {
            continue;
        }
        match (step.run)(on) {
            Ok(Done::Enforced) => {}
            Ok(Done::Absent) => absent.push(step.name),
            Err(error) => return Err(error.within(step.name)),
        }
    }
    Ok(absent)
}

/// The outcome of a plain system call.
pub(crate) fn check(result: impl Into<i64>) -> io::Result<i64> {
    let result = result.into();
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_stops_at_the_step_that_fails_and_names_it() {
        let steps: [Step<Vec<u8>>; 3] = [
            Step {
                name: "one",
                effect: "",
                run: |seen| {
                    seen.push(1);
                    Ok(Done::Absent)
                },
            },
            Step { name: "two", effect: "", run: |_| Err(StepError::new("inner", Errno::EPERM)) },
            Step {
                name: "three",
                effect: "",
                run: |seen| {
                    seen.push(3);
                    Ok(Done::Enforced)
                },
            },
        ];
        let mut seen = Vec::new();
        let error = run(&steps, &mut seen).unwrap_err();
        assert_eq!(error.to_string(), "two: inner failed with EPERM (Operation not permitted)");
        assert_eq!((error.errno(), seen), (1, vec![1]));
        assert_eq!(run(&steps[..1], &mut Vec::new()).unwrap(), ["one"]);
    }
}
