//! Whether a process that is being looked at still lives: most of what fails then fails because it does not.

use super::TargetError;
use super::process;

/// One life of a process id.
#[derive(Clone, Debug)]
pub struct Life {
    pid: u32,
    name: String,
    /// Clock ticks after boot at which it began; tells it from a later process of the same id. None: it was over already.
    began: Option<u64>,
}

/// PF_EXITING of the kernel's include/linux/sched.h: its memory may be gone already while it is no zombie yet.
const EXITING: u64 = 0x4;

impl Life {
    /// The life that this id has now. That there is none shows when something is asked of it.
    pub fn of(pid: u32) -> Self {
        let stat = process::read(pid, "stat").ok();
        let stat = stat
            .as_deref()
            .and_then(process::Stat::parse)
            .filter(|stat| !stat.is_dead());
        Self {
            pid,
            name: stat.as_ref().map(|stat| stat.name.clone()).unwrap_or_default(),
            began: stat.map(|stat| stat.began),
        }
    }

    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether it has ended, or is so far in its end that its memory cannot be seen any more.
    pub fn is_over(&self) -> bool {
        match process::read(self.pid, "stat") {
            Ok(stat) => process::Stat::parse(&stat)
                .is_some_and(|stat| stat.is_dead() || stat.flags & EXITING != 0 || Some(stat.began) != self.began),
            Err(error) => matches!(error, TargetError::NoSuchProcess { .. }),
        }
    }

    /// That it ended while memtrace was `doing` something, if it did. One that was never there has not ended.
    pub fn end(&self, doing: &'static str) -> Option<TargetError> {
        (self.began.is_some() && self.is_over()).then(|| TargetError::EndedMeanwhile {
            pid: self.pid,
            name: self.name.clone(),
            doing,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn told(life: &Life) -> Option<String> {
        life.end("attaching to it").map(|error| error.to_string())
    }

    #[test]
    fn an_end_is_told() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let life = Life::of(child.id());
        assert!(!life.is_over());
        assert_eq!(told(&life), None);
        drop(child.stdin.take());
        while std::fs::read_to_string(format!("/proc/{}/stat", child.id())).is_ok_and(|stat| !stat.contains(") Z ")) {
            std::thread::yield_now();
        }
        let expected = format!("process {} (cat) ended while memtrace was attaching to it", child.id());
        assert_eq!(told(&life).as_ref(), Some(&expected));
        assert_eq!(told(&Life::of(child.id())), None, "a zombie has not ended just now");
        child.wait().unwrap();
        assert_eq!(told(&life).as_ref(), Some(&expected));
    }

    #[test]
    fn one_that_was_never_there_has_not_ended() {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert_eq!(told(&Life::of(child.id())), None);
    }
}
