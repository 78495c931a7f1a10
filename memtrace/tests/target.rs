//! Which libc, which allocator: asked of real processes.

#[path = "support/running.rs"]
mod running;
mod support;

use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use memtrace::probe::ProbePlan;
use memtrace::target::{Target, TargetError, modules, pids_by_name, pids_in_cgroup};
use memtrace_analysis::event::{AllocatorKind, ModuleRole};

use running::{ALLOCATES, Running};
use support::{Folder, is_root, system_libc, system_loader};

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
    let folder = Folder::new();
    let program = Running::start(&mut Command::new(folder.compile("plain", ALLOCATES, &[])));
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
    program.end();
}

#[test]
fn a_program_at_a_fixed_address_too() {
    let folder = Folder::new();
    let program = Running::start(&mut Command::new(folder.compile("fixed", ALLOCATES, &["-no-pie"])));
    assert_traceable(&Target::of_pid(program.pid()).unwrap());
    program.end();
}

#[test]
fn a_static_program_is_traceable_with_symbols_only() {
    let folder = Folder::new();
    for (name, options) in [
        ("fixed-static", &["-static"][..]),
        ("moved-static", &["-static-pie"][..]),
    ] {
        let path = folder.compile(name, ALLOCATES, options);
        let program = Running::start(&mut Command::new(&path));
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
        program.end();

        let stripped = folder.path(&format!("{name}-stripped"));
        assert!(
            Command::new("strip")
                .arg("-o")
                .args([&stripped, &path])
                .status()
                .unwrap()
                .success()
        );
        let program = Running::start(&mut Command::new(&stripped));
        let target = Target::of_pid(program.pid()).unwrap();
        assert_eq!(
            (target.allocator.kind, target.libc),
            (AllocatorKind::GlibcStatic, None),
            "{:?}",
            target.allocator
        );
        program.end();
    }
}

