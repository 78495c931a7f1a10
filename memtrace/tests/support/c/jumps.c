/*
 * Signal handlers that interrupt malloc, and leave it by a jump or return to it.
 *
 *   jumps ROUNDS
 *
 * Prints "ready", reads a line, works, and prints its system calls: those of allocator calls ("in NAME=COUNT ..."), its
 * own ("own NAME=COUNT ..."), and which of the latter were made in signal handlers ("handler NAME=COUNT ...").
 *
 * malloc is interrupted where it looks at the heap's top, which lies on a page that cannot be read just then: nothing
 * has been changed by that time, so that the call can be left for good. (How often the heap grows by brk is not said.)
 */
#define _GNU_SOURCE
#include <malloc.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096ul
#define LARGE (256 << 10)   /* above the frozen mmap threshold: each block is a mapping */
#define NOINLINE __attribute__((noinline, noclone))

enum { MMAP, MUNMAP, MREMAP, MPROTECT, MADVISE, BRK, NAMES };
static const char *const name[NAMES] = {"mmap", "munmap", "mremap", "mprotect", "madvise", "brk"};
static unsigned long in[NAMES], own[NAMES], handler[NAMES];

static char *guarded;
static sigjmp_buf away, inner;
static volatile int leave, nested;

static void map_and_unmap(unsigned long *counts) {
    void *map = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED || munmap(map, 4096)) abort();
    counts[MMAP]++; counts[MUNMAP]++;
}

static void on_fault(int unused) {
    (void)unused;
    if (mprotect(guarded, PAGE, PROT_READ | PROT_WRITE)) abort();
    handler[MPROTECT]++;
    map_and_unmap(handler);
    if (nested && !sigsetjmp(inner, 1)) raise(SIGUSR1);
    if (nested) map_and_unmap(handler);
    if (leave) siglongjmp(away, 1);
}

static void on_inner(int unused) {
    (void)unused;
    map_and_unmap(handler);
    siglongjmp(inner, 1);
}

/* Makes the page with the top chunk's header unreadable. */
static void guard(void) {
    char *top;
    do top = (char *)malloc(24) + 24; while (((uintptr_t)(top + 8) & (PAGE - 1)) < 512);
    guarded = (char *)((uintptr_t)top & ~(PAGE - 1));
    if (mprotect(guarded, PAGE, PROT_NONE)) abort();
    own[MPROTECT]++;
}

/* Own calls with the stack pointer above and below where malloc's frame was; what lay there stays. */
NOINLINE static void deeper(unsigned depth) {
    volatile char untouched[512];
    untouched[511] = (char)depth;
    if (depth) deeper(depth - 1);
    else map_and_unmap(own);
    untouched[510] = untouched[511];
}

NOINLINE static void left_for_good(void) {
    leave = 1;
    guard();
    if (!sigsetjmp(away, 1)) { free(malloc(LARGE)); abort(); }
    leave = 0;
    map_and_unmap(own);
    deeper(3);
    map_and_unmap(own);
}

NOINLINE static void returned_to(void) {
    guard();
    void *block = malloc(LARGE);
    if (!block) abort();
    in[MMAP]++;
    map_and_unmap(own);
    free(block);
    in[MUNMAP]++;
}

static void set(int signal, void (*handler)(int), int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    if (sigaction(signal, &action, 0)) abort();
}

static void print(const char *word, const unsigned long *counts) {
    char line[256];
    int length = snprintf(line, sizeof line, "%s", word);
    for (int i = 0; i < NAMES; i++) length += snprintf(line + length, sizeof line - length, " %s=%lu", name[i], counts[i]);
    line[length++] = '\n';
    if (write(1, line, length) != length) _exit(3);
}

static char handlers_stack[64 << 10];

int main(int argc, char **argv) {
    char line[16];
    unsigned long rounds = argc > 1 ? strtoul(argv[1], 0, 10) : 10;
    stack_t stack = {.ss_sp = handlers_stack, .ss_size = sizeof handlers_stack};
    mallopt(M_MMAP_THRESHOLD, 128 << 10);
    free(malloc(100));
    if (sigaltstack(&stack, 0)) abort();
    if (write(1, "ready\n", 6) != 6 || read(0, line, sizeof line) < 1) return 3;
    for (unsigned long i = 0; i < rounds; i++) {
        for (int apart = 0; apart < 2; apart++) {
            set(SIGSEGV, on_fault, apart ? SA_ONSTACK : 0);
            set(SIGUSR1, on_inner, apart ? SA_ONSTACK : 0);
            for (nested = 0; nested < 2; nested++) {
                left_for_good();
                returned_to();
                returned_to();
            }
        }
    }
    for (int i = 0; i < NAMES; i++) own[i] += handler[i];
    print("in", in);
    print("own", own);
    print("handler", handler);
    return 0;
}
