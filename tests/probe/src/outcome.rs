//! What an attempt came to.

use std::io;

/// What happened, in the record's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The operation was refused.
    Refused,
    /// It went through.
    Allowed,
    /// It went through, and that is what the case asks for.
    Success,
    /// A resource ceiling held.
    Contained,
    /// It did not.
    Uncontained,
    /// There is no evidence either way; never a pass.
    Inconclusive,
}

impl Verdict {
    /// Its token.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Refused => "REFUSED",
            Self::Allowed => "ALLOWED",
            Self::Success => "SUCCESS",
            Self::Contained => "CONTAINED",
            Self::Uncontained => "UNCONTAINED",
            Self::Inconclusive => "INCONCLUSIVE",
        }
    }

    /// A token's verdict; what is no token is no evidence.
    pub fn parse(token: &str) -> Self {
        let all = [Self::Refused, Self::Allowed, Self::Success, Self::Contained, Self::Uncontained];
        all.into_iter().find(|one| one.as_str() == token).unwrap_or(Self::Inconclusive)
    }
}

/// A verdict with its evidence.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What happened.
    pub verdict: Verdict,
    /// What the control attempt in the same process came to.
    pub control: String,
    /// Errno, the call that raised it, and whatever else explains the verdict; one line.
    pub detail: String,
}

impl Outcome {
    /// A verdict; the control is added by [`Self::controlled`].
    pub fn new(verdict: Verdict, detail: impl Into<String>) -> Self {
        Self { verdict, control: "-".to_owned(), detail: detail.into() }
    }

    /// The operation was refused.
    pub fn refused(detail: impl Into<String>) -> Self {
        Self::new(Verdict::Refused, detail)
    }

    /// The operation went through.
    pub fn allowed(detail: impl Into<String>) -> Self {
        Self::new(Verdict::Allowed, detail)
    }

    /// No evidence.
    pub fn inconclusive(detail: impl Into<String>) -> Self {
        Self::new(Verdict::Inconclusive, detail)
    }

    /// Adds what the control came to. Where it failed, nothing is proven.
    pub fn controlled(mut self, what: &str, control: io::Result<()>) -> Self {
        match control {
            Ok(()) => self.control = format!("{what}: ok"),
            Err(error) => {
                self.control = format!("{what}: {}", words(&error));
                self.verdict = Verdict::Inconclusive;
            }
        }
        self
    }

    /// The line of the report.
    pub fn line(&self, case: &str) -> String {
        let clean = |text: &str| text.replace(['\t', '\n', '\r'], " ");
        format!("{case}\t{}\t{}\t{}\n", self.verdict.as_str(), clean(&self.control), clean(&self.detail))
    }
}

/// What opening, making or changing something outside came to: `absent` says whether `ENOENT` is a refusal, as inside a
/// composed root.
pub fn judge<T>(call: &str, result: io::Result<T>, absent: bool) -> Outcome {
    match result {
        Ok(_) => Outcome::allowed(format!("{call} went through")),
        Err(error) => {
            let detail = format!("{call}: {}", words(&error));
            match error.raw_os_error() {
                Some(libc::EACCES | libc::EPERM | libc::EROFS) => Outcome::refused(detail),
                Some(libc::ENOENT) if absent => Outcome::refused(detail),
                _ => Outcome::inconclusive(detail),
            }
        }
    }
}

/// Several attempts as one case: refused only when each is, allowed as soon as one is.
pub fn all(outcomes: impl IntoIterator<Item = Outcome>) -> Outcome {
    let outcomes: Vec<Outcome> = outcomes.into_iter().collect();
    let any = |verdict| outcomes.iter().any(|one| one.verdict == verdict);
    let verdict = if any(Verdict::Allowed) {
        Verdict::Allowed
    } else if outcomes.is_empty() || any(Verdict::Inconclusive) {
        Verdict::Inconclusive
    } else {
        Verdict::Refused
    };
    let details: Vec<&str> = outcomes.iter().map(|one| one.detail.as_str()).collect();
    Outcome::new(verdict, details.join("; "))
}

/// An error by its name.
pub fn words(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(number) => errno(number),
        None => error.to_string(),
    }
}

/// An error number by its name.
pub fn errno(number: i32) -> String {
    const NAMES: &[(i32, &str)] = &[
        (libc::EPERM, "EPERM"),
        (libc::ENOENT, "ENOENT"),
        (libc::ESRCH, "ESRCH"),
        (libc::EIO, "EIO"),
        (libc::E2BIG, "E2BIG"),
        (libc::ENXIO, "ENXIO"),
        (libc::EBADF, "EBADF"),
        (libc::EAGAIN, "EAGAIN"),
        (libc::ENOMEM, "ENOMEM"),
        (libc::EACCES, "EACCES"),
        (libc::EFAULT, "EFAULT"),
        (libc::EEXIST, "EEXIST"),
        (libc::EXDEV, "EXDEV"),
        (libc::ENOTDIR, "ENOTDIR"),
        (libc::EINVAL, "EINVAL"),
        (libc::EMFILE, "EMFILE"),
        (libc::EFBIG, "EFBIG"),
        (libc::ENOSPC, "ENOSPC"),
        (libc::EROFS, "EROFS"),
        (libc::ENOSYS, "ENOSYS"),
        (libc::ENOEXEC, "ENOEXEC"),
        (libc::ETXTBSY, "ETXTBSY"),
        (libc::ESTALE, "ESTALE"),
        (libc::ENOKEY, "ENOKEY"),
        (libc::EOPNOTSUPP, "EOPNOTSUPP"),
        (libc::EADDRINUSE, "EADDRINUSE"),
        (libc::ECONNREFUSED, "ECONNREFUSED"),
        (libc::ENETUNREACH, "ENETUNREACH"),
        (libc::EHOSTUNREACH, "EHOSTUNREACH"),
        (libc::ETIMEDOUT, "ETIMEDOUT"),
    ];
    match NAMES.iter().find(|(known, _)| *known == number) {
        Some((_, name)) => (*name).to_owned(),
        None => format!("errno {number}"),
    }
}
