//! Slots under Miri, which has neither huge pages nor advice: memory whose ends and owner it knows.

use super::{Got, HUGE};
use std::alloc::Layout;
use std::ptr::NonNull;

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, HUGE).expect("a multiple of the huge page")
}

/// `bytes` (a multiple of the huge page, and at least one) of zeroes.
pub fn memory(bytes: usize) -> std::io::Result<(NonNull<u8>, Got)> {
    // SAFETY: the layout isn't empty.
    let at = unsafe { std::alloc::alloc_zeroed(layout(bytes)) };
    NonNull::new(at).map(|base| (base, Got::Small)).ok_or_else(|| std::io::ErrorKind::OutOfMemory.into())
}

pub fn give_back(base: NonNull<u8>, bytes: usize) {
    // SAFETY: `memory` made it, of as many bytes, and its owner lets go of it.
    unsafe { std::alloc::dealloc(base.as_ptr(), layout(bytes)) };
}
