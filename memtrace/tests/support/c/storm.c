/*
 * Threads that allocate, resize and free as fast as they can; some of it in mappings of their own, so that the system is
 * asked twice for each.
 *
 *   storm THREADS ROUNDS
 *
 * It says how many calls it has made itself ("calls malloc=1 calloc=2 ...", frees of blocks and of NULL apart).
 */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MAPPED (256 << 10)   /* above the frozen mmap threshold */

static atomic_ulong mallocs, callocs, reallocs, memaligns, frees, nulls, mapped;
static unsigned long rounds;

static void *work(void *unused) {
    unsigned long m = 0, c = 0, r = 0, a = 0, f = 0, n = 0, own = 0;
    void *volatile kept[16] = {0};
    for (unsigned long i = 0; i < rounds; i++) {
        void *old = kept[i % 16], *block;
        switch (i % 8) {
        case 0: case 1: block = malloc(16 + i % 500); m++; break;
        case 2: block = calloc(1 + i % 7, 40); c++; break;
        case 3: block = realloc(old, 32 + i % 900); r++; old = 0; break;
        case 4: block = memalign(64, 100 + i % 100); a++; break;
        case 5: block = malloc(MAPPED); m++; own++; break;
        default: block = malloc(i % 2000); m++; break;
        }
        if (!block) abort();
        if (old) f++; else n++;
        free(old);
        kept[i % 16] = block;
    }
    for (int i = 0; i < 16; i++) { if (kept[i]) f++; else n++; free(kept[i]); }
    mallocs += m; callocs += c; reallocs += r; memaligns += a; frees += f; nulls += n; mapped += own;
    return unused;
}

int main(int argc, char **argv) {
    char line[256];
    pthread_t thread[64];
    if (argc < 3) return 64;
    int threads = atoi(argv[1]);
    rounds = strtoul(argv[2], 0, 10);
    if (threads > 64) return 64;
    mallopt(M_MMAP_THRESHOLD, 128 << 10);
    for (int i = 0; i < threads; i++) if (pthread_create(&thread[i], 0, work, 0)) return 2;
    for (int i = 0; i < threads; i++) pthread_join(thread[i], 0);
    int length = snprintf(line, sizeof line, "calls malloc=%lu calloc=%lu realloc=%lu memalign=%lu free=%lu null=%lu mapped=%lu\n",
                          mallocs, callocs, reallocs, memaligns, frees, nulls, mapped);
    return write(1, line, length) != length;
}
