//! Probes reach the libc that a process maps, whatever has become of its file, and count it from its birth.

use std::ffi::{CString, OsString};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use memtrace::privileges::{self, MoreProbes};
use memtrace::session::{Begin, Session};
use memtrace::target::{Moment, Spawned, Target};
use memtrace_analysis::event::{Entry, ModuleRole, Totals};
use memtrace_test_support::cc;
use memtrace_test_support::child::Talker;
use memtrace_test_support::glibc;
use memtrace_test_support::scratch::Scratch;

use super::support::{can_trace, target, with_session};

/// The path by which programs name their loader.
const LOADER: &str = if cfg!(target_arch = "aarch64") {
    "/lib/ld-linux-aarch64.so.1"
} else {
    "/lib64/ld-linux-x86-64.so.2"
};

const KNOWN: &str = include_str!("../programs/known.c");

/// What the program does is what is counted, from `before` on. A static program and the loader add a few calls of their
/// own before main.
fn assert_counted(totals: &Totals, own: u64) {
    for (entry, expected) in [
        (Entry::Malloc, 1000),
        (Entry::Calloc, 1000),
        (Entry::Realloc, 1000),
        (Entry::Memalign, 1000),
        (Entry::Free, 2000),
    ] {
        let seen = totals.calls[entry as usize];
        assert!((expected..=expected + own).contains(&seen), "{seen} calls of {entry:?}");
    }
    assert_eq!(totals.lost_records + totals.lost_threads + totals.free_unreadable, 0);
}

fn build(scratch: &Scratch, options: &[&str]) -> PathBuf {
    let built = cc::build("cc", "known", KNOWN, options, scratch);
    built.unwrap_or_else(|problem| panic!("{problem}"))
}

/// The plain program.
fn plain(scratch: &Scratch) -> PathBuf {
    build(scratch, &[])
}

/// The libc and the loader that the plain program runs with. (The test itself may be a static program.)
fn libc_and_loader() -> (PathBuf, PathBuf) {
    let scratch = Scratch::new();
    let mut program = Talker::start(&mut Command::new(plain(&scratch)));
    assert_eq!(program.line(), "ready");
    let target = Target::of_pid(program.pid()).unwrap();
    let path = |role| PathBuf::from(&target.modules.iter().find(|module| module.role == role).unwrap().path);
    (path(ModuleRole::Libc), path(ModuleRole::Loader))
}

/// Traces a running program from `ready` to `done`; `between` is done to the world before the attach.
fn check(command: &mut Command, between: impl FnOnce(u32)) {
    let mut program = Talker::start(command);
    assert_eq!(program.line(), "ready");
    between(program.pid());
    with_session(|_, session| {
        trace(session, &mut program, Begin::Now);
    });
    let (_, status) = program.finish();
    assert!(status.success(), "the program ended with {status}");
}

fn trace(session: &mut Session, program: &mut Talker, begin: Begin) {
    let (target, plan) = target(program.pid());
    session.add(&target, Some(&plan), false, begin).unwrap();
    if begin == Begin::Later {
        session.activate(program.pid()).unwrap();
    }
    program.go_on();
    assert_eq!(program.line(), "done.");
    let totals = session.totals(program.pid()).unwrap();
    assert_counted(&totals, 0);
    // The kernel's idea of the load address is that of the maps.
    if let Some(base) = session.libc_base(program.pid()) {
        assert_eq!(base, target.libc.unwrap().base);
    }
    session.detach_process(program.pid());
}

#[test]
fn programs_at_fixed_addresses_and_static_ones() {
    if !can_trace() {
        return;
    }
    for options in [&["-no-pie"][..], &["-static"], &["-static-pie"]] {
        let scratch = Scratch::new();
        check(&mut Command::new(build(&scratch, options)), |_| ());
    }
}

#[test]
fn every_release_of_glibc_at_hand() {
    if !can_trace() {
        return;
    }
    let Some(releases) = glibc::all_or_skip("every_release_of_glibc_at_hand") else {
        return;
    };
    let oldest = &releases[0];
    let scratch = Scratch::new();
    let program = cc::build_for(oldest, "known", KNOWN, &scratch);
    with_session(|_, session| {
        for release in &releases {
            // Up to 2.33 the program's first calls come by twice, whenever counting begins.
            for begin in [Begin::Now, Begin::Later] {
                let words = release.runner(None);
                let mut command = Command::new(&words[0]);
                let mut running = Talker::start(command.args(&words[1..]).arg(&program));
                assert_eq!(running.line(), "ready", "{}", release.shown());
                trace(session, &mut running, begin);
            }
        }
    });
}

/// Runs with a copy of the libc in the scratch directory.
fn with_own_libc(scratch: &Scratch) -> (PathBuf, Command) {
    let library = scratch.file("libc.so.6");
    let (libc, loader) = libc_and_loader();
    std::fs::copy(libc, &library).unwrap();
    let mut command = Command::new(loader);
    command.arg("--library-path").arg(scratch.path()).arg(plain(scratch));
    (library, command)
}

