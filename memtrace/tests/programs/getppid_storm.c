/* Makes system calls and grows its heap, by malloc and by sbrk of its own, until it is told to stop; then it is at rest until its input ends. At last it tells each step of the break, all of which it makes itself. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
#define MOST 100000
static unsigned long from[MOST], to[MOST];
static int steps;
static void note(char *before) {
    char *now = sbrk(0);
    if (now != before && steps < MOST) {
        from[steps] = (unsigned long)before;
        to[steps++] = (unsigned long)now;
    }
}
int main(void) {
    static char out[1 << 16];
    setvbuf(stdout, out, _IOFBF, sizeof out);
    puts("ready");
    fflush(stdout);
    struct pollfd in = { 0, POLLIN, 0 };
    for (unsigned long round = 1; poll(&in, 1, 0) == 0; round++) {
        for (int i = 0; i < 10000; i++)
            syscall(SYS_getppid);
        char *before = sbrk(0);
        if (round % 5 == 0)
            sbrk(4096);
        else
            *(char *)malloc(30000 + round % 3 * 20000) = 1;
        note(before);
    }
    getchar();
    puts("rests");
    fflush(stdout);
    poll(&in, 1, -1);
    for (int i = 0; i < steps; i++)
        printf("%lu %lu\n", from[i], to[i]);
    return 0;
}
