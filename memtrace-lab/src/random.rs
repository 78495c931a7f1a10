//! Deterministic random numbers (xorshift64*, Vigna 2016), so that a seed names a program run.

pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        // Zero is the one state that xorshift never leaves; the odd constant spreads neighbouring seeds.
        Self(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// To be replaced before it is used.
    pub const fn unused() -> Self {
        Self(1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}
