//! The budget: memtrace as it comes, over a minute (less with --quick), on a workload that runs before and after without it.

use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use super::arm::{Arm, Attached};
use super::stats::Spread;
use super::workload::{Running, Window, Workload};

#[derive(Clone, Debug, Serialize)]
pub struct Budget {
    pub workload: &'static str,
    pub seconds: f64,
    /// Throughput lost over the whole time, as a fraction: against the windows without memtrace, the fastest and the
    /// slowest of their quartiles taken for it.
    pub loss: Spread,
    /// The same of the workload's work for each second of its own processor time.
    pub cpu_loss: Option<Spread>,
    /// Slow-down factor of the middle window, and that of the worst second.
    pub factor: f64,
    pub worst_factor: f64,
}

const WINDOW: Duration = Duration::from_secs(1);
const BASE_WINDOWS: usize = 4;

pub fn measure(workload: &Workload, arm: &Arm, length: Duration) -> Result<Budget> {
    let mut process = Running::start(workload, &[])?;
    let base_window = WINDOW.min(length / 4);
    process.window(base_window)?;
    let mut base = Vec::new();
    for _ in 0..BASE_WINDOWS {
        base.push(process.window(base_window)?);
    }
    let attached = Attached::to(arm.kind, process.pid())?;
    let mut windows = Vec::new();
    let mut passed = 0.0;
    while passed < length.as_nanos() as f64 {
        let window = process.window(WINDOW)?;
        passed += window.ns;
        windows.push(window);
    }
    attached.stop()?;
    for _ in 0..BASE_WINDOWS {
        base.push(process.window(base_window)?);
    }
    judge(workload.name, &base, &windows).context("no window without memtrace")
}

fn judge(workload: &'static str, base: &[Window], windows: &[Window]) -> Option<Budget> {
    let sum = |of: fn(&Window) -> f64| windows.iter().map(of).sum::<f64>();
    let (ns, work) = (sum(|window| window.ns), sum(|window| window.work));
    // Lost of the work that would have been done: 1 - base / traced, in time for a unit.
    let loss = |each: f64| Spread::of(base.iter().map(|window| 1.0 - window.each_ns() / each));
    let cpu = sum(|window| window.cpu_ns.unwrap_or(f64::NAN));
    let cpu_loss = Spread::of(
        base.iter()
            .filter_map(|window| Some(1.0 - window.each_cpu_ns()? / (cpu / work))),
    );
    let base_ns = Spread::of(base.iter().map(Window::each_ns))?.median;
    let each = Spread::of(windows.iter().map(Window::each_ns))?.median;
    let worst = windows.iter().map(Window::each_ns).fold(0.0, f64::max);
    Some(Budget {
        workload,
        seconds: ns / 1e9,
        loss: loss(ns / work)?,
        cpu_loss,
        factor: each / base_ns,
        worst_factor: worst / base_ns,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(ns: f64, work: f64) -> Window {
        Window {
            ns,
            work,
            cpu_ns: Some(ns / 2.0),
            gap_ns: None,
        }
    }

    #[test]
    fn the_loss_is_of_the_whole_time() {
        let base = [window(1e9, 100.0); 8];
        let windows = [window(1e9, 50.0), window(1e9, 100.0), window(1e9, 100.0)];
        let budget = judge("pair", &base, &windows).unwrap();
        assert!((budget.loss.median - 50.0 / 300.0).abs() < 1e-9, "{budget:?}");
        assert!((budget.worst_factor - 2.0).abs() < 1e-9, "{budget:?}");
        assert!((budget.factor - 1.0).abs() < 1e-9, "{budget:?}");
    }
}
