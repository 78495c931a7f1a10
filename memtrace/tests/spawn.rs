//! Commands started under our eyes: stopped at their exec and with their libc mapped, unharmed afterwards.

use std::cell::Cell;
use std::ffi::OsString;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};

use memtrace::target::{Moment, SpawnError, Spawned, Target};
use memtrace_analysis::event::AllocatorKind;

use memtrace_test_support::cc;
use memtrace_test_support::glibc::{system_libc, system_loader};
use memtrace_test_support::scratch::Scratch;
use memtrace_test_support::skip::{root, skip};

fn compile(scratch: &Scratch, name: &str, source: &str, options: &[&str]) -> PathBuf {
    cc::build("cc", name, source, options, scratch).unwrap_or_else(|problem| panic!("{problem}"))
}

fn words(command: &[&str]) -> Vec<OsString> {
    command.iter().map(OsString::from).collect()
}

fn shell(script: &str) -> Vec<OsString> {
    words(&["sh", "-c", script])
}

/// Starts it with a look at both stops of the new program: the targets as they were found there.
fn start(command: &[OsString]) -> (Spawned, Target, Option<Target>) {
    let (mut at_exec, mut at_ready) = (None, None);
    let spawned = Spawned::start(command, None, |pid, moment| {
        match moment {
            Moment::BeforeExec => assert!(at_exec.is_none() && at_ready.is_none()),
            Moment::Executed => at_exec = Some(Target::of_pid(pid)?),
            Moment::LibcMapped => {
                assert_state(pid, 't');
                at_ready = Some(Target::of_pid(pid)?);
            }
        }
        Ok(())
    });
    (spawned.unwrap(), at_exec.unwrap(), at_ready)
}

/// Starts it with something to be done at one moment.
fn start_with(command: &[OsString], when: Moment, act: impl Fn(u32)) -> Spawned {
    let at = |pid, moment| {
        if moment == when {
            act(pid);
        }
        Ok(())
    };
    Spawned::start(command, None, at).unwrap()
}

fn assert_state(pid: u32, state: char) {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    assert_eq!(stat.rsplit(") ").next().unwrap().chars().next(), Some(state));
}

fn refused(command: &[&str], user: Option<&str>) -> SpawnError {
    let never = |_, moment| {
        assert_eq!(moment, Moment::BeforeExec, "there is no exec");
        Ok(())
    };
    Spawned::start(&words(command), user, never).unwrap_err()
}

#[test]
fn a_command_is_seen_from_its_exec_on() {
    let scratch = Scratch::new();
    let out = scratch.file("out");
    let (mut child, at_exec, at_ready) = start(&shell(&format!("echo $$ > {}; exit 3", out.display())));
    assert_eq!(
        (at_exec.pid, at_exec.libc),
        (child.pid(), None),
        "nothing but the loader is mapped yet"
    );
    let at_ready = at_ready.unwrap();
    assert_eq!(
        at_ready.allocator.kind,
        AllocatorKind::Glibc,
        "{:?}",
        at_ready.allocator
    );
    assert_eq!(
        at_ready.libc.unwrap().inode,
        std::fs::metadata(system_libc()).unwrap().ino()
    );
    assert_eq!(child.wait().unwrap().code(), Some(3));
    assert_eq!(child.try_wait().unwrap().unwrap().code(), Some(3), "the status is kept");
    assert_eq!(std::fs::read_to_string(out).unwrap().trim(), child.pid().to_string());
}

/// No code of libc may have been executed: its data is as the file has it, or not even mapped.
#[test]
fn libc_has_not_begun_when_the_caller_is_told() {
    let scratch = Scratch::new();
    let source = "#include <stdlib.h>\nint main(void) { return malloc(10) == 0; }";
    let program = compile(&scratch, "allocates", source, &[]);
    let heap = Cell::new(true);
    let mut child = start_with(&[program.into()], Moment::LibcMapped, |pid| {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        heap.set(maps.contains("[heap]"));
    });
    assert!(!heap.get(), "malloc has been called already");
    assert!(child.wait().unwrap().success());
}

#[test]
fn static_programs_are_ready_at_once() {
    let scratch = Scratch::new();
    let source = "int main(void) { return 7; }";
    for options in [&["-static"][..], &["-static-pie"]] {
        let (mut child, at_exec, at_ready) = start(&[compile(&scratch, "fixed", source, options).into()]);
        assert_eq!(at_exec.allocator.kind, AllocatorKind::GlibcStatic);
        assert_eq!(at_ready.unwrap().libc, at_exec.libc);
        assert_eq!(child.wait().unwrap().code(), Some(7));
    }
    match cc::build("musl-gcc", "musl", source, &[], &scratch) {
        Ok(path) => {
            let (mut child, _, at_ready) = start(&[path.into()]);
            assert_eq!(at_ready.unwrap().allocator.kind, AllocatorKind::Musl);
            assert_eq!(child.wait().unwrap().code(), Some(7));
        }
        Err(problem) => skip(
            "static_programs_are_ready_at_once",
            &format!("no program with musl: {problem} (Debian: apt install musl-tools)"),
        ),
    }
}

