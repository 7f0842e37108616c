//! The data paths: which of them are available on this machine, for this source.

use super::filesystem::Examined;
use super::verdict::Verdicts;
use forebay_io::{counted, Check, CheckArea, CheckState};
use forebay_storage::{SourceMedium, PATHS};

/// `medium`: what the source is made of; None of the machine as a whole.
pub(crate) fn checks(verdicts: &Verdicts, medium: Option<&SourceMedium>) -> Vec<Check> {
    let examined = |path: &&dyn forebay_storage::DataPath| match medium {
        Some(medium) if !path.accepts(medium) => {
            let found = format!("it can only serve {}", path.serves());
            Check::of_path(path.name(), CheckState::NotApplicable, found)
        }
        _ => path.examined(verdicts),
    };
    PATHS.iter().map(examined).collect()
}

/// One sentence: the paths that run, and how much there is to do.
pub(crate) fn verdict(checks: &[Check], examined: &[Examined]) -> String {
    let named = |state: CheckState| -> Vec<&str> {
        let paths = checks.iter().filter(|c| c.area == CheckArea::Paths && c.state == state);
        paths.map(|c| c.title.as_str()).collect()
    };
    let mut parts = Vec::new();
    for (words, state) in [
        ("Runs: ", CheckState::Works),
        ("In part: ", CheckState::Limited),
        ("Not here: ", CheckState::Missing),
    ] {
        if !named(state).is_empty() {
            parts.push(format!("{words}{}.", named(state).join(", ")));
        }
    }
    if examined.iter().any(|e| e.direct.as_ref().is_some_and(|d| d.timed_out)) {
        parts.push("The storage doesn't answer.".into());
    }
    parts.push(match checks.iter().filter(|c| c.wants_action()).count() {
        0 => "Nothing to improve.".into(),
        n => format!("{} could be improved.", counted(n, "thing")),
    });
    parts.join(" ")
}
