//! Time, for the programs that measure what a call costs.

/// CLOCK_MONOTONIC, nanoseconds.
pub fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the structure it is given; this clock is always there.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// What one of `count` calls of `act` takes, in nanoseconds.
pub fn each_ns(count: u64, mut act: impl FnMut()) -> f64 {
    let began = now_ns();
    for _ in 0..count {
        act();
    }
    (now_ns() - began) as f64 / count.max(1) as f64
}

/// Calls of something that take about as long as wished for, after a short try of it.
pub fn calls_for(wished_ns: u64, most: u64, mut act: impl FnMut()) -> u64 {
    let tried = each_ns(16, &mut act).max(1.0);
    ((wished_ns as f64 / tried) as u64).clamp(16, most)
}

/// Lets time pass in programs whose subject is what happens meanwhile.
pub fn idle_ms(milliseconds: u64) {
    let wish = libc::timespec {
        tv_sec: (milliseconds / 1000) as libc::time_t,
        tv_nsec: (milliseconds % 1000 * 1_000_000) as libc::c_long,
    };
    // SAFETY: reads the structure; a signal only makes it shorter.
    unsafe { libc::nanosleep(&raw const wish, std::ptr::null_mut()) };
}

/// Sleeps until CLOCK_MONOTONIC shows this time.
pub fn idle_until(ns: u64) {
    loop {
        let now = now_ns();
        if now >= ns {
            return;
        }
        let wish = libc::timespec {
            tv_sec: ((ns - now) / 1_000_000_000) as libc::time_t,
            tv_nsec: ((ns - now) % 1_000_000_000) as libc::c_long,
        };
        // SAFETY: reads the structure; a signal only makes it shorter.
        unsafe { libc::nanosleep(&raw const wish, std::ptr::null_mut()) };
    }
}
