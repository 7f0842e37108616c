use serde::{Deserialize, Serialize};

/// The kind of an error, which determines the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The run finished, and a check failed. Exit code 1.
    Check,
    /// The request can't be right on any machine. Exit code 2.
    Request,
    /// The request is fine; this machine lacks what it needs. Exit code 3.
    Machine,
    /// The run started and failed. Exit code 4; what was measured is saved.
    Run,
}

impl Kind {
    pub fn exit_code(self) -> i32 {
        match self {
            Kind::Check => 1,
            Kind::Request => 2,
            Kind::Machine => 3,
            Kind::Run => 4,
        }
    }
}

/// An error: what was requested, what was found, what to type next. Its texts name a job's fields by their keys; `wording` says
/// how they are shown and written out.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Error {
    pub kind: Kind,
    pub asked: String,
    pub found: String,
    pub next: String,
}

impl Error {
    pub fn new(
        kind: Kind,
        asked: impl Into<String>,
        found: impl Into<String>,
        next: impl Into<String>,
    ) -> Self {
        Error { kind, asked: asked.into(), found: found.into(), next: next.into() }
    }

    pub fn request(asked: impl Into<String>, found: impl Into<String>, next: impl Into<String>) -> Self {
        Error::new(Kind::Request, asked, found, next)
    }

    pub fn machine(asked: impl Into<String>, found: impl Into<String>, next: impl Into<String>) -> Self {
        Error::new(Kind::Machine, asked, found, next)
    }

    pub fn check(asked: impl Into<String>, found: impl Into<String>, next: impl Into<String>) -> Self {
        Error::new(Kind::Check, asked, found, next)
    }

    pub fn run(asked: impl Into<String>, found: impl Into<String>, next: impl Into<String>) -> Self {
        Error::new(Kind::Run, asked, found, next)
    }
}
