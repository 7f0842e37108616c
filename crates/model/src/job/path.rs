//! The names of the data paths, in jobs and records. The engine's table describes each.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PathKind {
    Host,
    Bounce,
    Mapped,
    Gds,
    Auto,
}

impl PathKind {
    pub const ALL: [PathKind; 5] =
        [PathKind::Host, PathKind::Bounce, PathKind::Mapped, PathKind::Gds, PathKind::Auto];

    pub fn name(self) -> &'static str {
        match self {
            PathKind::Host => "host",
            PathKind::Bounce => "bounce",
            PathKind::Mapped => "mapped",
            PathKind::Gds => "gds",
            PathKind::Auto => "auto",
        }
    }

    pub fn named(name: &str) -> Option<PathKind> {
        PathKind::ALL.into_iter().find(|path| path.name() == name)
    }

    /// The path of bytes that go no further than host memory.
    pub fn in_host_memory() -> PathKind {
        PathKind::Host
    }

    /// This path where bytes end on a GPU, else the one that ends in host memory.
    pub fn to_destination(self, on_gpu: bool) -> PathKind {
        if on_gpu {
            self
        } else {
            PathKind::in_host_memory()
        }
    }

    /// What `auto` chooses where there is no GPU, and its reason.
    pub fn without_gpu(why: Option<String>) -> (PathKind, String) {
        let why = why.unwrap_or_else(|| "no GPU".into());
        (PathKind::in_host_memory(), format!("auto chose host memory: {why}"))
    }

    /// What `auto` chooses into a GPU where no path that bypasses the host is possible, and its reason.
    pub fn through_host(why: &str) -> (PathKind, String) {
        (PathKind::Bounce, format!("auto chose bounce: {why}"))
    }

    /// What `auto` chooses into a GPU where nothing is known of files that don't exist yet, and its reason.
    pub fn of_new_files(require_direct: bool) -> (PathKind, String) {
        if require_direct {
            (PathKind::Gds, "auto chose gds: ‹require_direct›".into())
        } else {
            PathKind::through_host("gds runs only if it is requested")
        }
    }

    /// It stands for the path that a run finds for each target.
    pub fn is_found(self) -> bool {
        self == PathKind::Auto
    }

    /// Bytes never reach a GPU.
    pub fn ends_in_host(self) -> bool {
        self == PathKind::Host
    }

    /// Bytes end in a GPU's memory, and a CPU sees none of them.
    pub fn bypasses_host(self) -> bool {
        matches!(self, PathKind::Gds | PathKind::Mapped)
    }

    /// The kernel reads and writes for it, into host memory.
    pub fn reads_by_kernel(self) -> bool {
        matches!(self, PathKind::Host | PathKind::Bounce)
    }

    /// It copies out of the page cache, and nothing else.
    pub fn needs_page_cache(self) -> bool {
        self == PathKind::Mapped
    }

    /// Its I/Os are cuFile's.
    pub fn goes_by_cufile(self) -> bool {
        self == PathKind::Gds
    }

    /// A job on it may have pages of files registered.
    pub fn may_map(self) -> bool {
        self.needs_page_cache() || self.is_found()
    }

    /// A job on it may have bytes go by DMA from a device into a GPU.
    pub fn may_go_direct(self) -> bool {
        self.goes_by_cufile() || self.is_found()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_needs_nothing_but_memory_unless_all_is_to_go_direct() {
        let (path, why) = PathKind::without_gpu(None);
        assert_eq!((path, why.as_str()), (PathKind::Host, "auto chose host memory: no GPU"));
        assert_eq!(PathKind::without_gpu(Some("no libcuda".into())).1, "auto chose host memory: no libcuda");
        assert_eq!(PathKind::of_new_files(false).0, PathKind::Bounce);
        assert_eq!(PathKind::of_new_files(true), (PathKind::Gds, "auto chose gds: ‹require_direct›".into()));
    }

    #[test]
    fn a_path_to_host_memory_is_host_whatever_was_requested() {
        for path in PathKind::ALL {
            assert_eq!((path.to_destination(true), path.to_destination(false)), (path, PathKind::Host));
        }
    }
}
