//! A scattered payload as the kernel takes it: a list of iovecs.

use super::FileTarget;
use forebay_io::{Fault, Mem};

/// The longest list that the kernel takes (UIO_MAXIOV); what lies behind it is a transfer of its own.
const PIECES_MAX: usize = 1024;

/// Lists where `len` bytes of payload lie, as far as one call takes them.
///
/// # Errors
/// EINVAL for pieces that O_DIRECT can't take, whatever the file system would make of them: some would go through the
/// page cache instead. EFAULT where there is less memory than bytes.
pub(crate) fn list(
    target: &FileTarget,
    mem: Mem,
    len: u32,
    into: &mut Vec<libc::iovec>,
) -> Result<(), Fault> {
    into.clear();
    let mut left = len as usize;
    for piece in mem.each(left).take(PIECES_MAX) {
        let at = piece.at.as_ptr();
        if at as usize % target.mem_align as usize != 0 || piece.len % target.align as usize != 0 {
            return Err(misplaced(target, at as usize, piece.len));
        }
        into.push(libc::iovec { iov_base: at.cast(), iov_len: piece.len });
        left -= piece.len;
    }
    if left > 0 && into.len() < PIECES_MAX {
        return Err(Fault::note(libc::EFAULT, format!("the payload's memory ends {left} bytes too early")));
    }
    Ok(())
}

fn misplaced(target: &FileTarget, at: usize, len: usize) -> Fault {
    let path = target.path.display();
    let text = format!(
        "a scattered payload has {len} bytes at {at:#x}: O_DIRECT on {path} takes pieces at multiples of {} bytes that \
         are multiples of {} long",
        target.mem_align, target.align
    );
    Fault::note(libc::EINVAL, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::file::FileAccess;
    use forebay_io::Piece;
    use std::ptr::NonNull;

    fn target(align: u32, mem_align: u32) -> FileTarget {
        let file = tempfile::NamedTempFile::new().unwrap();
        let access = FileAccess { write: false, direct: false };
        FileTarget { align, mem_align, ..FileTarget::open(file.path(), access).unwrap() }
    }

    fn pieces(places: &[(usize, usize)]) -> Vec<Piece> {
        let of = |(at, len): &(usize, usize)| Piece { at: NonNull::new(*at as *mut u8).unwrap(), len: *len };
        places.iter().map(of).collect()
    }

    // promise: ENG-15
    #[test]
    fn a_piece_that_o_direct_cannot_take_is_named() {
        let mut into = Vec::new();
        let (fits, crooked, short) = (
            pieces(&[(4096, 512), (512, 4096)]),
            pieces(&[(4096, 512), (516, 4096)]),
            pieces(&[(4096, 500), (512, 12)]),
        );
        list(&target(512, 512), Mem::pieces(&fits), 4608, &mut into).unwrap();
        assert_eq!(into.iter().map(|v| v.iov_len).collect::<Vec<_>>(), [512, 4096]);
        for (bad, len) in [(&crooked, 4608), (&short, 512)] {
            let fault = list(&target(512, 512), Mem::pieces(bad), len, &mut into).unwrap_err();
            assert_eq!(fault.errno, libc::EINVAL);
            assert!(fault.to_string().contains("multiples of 512"), "{fault}");
            list(&target(1, 1), Mem::pieces(bad), len, &mut into).unwrap();
        }
        let fault = list(&target(1, 1), Mem::pieces(&fits), 5000, &mut into).unwrap_err();
        assert_eq!((fault.errno, fault.to_string().contains("392 bytes too early")), (libc::EFAULT, true));
    }

    #[test]
    fn a_list_is_no_longer_than_the_kernel_takes() {
        let many: Vec<(usize, usize)> = (1..=2000).map(|i| (i * 8192, 4096)).collect();
        let mut into = Vec::new();
        list(&target(4096, 4096), Mem::pieces(&pieces(&many)), 2000 * 4096, &mut into).unwrap();
        assert_eq!(into.len(), PIECES_MAX);
    }
}
