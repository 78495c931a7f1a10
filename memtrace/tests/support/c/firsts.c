/*
 * The very first allocator calls of a process, each made three times from one place with the same arguments:
 *
 *   firsts ENTRY            in the main thread
 *   firsts threads THREADS  reallocs of threads that begin all at once, half of them of a block
 *
 * It says how many calls of malloc, calloc and realloc it has made itself ("calls malloc=0 calloc=3 realloc=0"), and of
 * the memalign family ("aligned=0"). Nothing else of it allocates but pthread_create.
 */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int mallocs, callocs, reallocs, aligned;
static pthread_barrier_t barrier;
static void *volatile nothing;
static void *volatile block[64];

static void *resize(void *number) {
    void *old = (uintptr_t)number % 2 ? block[(uintptr_t)number] : nothing;
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < 3; i++) old = realloc(old, 100);
    block[(uintptr_t)number] = old;
    return 0;
}

static void all_at_once(int threads) {
    pthread_t thread[64];
    for (int i = 0; i < threads; i++) if (!(block[i] = malloc(100))) abort();
    mallocs = threads;
    reallocs = 3 * threads;
    pthread_barrier_init(&barrier, 0, threads);
    for (int i = 0; i < threads; i++) if (pthread_create(&thread[i], 0, resize, (void *)(uintptr_t)i)) abort();
    for (int i = 0; i < threads; i++) pthread_join(thread[i], 0);
}

static int one(const char *entry) {
    void *p = 0;
    if (!strcmp(entry, "malloc")) { p = malloc(1000); mallocs++; }
    else if (!strcmp(entry, "calloc")) { p = calloc(10, 100); callocs++; }
    else if (!strcmp(entry, "realloc")) { p = realloc(nothing, 1000); reallocs++; }
    else if (!strcmp(entry, "reallocarray")) { p = reallocarray(nothing, 10, 100); reallocs++; }
    else if (!strcmp(entry, "memalign8")) { p = memalign(8, 1000); aligned++; }
    else if (!strcmp(entry, "memalign64")) { p = memalign(64, 1000); aligned++; }
    else if (!strcmp(entry, "aligned_alloc")) { p = aligned_alloc(16, 1008); aligned++; }
    else if (!strcmp(entry, "posix_memalign16")) { aligned++; return posix_memalign(&p, 16, 1000); }
    else if (!strcmp(entry, "posix_memalign")) { aligned++; return posix_memalign(&p, 256, 1000); }
    else if (!strcmp(entry, "valloc")) { p = valloc(1000); aligned++; }
    else if (!strcmp(entry, "pvalloc")) { p = pvalloc(1000); aligned++; }
    else if (!strcmp(entry, "calloc+malloc")) { p = calloc(10, 100); callocs++; free(p); p = malloc(1000); mallocs++; }
    else if (!strcmp(entry, "memalign+malloc")) { p = memalign(16, 1000); aligned++; free(p); p = malloc(1000); mallocs++; }
    else if (!strcmp(entry, "trim")) { malloc_trim(0); p = malloc(1000); mallocs++; }
    else return 1;
    return !p;
}

int main(int argc, char **argv) {
    char line[128];
    if (argc < 2) return 64;
    if (argc > 2) all_at_once(atoi(argv[2]));
    else for (int i = 0; i < 3; i++) if (one(argv[1])) return 65;
    int length = snprintf(line, sizeof line, "calls malloc=%d calloc=%d realloc=%d aligned=%d\n", mallocs, callocs, reallocs, aligned);
    return write(1, line, length) != length;
}
