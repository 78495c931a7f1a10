//! What runs in a virtual machine, and what is made of what it printed.
//!
//! ```text
//! /init   mounts proc, sys, dev, devpts, tracefs, bpf;  runs the tests;  prints; powers off
//! serial  TESTS name / libtest's lines / EXIT name rc ... SKIP reason ... DOCTOR {json} ... REPORT {json} ... RESULT rc=N
//! ```
//!
//! What tests write to standard error follows behind them, so that it cannot run into libtest's lines.
//! Only a RESULT line counts: a panic ends QEMU with status 0, and a hang is ended by the limit.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::initramfs::Initramfs;
use crate::workspace;

/// A static test program of cargo's, and its name.
#[derive(Clone, Debug)]
pub struct TestProgram {
    pub name: String,
    pub file: PathBuf,
}

/// A file of this machine, and its place in the guest.
#[derive(Clone, Debug)]
pub struct Installed {
    pub at: PathBuf,
    pub from: PathBuf,
}

/// What goes into the guest besides the C library.
pub struct Contents<'a> {
    pub busybox: &'a Path,
    /// Of util-linux.
    pub unshare: &'a Path,
    pub tests: &'a [TestProgram],
    /// C programs of the tests.
    pub compiled: &'a [Installed],
    /// Files the tests expect where they were built, so that they run here as they do there.
    pub in_place: &'a [PathBuf],
    /// Run once more for what its doctor and a report say: what works on this kernel, and what a trace knows.
    pub memtrace: &'a Installed,
    pub lab: &'a Installed,
    /// Environment of the tests.
    pub environment: &'a [(String, String)],
    /// Only tests whose names contain one of these; all where there are none.
    pub filters: &'a [&'a str],
}

/// Makes the root directory of a guest.
pub fn populate(tree: &mut Initramfs, contents: &Contents) -> Result<()> {
    for directory in ["proc", "sys", "dev", "tmp", "run", "root", "etc", "usr/bin"] {
        tree.directory(directory);
    }
    tree.copy("bin/busybox", contents.busybox)?;
    tree.symlink("bin/sh", "busybox");
    tree.copy("usr/bin/unshare", contents.unshare)?;
    tree.text(
        "etc/passwd",
        *b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n",
    );
    tree.text("etc/group", *b"root:x:0:\nnogroup:x:65534:\n");
    for test in contents.tests {
        tree.copy(Path::new("tests").join(&test.name), &test.file)?;
    }
    // The tests look for files from their crate on.
    tree.directory(workspace::root().join("memtrace"));
    for file in contents.in_place {
        tree.copy(file, file)?;
    }
    for Installed { at, from } in contents.compiled.iter().chain([contents.memtrace, contents.lab]) {
        tree.copy(at, from)?;
    }
    tree.file("init", init_script(contents));
    Ok(())
}

fn init_script(contents: &Contents) -> String {
    let mut script = String::from(
        "#!/bin/busybox sh\n\
         /bin/busybox --install -s /bin\n\
         export PATH=/usr/bin:/bin HOME=/root TERM=dumb RUST_BACKTRACE=1 MEMTRACE_SKIPS=/run/skips\n\
         mount -t proc proc /proc\n\
         mount -t sysfs sys /sys\n\
         mount -t devtmpfs dev /dev\n\
         mkdir -p /dev/pts && mount -t devpts devpts /dev/pts\n\
         mount -t tmpfs tmp /tmp\n\
         mount -t tracefs tracefs /sys/kernel/tracing\n\
         mount -t bpf bpf /sys/fs/bpf\n\
         ifconfig lo up 2>/dev/null\n\
         : > $MEMTRACE_SKIPS\n\
         echo \"KERNEL $(uname -r)\"\n\
         worst=0\n",
    );
    for (name, value) in contents.environment {
        script += &format!("export {name}='{value}'\n");
    }
    let filters: String = contents.filters.iter().map(|filter| format!(" '{filter}'")).collect();
    for test in contents.tests {
        let name = &test.name;
        script += &format!(
            "echo 'TESTS {name}'\n\
             cd / && /tests/{name} --test-threads=1{filters} 2> /run/stderr\n\
             rc=$?; [ $rc -eq 0 ] || worst=$rc\n\
             sed 's/^/STDERR /' /run/stderr\n\
             echo \"EXIT {name} $rc\"\n"
        );
    }
    script += &format!(
        "sed 's/^/SKIP /' $MEMTRACE_SKIPS\n\
         echo \"DOCTOR $({0} doctor --output json 2> /run/talk | tr -d '\\n')\"\n\
         sed 's/^/TALK /' /run/talk\n\
         {0} --depth calls --output json -- {1} brk-steps > /run/report 2> /run/talk\n\
         echo \"TRACE $?\"\n\
         sed 's/^/TALK /' /run/talk\n\
         echo REPORT-BEGIN\n\
         cat /run/report\n\
         echo\n\
         echo REPORT-END\n\
         echo \"RESULT rc=$worst\"\n\
         sync\n\
         poweroff -f\n",
        contents.memtrace.at.display(),
        contents.lab.at.display()
    );
    script
}

