//! What the kernel side has to know of the running kernel; each piece may be missing, which lowers what is seen.

use std::fs;
use std::os::linux::fs::MetadataExt;

use aya::programs::ProgramType;
use aya::sys::{BpfHelper, is_helper_supported};
use memtrace_common::{KernelFacts, MAX_SHARDS, UNKNOWN_OFFSET};

use super::btf::Btf;

/// The inode of the initial PID namespace, the same on every kernel (PROC_PID_INIT_INO).
const INITIAL_PID_NAMESPACE: u64 = 0xefff_fffc;

/// The facts, and in words what could not be found.
pub struct Found {
    pub kernel: KernelFacts,
    pub limits: Vec<String>,
}

impl Found {
    pub fn resident(&self) -> bool {
        self.kernel.task_mm != UNKNOWN_OFFSET && self.kernel.mm_rss != UNKNOWN_OFFSET
    }
}

/// As aya wants it.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct RawKernelFacts(pub KernelFacts);

// SAFETY: integers only, without padding (its size is asserted where it is declared).
unsafe impl aya::Pod for RawKernelFacts {}

pub fn find() -> Found {
    let mut kernel = KernelFacts::UNKNOWN;
    let mut limits = Vec::new();
    namespace(&mut kernel);
    kernel.shards = shards();

    let supported = |helper| is_helper_supported(ProgramType::TracePoint, helper).unwrap_or(false);
    if supported(BpfHelper::BPF_FUNC_task_pt_regs) && supported(BpfHelper::BPF_FUNC_get_current_task_btf) {
        kernel.frame_check = 1;
    } else {
        limits.push(String::from(
            "this kernel does not show a task's registers at a system call (before 5.15): which allocator call made it is likely, not proven, and not known while no probe sees those calls",
        ));
    }

    match fs::read("/sys/kernel/btf/vmlinux") {
        Ok(bytes) => match Btf::parse(&bytes) {
            Some(btf) => offsets(&btf, &mut kernel),
            None => limits.push(String::from("the kernel's type information is in an unknown form")),
        },
        Err(error) => limits.push(format!("the kernel's type information cannot be read: {error}")),
    }
    if kernel.task_mm == UNKNOWN_OFFSET || kernel.mm_rss == UNKNOWN_OFFSET {
        limits.push(String::from(
            "resident memory at each system call is unknown, since where the kernel counts it is",
        ));
    }
    if kernel.task_tgid == UNKNOWN_OFFSET {
        limits.push(String::from(
            "births of threads and children are not seen, since the layout of the kernel's tasks is unknown",
        ));
    }
    Found { kernel, limits }
}

/// Ids mean something only inside a PID namespace: memtrace's own, where it is not the initial one.
fn namespace(kernel: &mut KernelFacts) {
    if let Ok(namespace) = fs::metadata("/proc/self/ns/pid")
        && namespace.st_ino() != INITIAL_PID_NAMESPACE
    {
        kernel.namespace_device = namespace.st_dev();
        kernel.namespace_inode = namespace.st_ino();
    }
}

fn offsets(btf: &Btf<'_>, kernel: &mut KernelFacts) {
    let find = |structure: &str, path: &[&str]| {
        btf.structure(structure)
            .and_then(|id| btf.field(id, path))
            .map_or(UNKNOWN_OFFSET, |field| field.offset)
    };
    kernel.task_pid = find("task_struct", &["pid"]);
    kernel.task_tgid = find("task_struct", &["tgid"]);
    kernel.task_mm = find("task_struct", &["mm"]);
    kernel.task_signal = find("task_struct", &["signal"]);
    kernel.task_thread_pid = find("task_struct", &["thread_pid"]);
    kernel.task_exit_code = find("task_struct", &["exit_code"]);
    kernel.task_signal_stack = find("task_struct", &["sas_ss_sp"]);
    kernel.task_signal_stack_size = find("task_struct", &["sas_ss_size"]);
    kernel.signal_live = find("signal_struct", &["live"]);
    kernel.pid_level = find("pid", &["level"]);
    kernel.pid_numbers = find("pid", &["numbers"]);
    kernel.upid_nr = find("upid", &["nr"]);
    kernel.upid_ns = find("upid", &["ns"]);
    kernel.upid_size = btf.structure("upid").and_then(|id| btf.size(id)).unwrap_or(0);
    kernel.namespace_inum = find("pid_namespace", &["ns", "inum"]);
    kernel.array_per_cpu = find("bpf_array", &["pptrs"]);
    resident(btf, kernel);
    kernel.cpus = possible_cpus();
}

/// mm_struct.rss_stat: an array of percpu_counter from 6.2 on, before that a structure with an array of words.
fn resident(btf: &Btf<'_>, kernel: &mut KernelFacts) {
    let Some(mm) = btf.structure("mm_struct") else { return };
    let Some(statistics) = btf.field(mm, &["rss_stat"]) else {
        return;
    };
    if let Some(counter) = btf.element(statistics.id) {
        let (Some(size), Some(count)) = (btf.size(counter), btf.field(counter, &["count"])) else {
            return;
        };
        kernel.mm_rss = statistics.offset;
        kernel.rss_stride = size;
        kernel.rss_count = count.offset;
        if let Some(parts) = btf.field(counter, &["counters"]) {
            kernel.rss_per_cpu = parts.offset;
        }
    } else if let Some(words) = btf.field(mm, &["rss_stat", "count"]) {
        kernel.mm_rss = words.offset;
        kernel.rss_stride = 8;
        kernel.rss_count = 0;
        let parts = btf
            .structure("task_struct")
            .and_then(|task| btf.field(task, &["rss_stat", "count"]));
        kernel.task_rss = parts.map_or(UNKNOWN_OFFSET, |field| field.offset);
    }
}

/// So many shards have the counters.
pub fn shards() -> u32 {
    possible_cpus().next_power_of_two().clamp(1, MAX_SHARDS)
}

/// The highest number in "0-3" or "0,2-5", plus one.
fn possible_cpus() -> u32 {
    fs::read_to_string("/sys/devices/system/cpu/possible")
        .ok()
        .and_then(|text| text.trim().rsplit([',', '-']).next()?.parse::<u32>().ok())
        .map_or(0, |last| last + 1)
}
