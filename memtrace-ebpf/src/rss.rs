//! Resident pages of the current process.
//!
//! The kernel counts file, anonymous and shared pages in mm_struct.rss_stat (indices 0, 1 and 3; 2 is swap). Up to 6.1
//! each is one word, to which a thread adds what it keeps of its own after 64 page faults; from 6.2 each is a
//! percpu_counter: a word plus what every CPU has not yet added to it, up to 32 pages or twice the CPUs.

use aya_ebpf::helpers::bpf_probe_read_kernel;
use aya_ebpf::helpers::generated::{bpf_get_current_task, bpf_map_lookup_percpu_elem};
use memtrace_common::UNKNOWN_OFFSET;

use crate::arch;
use crate::maps::{MEASURE, kernel};

const FILE: usize = 0;
const ANONYMOUS: usize = 1;
const SHARED: usize = 3;

/// CPUs whose parts are added up; beyond that the sum is left out.
const CPUS: u32 = 128;

// 0 stands for "not known" here: of an Option the compiler copies the value before it looks whether there is one, and
// the verifier refuses to copy what was never written.

#[inline(always)]
fn read_word(address: u64) -> Option<u64> {
    // SAFETY: the helper refuses addresses that cannot be read.
    unsafe { bpf_probe_read_kernel(address as *const u64) }.ok()
}

/// Address of the first counter, 0 when not known.
#[inline(always)]
fn counters() -> u64 {
    if kernel!(task_mm) == UNKNOWN_OFFSET || kernel!(mm_rss) == UNKNOWN_OFFSET {
        return 0;
    }
    // SAFETY: takes nothing and always answers.
    let task = unsafe { bpf_get_current_task() };
    let mm = arch::kernel_word(task.wrapping_add(u64::from(kernel!(task_mm))));
    if mm == 0 {
        return 0;
    }
    mm.wrapping_add(u64::from(kernel!(mm_rss)))
}

/// Without the CPUs' parts; u64::MAX when not known.
#[inline(always)]
pub fn pages() -> u64 {
    rough_pages(counters())
}

#[inline(always)]
fn rough_pages(first: u64) -> u64 {
    if first == 0 {
        return u64::MAX;
    }
    let mut sum = 0i64;
    for index in [FILE, ANONYMOUS, SHARED] {
        let counter = first.wrapping_add(index as u64 * u64::from(kernel!(rss_stride)));
        let Some(value) = read_word(counter.wrapping_add(u64::from(kernel!(rss_count)))) else {
            return u64::MAX;
        };
        sum = sum.wrapping_add(value as i64);
        sum = sum.wrapping_add(own_part(index));
    }
    if sum < 0 { 0 } else { sum as u64 }
}

/// What the current thread has not yet added to a counter, where threads have parts; the other threads' are not known.
#[inline(always)]
fn own_part(index: usize) -> i64 {
    if kernel!(task_rss) == UNKNOWN_OFFSET {
        return 0;
    }
    // SAFETY: takes nothing and always answers.
    let task = unsafe { bpf_get_current_task() };
    let part = task.wrapping_add(u64::from(kernel!(task_rss)) + index as u64 * 4);
    // SAFETY: the helper refuses addresses that cannot be read.
    unsafe { bpf_probe_read_kernel(part as *const i32) }.map_or(0, i64::from)
}

/// With the CPUs' parts where they can be read: for the two sides of a trim, which may differ by a few pages only.
#[inline(always)]
pub fn exact_pages() -> u64 {
    let first = counters();
    let rough = rough_pages(first);
    let cpus = kernel!(cpus);
    if rough == u64::MAX || cpus == 0 || cpus > CPUS || kernel!(rss_per_cpu) == UNKNOWN_OFFSET {
        return rough;
    }
    let base = per_cpu_base();
    if base == 0 {
        return rough;
    }
    let mut parts = [0u64; 3];
    for (part, index) in parts.iter_mut().zip([FILE, ANONYMOUS, SHARED]) {
        let counter = first.wrapping_add(index as u64 * u64::from(kernel!(rss_stride)));
        let Some(found) = read_word(counter.wrapping_add(u64::from(kernel!(rss_per_cpu)))) else {
            return rough;
        };
        *part = found;
    }
    let mut sum = rough as i64;
    for cpu in 0..CPUS {
        if cpu >= cpus {
            break;
        }
        let here = address_on(cpu);
        if here == 0 {
            return rough;
        }
        let offset = here.wrapping_sub(base);
        for part in parts {
            // SAFETY: the helper refuses addresses that cannot be read.
            if let Ok(value) = unsafe { bpf_probe_read_kernel(part.wrapping_add(offset) as *const i32) } {
                sum = sum.wrapping_add(i64::from(value));
            }
        }
    }
    if sum < 0 { 0 } else { sum as u64 }
}

/// The per-CPU address of [`MEASURE`]'s element: what is added to a CPU's offset to find that CPU's copy.
#[inline(always)]
fn per_cpu_base() -> u64 {
    if kernel!(array_per_cpu) == UNKNOWN_OFFSET {
        return 0;
    }
    let map = number((&raw const MEASURE).cast());
    arch::kernel_word(map.wrapping_add(u64::from(kernel!(array_per_cpu))))
}

/// A pointer as a number to calculate with, which the verifier does not allow for the pointer itself: so it is read
/// from the stack as foreign memory.
#[inline(always)]
fn number(pointer: *const u8) -> u64 {
    let mut kept = pointer;
    let place = &raw mut kept;
    // SAFETY: a local variable; the helper checks what it reads.
    unsafe {
        place.write_volatile(pointer);
        bpf_probe_read_kernel(place as *const u64)
    }
    .unwrap_or(0)
}

/// Where a CPU's copy of [`MEASURE`]'s element lies. The helper is of 5.19, the counters with parts are of 6.2.
#[inline(always)]
fn address_on(cpu: u32) -> u64 {
    let key = 0u32;
    // SAFETY: a map and a key of its type.
    let found =
        unsafe { bpf_map_lookup_percpu_elem((&raw const MEASURE).cast_mut().cast(), (&raw const key).cast(), cpu) };
    if found.is_null() {
        return 0;
    }
    number(found as *const u8)
}
