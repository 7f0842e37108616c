//! Detection of RDMA devices that accept GPU memory as their own destination: registered by a dma-buf, which the GPU's
//! driver exports.

use super::layout::{Context, ACCESS_LOCAL_WRITE};
use super::library::Library;
use super::verbs::Domain;
use serde::Serialize;
use std::io;
use std::ptr::NonNull;

/// Support of dma-bufs by a device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DmaBuf {
    pub device: String,
    /// Why it takes none; null where it does.
    pub refusal: Option<String>,
}

impl Library {
    /// Asks each device; no GPU is needed for that.
    pub fn dma_bufs(&'static self) -> Vec<DmaBuf> {
        self.devices().into_iter().filter_map(|context| self.dma_buf(context)).collect()
    }

    fn dma_buf(&'static self, context: NonNull<Context>) -> Option<DmaBuf> {
        let domain = Domain::open(self, context).ok()?;
        Some(DmaBuf { device: domain.device.clone(), refusal: domain.refuses_dma_bufs() })
    }
}

impl Domain {
    /// Why its device takes no dma-bufs. Offered a descriptor that is none, one that does complains of that.
    pub(crate) fn refuses_dma_bufs(&self) -> Option<String> {
        const NONE: i32 = -1;
        let Some(register) = self.library().reg_dmabuf else {
            return Some("libibverbs has no ibv_reg_dmabuf_mr: rdma-core 34 or newer has".into());
        };
        // SAFETY: nothing lies behind the descriptor, so that nothing can be registered.
        let made = unsafe { register(self.raw(), 0, 0, 0, NONE, ACCESS_LOCAL_WRITE) };
        let error = io::Error::last_os_error();
        if let Some(region) = NonNull::new(made) {
            // SAFETY: just made, given back once.
            unsafe { (self.library().verbs.dereg_mr)(region.as_ptr()) };
            return None;
        }
        let none = [libc::EOPNOTSUPP, libc::EPROTONOSUPPORT, libc::ENOSYS];
        error.raw_os_error().filter(|errno| none.contains(errno)).map(|_| error.to_string())
    }
}
