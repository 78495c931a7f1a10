//! Which file's code an address belongs to.

use alloc::collections::BTreeMap;

use crate::event::Module;

/// Most modules remembered.
const MAX_MODULES: usize = 8192;

#[derive(Clone, Debug, Default)]
pub struct Modules {
    by_start: BTreeMap<u64, Module>,
}

impl Modules {
    /// Adds modules; where one overlaps an older one, the older is gone.
    pub fn learn(&mut self, modules: &[Module]) {
        for module in modules {
            if module.end <= module.start {
                continue;
            }
            while let Some(start) = self.overlapping(module) {
                self.by_start.remove(&start);
            }
            if self.by_start.len() < MAX_MODULES {
                self.by_start.insert(module.start, module.clone());
            }
        }
    }

    fn overlapping(&self, module: &Module) -> Option<u64> {
        let (start, older) = self.by_start.range(..module.end).next_back()?;
        (older.end > module.start).then_some(*start)
    }

    pub fn find(&self, address: u64) -> Option<&Module> {
        let (_, module) = self.by_start.range(..=address).next_back()?;
        (address < module.end).then_some(module)
    }

    pub fn is_empty(&self) -> bool {
        self.by_start.is_empty()
    }

    pub fn clear(&mut self) {
        self.by_start.clear();
    }
}
