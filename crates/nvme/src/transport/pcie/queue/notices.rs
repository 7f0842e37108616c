//! When a completion queue interrupts its driver.

use crate::feature::Coalescing;

/// Decision on an interrupt of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupt {
    None,
    /// This vector.
    Now(u16),
    /// Ask again at this time, µs.
    At(u64),
}

/// Completions of which the host is still to be told.
#[derive(Clone, Debug)]
pub(super) struct Notices {
    /// None: the host polls its queue (IEN 0).
    vector: Option<u16>,
    pub coalescing: Coalescing,
    /// How many, and since when.
    pub untold: u16,
    pub untold_since_us: Option<u64>,
}

impl Notices {
    pub fn new(vector: Option<u16>) -> Notices {
        Notices { vector, coalescing: Coalescing::default(), untold: 0, untold_since_us: None }
    }

    pub fn vector(&self) -> Option<u16> {
        self.vector
    }

    pub fn set_coalescing(&mut self, coalescing: Coalescing) {
        self.coalescing = coalescing;
    }

    /// One completion more.
    #[inline]
    pub fn add(&mut self) {
        self.untold = self.untold.saturating_add(1);
    }

    /// One at least: whether the host was told, nobody knows.
    pub fn owe(&mut self) {
        self.untold = 1;
    }

    /// Decides whether to interrupt the host now; `Now` is said once.
    #[inline]
    pub fn interrupt(&mut self, now_us: u64) -> Interrupt {
        let Some(vector) = self.vector.filter(|_| self.untold > 0) else {
            self.untold = 0;
            return Interrupt::None;
        };
        let Coalescing { completions, time_us, excepted } = &self.coalescing;
        let since = *self.untold_since_us.get_or_insert(now_us);
        let until = since.saturating_add((*time_us).into());
        let waits = self.untold < *completions && now_us < until && !excepted.contains(&vector);
        if waits {
            return Interrupt::At(until);
        }
        (self.untold, self.untold_since_us) = (0, None);
        Interrupt::Now(vector)
    }
}
