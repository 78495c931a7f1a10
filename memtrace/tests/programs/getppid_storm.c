/* Makes system calls and grows its heap, by malloc and by sbrk of its own, until it is told to stop; then it is at rest until
   its input ends. Tells each step of the break, all of which it makes itself, with its process id. With an argument it is first
   told to have so many children, one after the other, that do the same for a while. OWN_MALLOC: malloc is not glibc's, and the
   program looks as one with jemalloc inside does, so that nobody takes glibc's to be behind it. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#define MOST 100000
#define ROUNDS_OF_A_CHILD 20
#define ROUNDS_BETWEEN 20
static unsigned long from[MOST], to[MOST];
static int steps;
static struct pollfd in = { 0, POLLIN, 0 };
#ifdef OWN_MALLOC
int mallctl(void) {
    return -1;
}
void *malloc(size_t bytes) {
    return sbrk(bytes);
}
#endif
static void note(char *before) {
    char *now = sbrk(0);
    if (now != before && steps < MOST) {
        from[steps] = (unsigned long)before;
        to[steps++] = (unsigned long)now;
    }
}
static void storm(unsigned long round) {
    for (int i = 0; i < 10000; i++)
        syscall(SYS_getppid);
    char *before = sbrk(0);
    if (round % 5 == 0)
        sbrk(4096);
    else
        *(char *)malloc(30000 + round % 3 * 20000) = 1;
    note(before);
}
static void tell(void) {
    for (int i = 0; i < steps; i++)
        printf("%d %lu %lu\n", (int)getpid(), from[i], to[i]);
    fflush(stdout);
}
static pid_t have_child(void) {
    pid_t child = fork();
    if (child == 0) {
        steps = 0;
        for (unsigned long round = 1; round <= ROUNDS_OF_A_CHILD; round++)
            storm(round);
        tell();
        _exit(0);
    }
    return child;
}
int main(int count, char **words) {
    static char out[1 << 16];
    int wanted = count > 1 ? atoi(words[1]) : 0, children = 0;
    setvbuf(stdout, out, _IOFBF, sizeof out);
    puts("ready");
    fflush(stdout);
    for (unsigned long round = 1;; round++) {
        if (poll(&in, 1, 0) != 0) {
            char told;
            if (read(0, &told, 1) != 1 || wanted == 0)
                break;
            children = wanted;
            wanted = 0;
        }
        pid_t child = children > 0 && round % ROUNDS_BETWEEN == 0 ? have_child() : 0;
        storm(round);
        if (child > 0) {
            waitpid(child, NULL, 0);
            children--;
        }
    }
    puts("rests");
    fflush(stdout);
    poll(&in, 1, -1);
    tell();
    return 0;
}
