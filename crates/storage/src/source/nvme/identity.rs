//! Identity of a namespace: later controllers must show the one that the first did.

use super::Cause;
use forebay_nvme::host::{ControllerInfo, NamespaceInfo};
use std::sync::OnceLock;

/// Longest transfer of a command, whatever the controller allows: longer I/Os go in several, which run side by side.
const TRANSFER_MAX: u32 = 1 << 20;
/// NLB has 16 bits, 0's based (nvm, figure 49).
const BLOCKS_MAX: u64 = 1 << 16;

/// As the first controller described them.
#[derive(Debug, Default)]
pub struct Identity {
    namespace: OnceLock<NamespaceInfo>,
    controller: OnceLock<ControllerInfo>,
}

/// Mismatch between what a controller shows and what there was.
#[derive(Debug)]
pub struct Stranger {
    pub why: String,
    /// Trying again won't help.
    pub for_good: bool,
}

impl Stranger {
    pub fn cause(&self) -> Cause {
        match self.for_good {
            true => Cause::Namespace,
            false => Cause::Other,
        }
    }
}

impl Identity {
    /// Checks that a controller that came up has the namespace that the first had; the first one's is remembered.
    pub fn check(
        &self,
        nsid: u32,
        found: Option<&NamespaceInfo>,
        controller: &ControllerInfo,
    ) -> Result<(), Stranger> {
        let Some(found) = found else {
            // One that was there may come back.
            let for_good = self.namespace.get().is_none();
            return Err(Stranger { why: format!("it has no namespace {nsid}"), for_good });
        };
        let first = self.namespace.get_or_init(|| found.clone());
        self.controller.get_or_init(|| controller.clone());
        let name = |n: &NamespaceInfo| (n.uuid, n.nguid, n.eui64);
        let other = |why| Err(Stranger { why, for_good: true });
        if name(found) != name(first) {
            return other(format!("its namespace {nsid} is another one, by its identifiers"));
        }
        if (found.block_bytes, found.blocks) != (first.block_bytes, first.blocks) {
            return other(format!(
                "its namespace {nsid} has {} blocks of {} bytes, and had {} of {}",
                found.blocks, found.block_bytes, first.blocks, first.block_bytes
            ));
        }
        Ok(())
    }

    pub fn namespace(&self) -> &NamespaceInfo {
        self.namespace.get().expect("known since it was opened")
    }

    pub fn controller(&self) -> &ControllerInfo {
        self.controller.get().expect("known since it was opened")
    }

    pub fn bytes(&self) -> u64 {
        self.namespace().blocks.saturating_mul(u64::from(self.namespace().block_bytes))
    }

    pub fn block_bytes(&self) -> u32 {
        self.namespace().block_bytes
    }

    /// Longest transfer of one command, bytes, a multiple of the block.
    pub fn transfer_bytes(&self) -> u32 {
        let block = self.block_bytes();
        let most = self.controller().transfer_bytes.unwrap_or(TRANSFER_MAX).min(TRANSFER_MAX);
        let most = u64::from(most).min(BLOCKS_MAX * u64::from(block)) as u32;
        (most / block * block).max(block)
    }
}
