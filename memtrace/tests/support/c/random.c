/*
 * A random program: every entry point, random sizes, threads that come and go, blocks that one thread allocates and
 * another frees or resizes, requests that fail, memory system calls of the program's own in between.
 *
 *   random SEED ROUNDS THREADS GENERATIONS [wait | plain]
 *
 * With "wait" it prints "ready" and goes on when it reads a line. With "plain" it leaves out what valgrind refuses
 * (pvalloc, impossible requests). It ends with "done" and exit status 0.
 * Each generation starts THREADS threads that do ROUNDS operations each; with THREADS 0 the main thread works alone, and then
 * the run is the same each time.
 */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SLOTS 256
static void *_Atomic slot[SLOTS];
static unsigned long seed, rounds, threads, generations;
static int plain;
static volatile size_t impossible = (size_t)PTRDIFF_MAX;

static unsigned long draw(unsigned long *state, unsigned long bound) {
    *state ^= *state << 13; *state ^= *state >> 7; *state ^= *state << 17;
    return (*state >> 20) % bound;
}

static size_t size(unsigned long *r) {
    switch (draw(r, 16)) {
    case 0: return 0;
    case 1: case 2: return draw(r, 64 << 10);
    case 3: return draw(r, 4) ? draw(r, 300 << 10) : draw(r, 5 << 20);
    default: return draw(r, 1200);
    }
}

/* Writes the ends of a block, so that a tracer's mistake in the program's memory would be noticed by glibc. */
static void *touch(void *block, size_t bytes) {
    if (block && bytes) { ((char *)block)[0] = 1; ((char *)block)[bytes - 1] = 1; }
    return block;
}

static void *allocate(unsigned long *r) {
    size_t n = size(r), alignment = (size_t)8 << draw(r, 10);
    void *block = 0;
    switch (draw(r, 12)) {
    case 0: case 1: return touch(calloc(n / 8 + 1, 8), n);
    case 2: return touch(memalign(alignment, n), n);
    case 3: return touch(aligned_alloc(alignment, (n + alignment - 1) / alignment * alignment), n);
    case 4: return posix_memalign(&block, alignment, n) ? 0 : touch(block, n);
    case 5: return touch(valloc(n), n);
    case 6: return touch(plain ? malloc(n) : pvalloc(n), n);
    case 7: return touch(reallocarray(0, n / 16 + 1, 16), n);
    case 8: return strdup("libc allocates this one on the program's behalf");
    default: return touch(malloc(n), n);
    }
}

static void fail(unsigned long *r) {
    size_t huge = impossible + 1 + draw(r, 1000), nearly = impossible - draw(r, 9000);
    void *block;
    switch (draw(r, 20)) {
    case 0: free(malloc(huge)); break;
    case 1: free(calloc(huge, 2)); break;
    case 2: free(calloc(huge, 16)); break;
    case 3: free(memalign(64, huge)); break;
    case 4: free(aligned_alloc(64, huge / 64 * 64)); break;
    case 5: if (!posix_memalign(&block, 64, huge)) free(block); break;
    case 6: free(valloc(huge)); free(pvalloc(huge)); break;
    /* Not refused as such, but no room is left for what is added. */
    case 7: free(memalign((size_t)16 << draw(r, 48), nearly)); break;
    case 8: free(aligned_alloc((size_t)16 << draw(r, 48), nearly)); break;
    case 9: if (!posix_memalign(&block, (size_t)16 << draw(r, 48), nearly)) free(block); break;
    case 10: free(valloc(nearly)); free(pvalloc(nearly)); break;
    case 11: free(memalign(((size_t)1 << 63) - draw(r, 2), draw(r, 100))); break;
    case 12: free(memalign(((size_t)1 << 63) + 1 + draw(r, 100), draw(r, 100))); break;
    /* The system refuses these. */
    case 13: free(draw(r, 2) ? malloc(nearly) : calloc(1, nearly)); break;
    /* Alignments that are no powers of two: rounded up, or refused, as the function and the release have it. */
    case 14: free(memalign(1 + draw(r, 5000), draw(r, 5000))); break;
    case 15: case 16: free(aligned_alloc(draw(r, 5000), draw(r, 5000))); break;
    case 17: if (!posix_memalign(&block, draw(r, 300), draw(r, 5000))) free(block); break;
    default: {
        void *kept = malloc(100), *moved = realloc(kept, huge);
        free(moved ? moved : kept);
    }
    }
}

/* The program's own system calls, right after allocator calls of the same thread. */
static void direct(unsigned long *r) {
    void *block = malloc(size(r));
    size_t length = (1 + draw(r, 30)) * 4096;
    char *map = mmap(0, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) abort();
    map[0] = 1;
    free(block);
    if (mprotect(map, 4096, PROT_READ) || mprotect(map, 4096, PROT_READ | PROT_WRITE)) abort();
    if (madvise(map, length, MADV_DONTNEED)) abort();
    map = mremap(map, length, length + 4096, MREMAP_MAYMOVE);
    if (map == MAP_FAILED) abort();
    if (munmap(map, length + 4096)) abort();
    if (draw(r, 2) && !munmap(map + 1, 4096)) abort();   /* fails: not on a page's begin */
}

static void act(unsigned long *r) {
    void *_Atomic *s = &slot[draw(r, SLOTS)];
    switch (draw(r, 40)) {
    case 0: case 1: case 2: case 3: case 4: case 5: {
        size_t n = size(r) + 1;
        void *old = atomic_exchange(s, 0), *new = realloc(old, n);
        free(atomic_exchange(s, touch(new, n)));
        break;
    }
    case 6: free(atomic_exchange(s, realloc(0, size(r)))); break;
    case 7: free(atomic_exchange(s, realloc(atomic_exchange(s, 0), 0))); break;
    case 8: free(0); break;
    case 9: if (!plain) fail(r); break;
    case 10: if (!draw(r, 20)) direct(r); break;
    case 11: if (!draw(r, 100)) malloc_trim(draw(r, 100000)); break;
    case 12: case 13: case 14: free(atomic_exchange(s, 0)); break;
    default: free(atomic_exchange(s, allocate(r))); break;
    }
}

static void *work(void *number) {
    unsigned long r = (seed * 1000003 + (uintptr_t)number) * 0x9e3779b97f4a7c15ul | 1;
    for (unsigned long i = 0; i < rounds; i++) act(&r);
    return 0;
}

int main(int argc, char **argv) {
    char line[16];
    pthread_t thread[64];
    if (argc < 5) return 64;
    seed = strtoul(argv[1], 0, 10); rounds = strtoul(argv[2], 0, 10);
    threads = strtoul(argv[3], 0, 10); generations = strtoul(argv[4], 0, 10);
    if (threads > 64) return 64;
    plain = argc > 5 && !strcmp(argv[5], "plain");
    if (argc > 5 && !plain && (write(1, "ready\n", 6) != 6 || read(0, line, sizeof line) < 1)) return 3;
    for (unsigned long g = 0; g < generations; g++) {
        if (!threads) work((void *)(uintptr_t)(g * 1000));
        for (unsigned long i = 0; i < threads; i++)
            if (pthread_create(&thread[i], 0, work, (void *)(uintptr_t)(g * 1000 + i))) return 2;
        for (unsigned long i = 0; i < threads; i++) pthread_join(thread[i], 0);
    }
    for (int i = 0; i < SLOTS; i++) free(atomic_exchange(&slot[i], 0));
    return write(1, "done\n", 5) != 5;
}
