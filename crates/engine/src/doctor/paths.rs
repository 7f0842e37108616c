//! The four data paths: which of them run here, on this source.

use super::filesystem::Examined;
use super::report::{count, Area, Check, State};
use super::verdict::{remark, Answer, GdsVerdict, Usable, Verdicts};

/// `files`: the source is, or has, files.
pub fn checks(verdicts: &Verdicts, files: bool) -> Vec<Check> {
    vec![host(), bounce(&verdicts.bounce), mapped(&verdicts.mapped, files), gds(&verdicts.gds)]
}

fn check(name: &str, state: State, found: impl Into<String>) -> Check {
    Check::new(Area::Paths, format!("path.{name}"), name, state, found)
}

fn host() -> Check {
    check("host", State::Works, "storage to host memory")
}

fn bounce(usable: &Usable) -> Check {
    match &usable.because {
        None => check("bounce", State::Works, "storage to pinned host memory to the GPU"),
        Some(because) => {
            check("bounce", State::Limited, "its destination is host memory, and records say so").why(because)
        }
    }
}

fn mapped(usable: &Usable, files: bool) -> Check {
    match &usable.because {
        Some(because) if !files => check("mapped", State::NotApplicable, because),
        Some(because) => check("mapped", State::Missing, "needs a GPU").why(because),
        None => {
            let found = "page cache to the GPU without a CPU copy, for data that is cached";
            check("mapped", State::Works, found)
        }
    }
}

fn gds(verdict: &GdsVerdict) -> Check {
    let words = verdict.words();
    let (state, found) = match verdict.answer {
        Answer::Direct => return check("gds", State::Works, words),
        Answer::CompatOnly => (State::Limited, "compat only: records say gds-compat"),
        Answer::No => (State::Missing, "cuFile can't run here"),
    };
    let mut check = check("gds", state, found).why(verdict.reason().unwrap_or(words));
    check.next = verdict.next().map(|next| remark(&next, "meanwhile: --path bounce"));
    check
}

/// One sentence: the paths that run, and how much there is to do.
pub fn verdict(checks: &[Check], examined: &[Examined]) -> String {
    let named = |state: State| -> Vec<&str> {
        let paths = checks.iter().filter(|c| c.area == Area::Paths && c.state == state);
        paths.map(|c| c.title.as_str()).collect()
    };
    let mut parts = Vec::new();
    for (words, state) in
        [("Runs: ", State::Works), ("In part: ", State::Limited), ("Not here: ", State::Missing)]
    {
        if !named(state).is_empty() {
            parts.push(format!("{words}{}.", named(state).join(", ")));
        }
    }
    if examined.iter().any(|e| e.direct.as_ref().is_some_and(|d| d.timed_out)) {
        parts.push("The storage doesn't answer.".into());
    }
    parts.push(match checks.iter().filter(|c| c.wants_action()).count() {
        0 => "Nothing to improve.".into(),
        n => format!("{} could be improved.", count(n, "thing")),
    });
    parts.join(" ")
}
