//! Which libc, which allocator: asked of real processes.

use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use memtrace::probe::ProbePlan;
use memtrace::target::{Target, TargetError, modules, pids_by_name, pids_in_cgroup};
use memtrace_analysis::event::{AllocatorKind, ModuleRole};

use memtrace_test_support::cc;
use memtrace_test_support::child::Talker;
use memtrace_test_support::glibc::{system_libc, system_loader};
use memtrace_test_support::scratch::Scratch;
use memtrace_test_support::skip::{root, skip};

/// Allocates, says "ready", waits for the end of its input, frees.
const ALLOCATES: &str = r#"
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    void *volatile block = malloc(100);
    puts("ready");
    fflush(stdout);
    while (getchar() != EOF) {}
    free(block);
    return 0;
}
"#;

fn compile(scratch: &Scratch, name: &str, source: &str, options: &[&str]) -> PathBuf {
    cc::build("cc", name, source, options, scratch).unwrap_or_else(|problem| panic!("{problem}"))
}

/// Starts a program that says "ready" when it is where the test wants it.
fn start(command: &mut Command) -> Talker {
    let mut program = Talker::start(command);
    assert_eq!(program.line(), "ready", "the program's first line");
    program
}

/// Lets it end, and checks that nothing has harmed it.
fn end(program: Talker) {
    let (rest, status) = program.finish();
    assert!(status.success(), "the program ended with {status}: {rest}");
}

/// The libc of the target can be opened, is the file that is mapped, and its plan leads to the process's own malloc.
fn assert_traceable(target: &Target) {
    let library = target.libc.as_ref().expect("a libc to probe");
    let metadata = std::fs::metadata(&library.opened).unwrap();
    assert_eq!(metadata.ino(), library.inode, "{}", library.opened.display());
    let plan = ProbePlan::for_library(&library.read().unwrap()).unwrap();
    let malloc = library.base + plan.sites[0].function;
    assert!(library.range.0 <= malloc && malloc < library.range.1);
    // The code in the process is the code in the file, but for the probe that may sit there by now.
    let memory = std::fs::File::open(format!("/proc/{}/mem", target.pid)).unwrap();
    let mut there = [0; 8];
    std::os::unix::fs::FileExt::read_exact_at(&memory, &mut there, malloc + plan.sites[0].offset).unwrap();
    let at = plan.sites[0].file_offset as usize;
    assert_eq!(
        there,
        library.read().unwrap()[at..at + 8],
        "the probed instruction is where the plan says"
    );
}

#[test]
fn a_plain_program_uses_glibc() {
    let scratch = Scratch::new();
    let program = start(&mut Command::new(compile(&scratch, "plain", ALLOCATES, &[])));
    let target = Target::of_pid(program.pid()).unwrap();
    assert_eq!(target.name, "plain");
    assert_eq!(target.threads, 1);
    assert_eq!(target.allocator.kind, AllocatorKind::Glibc, "{:?}", target.allocator);
    assert_eq!(target.limits, Vec::<String>::new());
    // SAFETY: returns a string that lives as long as libc does.
    let version = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
    assert_eq!(target.allocator.version.as_deref(), version.to_str().ok());
    assert!(target.allocator.build_id.is_some());
    let role = |role| target.modules.iter().filter(|module| module.role == role).count();
    assert_eq!(
        (
            role(ModuleRole::Program),
            role(ModuleRole::Libc),
            role(ModuleRole::Loader)
        ),
        (1, 1, 1)
    );
    assert_traceable(&target);
    end(program);
}

#[test]
fn a_program_at_a_fixed_address_too() {
    let scratch = Scratch::new();
    let program = start(&mut Command::new(compile(&scratch, "fixed", ALLOCATES, &["-no-pie"])));
    assert_traceable(&Target::of_pid(program.pid()).unwrap());
    end(program);
}

