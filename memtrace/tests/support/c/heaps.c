/*
 * Heaps in states that people misread, with the truth about each.
 *
 *   heaps KIND [NUMBER...]
 *
 * A kind fills the heap ("full"), frees ("freed") and calls malloc_trim(0) ("trimmed"). At each of these points a line
 * of facts is printed, and the program waits for a line. Nothing here uses stdio, which would allocate:
 *
 *   freed anonymous=BYTES blocks=N usable=BYTES pin=ADDRESS arena=... uordblks=... fordblks=... hblks=... hblkhd=...
 *
 * blocks and usable (malloc_usable_size) are what the program itself holds; pin is the block that matters, where there
 * is one; the rest is glibc's own word, mallinfo2 or, before 2.33, mallinfo.
 *
 * Runs under glibc 2.31 and later.
 */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

struct numbers { size_t arena, ordblks, smblks, hblks, hblkhd, usmblks, fsmblks, uordblks, fordblks, keepcost; };
extern struct numbers new_mallinfo(void) __asm__("mallinfo2") __attribute__((weak));

#define MOST 2000000
static void **kept;                    /* a mapping of its own: not malloc's */
static atomic_ulong blocks, usable;
static void *pin;

static void die(const char *why) {
    if (write(2, why, strlen(why)) < 0) _exit(98);
    _exit(99);
}

static void *hold(void *block, size_t bytes) {
    if (!block) die("out of memory\n");
    memset(block, 1, bytes);
    blocks++;
    usable += malloc_usable_size(block);
    return block;
}

static void *take(size_t bytes) { return hold(malloc(bytes), bytes); }

static void give(void *block) {
    if (!block) return;
    blocks--;
    usable -= malloc_usable_size(block);
    free(block);
}

static size_t anonymous(void) {
    /* Pages of files come by themselves, 16 at a fault. Before Linux 6.2 statm lags behind by up to 64 pages for each
       thread and kind. */
    char text[4096], *figure;
    int fd = open("/proc/self/smaps_rollup", O_RDONLY);
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    if (length <= 0) die("smaps_rollup cannot be read\n");
    text[length] = 0;
    figure = strstr(text, "\nAnonymous:");
    if (!figure) die("smaps_rollup has no Anonymous\n");
    return strtoul(figure + 11, NULL, 10) << 10;
}

static struct numbers books(void) {
    if (new_mallinfo) return new_mallinfo();
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    struct mallinfo old = mallinfo();
#pragma GCC diagnostic pop
    return (struct numbers){(unsigned)old.arena, 0, 0, (unsigned)old.hblks, (unsigned)old.hblkhd, 0, 0,
                            (unsigned)old.uordblks, (unsigned)old.fordblks, 0};
}

static void point(const char *name) {
    char line[512], answer[16];
    struct numbers n = books();
    int length = snprintf(line, sizeof line,
        "%s anonymous=%zu blocks=%lu usable=%lu pin=%lu arena=%zu uordblks=%zu fordblks=%zu hblks=%zu hblkhd=%zu\n", name,
        anonymous(), blocks, usable, (unsigned long)(uintptr_t)pin, n.arena, n.uordblks, n.fordblks, n.hblks, n.hblkhd);
    if (write(1, line, length) != length) _exit(3);
    if (read(0, answer, sizeof answer) < 1) _exit(0);
}

/* Blocks of a fastbin's size, all of them freed in the order they came. */
static void crumbs(void) {
    for (int i = 0; i < 400000; i++) kept[i] = take(40);
    point("full");
    for (int i = 0; i < 400000; i++) give(kept[i]);
}

/* A session object made last outlives the work below it. */
static void late_survivor(void) {
    for (int i = 0; i < 60000; i++) kept[i] = take(700 + i % 100);
    pin = take(300);
    point("full");
    for (int i = 0; i < 60000; i++) give(kept[i]);
}

/* Freed from the top downwards: the first ones rest in the thread cache, at the very top. */
static void cached_lid(void) {
    for (int i = 0; i < 50000; i++) kept[i] = take(900);
    pin = kept[49999];
    point("full");
    for (int i = 49999; i >= 0; i--) give(kept[i]);
}

/* Every other block stays. */
static void sieve(void) {
    for (int i = 0; i < 80000; i++) kept[i] = take(600);
    point("full");
    for (int i = 0; i < 80000; i += 2) give(kept[i]);
}

/* A large block came and went, and raised the threshold; the tiles after it live in the heap, below a label. */
static void tiles(void) {
    give(take(6 << 20));
    for (int i = 0; i < 10; i++) kept[i] = take((5 << 20) - i * 8192);
    pin = take(200);
    point("full");
    for (int i = 0; i < 10; i++) give(kept[i]);
}

