/* Pairs of malloc and free until it is told to end. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

int main(void) {
    puts("ready");
    fflush(stdout);
    struct pollfd in = { 0, POLLIN, 0 };
    while (poll(&in, 1, 0) == 0)
        for (int i = 0; i < 1000; i++)
            free(malloc(48));
    return 0;
}
