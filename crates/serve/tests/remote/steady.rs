//! Associations that come up, and end before anything came of them.

use super::link::{Link, Mischief};
use super::{disk, options_to, worker};
use forebay_io::Op;
use forebay_rigs::fake::Fake;
use forebay_rigs::worker::LONG;
use forebay_storage::NvmeTcpRemote;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Each association is cut before the read's data came: the same as if none came up.
// promise: RHO-3
#[test]
fn io_fails_in_time_and_attempts_come_ever_later_where_no_association_brings_any() {
    let disk = disk();
    let fake = Fake::start(disk.clone(), 0);
    // More than it takes to come up, less than the read.
    let mischief = Mischief { cut_within: Some(64 << 10), ..Mischief::default() };
    let link = Link::to(fake.address, mischief, 5);
    link.behave();
    let remote =
        NvmeTcpRemote::open(&options_to(&[link.address], "&fast_io_fail_tmo=0.7&ctrl_loss_tmo=-1"), 1)
            .unwrap();
    let mut rig = worker(&remote, 1, 1 << 20);
    link.misbehave();
    let began = Instant::now();
    rig.push(0, Op::Read, 0, 1 << 20);
    let done = rig.finish(LONG);
    let fault = done[0].result.clone().unwrap_err();
    assert_eq!(fault.errno, libc::EHOSTUNREACH, "{fault}");
    assert!(fault.to_string().contains("fast_io_fail_tmo"), "{fault}");
    // Two connections at most for each wait of 100 ms, and the first two associations, which come at once.
    let waits = began.elapsed().as_millis() / 100;
    let cut = u128::from(link.done.load(Ordering::Relaxed));
    assert!((2..=2 * (waits + 3)).contains(&cut), "{cut} connections in {:?}", began.elapsed());
    rig.close();
}