#[test]
fn a_static_program_is_traceable_with_symbols_only() {
    let scratch = Scratch::new();
    for (name, options) in [
        ("fixed-static", &["-static"][..]),
        ("moved-static", &["-static-pie"][..]),
    ] {
        let path = compile(&scratch, name, ALLOCATES, options);
        let program = start(&mut Command::new(&path));
        let target = Target::of_pid(program.pid()).unwrap();
        assert_eq!(
            target.allocator.kind,
            AllocatorKind::GlibcStatic,
            "{:?}",
            target.allocator
        );
        assert_traceable(&target);
        // The same glibc as the shared one, so what the plans know of its insides is the same.
        let plan = |library: &[u8]| ProbePlan::for_library(library).unwrap();
        let own = plan(&target.libc.unwrap().read().unwrap());
        let shared = plan(&std::fs::read(system_libc()).unwrap());
        assert!(own.main_arena.is_some() && own.mp.is_some(), "{:?}", own.limits);
        assert_eq!(own.top_offset, shared.top_offset);
        assert_eq!(own.first_free_twice, shared.first_free_twice);
        assert_eq!(own.spurious_free_returns.len(), shared.spurious_free_returns.len());
        end(program);

        let stripped = scratch.file(&format!("{name}-stripped"));
        assert!(
            Command::new("strip")
                .arg("-o")
                .args([&stripped, &path])
                .status()
                .unwrap()
                .success()
        );
        let program = start(&mut Command::new(&stripped));
        let target = Target::of_pid(program.pid()).unwrap();
        assert_eq!(
            (target.allocator.kind, target.libc),
            (AllocatorKind::GlibcStatic, None),
            "{:?}",
            target.allocator
        );
        end(program);
    }
}

#[test]
fn musl_is_told() {
    let scratch = Scratch::new();
    for options in [&[][..], &["-static"]] {
        match cc::build("musl-gcc", "musl", ALLOCATES, options, &scratch) {
            Ok(path) => {
                let program = start(&mut Command::new(path));
                let target = Target::of_pid(program.pid()).unwrap();
                assert_eq!(
                    (target.allocator.kind, target.libc),
                    (AllocatorKind::Musl, None),
                    "{:?}",
                    target.allocator
                );
                end(program);
            }
            Err(problem) => {
                assert!(Command::new("musl-gcc").arg("--version").output().is_err(), "{problem}");
                skip(
                    "musl_is_told",
                    &format!("no program with musl: {problem} (Debian: apt install musl-tools)"),
                );
            }
        }
    }
}

/// A library that exports what an allocator does.
const ALLOCATOR: &str = r#"
#include <stddef.h>
static char memory[1 << 20];
static size_t used;
void *malloc(size_t n) { void *p = memory + used; used += (n + 31) & ~15UL; return p; }
void *calloc(size_t n, size_t m) { return malloc(n * m); }
void *realloc(void *p, size_t n) { return malloc(n); }
void free(void *p) {}
"#;

#[test]
fn a_preloaded_allocator_is_in_front() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "plain", ALLOCATES, &[]);
    for (symbol, kind) in [
        ("int mallctl(void) { return 0; }", AllocatorKind::Jemalloc),
        (
            "void *tc_malloc(size_t n) { return malloc(n); }",
            AllocatorKind::Tcmalloc,
        ),
        (
            "void *mi_malloc(size_t n) { return malloc(n); }",
            AllocatorKind::Mimalloc,
        ),
    ] {
        let library = compile(
            &scratch,
            "front.so",
            &format!("{ALLOCATOR}{symbol}"),
            &["-shared", "-fPIC"],
        );
        let program = start(Command::new(&program).env("LD_PRELOAD", &library));
        let target = Target::of_pid(program.pid()).unwrap();
        assert_eq!(
            (target.allocator.kind, &target.libc),
            (kind, &None),
            "{:?}",
            target.allocator
        );
        assert!(target.allocator.evidence.contains("front.so"), "{:?}", target.allocator);
        assert!(
            target
                .modules
                .iter()
                .any(|m| m.role == ModuleRole::Allocator && m.path.ends_with("front.so"))
        );
        end(program);
    }
    // A wrapper that nobody knows may hand on to glibc: traced, and said.
    let library = compile(&scratch, "wrapper.so", ALLOCATOR, &["-shared", "-fPIC"]);
    let running = start(Command::new(&program).env("LD_PRELOAD", &library));
    let target = Target::of_pid(running.pid()).unwrap();
    assert_eq!(target.allocator.kind, AllocatorKind::Glibc);
    assert_eq!(target.limits.len(), 1, "{:?}", target.limits);
    assert_traceable(&target);
    end(running);
}