/* The threshold rose, but small blocks make up the peak: freed upwards, downwards or in no order, below a late one. */
static void small_after_rise(int count, char **number) {
    int order = count > 0 ? atoi(number[0]) : 0;
    give(take(6 << 20));
    for (int i = 0; i < 50000; i++) kept[i] = take(900);
    pin = take(200);
    point("full");
    for (int i = 0; i < 50000; i++) give(kept[order == 0 ? i : order == 1 ? 49999 - i : (int)(i * 7919l % 50000)]);
}

/* The same with nothing above: the top is free, but below the raised trim threshold. */
static void free_top(void) {
    give(take(24 << 20));
    for (int i = 0; i < 40; i++) kept[i] = take(900 << 10);
    point("full");
    for (int i = 0; i < 40; i++) give(kept[i]);
}

static pthread_barrier_t step;

static void *worker(void *last) {
    void **own = take(3000 * sizeof *own);
    for (int i = 0; i < 3000; i++) own[i] = take(8000);
    take(120);
    pthread_barrier_wait(&step);
    pthread_barrier_wait(&step);
    for (int i = 0; i < 3000; i++) give(own[i]);
    if (last) return 0;
    pthread_barrier_wait(&step);
    pause();
    return 0;
}

/* Six threads, an arena and a survivor each. */
static void workers(void) {
    pthread_t thread;
    pthread_barrier_init(&step, 0, 7);
    for (int i = 0; i < 6; i++) if (pthread_create(&thread, 0, worker, 0)) die("no thread\n");
    pthread_barrier_wait(&step);
    point("full");
    pthread_barrier_wait(&step);
    pthread_barrier_wait(&step);
}

/* The same, but the threads end. */
static void leavers(void) {
    pthread_t thread[6];
    pthread_barrier_init(&step, 0, 7);
    for (int i = 0; i < 6; i++) if (pthread_create(&thread[i], 0, worker, (void *)1)) die("no thread\n");
    pthread_barrier_wait(&step);
    point("full");
    pthread_barrier_wait(&step);
    for (int i = 0; i < 6; i++) pthread_join(thread[i], 0);
}

/* Large blocks with mappings of their own, freed. */
static void mapped(void) {
    for (int i = 0; i < 400; i++) kept[i] = take(300000);
    point("full");
    for (int i = 0; i < 400; i++) give(kept[i]);
}

/* The same, kept; some of them aligned. */
static void mapped_held(void) {
    for (int i = 0; i < 60; i++) {
        void *block = 0;
        if (i % 3) kept[i] = take(300000 + i * 4096);
        else if (posix_memalign(&block, 64u << (i % 9), 400000)) die("out of memory\n");
        else kept[i] = hold(block, 400000);
    }
    point("full");
}

/* A list that only grows. */
static void hoard(void) {
    for (int round = 0; round < 60; round++) {
        if (round == 30) point("full");
        for (int i = 0; i < 500; i++) kept[i] = take(32 + i);
        for (int i = 0; i < 500; i++) take(1500);
        for (int i = 0; i < 500; i++) give(kept[i]);
    }
}

/* Memory that malloc never sees. */
static void own_mapping(void) {
    size_t length = 90 << 20;
    char *map = mmap(0, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) die("no mapping\n");
    memset(map, 1, length);
    point("full");
}

/* Somebody else moves the break between malloc's own moves. */
static void foreign_break(void) {
    for (int i = 0; i < 6; i++) {
        for (int j = 0; j < 2000; j++) kept[i * 2000 + j] = take(200);
        char *mine = sbrk(5000 + i * 16);
        if (mine == (void *)-1) die("no break\n");
        memset(mine, 0x5a, 5000);
    }
    take(100);
    point("full");
    for (int i = 0; i < 12000; i++) if (i % 5) give(kept[i]);
}