#[test]
fn a_program_without_any_libc_is_let_go() {
    let scratch = Scratch::new();
    let exit = if cfg!(target_arch = "aarch64") {
        "register long n __asm__(\"x8\") = 94, s __asm__(\"x0\") = 9; __asm__ volatile (\"svc 0\" :: \"r\"(n), \"r\"(s));"
    } else {
        "__asm__ volatile (\"syscall\" :: \"a\"(231), \"D\"(9));"
    };
    let source = format!("void _start(void) {{ {exit} }}");
    let (mut child, _, at_ready) = start(&[compile(&scratch, "bare", &source, &["-nostdlib", "-pie", "-fPIE"]).into()]);
    assert_eq!(at_ready.unwrap().allocator.kind, AllocatorKind::Unknown);
    assert_eq!(child.wait().unwrap().code(), Some(9));
}

#[test]
fn a_loader_run_as_a_command_counts_as_the_program() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "seven", "int main(void) { return 7; }", &[]);
    let (mut child, _, at_ready) = start(&[system_loader().into(), program.into()]);
    assert_eq!(
        at_ready.unwrap().libc.unwrap().inode,
        std::fs::metadata(system_libc()).unwrap().ino()
    );
    assert_eq!(child.wait().unwrap().code(), Some(7));
}

#[test]
fn an_allocator_in_front_is_seen_before_it_runs() {
    let scratch = Scratch::new();
    let library = "void *malloc(unsigned long n) { return 0; } void free(void *p) {} int mallctl;";
    let library = compile(&scratch, "front.so", library, &["-shared", "-fPIC"]);
    let preload = format!("LD_PRELOAD={}", library.display());
    let program = compile(
        &scratch,
        "seven",
        "int main(void) { return 7; }",
        &["-Wl,--no-as-needed", library.to_str().unwrap()],
    );
    let (mut child, _, at_ready) = start(&[program.into()]);
    assert_eq!(at_ready.unwrap().allocator.kind, AllocatorKind::Jemalloc);
    assert_eq!(child.wait().unwrap().code(), Some(7));
    // env executes the command: only env itself is looked at here, and it has glibc in front.
    let (mut child, _, at_ready) = start(&words(&["env", &preload, "true"]));
    assert_eq!(at_ready.unwrap().allocator.kind, AllocatorKind::Glibc);
    assert!(child.wait().unwrap().success());
}

#[test]
fn scripts_and_exec_chains_end_as_they_would() {
    let scratch = Scratch::new();
    let script = scratch.file("script");
    std::fs::write(&script, "#!/bin/sh\nexec env sh -c 'exec sh -c \"exit 5\"'\n").unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let (mut child, _, _) = start(&[script.into()]);
    assert_eq!(child.wait().unwrap().code(), Some(5));
}

#[test]
fn a_missing_library_is_the_programs_own_error() {
    let scratch = Scratch::new();
    let library = compile(
        &scratch,
        "libgone.so",
        "int gone(void) { return 0; }",
        &["-shared", "-fPIC"],
    );
    let source = "int gone(void); int main(void) { return gone(); }";
    let program = compile(&scratch, "needs", source, &[library.to_str().unwrap()]);
    std::fs::remove_file(library).unwrap();
    let (mut child, _, at_ready) = start(&words(&[
        "sh",
        "-c",
        &format!("exec {} 2>/dev/null", program.display()),
    ]));
    assert!(at_ready.is_some(), "the shell's own libc");
    assert_eq!(child.wait().unwrap().code(), Some(127));
    let never = |_| panic!("its libc is never mapped");
    let mut child = start_with(&[program.into()], Moment::LibcMapped, never);
    assert_eq!(
        child.wait().unwrap().code(),
        Some(127),
        "what the loader says and does in this case"
    );
}