#[test]
fn musl_is_told() {
    let folder = Folder::new();
    for options in [&[][..], &["-static"]] {
        match folder.compile_with("musl-gcc", "musl", ALLOCATES, options) {
            Ok(path) => {
                let program = Running::start(&mut Command::new(path));
                let target = Target::of_pid(program.pid()).unwrap();
                assert_eq!(
                    (target.allocator.kind, target.libc),
                    (AllocatorKind::Musl, None),
                    "{:?}",
                    target.allocator
                );
                program.end();
            }
            Err(problem) => {
                assert!(Command::new("musl-gcc").arg("--version").output().is_err(), "{problem}");
                eprintln!("SKIPPED: no program with musl: {problem} (Debian: apt install musl-tools)");
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
    let folder = Folder::new();
    let program = folder.compile("plain", ALLOCATES, &[]);
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
        let library = folder.compile("front.so", &format!("{ALLOCATOR}{symbol}"), &["-shared", "-fPIC"]);
        let program = Running::start(Command::new(&program).env("LD_PRELOAD", &library));
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
        program.end();
    }
    // A wrapper that nobody knows may hand on to glibc: traced, and said.
    let library = folder.compile("wrapper.so", ALLOCATOR, &["-shared", "-fPIC"]);
    let running = Running::start(Command::new(&program).env("LD_PRELOAD", &library));
    let target = Target::of_pid(running.pid()).unwrap();
    assert_eq!(target.allocator.kind, AllocatorKind::Glibc);
    assert_eq!(target.limits.len(), 1, "{:?}", target.limits);
    assert_traceable(&target);
    running.end();
}

#[test]
fn an_allocator_linked_into_the_program_is_in_front() {
    let folder = Folder::new();
    let source = format!("{ALLOCATOR} int mallctl(void) {{ return 0; }} {ALLOCATES}");
    let program = Running::start(&mut Command::new(folder.compile("own", &source, &["-fno-builtin"])));
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
    program.end();
}

#[test]
fn a_library_opened_later_is_not_in_front() {
    let folder = Folder::new();
    let library = folder.compile("late.so", &format!("{ALLOCATOR} int mallctl;"), &["-shared", "-fPIC"]);
    let source = format!(
        "#include <dlfcn.h>\n__attribute__((constructor)) static void load(void) {{ \
         if (!dlopen(\"{}\", RTLD_NOW | RTLD_LOCAL)) __builtin_trap(); }}\n{ALLOCATES}",
        library.display()
    );
    let program = Running::start(&mut Command::new(folder.compile("opens", &source, &["-ldl"])));
    let target = Target::of_pid(program.pid()).unwrap();
    assert_eq!(target.allocator.kind, AllocatorKind::Glibc, "{:?}", target.allocator);
    assert!(
        target.limits.iter().any(|limit| limit.contains("jemalloc")),
        "{:?}",
        target.limits
    );
    assert_traceable(&target);
    program.end();
}

#[test]
fn jemalloc_of_the_distribution() {
    let triplet = if cfg!(target_arch = "aarch64") {
        "aarch64-linux-gnu"
    } else {
        "x86_64-linux-gnu"
    };
    let library = format!("/usr/lib/{triplet}/libjemalloc.so.2");
    if !std::path::Path::new(&library).exists() {
        eprintln!("SKIPPED: {library} is not installed (Debian: apt install libjemalloc2)");
        return;
    }
    let folder = Folder::new();
    let program = Running::start(Command::new(folder.compile("plain", ALLOCATES, &[])).env("LD_PRELOAD", &library));
    let target = Target::of_pid(program.pid()).unwrap();
    assert_eq!((target.allocator.kind, target.libc), (AllocatorKind::Jemalloc, None));
    program.end();
}

/// A copy of the libc that is replaced, then removed, while a program runs with it.
#[test]
fn a_libc_replaced_on_disk_is_still_reached() {
    let folder = Folder::new();
    let library = folder.path("libc.so.6");
    std::fs::copy(system_libc(), &library).unwrap();
    let program = folder.compile("plain", ALLOCATES, &[]);
    let mut command = Command::new(system_loader());
    command
        .arg("--library-path")
        .arg(library.parent().unwrap())
        .arg(&program);
    let running = Running::start(&mut command);
    let before = Target::of_pid(running.pid()).unwrap();
    assert_eq!(before.allocator.path.as_deref(), library.to_str());
    assert_eq!(
        before.libc.as_ref().unwrap().opened,
        std::path::PathBuf::from(format!("/proc/{}/root{}", running.pid(), library.display()))
    );
    assert_traceable(&before);

    std::fs::remove_file(&library).unwrap();
    assert_only_the_mapping_leads_to_it(&Target::of_pid(running.pid()).unwrap(), &before);
    std::fs::write(&library, "something else").unwrap();
    assert_only_the_mapping_leads_to_it(&Target::of_pid(running.pid()).unwrap(), &before);
    running.end();
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
    if !is_root() {
        eprintln!("SKIPPED: changing the root directory needs root");
        return;
    }
    let folder = Folder::new();
    let root = folder.path("root");
    let program = folder.compile("plain", ALLOCATES, &[]);
    let into = |path: &std::path::Path| {
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
    let running = Running::start(&mut command);
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
    running.end();
}

#[test]
fn two_libcs_are_said() {
    let folder = Folder::new();
    let copy = folder.path("libc.so.6");
    std::fs::copy(system_libc(), &copy).unwrap();
    for (path, expected) in [(copy.to_str().unwrap(), "a second libc"), ("libc.so.6", "2 times")] {
        let source = format!(
            "#define _GNU_SOURCE\n#include <dlfcn.h>\n__attribute__((constructor)) static void load(void) {{ \
             if (!dlmopen(LM_ID_NEWLM, \"{path}\", RTLD_NOW)) __builtin_trap(); }}\n{ALLOCATES}"
        );
        let program = Running::start(&mut Command::new(folder.compile("twice", &source, &["-ldl"])));
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
        program.end();
    }
}

/// Backtraces and debuggers map libraries as data; such a mapping is neither code nor a second copy.
#[test]
fn a_libc_mapped_as_data_changes_nothing() {
    let folder = Folder::new();
    let source = format!(
        "#include <fcntl.h>\n#include <sys/mman.h>\n__attribute__((constructor)) static void map(void) {{ \
         mmap(0, 1 << 20, PROT_READ, MAP_PRIVATE, open(\"{}\", O_RDONLY), 0); }}\n{ALLOCATES}",
        system_libc().display()
    );
    let program = Running::start(&mut Command::new(folder.compile("reads", &source, &[])));
    let target = Target::of_pid(program.pid()).unwrap();
    assert_eq!(target.limits, Vec::<String>::new());
    assert_traceable(&target);
    program.end();
}

#[test]
fn what_is_no_process_gets_a_sentence() {
    let message = |pid| Target::of_pid(pid).unwrap_err().to_string();
    assert_eq!(message(0x7fff_fff0), "there is no process 2147483632");
    if let Some(kernel) = (1..1_000)
        .find(|pid| std::fs::read(format!("/proc/{pid}/stat")).is_ok_and(|s| s.ends_with(b"kthreadd")) || *pid == 2)
    {
        match Target::of_pid(kernel) {
            Err(TargetError::KernelThread { .. }) => {}
            Err(TargetError::NoSuchProcess { .. }) => eprintln!("SKIPPED: no kernel threads in this PID namespace"),
            other => panic!("{other:?}"),
        }
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
    let folder = Folder::new();
    // No 32-bit libc is needed: the program only waits.
    let source = "void _start(void) { for (;;) __asm__ volatile (\"int $0x80\" :: \"a\"(29)); }";
    let options = ["-m32", "-nostdlib", "-static", "-fno-pie", "-no-pie"];
    match folder.compile_with("cc", "narrow", source, &options) {
        Ok(path) => {
            let mut child = match Command::new(path).spawn() {
                Ok(child) => child,
                Err(error) => return eprintln!("SKIPPED: this kernel runs no 32-bit programs: {error}"),
            };
            let error = Target::of_pid(child.id());
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(matches!(error, Err(TargetError::ThirtyTwoBit { .. })), "{error:?}");
        }
        Err(problem) => eprintln!("SKIPPED: no 32-bit program: {problem}"),
    }
}

#[test]
fn another_users_process_is_refused_without_root() {
    if !is_root() {
        eprintln!("SKIPPED: becoming someone else needs root");
        return;
    }
    let folder = Folder::new();
    let program = Running::start(&mut Command::new(folder.compile("plain", ALLOCATES, &[])));
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
    program.end();
}

#[test]
fn processes_are_found_by_name_and_by_control_group() {
    let folder = Folder::new();
    let program = Running::start(&mut Command::new(folder.compile("quite-a-long-name", ALLOCATES, &[])));
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
    program.end();
}

#[test]
fn names_are_shown_without_what_a_terminal_would_obey() {
    let folder = Folder::new();
    let path = folder.compile("odd\x1b[31m\nname", ALLOCATES, &[]);
    let program = Running::start(&mut Command::new(path));
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
    program.end();
}
