/*
 * Memory of the program that cannot be read at the moment it is of interest.
 *
 *   hidden ROUNDS
 *
 * Blocks are freed whose headers lie on a page without access; the free itself runs into that, and a handler gives the
 * page back. And a system call takes the access to that page of the stack away on which realloc has just been called.
 * Prints "ready", reads a line, works, and says how many of both there were ("hidden blocks=1 calls=2").
 */
#define _GNU_SOURCE
#include <malloc.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#define PAGE 4096ul
#define STACK (16 * PAGE)
#define LARGE (256 << 10)   /* a mapping of its own, which begins with its header */

static char *guarded;
static size_t hidden_bytes;
static unsigned long blocks, calls;

static void on_fault(int unused) {
    (void)unused;
    if (mprotect(guarded, hidden_bytes, PROT_READ | PROT_WRITE)) abort();
}

static void free_with_hidden_header(void) {
    char *block = malloc(LARGE);
    if (!block) abort();
    guarded = (char *)((uintptr_t)(block - 8) & ~(PAGE - 1));
    hidden_bytes = PAGE;
    if (mprotect(guarded, hidden_bytes, PROT_NONE)) abort();
    free(block);
    blocks++;
}

static ucontext_t home, away;

/* The page is hidden by the very call whose return address lies on it, in the slot of realloc's before. */
__attribute__((noinline)) static void hide_own_stack(void) {
    static void *block;
    block = realloc(block, 100);
    guarded = (char *)((uintptr_t)__builtin_frame_address(0) & ~(PAGE - 1)) - PAGE;
    hidden_bytes = 2 * PAGE;
    if (mprotect(guarded, hidden_bytes, PROT_NONE)) abort();
    calls++;
}

static void on_own_stack(void) {
    /* Far enough from the stack's ends. */
    volatile char room[3 * PAGE];
    room[0] = room[sizeof room - 1] = 0;
    hide_own_stack();
    room[1] = room[0];
}

static void call_on_own_stack(void) {
    static char *stack;
    if (!stack) stack = mmap(0, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED || getcontext(&away)) abort();
    away.uc_stack.ss_sp = stack;
    away.uc_stack.ss_size = STACK;
    away.uc_link = &home;
    makecontext(&away, on_own_stack, 0);
    if (swapcontext(&home, &away)) abort();
}

static char handlers_stack[64 << 10];

int main(int argc, char **argv) {
    char line[64];
    struct sigaction action = {.sa_handler = on_fault, .sa_flags = SA_ONSTACK};
    stack_t stack = {.ss_sp = handlers_stack, .ss_size = sizeof handlers_stack};
    unsigned long rounds = argc > 1 ? strtoul(argv[1], 0, 10) : 10;
    mallopt(M_MMAP_THRESHOLD, 128 << 10);
    free(malloc(100));
    if (sigaltstack(&stack, 0) || sigaction(SIGSEGV, &action, 0)) abort();
    if (write(1, "ready\n", 6) != 6 || read(0, line, sizeof line) < 1) return 3;
    for (unsigned long i = 0; i < rounds; i++) {
        free_with_hidden_header();
        call_on_own_stack();
    }
    int length = snprintf(line, sizeof line, "hidden blocks=%lu calls=%lu\n", blocks, calls);
    return write(1, line, length) != length;
}
