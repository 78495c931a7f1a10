//! How much of the truth a trace has seen, and what it has not.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::event::{Capabilities, Totals};
use crate::report::Coverage;
use crate::story::Story;
use crate::threshold::grouped;

pub fn report(story: &Story, late_events: u64) -> Coverage {
    let totals = story.ledger.totals();
    let begin_ns = story.begin_ns.unwrap_or(0);
    let mut oddities = story.oddities.clone();
    if late_events > 0 {
        oddities.insert("events that came too late to be put in order".to_string(), late_events);
    }
    Coverage {
        begin_ns,
        end_ns: story.end_ns,
        duration_ns: story.end_ns.saturating_sub(begin_ns),
        ended: story.ended,
        lost_events: figure(totals, |totals| totals.lost_records),
        lost_threads: figure(totals, |totals| totals.lost_threads),
        unreadable: figure(totals, |totals| totals.free_unreadable),
        oddities,
        second_hits: figure(totals, |totals| {
            totals.second_hits.saturating_add(totals.second_hits_memalign)
        }),
        spurious_frees_thread_exit: figure(totals, |totals| totals.spurious_thread_exit),
        spurious_frees_first_free: figure(totals, |totals| totals.spurious_first_free),
        capabilities: story
            .start
            .as_ref()
            .map(|start| start.capabilities.clone())
            .unwrap_or_default(),
        not_seen: not_seen(story),
    }
}

fn figure(totals: Option<&Totals>, of: fn(&Totals) -> u64) -> u64 {
    totals.map_or(0, of)
}

/// What is not known, a sentence each.
fn not_seen(story: &Story) -> Vec<String> {
    let mut sentences = Vec::new();
    let mut say = |count: u64, one: &str, several: &str| match count {
        0 => {}
        1 => sentences.push(format!("1 {one}")),
        _ => sentences.push(format!("{} {several}", grouped(count))),
    };
    let totals = story.ledger.totals();
    say(
        figure(totals, |totals| totals.lost_records),
        "record was lost since the ring buffer was full: counts are exact, a growth or a return may be missing",
        "records were lost since the ring buffer was full: counts are exact, growths and returns may be missing",
    );
    say(
        figure(totals, |totals| totals.lost_threads),
        "call came from a thread without a slot: counted, but its system calls could not be attributed",
        "calls came from threads without a slot: counted, but their system calls could not be attributed",
    );
    say(
        figure(totals, |totals| totals.free_unreadable),
        "freed block whose size could not be read",
        "freed blocks whose size could not be read",
    );
    say(
        story.regions.forgotten(),
        "mapping was more than are remembered",
        "mappings were more than are remembered",
    );
    say(
        story.threads.not_followed(),
        "system call of a thread beyond those followed",
        "system calls of threads beyond those followed",
    );
    say(
        untraced_children(story),
        "child process was not traced, although others were: there was no room for it",
        "child processes were not traced, although others were: there was no room for them",
    );
    say(
        story.growth.omitted(),
        "growth is counted but not listed",
        "growths are counted but not listed",
    );
    say(
        story.ledger.blocks_from_before(),
        "block or more was freed that had been allocated before the trace began",
        "blocks or more were freed that had been allocated before the trace began",
    );
    let Some(start) = &story.start else {
        sentences.push("the begin of the trace: what the process is was not recorded".to_string());
        return sentences;
    };
    sentences.extend(missing(&start.capabilities));
    sentences
}

/// Where children are followed, all of them are, as long as there is room.
fn untraced_children(story: &Story) -> u64 {
    match story.life.forks_followed {
        0 => 0,
        followed => story.life.forks.saturating_sub(followed),
    }
}

/// What the trace's means cannot show.
fn missing(capabilities: &Capabilities) -> Vec<String> {
    let Capabilities {
        probed,
        frame_check,
        realloc_returns,
        trim_returns: _,
        heap_state,
        resident,
        limits,
    } = capabilities;
    let mut sentences = Vec::new();
    if probed.is_empty() {
        sentences.push("allocator calls: no entry point is watched".to_string());
    } else {
        if !frame_check {
            sentences.push("proof that a system call belongs to an allocator call: likely, not proven".to_string());
        }
        if !realloc_returns {
            sentences.push("what realloc returned: in place, moved or failed is not told".to_string());
        }
    }
    if !heap_state {
        sentences.push("glibc's books at each system call: steps cannot be predicted".to_string());
    }
    if !resident {
        sentences.push("resident bytes at each system call".to_string());
    }
    sentences.extend(limits.iter().cloned());
    sentences
}
