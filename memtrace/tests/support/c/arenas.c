/* Threads that let arenas of their own grow over several segments, shrink, and be trimmed; twice. */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>

#define SMALL 20000
#define LARGE 100

static void *work(void *unused) {
    char **block = calloc(SMALL, sizeof *block);
    if (!block) abort();
    for (int i = 0; i < SMALL; i++) if (!(block[i] = malloc(1000))) abort();
    for (int i = 0; i < SMALL; i++) free(block[i]);
    for (int i = 0; i < LARGE; i++) if (!(block[i] = malloc(100000))) abort();
    for (int i = LARGE; i--; ) free(block[i]);
    free(block);
    malloc_trim(0);
    return unused;
}

int main(void) {
    pthread_t thread[3];
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 3; i++) if (pthread_create(&thread[i], 0, work, 0)) return 2;
        for (int i = 0; i < 3; i++) pthread_join(thread[i], 0);
    }
    return 0;
}
