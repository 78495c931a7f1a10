/*
 * Processes and threads that come and go in unusual ways, and what each has called.
 *
 *   lives orphan       a child goes on when its parent has ended
 *   lives vfork        children of vfork, one of which allocates in its parent's memory
 *   lives clone        a process of its own in the same memory (CLONE_VM without CLONE_THREAD)
 *   lives many N       N children that are all alive at once
 *   lives thread-exec  a thread that is not the first replaces the program
 *   lives end          what that program becomes
 *   lives dies-inside  a thread that ends in the middle of malloc, without a word to libc
 *   lives killed       a process that dies of a signal in the middle of malloc
 *
 * "parent malloc=3 free=3", "child ...": the calls that each process has made itself.
 */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define NOINLINE __attribute__((noinline, noclone))

static void say(const char *who, int calls) {
    char line[128];
    int length = snprintf(line, sizeof line, "%s pid=%d malloc=%d free=%d\n", who, (int)getpid(), calls, calls);
    if (write(1, line, length) != length) _exit(3);
}

NOINLINE static void work(int calls) { for (int i = 0; i < calls; i++) free(malloc(100 + i % 50)); }

static void orphan(void) {
    int end[2];
    char c;
    if (pipe(end)) abort();
    work(100);
    pid_t child = fork();
    if (child < 0) abort();
    if (child) { say("parent", 100); _exit(0); }
    close(end[1]);
    /* The parent's end of the pipe is closed with it. */
    if (read(end[0], &c, 1)) abort();
    work(1000);
    say("child", 1000);
}

static void with_vfork(void) {
    work(100);
    for (int i = 0; i < 3; i++) {
        pid_t child = vfork();
        if (child < 0) abort();
        if (!child) { if (i == 1) work(50); _exit(0); }
        waitpid(child, 0, 0);
        work(10);
    }
    say("parent", 130);
    say("child", 50);
}

static int cloned(void *unused) { (void)unused; work(200); return 0; }

static void with_clone(void) {
    char *stack = mmap(0, 64 << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    work(100);
    pid_t child = clone(cloned, stack + (64 << 10), CLONE_VM | SIGCHLD, 0);
    if (child < 0) abort();
    waitpid(child, 0, 0);
    work(100);
    say("parent", 200);
    say("child", 200);
}

static void many(int children) {
    int hold[2];
    char c;
    if (pipe(hold)) abort();
    work(100);
    for (int i = 0; i < children; i++) {
        pid_t child = fork();
        if (child < 0) abort();
        if (!child) { close(hold[1]); work(10); if (read(hold[0], &c, 1)) _exit(3); _exit(0); }
    }
    close(hold[1]);
    while (wait(0) > 0) ;
    say("parent", 100);
}

static char **again;
static void *replace(void *unused) { work(20); execv("/proc/self/exe", again); return unused; }

static void thread_exec(char **argv) {
    pthread_t thread;
    again = argv;
    argv[1] = "end";
    if (pthread_create(&thread, 0, replace, 0)) abort();
    for (;;) work(1);
}

static char *guarded;

static void leave(int unused) {
    (void)unused;
    if (mprotect(guarded, PAGE, PROT_READ | PROT_WRITE)) abort();
    syscall(SYS_exit, 0);
}

/* Makes the page unreadable on which the heap's top begins: the next malloc that needs it ends there. */
static int guard(void) {
    char *top;
    int calls = 0;
    do { top = (char *)malloc(24) + 24; calls++; } while (((uintptr_t)(top + 8) & (PAGE - 1)) < 512);
    guarded = (char *)((uintptr_t)top & ~(PAGE - 1));
    if (mprotect(guarded, PAGE, PROT_NONE)) abort();
    return calls;
}

static pthread_barrier_t barrier;

static void *end_inside(void *unused) {
    pthread_barrier_wait(&barrier);
    free(malloc(200000));
    return unused;
}

/* There is one arena; a thread that ends inside of it leaves it locked, so nothing allocates any more after that. */
static void dies_inside(void) {
    pthread_t thread;
    struct sigaction action = {.sa_handler = leave};
    if (sigaction(SIGSEGV, &action, 0) || pthread_barrier_init(&barrier, 0, 2)) abort();
    if (pthread_create(&thread, 0, end_inside, 0)) abort();
    int calls = guard();
    pthread_barrier_wait(&barrier);
    pthread_join(thread, 0);
    char line[128];
    int length = snprintf(line, sizeof line, "parent pid=%d malloc=%d free=0\n", (int)getpid(), calls + 1);
    if (write(1, line, length) != length) _exit(3);
    _exit(0);
}

static void killed(void) {
    int calls = guard();
    char line[128];
    int length = snprintf(line, sizeof line, "parent pid=%d malloc=%d free=0\n", (int)getpid(), calls + 1);
    if (write(1, line, length) != length) _exit(3);
    free(malloc(200000));
}

int main(int argc, char **argv) {
    if (argc < 2) return 64;
    mallopt(M_ARENA_MAX, 1);
    const char *what = argv[1];
    if (!strcmp(what, "orphan")) orphan();
    else if (!strcmp(what, "vfork")) with_vfork();
    else if (!strcmp(what, "clone")) with_clone();
    else if (!strcmp(what, "many") && argc > 2) many(atoi(argv[2]));
    else if (!strcmp(what, "thread-exec")) thread_exec(argv);
    else if (!strcmp(what, "end")) { work(300); say("parent", 300); }
    else if (!strcmp(what, "dies-inside")) dies_inside();
    else if (!strcmp(what, "killed")) killed();
    else return 64;
    return 0;
}
