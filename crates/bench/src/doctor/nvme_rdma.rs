//! NVMe over RDMA: whether this machine can reach namespaces by it.

use super::fabric::Fabric;
use super::memory::Locked;
use forebay_io::{
    rdma_library, Check, CheckArea, CheckState, DmaBuf, Roots, RDMA_INSTALL, RDMA_MAKE_DEVICE,
    RDMA_SHOW_DEVICE,
};
use forebay_model::units::format_bytes;
use serde::Serialize;

/// Slots of a job that is worth running over RDMA need more than this.
const LOCKED_BYTES_FEW: u64 = 64 << 20;

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NvmeRdma {
    /// Paths of libibverbs and librdmacm; empty where one is missing.
    pub libraries: Vec<String>,
    /// Why one can't be had.
    pub refusal: Option<String>,
    /// The connection manager's device file is here.
    pub manager: bool,
    /// Devices that accept GPU memory as their own destination.
    pub dma_buf: Vec<DmaBuf>,
}

pub(crate) fn facts(roots: &Roots) -> NvmeRdma {
    let manager = roots.dev.join("infiniband/rdma_cm").exists();
    match rdma_library() {
        Ok(library) => {
            NvmeRdma { libraries: library.from.to_vec(), refusal: None, manager, dma_buf: library.dma_bufs() }
        }
        Err(why) => NvmeRdma { refusal: Some(why.to_string()), manager, ..NvmeRdma::default() },
    }
}

/// The result for each device that was queried.
fn of_dma_bufs(devices: &[DmaBuf]) -> String {
    let one = |d: &DmaBuf| match &d.refusal {
        None => format!("; dma-buf: {} takes GPU memory", d.device),
        Some(why) => format!(
            "; dma-buf: {} refuses GPU memory ({why}), so that payload goes through pinned memory",
            d.device
        ),
    };
    devices.iter().map(one).collect()
}

pub(crate) fn check(found: &NvmeRdma, fabric: &Fabric, locked: &Locked) -> Check {
    let check = |state, found: String| {
        Check::new(CheckArea::Fabric, "nvme_rdma", "NVMe/RDMA by Forebay", state, found)
    };
    let libraries = || found.libraries.join(", ");
    if fabric.rdma.is_empty() {
        let text = format!("no RDMA device; soft RoCE makes one of any network card: {RDMA_MAKE_DEVICE}");
        return check(CheckState::NotApplicable, text);
    }
    if let Some(why) = &found.refusal {
        return check(CheckState::Missing, "the libraries aren't all here".into())
            .why(why.clone())
            .next(RDMA_INSTALL);
    }
    if !found.manager {
        return check(CheckState::Missing, libraries())
            .why("/dev/infiniband/rdma_cm isn't here, so that no program can connect")
            .next(RDMA_SHOW_DEVICE);
    }
    let devices: Vec<&str> = fabric.rdma.iter().map(|device| device.name.as_str()).collect();
    let gpus = of_dma_bufs(&found.dma_buf);
    let reads =
        format!("reads (nvme+rdma://HOST:4420/NQN) over {}, by {}{gpus}", devices.join(", "), libraries());
    match locked.soft_bytes {
        Some(soft) if !locked.exempt && soft < LOCKED_BYTES_FEW => check(CheckState::Limited, reads)
            .why(format!(
                "buffers are locked while they are registered with the device, and the limit is {}",
                format_bytes(soft)
            ))
            .next("ulimit -l unlimited   # the check of locked memory says how to keep it so"),
        _ => check(CheckState::Works, reads),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fabric::Rdma;
    use super::*;

    // promise: RHO-11
    #[test]
    fn each_thing_that_stands_in_the_way_is_named_with_what_to_type() {
        let mut found = NvmeRdma {
            libraries: vec!["libibverbs.so.1".into(), "librdmacm.so.1".into()],
            refusal: None,
            manager: true,
            dma_buf: vec![
                DmaBuf { device: "mlx5_0".into(), refusal: None },
                DmaBuf { device: "rxe0".into(), refusal: Some("Operation not supported".into()) },
            ],
        };
        let mut fabric = Fabric::default();
        let mut locked = Locked { soft_bytes: Some(8 << 20), ..Locked::default() };
        let none = check(&found, &fabric, &locked);
        assert!(none.state == CheckState::NotApplicable && none.found.contains("rdma link add"), "{none:?}");
        fabric.rdma.push(Rdma { name: "rxe0".into(), ..Rdma::default() });
        let few = check(&found, &fabric, &locked);
        assert!(few.state == CheckState::Limited && few.next.unwrap().contains("ulimit -l"), "{:?}", few.why);
        locked.exempt = true;
        let works = check(&found, &fabric, &locked);
        assert!(works.state == CheckState::Works && works.found.contains("rxe0"), "{works:?}");
        assert!(works.found.contains("dma-buf: mlx5_0 takes GPU memory"), "{works:?}");
        assert!(works.found.contains("rxe0 refuses GPU memory (Operation not supported)"), "{works:?}");
        found.manager = false;
        assert!(check(&found, &fabric, &locked).next.unwrap().contains("rdma_ucm"));
        found.refusal = Some("librdmacm.so.1: cannot open shared object file".into());
        let missing = check(&found, &fabric, &locked);
        assert!(
            missing.state == CheckState::Missing && missing.next.unwrap().contains("apt install"),
            "{:?}",
            missing.why
        );
    }
}
