//! The checking target: a program that knows what is in each of its blocks.

use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};

use super::dice::Dice;
use crate::lines::Lines;
use crate::workspace;

pub struct Target {
    child: Child,
    lines: Lines,
    errors: Lines,
}

impl Target {
    pub fn start(dice: &mut Dice) -> Result<Self> {
        let mut child = Command::new(workspace::target().join("release/memtrace-lab"))
            .args(["checking", "--threads", &(2 + dice.below(5)).to_string()])
            .args(["--seed", &dice.below(1 << 32).to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("starting the target")?;
        let mut lines = Lines::of(child.stdout.take().context("no standard output")?);
        let errors = Lines::of(child.stderr.take().context("no standard error")?);
        lines.wait_for("ready")?;
        Ok(Self { child, lines, errors })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Has it verify all it has and end; what it has to say then.
    pub fn end(mut self) -> Result<String> {
        drop(self.child.stdin.take());
        let status = self.child.wait().context("waiting for the target")?;
        let lines = std::mem::replace(&mut self.lines, Lines::none()).rest();
        let intact = lines.iter().find_map(|line| line.strip_prefix("intact "));
        match intact {
            Some(facts) if status.success() => Ok(facts.to_owned()),
            _ => {
                let errors = std::mem::replace(&mut self.errors, Lines::none()).rest();
                bail!(
                    "the target is not intact: it ended with {status}: {}",
                    errors.join("; ")
                )
            }
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // Already gone where it was ended.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