#[test]
fn commands_that_cannot_be_started_get_a_sentence_and_a_code() {
    let scratch = Scratch::new();
    let check = |error: SpawnError, message: &str, code: u8| {
        assert_eq!((error.to_string().as_str(), error.exit_code()), (message, code));
    };
    check(refused(&[], None), "there is no command to start", 1);
    check(
        refused(&["no-such-command-here"], None),
        "the command no-such-command-here was not found",
        127,
    );
    check(
        refused(&["/no/such/file"], None),
        "the command /no/such/file was not found",
        127,
    );
    check(refused(&["a\0b"], None), "the command has a NUL byte in it", 1);
    check(
        refused(&["true"], Some("no-such-user")),
        "there is no user no-such-user",
        1,
    );
    let plain = scratch.file("plain");
    std::fs::write(&plain, "not a program").unwrap();
    let shown = plain.to_str().unwrap();
    check(
        refused(&[shown], None),
        &format!("{shown} may not be executed: permission denied"),
        126,
    );
    check(
        refused(&["/tmp"], None),
        "/tmp may not be executed: permission denied",
        126,
    );
    let foreign = scratch.file("foreign");
    let mut elf = std::fs::read("/bin/true").unwrap();
    elf[18..20].copy_from_slice(&[0xf3, 0]); // RISC-V
    std::fs::write(&foreign, elf).unwrap();
    std::fs::set_permissions(&foreign, PermissionsExt::from_mode(0o755)).unwrap();
    let error = Spawned::start(&[foreign.into()], None, |_, _| Ok(()));
    // Either the kernel's refusal, or, where the C library hands such files to a shell, the shell's.
    match error {
        Err(error) => assert_eq!(error.exit_code(), 126),
        Ok(mut shell) => assert!(!shell.wait().unwrap().success()),
    }
}

#[test]
fn an_error_of_the_caller_ends_the_child_before_it_begins() {
    let scratch = Scratch::new();
    let out = scratch.file("out");
    for when in [Moment::BeforeExec, Moment::Executed, Moment::LibcMapped] {
        let pid = Cell::new(0);
        let touch = shell(&format!("touch {}", out.display()));
        let error = Spawned::start(&touch, None, |child, moment| {
            pid.set(child);
            if moment == when {
                anyhow::bail!("the maps are full")
            } else {
                Ok(())
            }
        })
        .unwrap_err();
        assert_eq!(error.to_string(), "the maps are full");
        assert!(
            !Path::new(&format!("/proc/{}", pid.get())).exists(),
            "the child is gone"
        );
        assert!(!out.exists(), "and has done nothing");
    }
}

#[test]
fn signals_in_the_first_moments_reach_the_child() {
    // A shell starts what it puts into the background with this signal ignored, and so would the child be.
    // SAFETY: the default action of a signal that nothing here handles.
    assert_ne!(unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) }, libc::SIG_ERR);
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGKILL] {
        for when in [Moment::Executed, Moment::LibcMapped] {
            let mut child = start_with(&words(&["sleep", "1000"]), when, |pid| {
                // SAFETY: sends a signal to a child of this test.
                assert_eq!(unsafe { libc::kill(pid as i32, signal) }, 0);
            });
            assert_eq!(child.wait().unwrap().signal(), Some(signal), "sent at {when:?}");
        }
    }
}

#[test]
fn a_stop_in_the_first_moments_holds_until_the_child_is_continued() {
    let stop = |pid: u32| {
        // SAFETY: stops a child of this test, and has a helper continue it as soon as it is seen stopped.
        unsafe { assert_eq!(libc::kill(pid as i32, libc::SIGSTOP), 0) };
        std::thread::spawn(move || {
            let stat = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let status = || std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            // In a stop of the whole process the signal is no longer pending, and the process does not run.
            while !(status().contains("ShdPnd:\t0000000000000000") && stat().contains(") t ")) {
                std::thread::yield_now();
            }
            // SAFETY: as above.
            unsafe { libc::kill(pid as i32, libc::SIGCONT) };
        });
    };
    let mut child = start_with(&shell("exit 4"), Moment::Executed, stop);
    assert_eq!(child.wait().unwrap().code(), Some(4));
}

#[test]
fn the_child_has_the_signals_of_a_fresh_program() {
    let scratch = Scratch::new();
    let out = scratch.file("out");
    let (mut child, _, _) = start(&shell(&format!(
        "exec grep -E '^Sig(Blk|Ign)' /proc/self/status > {}",
        out.display()
    )));
    assert!(child.wait().unwrap().success());
    let masks = std::fs::read_to_string(out).unwrap();
    for line in masks.lines() {
        let mask = u64::from_str_radix(line.split('\t').nth(1).unwrap(), 16).unwrap();
        assert_eq!(mask >> (libc::SIGPIPE - 1) & 1, 0, "SIGPIPE in {masks}");
        assert!(!line.starts_with("SigBlk") || mask == 0, "{masks}");
    }
    assert_eq!(masks.lines().count(), 2);
}

