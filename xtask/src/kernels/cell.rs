//! One cell of the matrix: a kernel, an architecture, a C library, and what came of them.

use serde::{Deserialize, Serialize};

use super::guest::Transcript;
use super::qemu::End;

/// A cell as the table shows it and target/kernels/matrix.json keeps it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// As it was asked for: "5.10", "newest".
    pub series: String,
    /// Debian's name.
    pub architecture: String,
    /// The kernel's release; empty where none could be had.
    pub kernel: String,
    /// Version of the guest's glibc; empty where none could be had.
    pub libc: String,
    pub passed: u64,
    pub skipped: Vec<String>,
    pub failed: Vec<String>,
    /// Depths that work on this kernel, by memtrace's own word.
    pub depths: String,
    /// What a trace of the lab's brk-steps said of itself on this kernel.
    pub trace: String,
    pub seconds: f64,
    /// Why there was no run.
    pub not_run: Option<String>,
    /// When it ran: UTC, "2026-01-31".
    pub date: String,
    /// SHA-256 of the kernel and of all that was in the guest.
    pub inputs: String,
}

impl Cell {
    pub fn not_run(series: &str, architecture: &str, why: String) -> Self {
        Self {
            series: series.to_owned(),
            architecture: architecture.to_owned(),
            kernel: String::new(),
            libc: String::new(),
            passed: 0,
            skipped: Vec::new(),
            failed: Vec::new(),
            depths: String::new(),
            trace: String::new(),
            seconds: 0.0,
            not_run: Some(why),
            date: String::new(),
            inputs: String::new(),
        }
    }

    /// Takes over what a guest printed. Anything short of a RESULT line with status 0 and a right report is a failure.
    pub fn judge(&mut self, end: End, transcript: Transcript) {
        let Transcript {
            kernel,
            passed,
            failed,
            ignored,
            skipped,
            broken,
            doctor,
            report,
            trace_status,
            result,
        } = transcript;
        self.passed = passed;
        self.skipped = skipped.into_iter().collect();
        self.failed = [failed, broken].concat();
        if ignored > 0 {
            self.skipped.push(format!("{ignored} tests are marked to be ignored"));
        }
        match kernel {
            Some(release) if release == self.kernel => {}
            Some(release) => self.failed.push(format!("the guest runs {release}")),
            None => self.failed.push("the guest did not come up".to_owned()),
        }
        match (result, end) {
            (Some(0), _) => {}
            (Some(_), _) if !self.failed.is_empty() => {}
            (Some(status), _) => self.failed.push(format!("the tests ended with status {status}")),
            (None, End::TimedOut) => self.failed.push("the guest did not end in time".to_owned()),
            (None, End::PoweredOff) => self.failed.push("the guest ended without a result".to_owned()),
        }
        if result.is_some() && passed == 0 {
            self.failed.push("no test ran".to_owned());
        }
        match super::verdict::depths(&doctor) {
            Ok(depths) => self.depths = depths,
            Err(error) => self.failed.push(format!("the doctor: {error:#}")),
        }
        match (
            trace_status,
            super::verdict::judge(&report, shows_registers(&self.kernel)),
        ) {
            (Some(0), Ok(said)) => self.trace = said,
            (Some(0), Err(error)) => self.failed.push(format!("the report of brk-steps: {error:#}")),
            (Some(status), _) => self
                .failed
                .push(format!("memtrace ended with status {status} over brk-steps")),
            (None, _) => self.failed.push("brk-steps was not traced".to_owned()),
        }
    }

    pub fn is_good(&self) -> bool {
        self.failed.is_empty()
    }
}

/// The kernel shows a task's registers at a system call.
fn shows_registers(release: &str) -> bool {
    super::image::numbers(release) >= vec![5, 15]
}

#[cfg(test)]
mod tests {
    use super::shows_registers;

    #[test]
    fn registers_are_shown_from_5_15_on() {
        assert!(!shows_registers("5.10.0-46-cloud-amd64") && !shows_registers("5.14.21"));
        assert!(
            shows_registers("5.15.0-1")
                && shows_registers("6.1.0-57-cloud-amd64")
                && shows_registers("7.3.4+deb13-arm64-16k")
        );
    }
}
