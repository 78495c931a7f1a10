/* 1,000 blocks by each of four entry points, 2,000 of them freed; without stdio, which would allocate. With an argument it
   does not wait. */
#include <malloc.h>
#include <stdlib.h>
#include <unistd.h>
static void wait_for_line(const char *say) {
    char byte;
    if (write(1, say, 6) != 6) _exit(1);
    while (read(0, &byte, 1) == 1 && byte != '\n') {}
}
int main(int argc, char **argv) {
    (void)argv;
    if (argc < 2) wait_for_line("ready\n");
    for (int i = 0; i < 1000; i++) {
        void *volatile block = malloc(100);
        void *volatile zeroed = calloc(10, 10);
        void *volatile grown = realloc(block, 200);
        void *volatile aligned = memalign(64, 50);
        free(grown);
        free(zeroed);
    }
    if (argc < 2) wait_for_line("done.\n");
    return 0;
}