#[test]
fn no_descriptor_leaks_into_the_child() {
    let scratch = Scratch::new();
    let out = scratch.file("out");
    let kept = |fd: u32| {
        // SAFETY: asks for the flags of a descriptor, which may be none.
        let flags = unsafe { libc::fcntl(fd as libc::c_int, libc::F_GETFD) };
        flags >= 0 && flags & libc::FD_CLOEXEC == 0
    };
    let (mut child, _, _) = start(&shell(&format!("exec ls /proc/self/fd > {}", out.display())));
    assert!(child.wait().unwrap().success());
    let descriptors = std::fs::read_to_string(out).unwrap();
    let descriptors = descriptors.lines().map(|fd| fd.parse::<u32>().unwrap());
    // What this test was started with goes on to its children; one more is the folder that ls reads.
    let leaked: Vec<u32> = descriptors.filter(|&fd| fd > 2 && !kept(fd)).collect();
    assert!(leaked.len() <= 1, "{leaked:?}");
}

#[test]
fn a_pidfd_tells_the_end() {
    let (mut child, _, _) = start(&words(&["sleep", "1000"]));
    let mut poll = libc::pollfd {
        fd: child.as_fd().as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: sends a signal to a child of this test, then polls one live structure.
    unsafe {
        libc::kill(child.pid() as i32, libc::SIGKILL);
        assert_eq!(libc::poll(&raw mut poll, 1, 10_000), 1);
    }
    assert_eq!(child.try_wait().unwrap().unwrap().signal(), Some(libc::SIGKILL));
}

#[test]
fn another_user_is_become_before_the_exec() {
    if !root("another_user_is_become_before_the_exec") {
        return;
    }
    let scratch = Scratch::new();
    std::fs::set_permissions(scratch.file(""), PermissionsExt::from_mode(0o777)).unwrap();
    let out = scratch.file("out");
    let script = format!(
        "grep -E '^(Uid|Gid|Groups|CapEff)' /proc/self/status > {}",
        out.display()
    );
    let ready = Cell::new(false);
    let look = |pid, moment| {
        if moment == Moment::LibcMapped {
            assert_eq!(Target::of_pid(pid)?.allocator.kind, AllocatorKind::Glibc);
            ready.set(true);
        }
        Ok(())
    };
    let mut child = Spawned::start(&shell(&script), Some("nobody"), look).unwrap();
    assert!(child.wait().unwrap().success() && ready.get());
    let identity = std::fs::read_to_string(&out).unwrap();
    assert!(identity.contains("Uid:\t65534\t65534\t65534\t65534"), "{identity}");
    assert!(identity.contains("CapEff:\t0000000000000000"), "{identity}");
    assert!(
        !identity
            .lines()
            .any(|line| line.starts_with("Groups:") && line.split_whitespace().any(|g| g == "0")),
        "{identity}"
    );
    assert_eq!(std::fs::metadata(out).unwrap().uid(), 65_534);
}

#[test]
fn becoming_someone_else_without_root_gets_a_sentence() {
    if !root("becoming_someone_else_without_root_gets_a_sentence") {
        return;
    }
    let error = std::thread::spawn(|| {
        // SAFETY: the raw system call changes this thread alone; a change of user makes a process one that may not be
        // traced, which a program started by that user is not.
        unsafe {
            assert_eq!(libc::syscall(libc::SYS_setresuid, 65_534, 65_534, 65_534), 0);
            assert_eq!(libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0), 0);
        }
        refused(&["true"], Some("daemon"))
    })
    .join()
    .unwrap();
    assert_eq!(error.to_string(), "becoming the user daemon failed");
    assert!(error.hint().unwrap().contains("root"));
}

#[test]
fn a_seccomp_filter_does_not_matter() {
    let scratch = Scratch::new();
    // Sets a filter that allows everything, then executes true.
    let source = r#"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <unistd.h>
int main(void) {
    struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = { 1, &allow };
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 1;
    execlp("sleep", "sleep", "1000", NULL);
    return 2;
}
"#;
    let (mut child, _, at_ready) = start(&[compile(&scratch, "filtered", source, &[]).into()]);
    assert_eq!(at_ready.unwrap().seccomp, 0, "not set yet");
    let name = format!("/proc/{}/comm", child.pid());
    while std::fs::read_to_string(&name).unwrap() != "sleep\n" {
        assert_eq!(child.try_wait().unwrap(), None);
        std::thread::yield_now();
    }
    assert_eq!(Target::of_pid(child.pid()).unwrap().seccomp, 2);
    // SAFETY: ends a child of this test.
    unsafe { libc::kill(child.pid() as i32, libc::SIGKILL) };
    child.wait().unwrap();
}