/* Something is mapped right above the heap: the arena goes on in pieces elsewhere. */
static void blocked_break(void) {
    give(take(100));
    char *end = (char *)(((uintptr_t)sbrk(0) + 4095) & ~(uintptr_t)4095);
    if (mmap(end + (64 << 10), 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED)
        die("no mapping above the heap\n");
    for (int i = 0; i < 30000; i++) kept[i] = take(500);
    /* More than a thread cache holds: the rest goes to a fastbin, whose links lead through the pieces. */
    for (int i = 30000; i < 30100; i++) kept[i] = take(40);
    point("full");
    for (int i = 0; i < 30000; i++) if (i % 4) give(kept[i]);
    for (int i = 30000; i < 30100; i += 2) give(kept[i]);
}

/* Every block a mapping of its own, also glibc's. */
static void all_mapped(void) {
    mallopt(M_MMAP_THRESHOLD, 0);
    for (int i = 0; i < 300; i++) kept[i] = take(100 + i * 40);
    point("full");
    for (int i = 0; i < 300; i += 2) give(kept[i]);
}

/* M_MMAP_MAX with a size in it, and the dynamic rule frozen by M_TRIM_THRESHOLD. */
static void wrong_knobs(void) {
    mallopt(M_MMAP_MAX, 131072 * 4);
    mallopt(M_TRIM_THRESHOLD, 300 << 20);
    for (int i = 0; i < 60000; i++) kept[i] = take(1000);
    point("full");
    for (int i = 0; i < 60000; i++) give(kept[i]);
}

/* N chunks of about 1 KiB, three of four live. */
static void many(int count, char **number) {
    int n = count > 0 ? atoi(number[0]) : 1000000;
    if (n > MOST) die("too many\n");
    for (int i = 0; i < n; i++) kept[i] = take(1000);
    point("full");
    for (int i = 0; i < n; i += 4) give(kept[i]);
}

static unsigned long draw(unsigned long *state, unsigned long bound) {
    *state ^= *state << 13; *state ^= *state >> 7; *state ^= *state << 17;
    return (*state >> 20) % bound;
}

static size_t any_size(unsigned long *r) {
    switch (draw(r, 12)) {
    case 0: return draw(r, 200 << 10);
    case 1: return draw(r, 30 << 10);
    case 2: return draw(r, 40) ? draw(r, 3000) : draw(r, 4 << 20);
    default: return draw(r, 1400);
    }
}

static void random_step(unsigned long *r, void **own, int slots) {
    void **slot = &own[draw(r, slots)];
    size_t n = any_size(r);
    if (*slot && draw(r, 6) == 0) {
        blocks--; usable -= malloc_usable_size(*slot);
        *slot = hold(realloc(*slot, n + 1), n + 1);
        return;
    }
    give(*slot);
    *slot = 0;
    switch (draw(r, 8)) {
    case 0: *slot = hold(calloc(n / 8 + 1, 8), n); break;
    case 1: *slot = hold(memalign((size_t)8 << draw(r, 9), n), n); break;
    case 2: case 3: break;
    default: *slot = take(n); break;
    }
}

static unsigned long seed, rounds;

static void *random_worker(void *number) {
    unsigned long r = (seed * 7919 + (uintptr_t)number) * 0x9e3779b97f4a7c15ul | 1;
    void **own = kept + 4000 * ((uintptr_t)number + 1);
    for (unsigned long i = 0; i < rounds; i++) random_step(&r, own, 4000);
    pthread_barrier_wait(&step);
    if ((uintptr_t)number % 3 == 2) return 0;
    pause();
    return 0;
}

/* SEED ROUNDS THREADS: whatever comes. Some of the threads end. */
static void at_random(int count, char **number) {
    if (count < 3) die("random wants SEED ROUNDS THREADS\n");
    seed = strtoul(number[0], 0, 10); rounds = strtoul(number[1], 0, 10);
    unsigned long threads = strtoul(number[2], 0, 10), r = (seed * 7919 + 99) * 0x9e3779b97f4a7c15ul | 1;
    pthread_t thread[16];
    if (threads > 16) die("too many threads\n");
    pthread_barrier_init(&step, 0, threads + 1);
    for (unsigned long i = 0; i < threads; i++)
        if (pthread_create(&thread[i], 0, random_worker, (void *)i)) die("no thread\n");
    for (unsigned long i = 0; i < rounds; i++) random_step(&r, kept, 4000);
    pthread_barrier_wait(&step);
    for (unsigned long i = 2; i < threads; i += 3) pthread_join(thread[i], 0);
    point("full");
    for (int i = 0; i < 4000; i += 3) { give(kept[i]); kept[i] = 0; }
}

/* What overruns do: the chunk behind block N of 20000 has VALUE for its size. */
static void smashed(int count, char **number) {
    if (count < 2) die("smashed wants N VALUE\n");
    for (int i = 0; i < 20000; i++) kept[i] = take(300);
    pin = kept[atoi(number[0])];
    *(uint64_t *)((char *)pin + malloc_usable_size(pin)) = strtoull(number[1], 0, 0);
    point("full");
    _exit(0);
}

/* All of a heap's memory overwritten with random words, malloc's data included. */
static void garbage(int count, char **number) {
    unsigned long r = (count > 0 ? strtoul(number[0], 0, 10) : 1) * 0x9e3779b97f4a7c15ul | 1;
    for (int i = 0; i < 20000; i++) kept[i] = take(24 + draw(&r, 400));
    for (int i = 0; i < 20000; i += 3) give(kept[i]);
    point("full");
    uint64_t *from = kept[1], *to = sbrk(0);
    for (uint64_t *word = from; word < to; word++) {
        unsigned long word_bits = draw(&r, 1ul << 40);
        switch (draw(&r, 6)) {
        case 0: *word = word_bits << 7 | word_bits; break;
        case 1: *word = (word_bits % 5000) * 16 | (word_bits & 7); break;
        case 2: *word = (uintptr_t)from + word_bits % ((uintptr_t)to - (uintptr_t)from) / 16 * 16; break;
        case 3: *word = 0; break;
        default: break;
        }
    }
    char done[] = "garbled\n", answer[16];
    if (write(1, done, sizeof done - 1) < 0 || read(0, answer, sizeof answer) < 0) _exit(3);
    _exit(0);
}

static atomic_int stop;
static atomic_ulong turns;

static void *churner(void *number) {
    unsigned long r = ((uintptr_t)number + 77) * 0x9e3779b97f4a7c15ul | 1;
    void *own[500] = {0};
    while (!stop) {
        void **slot = &own[draw(&r, 500)];
        free(*slot);
        size_t n = draw(&r, 5) ? draw(&r, 700) : draw(&r, 60000);
        *slot = malloc(n);
        if (*slot && n) *(char *)*slot = 1;
        turns++;
    }
    return 0;
}

/* THREADS that never rest, until a line comes; then what they did in that time. */
static void churn(int count, char **number) {
    pthread_t thread[16];
    int threads = count > 0 ? atoi(number[0]) : 1;
    if (threads > 16) die("too many threads\n");
    for (int i = 0; i < threads; i++)
        if (pthread_create(&thread[i], 0, churner, (void *)(uintptr_t)i)) die("no thread\n");
    while (turns < 100000) ;
    char line[64], answer[16];
    for (;;) {
        int length = snprintf(line, sizeof line, "turns=%lu\n", turns);
        if (write(1, line, length) != length || read(0, answer, sizeof answer) < 1) break;
    }
    stop = 1;
    for (int i = 0; i < threads; i++) pthread_join(thread[i], 0);
    _exit(0);
}

static void *assistant(void *blocks) {
    void **own = blocks;
    for (int i = 0; i < 60; i++) own[i] = take(64 + i * 24);
    for (int i = 0; i < 60; i += 3) give(own[i]);
    pthread_barrier_wait(&step);
    pause();
    return 0;
}

/* A little of everything: every kind of list, mapped blocks, an arena of a thread's own. Small enough to be kept. */
static void sampler(void) {
    pthread_t thread;
    for (int i = 0; i < 200; i++) kept[i] = take(24 + i % 7 * 16);
    for (int i = 200; i < 300; i++) kept[i] = take(600 + i % 5 * 100);
    for (int i = 300; i < 320; i++) kept[i] = take(3000 + i * 64);
    for (int i = 320; i < 323; i++) kept[i] = take(200000);
    pthread_barrier_init(&step, 0, 2);
    if (pthread_create(&thread, 0, assistant, kept + 1000)) die("no thread\n");
    pthread_barrier_wait(&step);
    pin = take(300);
    point("full");
    for (int i = 0; i < 200; i += 2) give(kept[i]);
    for (int i = 200; i < 300; i += 3) give(kept[i]);
    for (int i = 300; i < 320; i += 4) give(kept[i]);
    /* Sorts what is free so far into its bins; what follows stays unsorted. */
    take(20000);
    for (int i = 1; i < 60; i += 2) give(kept[i]);
    for (int i = 301; i < 320; i += 4) give(kept[i]);
    give(kept[320]);
}

static const struct { const char *name; void (*run)(void); void (*with)(int, char **); } kinds[] = {
    {"crumbs", crumbs, 0}, {"late-survivor", late_survivor, 0}, {"cached-lid", cached_lid, 0}, {"sieve", sieve, 0},
    {"tiles", tiles, 0}, {"small-after-rise", 0, small_after_rise}, {"free-top", free_top, 0}, {"workers", workers, 0}, {"leavers", leavers, 0},
    {"mapped", mapped, 0}, {"mapped-held", mapped_held, 0}, {"hoard", hoard, 0}, {"own-mapping", own_mapping, 0},
    {"foreign-break", foreign_break, 0}, {"blocked-break", blocked_break, 0}, {"all-mapped", all_mapped, 0},
    {"wrong-knobs", wrong_knobs, 0}, {"many", 0, many}, {"random", 0, at_random}, {"smashed", 0, smashed},
    {"garbage", 0, garbage}, {"churn", 0, churn}, {"sampler", sampler, 0},
};

int main(int argc, char **argv) {
    kept = mmap(0, MOST * sizeof *kept, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (kept == MAP_FAILED || argc < 2) die("usage: heaps KIND [NUMBER...]\n");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(argv[1], kinds[i].name)) continue;
        if (kinds[i].run) kinds[i].run();
        else kinds[i].with(argc - 2, argv + 2);
        point("freed");
        malloc_trim(0);
        point("trimmed");
        _exit(0);
    }
    die("no such kind\n");
}
