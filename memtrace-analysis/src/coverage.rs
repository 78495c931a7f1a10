//! How much of the truth a trace has seen, and what it has not.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::event::{Capabilities, Depth, Start, Totals, Watching};
use crate::report::{Coverage, DepthTimes};
use crate::story::Story;
use crate::threshold::grouped;

pub fn report(story: &Story, late_events: u64) -> Coverage {
    let totals = story.ledger.totals();
    let begin_ns = story.begin_ns.unwrap_or(0);
    let closed = story.watch.at(story.end_ns, story.ledger.latest());
    let watched = story.start.as_ref().is_some_and(Start::watches_calls);
    let untold = if watched { Depth::Calls } else { Depth::Syscalls };
    let length = story.end_ns.saturating_sub(begin_ns);
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
        depth: story.watch.now().map_or(untold, |now| now.depth),
        depth_automatic: story.watch.now().is_some_and(|now| now.automatic),
        depths: match (story.watch.now(), untold) {
            (Some(_), _) => closed.times,
            (None, Depth::Calls) => DepthTimes {
                calls_ns: length,
                ..DepthTimes::default()
            },
            (None, _) => DepthTimes {
                syscalls_ns: length,
                ..DepthTimes::default()
            },
        },
        calls_fraction: match (story.watch.now(), untold) {
            (None, Depth::Syscalls) => 0.0,
            _ => story.watch.calls_fraction(begin_ns, story.end_ns),
        },
        syscalls_fraction: story.watch.syscalls_fraction(begin_ns, story.end_ns),
        windows: match (story.watch.now(), untold) {
            (None, Depth::Calls) => 1,
            _ => closed.windows,
        },
        estimates: closed.estimates,
        owners_told: story.tells_owners(),
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
    let begin_ns = story.begin_ns.unwrap_or(0);
    let mut sentences = Vec::new();
    let mut say = |count: u64, one: &str, several: &str| match count {
        0 => {}
        1 => sentences.push(format!("1 {one}")),
        _ => sentences.push(format!("{} {several}", grouped(count))),
    };
    let totals = story.ledger.totals();
    say(
        figure(totals, |totals| totals.lost_records),
        "record was lost, since the ring buffer was full or the kernel skipped one side of a system call: counts are exact, a growth or a return may be missing",
        "records were lost, since the ring buffer was full or the kernel skipped one side of a system call: counts are exact, growths and returns may be missing",
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
    let fraction = story.watch.calls_fraction(begin_ns, story.end_ns);
    // Between windows blocks are made and freed unseen.
    let whole = fraction >= 1.0;
    say(
        if whole { story.ledger.blocks_from_before() } else { 0 },
        "block or more was freed that had been allocated before the trace began",
        "blocks or more were freed that had been allocated before the trace began",
    );
    let Some(start) = &story.start else {
        sentences.push("the begin of the trace: what the process is was not recorded".to_string());
        return sentences;
    };
    sentences.extend(pauses(story));
    sentences.extend(depths(story));
    sentences.extend(missing(&start.capabilities, story.watch.now()));
    sentences
}

/// Where children are followed, all of them are, as long as there is room.
fn untraced_children(story: &Story) -> u64 {
    match story.life.forks_followed {
        0 => 0,
        followed => story.life.forks.saturating_sub(followed),
    }
}

/// Where even watching system calls was too dear.
fn pauses(story: &Story) -> Option<String> {
    let watched = story.watch.syscalls_fraction(story.begin_ns.unwrap_or(0), story.end_ns);
    // In tenths of a percent, never more than it was.
    let permille = (watched * 1000.0) as u64;
    (watched < 1.0).then(|| {
        format!(
            "memory system calls were watched in {}.{} % of the time only, since watching them makes every system call longer \
             and the process makes so many: counts, growths and returns are \
             those of that time",
            permille / 10,
            permille % 10
        )
    })
}

/// What the depth of the trace leaves out.
fn depths(story: &Story) -> Option<String> {
    let now = story.watch.now()?;
    let fraction = story.watch.calls_fraction(story.begin_ns.unwrap_or(0), story.end_ns);
    if story.watch.at(story.end_ns, story.ledger.latest()).windows > 0 {
        return (fraction < 1.0).then(|| {
            "calls outside the windows in which they were counted: totals are estimates, and which blocks are live is \
             not known"
                .to_string()
        });
    }
    let what = match now.depth {
        Depth::Calls => return None,
        // That no entry point is watched is said apart.
        _ if !now.followed => return None,
        Depth::SlowPath => {
            "calls are not counted at this depth (slow path): no counts of blocks, no batches; of a free that gave memory \
             back, its pointer is not known"
        }
        Depth::Syscalls | Depth::Nothing => {
            "calls are not counted at this depth (system calls): no counts of blocks, no batches, and of a growth only \
             the function that was called is known, not what it was asked for (functions that jump to the same code \
             bear one name: the aligned ones, realloc of nothing and malloc)"
        }
    };
    Some(what.to_string())
}

/// What the trace's means cannot show.
fn missing(capabilities: &Capabilities, now: Option<&Watching>) -> Vec<String> {
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
    let followed = now.is_some_and(|now| now.followed);
    let calls = now.is_none_or(|now| now.depth == Depth::Calls);
    if probed.is_empty() && followed {
        // The depth's own sentence says what is not seen.
    } else if probed.is_empty() {
        sentences.push("allocator calls: no entry point is watched".to_string());
    } else {
        if !frame_check {
            sentences.push("proof that a system call belongs to an allocator call: likely, not proven".to_string());
        }
        if !realloc_returns && calls {
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