#[test]
fn an_allocator_linked_into_the_program_is_in_front() {
    let scratch = Scratch::new();
    let source = format!("{ALLOCATOR} int mallctl(void) {{ return 0; }} {ALLOCATES}");
    let program = start(&mut Command::new(compile(&scratch, "own", &source, &["-fno-builtin"])));
    let target = Target::of_pid(program.pid()).unwrap();
    assert_eq!(
        (target.allocator.kind, &target.libc),
        (AllocatorKind::Jemalloc, &None),
        "{:?}",
        target.allocator
    );
    assert!(
        target.allocator.evidence.contains("the program itself"),
        "{:?}",
        target.allocator
    );
    end(program);
}

#[test]
fn a_library_opened_later_is_not_in_front() {
    let scratch = Scratch::new();
    let library = compile(
        &scratch,
        "late.so",
        &format!("{ALLOCATOR} int mallctl;"),
        &["-shared", "-fPIC"],
    );
    let source = format!(
        "#include <dlfcn.h>\n__attribute__((constructor)) static void load(void) {{ \
         if (!dlopen(\"{}\", RTLD_NOW | RTLD_LOCAL)) __builtin_trap(); }}\n{ALLOCATES}",
        library.display()
    );
    let program = start(&mut Command::new(compile(&scratch, "opens", &source, &["-ldl"])));
    let target = Target::of_pid(program.pid()).unwrap();
    assert_eq!(target.allocator.kind, AllocatorKind::Glibc, "{:?}", target.allocator);
    assert!(
        target.limits.iter().any(|limit| limit.contains("jemalloc")),
        "{:?}",
        target.limits
    );
    assert_traceable(&target);
    end(program);
}

#[test]
fn jemalloc_of_the_distribution() {
    let triplet = if cfg!(target_arch = "aarch64") {
        "aarch64-linux-gnu"
    } else {
        "x86_64-linux-gnu"
    };
    let library = format!("/usr/lib/{triplet}/libjemalloc.so.2");
    if !Path::new(&library).exists() {
        skip(
            "jemalloc_of_the_distribution",
            &format!("{library} is not installed (Debian: apt install libjemalloc2)"),
        );
        return;
    }
    let scratch = Scratch::new();
    let program = start(Command::new(compile(&scratch, "plain", ALLOCATES, &[])).env("LD_PRELOAD", &library));
    let target = Target::of_pid(program.pid()).unwrap();
    assert_eq!((target.allocator.kind, target.libc), (AllocatorKind::Jemalloc, None));
    end(program);
}

/// A copy of the libc that is replaced, then removed, while a program runs with it.
#[test]
fn a_libc_replaced_on_disk_is_still_reached() {
    if !root("a_libc_replaced_on_disk_is_still_reached") {
        return;
    }
    let scratch = Scratch::new();
    let library = scratch.file("libc.so.6");
    std::fs::copy(system_libc(), &library).unwrap();
    let program = compile(&scratch, "plain", ALLOCATES, &[]);
    let mut command = Command::new(system_loader());
    command
        .arg("--library-path")
        .arg(library.parent().unwrap())
        .arg(&program);
    let running = start(&mut command);
    let before = Target::of_pid(running.pid()).unwrap();
    assert_eq!(before.allocator.path.as_deref(), library.to_str());
    assert_eq!(
        before.libc.as_ref().unwrap().opened,
        PathBuf::from(format!("/proc/{}/root{}", running.pid(), library.display()))
    );
    assert_traceable(&before);

    std::fs::remove_file(&library).unwrap();
    assert_only_the_mapping_leads_to_it(&Target::of_pid(running.pid()).unwrap(), &before);
    std::fs::write(&library, "something else").unwrap();
    assert_only_the_mapping_leads_to_it(&Target::of_pid(running.pid()).unwrap(), &before);
    end(running);
}

fn assert_only_the_mapping_leads_to_it(target: &Target, before: &Target) {
    let (now, then) = (target.libc.as_ref().unwrap(), before.libc.as_ref().unwrap());
    assert!(
        now.opened.to_string_lossy().contains("/map_files/"),
        "{}",
        now.opened.display()
    );
    assert_eq!((now.inode, now.base, &now.shown), (then.inode, then.base, &then.shown));
    assert_traceable(target);
}