#[test]
fn a_libc_deleted_or_replaced_while_the_program_runs() {
    if !can_trace() {
        return;
    }
    let scratch = Scratch::new();
    let (library, mut command) = with_own_libc(&scratch);
    check(&mut command, |_| std::fs::remove_file(&library).unwrap());

    let scratch = Scratch::new();
    let (library, mut command) = with_own_libc(&scratch);
    check(&mut command, |pid| {
        std::fs::remove_file(&library).unwrap();
        std::fs::copy(libc_and_loader().0, &library).unwrap();
        let opened = Target::of_pid(pid).unwrap().libc.unwrap().opened;
        assert!(opened.to_string_lossy().contains("map_files"), "{}", opened.display());
    });
}

#[test]
fn a_process_in_another_root_and_mount_namespace() {
    if !can_trace() {
        return;
    }
    for unshare in [false, true] {
        let scratch = Scratch::new();
        let root = scratch.file("root");
        let (libc, loader) = libc_and_loader();
        // A program names its loader by a path that may be a link.
        for (file, name) in [(&libc, &libc), (&loader, &loader), (&loader, &PathBuf::from(LOADER))] {
            let copy = root.join(name.strip_prefix("/").unwrap());
            std::fs::create_dir_all(copy.parent().unwrap()).unwrap();
            std::fs::copy(file, copy).unwrap();
        }
        std::fs::copy(plain(&scratch), root.join("known")).unwrap();
        let into = CString::new(root.to_str().unwrap()).unwrap();
        let mut command = Command::new("/known");
        // SAFETY: system calls that are safe between fork and exec, with a string made before.
        unsafe {
            command.pre_exec(move || {
                let entered = (!unshare || libc::unshare(libc::CLONE_NEWNS) == 0)
                    && libc::chroot(into.as_ptr()) == 0
                    && libc::chdir(c"/".as_ptr()) == 0;
                if entered {
                    Ok(())
                } else {
                    Err(std::io::Error::last_os_error())
                }
            });
        }
        check(&mut command, |_| ());
    }
}

#[test]
fn a_process_whose_user_namespace_and_user_are_others() {
    if !can_trace() {
        return;
    }
    let scratch = Scratch::new();
    let program = plain(&scratch);
    check(Command::new(&program).uid(65_534).gid(65_534), |_| ());
    let mut command = Command::new(&program);
    // SAFETY: a system call that is safe between fork and exec.
    unsafe {
        command.pre_exec(|| match libc::unshare(libc::CLONE_NEWUSER) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    check(&mut command, |_| ());
}

/// Adds what is known at each moment, as the command line does.
fn spawn(session: &mut Session, command: &[OsString], user: Option<&str>) -> (Spawned, Vec<Moment>) {
    let mut moments = Vec::new();
    let spawned = Spawned::start(command, user, |pid, moment| {
        moments.push(moment);
        match moment {
            Moment::BeforeExec => {}
            Moment::Executed => {
                session.add(&Target::of_pid(pid)?, None, false, Begin::Now)?;
            }
            Moment::LibcMapped => {
                let (target, plan) = target(pid);
                session.add(&target, Some(&plan), false, Begin::Now)?;
            }
        }
        Ok(())
    });
    (spawned.unwrap(), moments)
}

#[test]
fn a_command_is_counted_from_its_first_allocation() {
    if !can_trace() {
        return;
    }
    for (options, user) in [(&[][..], None), (&[][..], Some("nobody")), (&["-static"][..], None)] {
        let scratch = Scratch::new();
        let program = build(&scratch, options);
        with_session(|_, session| {
            let (mut child, moments) = spawn(session, &[program.into(), "at once".into()], user);
            assert_eq!(moments, [Moment::BeforeExec, Moment::Executed, Moment::LibcMapped]);
            assert!(child.wait().unwrap().success());
            // A static glibc allocates some blocks for itself before main.
            let before_main = if options.is_empty() { 0 } else { 32 };
            assert_counted(&session.totals(child.pid()).unwrap(), before_main);
        });
    }
}

#[test]
fn a_trace_goes_on_with_the_few_capabilities_that_are_kept() {
    if !can_trace() {
        return;
    }
    let scratch = Scratch::new();
    let program = plain(&scratch);
    let start = || {
        let mut program = Talker::start(Command::new(&program).uid(65_534));
        assert_eq!(program.line(), "ready");
        program
    };
    for more_probes in [MoreProbes::No, MoreProbes::Yes] {
        let (mut before, mut after) = (start(), start());
        // Capabilities belong to a thread: this one gives them up, the test keeps its own.
        let traced = std::thread::spawn(move || {
            with_session(|_, session| {
                let (one, plan) = target(before.pid());
                session.add(&one, Some(&plan), false, Begin::Later).unwrap();
                privileges::keep_what_a_trace_needs(more_probes).unwrap();
                session.activate(before.pid()).unwrap();
                before.go_on();
                assert_eq!(before.line(), "done.");
                assert_counted(&session.totals(before.pid()).unwrap(), 0);
                assert!(!session.pending().is_empty());
                assert_eq!(
                    Target::of_pid(before.pid()).unwrap().libc,
                    one.libc,
                    "it can still be looked at"
                );
                match more_probes {
                    MoreProbes::Yes => trace(session, &mut after, Begin::Now),
                    MoreProbes::No => {
                        after.go_on();
                        assert_eq!(after.line(), "done.");
                    }
                }
                session.remove(before.pid()).unwrap();
                session.detach();
                (before, after)
            })
        });
        let (before, after) = traced.join().unwrap();
        for program in [before, after] {
            let (_, status) = program.finish();
            assert!(status.success());
        }
    }
}
