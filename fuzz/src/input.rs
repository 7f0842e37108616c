//! Fuzzing input as a script: numbers taken from its front; once it is over, all of them are 0.

pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub fn new(data: &'a [u8]) -> Input<'a> {
        Input(data)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn u8(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    pub fn bool(&mut self) -> bool {
        self.u8() & 1 != 0
    }

    pub fn u16(&mut self) -> u16 {
        u16::from(self.u8()) | u16::from(self.u8()) << 8
    }

    pub fn u32(&mut self) -> u32 {
        u32::from(self.u16()) | u32::from(self.u16()) << 16
    }

    pub fn u64(&mut self) -> u64 {
        u64::from(self.u32()) | u64::from(self.u32()) << 32
    }

    /// Up to `n` bytes.
    pub fn bytes(&mut self, n: usize) -> &'a [u8] {
        let (front, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        front
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::from(self.u8()) % of.len()]
    }

    /// Mostly one of `of`, at times anything.
    pub fn near(&mut self, of: &[u32]) -> u32 {
        match usize::from(self.u8()) {
            choice if choice < 224 => of[choice % of.len()],
            _ => self.u32(),
        }
    }

    pub fn rest(&self) -> &'a [u8] {
        self.0
    }
}