#[test]
fn a_libc_inside_another_root_is_found_through_it() {
    if !root("a_libc_inside_another_root_is_found_through_it") {
        return;
    }
    let scratch = Scratch::new();
    let root = scratch.file("root");
    let program = compile(&scratch, "plain", ALLOCATES, &[]);
    let into = |path: &Path| {
        let copy = root.join(path.strip_prefix("/").unwrap());
        std::fs::create_dir_all(copy.parent().unwrap()).unwrap();
        std::fs::copy(path, copy).unwrap();
    };
    into(&system_libc());
    into(system_loader());
    std::fs::copy(&program, root.join("plain")).unwrap();
    let root_name = std::ffi::CString::new(root.to_str().unwrap()).unwrap();
    let mut command = Command::new("/plain");
    // SAFETY: chroot and chdir are safe between fork and exec, and the string was made before.
    unsafe {
        command.pre_exec(move || {
            let done = libc::chroot(root_name.as_ptr()) == 0 && libc::chdir(c"/".as_ptr()) == 0;
            if done {
                Ok(())
            } else {
                Err(std::io::Error::last_os_error())
            }
        });
    }
    let running = start(&mut command);
    let target = Target::of_pid(running.pid()).unwrap();
    let library = target.libc.as_ref().unwrap();
    assert_ne!(
        library.inode,
        std::fs::metadata(system_libc()).unwrap().ino(),
        "the copy, not the system's own"
    );
    assert!(
        !library.shown.contains("memtrace-test"),
        "the path is shown as the process names it: {}",
        library.shown
    );
    assert_traceable(&target);
    end(running);
}

#[test]
fn two_libcs_are_said() {
    let scratch = Scratch::new();
    let copy = scratch.file("libc.so.6");
    std::fs::copy(system_libc(), &copy).unwrap();
    for (path, expected) in [(copy.to_str().unwrap(), "a second libc"), ("libc.so.6", "2 times")] {
        let source = format!(
            "#define _GNU_SOURCE\n#include <dlfcn.h>\n__attribute__((constructor)) static void load(void) {{ \
             if (!dlmopen(LM_ID_NEWLM, \"{path}\", RTLD_NOW)) __builtin_trap(); }}\n{ALLOCATES}"
        );
        let program = start(&mut Command::new(compile(&scratch, "twice", &source, &["-ldl"])));
        let target = Target::of_pid(program.pid()).unwrap();
        assert!(
            target.limits.iter().any(|limit| limit.contains(expected)),
            "{path}: {:?}",
            target.limits
        );
        assert_eq!(
            target.libc.as_ref().unwrap().inode,
            std::fs::metadata(system_libc()).unwrap().ino()
        );
        assert_traceable(&target);
        end(program);
    }
}

/// Backtraces and debuggers map libraries as data; such a mapping is neither code nor a second copy.
#[test]
fn a_libc_mapped_as_data_changes_nothing() {
    let scratch = Scratch::new();
    let source = format!(
        "#include <fcntl.h>\n#include <sys/mman.h>\n__attribute__((constructor)) static void map(void) {{ \
         mmap(0, 1 << 20, PROT_READ, MAP_PRIVATE, open(\"{}\", O_RDONLY), 0); }}\n{ALLOCATES}",
        system_libc().display()
    );
    let program = start(&mut Command::new(compile(&scratch, "reads", &source, &[])));
    let target = Target::of_pid(program.pid()).unwrap();
    assert_eq!(target.limits, Vec::<String>::new());
    assert_traceable(&target);
    end(program);
}

