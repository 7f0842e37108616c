//! Warnings that only the run itself can give: the others are judged from the record (`forebay_model::warnings`).

use super::run_kit::Ran;
use super::verify::FIO_ON_HOST;
use forebay_model::record::Warning;
use forebay_storage::CuFileSession;

pub(crate) fn of_runs(runs: &[Ran], session: Option<&CuFileSession>) -> Vec<Warning> {
    let mut list = Vec::new();
    if let Some(text) = runs.iter().find_map(|r| r.resources.warning.clone()) {
        warn(&mut list, "locked_memory", text, "ulimit -l unlimited");
    }
    if let Some(why) = runs.iter().find_map(|r| r.resources.content_on_host.clone()) {
        let text =
            format!("content in GPU memory was checked or made by the host, at the host's speed: {why}");
        let next = match why.as_str() {
            FIO_ON_HOST => "nothing, unless the host is the bottleneck",
            _ => "pip install nvidia-cuda-nvrtc, or a CUDA toolkit",
        };
        warn(&mut list, "content_on_host", text, next);
    }
    list.extend(session.into_iter().flat_map(session_warnings));
    list
}

/// Warnings that cuFile gave during the run.
pub fn session_warnings(session: &CuFileSession) -> Vec<Warning> {
    let mut list = Vec::new();
    if session.driver().forces_compat() == Some(true) {
        let text = "force_compat_mode is on: cuFile doesn't try to go direct".into();
        let next = "unset CUFILE_FORCE_COMPAT_MODE, or force_compat_mode false in cufile.json";
        warn(&mut list, "cufile_forced", text, next);
    }
    for note in session.notes() {
        warn(&mut list, note.id, note.text, note.next);
    }
    list
}

fn warn(list: &mut Vec<Warning>, id: &str, text: String, next: &str) {
    list.push(Warning { id: id.into(), text, next: next.into() });
}
