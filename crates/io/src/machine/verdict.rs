//! Verdict on each data path here, as far as the machine's settings tell.

use super::finding::Check;
use forebay_model::Error;
use serde::Serialize;

/// Something that stands in the way, and what to type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cause {
    /// The condition's id, as `nvidia_fs` or `p2pdma_raid`: docs/doctor.md lists them.
    pub id: &'static str,
    /// A clause: "the kernel module nvidia-fs isn't loaded".
    pub because: String,
    pub next: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Through {
    NvidiaFs,
    P2pdma,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Bytes go from the drive into the GPU.
    Direct,
    /// cuFile runs, through host memory.
    CompatOnly,
    /// cuFile would refuse.
    #[default]
    No,
}

/// Verdict on `--path gds`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GdsVerdict {
    pub answer: Answer,
    /// Null unless direct.
    pub through: Option<Through>,
    /// Causes that prevent nvidia-fs; P2PDMA; both, or cuFile as a whole.
    pub nvidia_fs: Vec<Cause>,
    pub p2pdma: Vec<Cause>,
    pub both: Vec<Cause>,
    /// Causes that don't prevent it, but cost speed or couldn't be determined.
    pub doubts: Vec<Cause>,
    /// cufile.json and the environment let cuFile fall back.
    pub compat_allowed: bool,
}

/// Verdict on `--path mapped` or `--path bounce`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usable {
    pub runs: bool,
    /// Why it doesn't; null where it does.
    pub because: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verdicts {
    pub gds: GdsVerdict,
    pub mapped: Usable,
    pub bounce: Usable,
}

impl GdsVerdict {
    pub fn is_direct(&self) -> bool {
        self.answer == Answer::Direct
    }

    /// Why it isn't direct, in one clause: what stops both ways, else what stops each.
    pub fn reason(&self) -> Option<String> {
        if self.is_direct() {
            return None;
        }
        let first = |causes: &[Cause]| causes.first().map(|c| c.because.clone());
        let more = |causes: &[Cause]| match causes.len() {
            0 | 1 => String::new(),
            n => format!(" (and {} more)", n - 1),
        };
        if let Some(because) = first(&self.both) {
            return Some(because + &more(&self.both));
        }
        let ways = [&self.nvidia_fs, &self.p2pdma].map(|causes| Some(first(causes)? + &more(causes)));
        let ways: Vec<String> = ways.into_iter().flatten().collect();
        Some(match ways.is_empty() {
            true => "the kernel configuration can't be read, so support for P2PDMA is uncertain".into(),
            false => ways.join("; "),
        })
    }

    /// Returns the command to type: for what stops both ways, else for the way with the fewest steps.
    pub fn next(&self) -> Option<String> {
        if self.is_direct() {
            return None;
        }
        if let Some(cause) = self.both.first() {
            return Some(cause.next.clone());
        }
        let ways = [&self.nvidia_fs, &self.p2pdma];
        let shortest = ways.into_iter().filter(|causes| !causes.is_empty()).min_by_key(|c| c.len())?;
        // One step at a time: some end in a restart.
        Some(match shortest.len() {
            1 => shortest[0].next.clone(),
            n => Check::remark(&shortest[0].next, &format!("then forebay doctor again: {} more", n - 1)),
        })
    }

    /// `direct, through nvidia-fs`, or `compat only, because …`, or `no, because …`.
    pub fn words(&self) -> String {
        let because = self.reason().unwrap_or_default();
        match (self.answer, self.through) {
            (Answer::Direct, Some(Through::NvidiaFs)) => "direct, through nvidia-fs".into(),
            (Answer::Direct, _) => "direct, through PCI P2PDMA".into(),
            (Answer::CompatOnly, _) => format!("compat only, because {because}"),
            (Answer::No, _) if self.compat_allowed => format!("no, because {because}"),
            (Answer::No, _) => {
                format!("no, because {because}, and cufile.json forbids the compatibility mode")
            }
        }
    }

    /// The error that `--path gds` ends with where direct DMA can't run; None where it can, or
    /// where the compatibility mode would run and `allow_compat` takes it.
    pub fn refusal(&self, asked: &str, allow_compat: bool) -> Option<Error> {
        match self.answer {
            Answer::Direct => None,
            Answer::CompatOnly if allow_compat => None,
            Answer::CompatOnly => Some(Error::machine(
                asked,
                format!("cuFile would run in its compatibility mode, because {}", self.reason()?),
                format!("{}; or ‹allow_compat›, or ‹path› bounce", self.next().unwrap_or_default()),
            )),
            Answer::No => Some(Error::machine(
                asked,
                format!("cuFile can't run here: {}", self.words()),
                format!("{}; or ‹path› bounce", self.next().unwrap_or_default()),
            )),
        }
    }
}