#[test]
fn what_is_no_process_gets_a_sentence() {
    let message = |pid| Target::of_pid(pid).unwrap_err().to_string();
    assert_eq!(message(0x7fff_fff0), "there is no process 2147483632");
    if std::fs::read("/proc/2/comm").is_ok_and(|name| name == b"kthreadd\n") {
        assert!(matches!(Target::of_pid(2), Err(TargetError::KernelThread { .. })));
    } else {
        skip(
            "what_is_no_process_gets_a_sentence",
            "this PID namespace has no kernel threads",
        );
    }
    let mut ended = Command::new("true").spawn().unwrap();
    // SAFETY: waits for the child to end without taking its status; `info` is plain data of the right type.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        assert_eq!(
            libc::waitid(libc::P_PID, ended.id(), &mut info, libc::WEXITED | libc::WNOWAIT),
            0
        );
    }
    assert!(message(ended.id()).ends_with("only waits for its parent to notice (a zombie)"));
    ended.wait().unwrap();
    let thread = std::thread::spawn(|| {
        // SAFETY: gettid has no preconditions.
        let tid = unsafe { libc::gettid() };
        Target::of_pid(tid as u32).unwrap_err()
    });
    let error = thread.join().unwrap();
    assert!(matches!(error, TargetError::Thread { pid, .. } if pid == std::process::id()));
    assert!(error.hint().unwrap().contains("--pid"));
}

#[test]
fn a_32_bit_process_gets_a_sentence() {
    let scratch = Scratch::new();
    // No 32-bit libc is needed: the program only waits.
    let source = "void _start(void) { for (;;) __asm__ volatile (\"int $0x80\" :: \"a\"(29)); }";
    let options = ["-m32", "-nostdlib", "-static", "-fno-pie", "-no-pie"];
    match cc::build("cc", "narrow", source, &options, &scratch) {
        Ok(path) => {
            let mut child = match Command::new(path).spawn() {
                Ok(child) => child,
                Err(error) => {
                    return skip(
                        "a_32_bit_process_gets_a_sentence",
                        &format!("this kernel runs no 32-bit programs: {error}"),
                    );
                }
            };
            let error = Target::of_pid(child.id());
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(matches!(error, Err(TargetError::ThirtyTwoBit { .. })), "{error:?}");
        }
        Err(problem) => skip(
            "a_32_bit_process_gets_a_sentence",
            &format!("no 32-bit program: {problem}"),
        ),
    }
}

#[test]
fn another_users_process_is_refused_without_root() {
    if !root("another_users_process_is_refused_without_root") {
        return;
    }
    let scratch = Scratch::new();
    let program = start(&mut Command::new(compile(&scratch, "plain", ALLOCATES, &[])));
    let pid = program.pid();
    // Capabilities belong to a thread: this one gives up its user, the test keeps it.
    let error = std::thread::spawn(move || {
        // SAFETY: the raw system call changes this thread alone.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 65_534, 65_534, 65_534) }, 0);
        Target::of_pid(pid).unwrap_err()
    })
    .join()
    .unwrap();
    assert!(matches!(error, TargetError::Permission { .. }), "{error:?}");
    assert!(error.hint().unwrap().contains("CAP_SYS_PTRACE"));
    end(program);
}

#[test]
fn processes_are_found_by_name_and_by_control_group() {
    let scratch = Scratch::new();
    let program = start(&mut Command::new(compile(
        &scratch,
        "quite-a-long-name",
        ALLOCATES,
        &[],
    )));
    for name in ["quite-a-long-name", "quite-a-long-na"] {
        assert_eq!(pids_by_name(name).unwrap(), [program.pid()]);
    }
    let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", program.pid())).unwrap();
    let group = groups.lines().next().unwrap().splitn(3, ':').nth(2).unwrap();
    assert!(pids_in_cgroup(group).unwrap().contains(&program.pid()), "{group}");
    assert!(matches!(
        pids_in_cgroup("/no/such/group"),
        Err(TargetError::NoProcessInCgroup { .. })
    ));
    end(program);
}

#[test]
fn names_are_shown_without_what_a_terminal_would_obey() {
    let scratch = Scratch::new();
    let path = compile(&scratch, "odd\x1b[31m\nname", ALLOCATES, &[]);
    let program = start(&mut Command::new(path));
    let target = Target::of_pid(program.pid()).unwrap();
    assert_eq!(target.name, "odd[31mname");
    let shown = format!("{} {} {:?}", target.name, target.command, target.modules);
    assert!(!shown.contains('\x1b') && !target.command.contains('\n'), "{shown}");
    assert!(
        target
            .modules
            .iter()
            .any(|m| m.role == ModuleRole::Program && m.path.ends_with("odd[31mname"))
    );
    assert_eq!(modules(program.pid()).unwrap(), target.modules);
    assert_traceable(&target);
    end(program);
}
