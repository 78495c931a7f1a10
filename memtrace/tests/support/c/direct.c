/*
 * Memory system calls inside and outside of allocator calls, each of them known.
 *
 *   direct ROUNDS
 *
 * Prints "ready", reads a line, works, and prints what it did: the system calls that belong to allocator calls
 * ("in NAME=COUNT ...") and those it made itself ("own NAME=COUNT ..."), close to the former in time and on the stack:
 * right after a malloc in the same function, in a deeper and in a shallower one, and in a signal handler that
 * interrupts malloc and free wherever they are.
 */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#define LARGE (256 << 10)   /* above the frozen mmap threshold: each block is a mapping */
#define NOINLINE __attribute__((noinline))

enum { MMAP, MUNMAP, MREMAP, MPROTECT, MADVISE, BRK, NAMES };
static const char *const name[NAMES] = {"mmap", "munmap", "mremap", "mprotect", "madvise", "brk"};
static unsigned long in[NAMES], own[NAMES];
static volatile unsigned long in_handler;

static void map_and_unmap(void) {
    void *map = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED || munmap(map, 4096)) abort();
}

static void on_signal(int unused) { (void)unused; in_handler++; map_and_unmap(); }

static void *block(void) { void *p = malloc(LARGE); if (!p) abort(); in[MMAP]++; return p; }
static void release(void *p) { free(p); in[MUNMAP]++; }

NOINLINE static void same_function(void) {
    void *p = malloc(LARGE);
    void *map = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!p || map == MAP_FAILED) abort();
    if (mprotect(map, 4096, PROT_READ) || mprotect(map, 4096, PROT_READ | PROT_WRITE)) abort();
    if (madvise(map, 8192, MADV_DONTNEED)) abort();
    free(p);
    map = mremap(map, 8192, 65536, MREMAP_MAYMOVE);
    if (map == MAP_FAILED || munmap(map, 65536)) abort();
    in[MMAP]++; in[MUNMAP]++;
    own[MMAP]++; own[MPROTECT] += 2; own[MADVISE]++; own[MREMAP]++; own[MUNMAP]++;
}

/* Deeper on the stack than malloc's frame was, with and without room in between. */
NOINLINE static void deeper(unsigned depth) {
    volatile char room[64];
    room[0] = room[63] = (char)depth;
    if (depth) deeper(depth - 1);
    else { map_and_unmap(); own[MMAP]++; own[MUNMAP]++; }
    room[1] = room[0];
}

NOINLINE static void *shallower(void) { void *p = block(); return p; }

NOINLINE static void resize(void) {
    void *p = block();
    p = realloc(p, 4 * LARGE);   /* mremap */
    if (!p) abort();
    in[MREMAP]++;
    map_and_unmap(); own[MMAP]++; own[MUNMAP]++;
    release(p);
}

NOINLINE static void fail(void) {
    void *p = malloc(1000);
    if (!munmap((char *)&own + 1, 4096)) abort();   /* refused: not on a page's begin */
    own[MUNMAP]++;
    free(p);
}

static void print(const char *word, const unsigned long *counts) {
    char line[256];
    int length = snprintf(line, sizeof line, "%s", word);
    for (int i = 0; i < NAMES; i++) length += snprintf(line + length, sizeof line - length, " %s=%lu", name[i], counts[i]);
    line[length++] = '\n';
    if (write(1, line, length) != length) _exit(3);
}

int main(int argc, char **argv) {
    char line[16];
    unsigned long rounds = argc > 1 ? strtoul(argv[1], 0, 10) : 100;
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
    mallopt(M_MMAP_THRESHOLD, 128 << 10);
    free(malloc(100));   /* the heap is there before anything is counted */
    sigaction(SIGALRM, &action, 0);
    if (write(1, "ready\n", 6) != 6 || read(0, line, sizeof line) < 1) return 3;
    for (unsigned long i = 0; i < rounds; i++) {
        same_function();
        void *p = block();
        deeper(i % 8);
        release(p);
        p = shallower();
        map_and_unmap(); own[MMAP]++; own[MUNMAP]++;
        release(p);
        resize();
        fail();
    }
    setitimer(ITIMER_REAL, &often, 0);
    for (unsigned long i = 0; i < 20 * rounds; i++) release(block());
    setitimer(ITIMER_REAL, &never, 0);
    own[MMAP] += in_handler; own[MUNMAP] += in_handler;
    print("in", in);
    print("own", own);
    return 0;
}