/// What one guest printed, taken apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transcript {
    /// As `uname -r` says it, in the guest.
    pub kernel: Option<String>,
    pub passed: u64,
    pub failed: Vec<String>,
    pub ignored: u64,
    pub skipped: BTreeSet<String>,
    /// Test programs that ended badly without naming a test, each with its status.
    pub broken: Vec<String>,
    /// The doctor's JSON document, without a process.
    pub doctor: String,
    /// The JSON report of brk-steps.
    pub report: String,
    /// memtrace's exit status there.
    pub trace_status: Option<i32>,
    /// The exit status in the RESULT line; None without such a line.
    pub result: Option<i32>,
}

impl Transcript {
    pub fn read(log: &str) -> Self {
        let mut read = Self::default();
        let mut in_report = false;
        let mut program = String::new();
        let mut failed_before = 0;
        for line in log.lines() {
            let line = line.trim_end_matches('\r');
            match line.split_once(' ').unwrap_or((line, "")) {
                ("REPORT-BEGIN", _) => in_report = true,
                ("REPORT-END", _) => in_report = false,
                _ if in_report => {
                    read.report.push_str(line);
                    read.report.push('\n');
                }
                ("KERNEL", release) => read.kernel = Some(release.to_owned()),
                ("TESTS", name) => {
                    name.clone_into(&mut program);
                    failed_before = read.failed.len();
                }
                ("test", rest) => read.test_line(&program, rest),
                ("EXIT", rest) => {
                    let status = rest.rsplit(' ').next().unwrap_or_default();
                    if status != "0" && read.failed.len() == failed_before {
                        read.broken.push(format!("{program} ended with status {status}"));
                    }
                    program.clear();
                }
                ("SKIP", reason) => {
                    read.skipped.insert(reason.to_owned());
                }
                ("DOCTOR", document) => document.clone_into(&mut read.doctor),
                ("TRACE", status) => read.trace_status = status.parse().ok(),
                ("RESULT", result) => read.result = result.strip_prefix("rc=").and_then(|rc| rc.parse().ok()),
                _ => {}
            }
        }
        if !program.is_empty() {
            read.broken.push(format!("{program} did not come to its end"));
        }
        read
    }

    fn test_line(&mut self, program: &str, rest: &str) {
        let Some((name, outcome)) = rest.rsplit_once(" ... ") else {
            return;
        };
        match outcome {
            "ok" => self.passed += 1,
            "FAILED" => self.failed.push(format!("{program}::{name}")),
            _ if outcome.starts_with("ignored") => self.ignored += 1,
            _ => self
                .broken
                .push(format!("{program}::{name} ended with the line \"{outcome}\"")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_good_run_is_read() {
        let log = "[    0.1] noise\r\nKERNEL 5.10.0\r\nTESTS kernel\r\n\r\nrunning 2 tests\r\ntest a ... ok\r\n\
                   test b ... ok\r\n\r\ntest result: ok. 2 passed; 0 failed\r\nEXIT kernel 0\r\nSKIP b: no cookies\r\n\
                   DOCTOR {\"b\": 2}\r\nTRACE 0\r\nREPORT-BEGIN\r\n{\"a\":\r\n1}\r\nREPORT-END\r\nRESULT rc=0\r\n";
        let expected = Transcript {
            kernel: Some("5.10.0".to_owned()),
            passed: 2,
            skipped: BTreeSet::from(["b: no cookies".to_owned()]),
            doctor: "{\"b\": 2}".to_owned(),
            report: "{\"a\":\n1}\n".to_owned(),
            trace_status: Some(0),
            result: Some(0),
            ..Transcript::default()
        };
        assert_eq!(Transcript::read(log), expected);
    }

    #[test]
    fn a_failure_a_crash_and_a_hang_are_told_apart() {
        let log = "TESTS one\ntest a ... FAILED\nEXIT one 101\nTESTS two\ntest b ... ok\nEXIT two 139\nTESTS three\n\
                   test c ... \n[    9.1] Kernel panic - not syncing\n";
        let read = Transcript::read(log);
        assert_eq!(read.failed, ["one::a"]);
        assert_eq!(
            read.broken,
            [
                "two ended with status 139",
                "three::c ended with the line \"\"",
                "three did not come to its end"
            ]
        );
        assert_eq!(read.result, None);
    }
}
