//! How bytes reach their destination. A path owns the destination; a source
//! offers what it can. Which pairs are legal is one table.

pub mod auto;
mod bounce;
mod destination;
pub mod gds;
pub mod mapped;

pub use bounce::{BounceQueue, Copier, HostCopier};
pub use destination::{by_card, limits, Destination};

use crate::queue::Fault;
use forebay_model::job::PathKind;
use forebay_model::Error;

/// What a path that copies payload on says of memory in several places: nobody gives it any, for its destinations are
/// slots.
fn scattered() -> Fault {
    Fault::note(
        libc::EINVAL,
        "this path copies into contiguous memory, and the payload is scattered; --path host",
    )
}

pub struct PathRow {
    pub kind: PathKind,
    pub name: &'static str,
    pub what: &'static str,
    pub needs: &'static str,
    /// Schemes that it can serve; None: all.
    pub sources: Option<&'static [&'static str]>,
    /// Whether this version has it.
    pub available: Result<(), &'static str>,
}

pub const PATHS: &[PathRow] = &[
    PathRow {
        kind: PathKind::Host,
        name: "host",
        what: "storage to host memory, and no further",
        needs: "nothing",
        sources: None,
        available: Ok(()),
    },
    PathRow {
        kind: PathKind::Bounce,
        name: "bounce",
        what: "storage to reused pinned host buffers to the GPU, reads and copies overlapped",
        needs: "libcuda; with no GPU the destination is host memory, and the record says so",
        sources: None,
        available: Ok(()),
    },
    PathRow {
        kind: PathKind::Mapped,
        name: "mapped",
        what: "page cache to GPU with no CPU copy",
        needs: "libcuda; data already cached",
        sources: Some(&["file", "stripe"]),
        available: Ok(()),
    },
    PathRow {
        kind: PathKind::Gds,
        name: "gds",
        what: "storage DMAs into GPU memory, through cuFile; or a network card does, by RDMA",
        needs: "libcufile and nvidia-fs or PCI P2PDMA; of nvme+rdma a card that takes dma-bufs",
        sources: Some(&["file", "stripe", "nvme+rdma"]),
        available: Ok(()),
    },
];

/// The row of the path, or why it can't serve the source. `auto` is never worse than `host`.
pub fn legal(kind: PathKind, scheme: &str) -> Result<&'static PathRow, Error> {
    let kind = if kind == PathKind::Auto { PathKind::Host } else { kind };
    let row = PATHS.iter().find(|row| row.kind == kind).expect("every path has a row");
    if let Err(why) = row.available {
        return Err(Error::machine(
            format!("--path {}", row.name),
            format!("{why}; it needs {}", row.needs),
            "--path bounce or --path host",
        ));
    }
    match row.sources {
        Some(served) if !served.contains(&scheme) => Err(Error::request(
            format!("--path {} from {scheme}:", row.name),
            format!("it can only serve {}", served.join(", ")),
            "--path host",
        )),
        _ => Ok(row),
    }
}
