//! A list that stays small on endless runs: the first items, the last ones, and how many were left out between them.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

#[derive(Clone, Debug)]
pub struct Kept<T> {
    first: Vec<T>,
    last: VecDeque<T>,
    limit: usize,
    omitted: u64,
}

impl<T> Kept<T> {
    /// Keeps `limit` items of the begin and as many of the end.
    pub const fn new(limit: usize) -> Self {
        Self {
            first: Vec::new(),
            last: VecDeque::new(),
            limit,
            omitted: 0,
        }
    }

    pub fn push(&mut self, item: T) {
        if self.first.len() < self.limit {
            self.first.push(item);
            return;
        }
        if self.last.len() >= self.limit {
            self.last.pop_front();
            self.omitted = self.omitted.saturating_add(1);
        }
        self.last.push_back(item);
    }

    pub const fn omitted(&self) -> u64 {
        self.omitted
    }

    pub fn last_mut(&mut self) -> Option<&mut T> {
        self.last.back_mut().or(self.first.last_mut())
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.first.iter().chain(self.last.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_left_out_and_counted() {
        let mut kept = Kept::new(2);
        for item in 0..7 {
            kept.push(item);
        }
        assert_eq!(kept.iter().copied().collect::<Vec<_>>(), [0, 1, 5, 6]);
        assert_eq!(kept.omitted(), 3);
        assert_eq!(kept.last_mut(), Some(&mut 6));
    }
}
