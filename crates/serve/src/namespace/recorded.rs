//! What a volume's source was given, for tests.

use forebay_io::Op;
use std::sync::Mutex;

/// Every I/O that a source was given, in order, and which of them it has finished.
#[derive(Debug, Default)]
pub struct Recorded(Mutex<Vec<(u32, Op, bool)>>);

impl Recorded {
    pub fn begin(&self, tag: u32, op: Op) {
        self.0.lock().unwrap().push((tag, op, false));
    }

    pub fn end(&self, tag: u32) {
        let mut all = self.0.lock().unwrap();
        let open = all.iter_mut().rev().find(|(t, _, done)| *t == tag && !done);
        open.expect("what ends has begun").2 = true;
    }

    /// Takes what came since the last call.
    pub fn take(&self) -> Vec<(Op, bool)> {
        self.0.lock().unwrap().drain(..).map(|(_, op, done)| (op, done)).collect()
    }
}
