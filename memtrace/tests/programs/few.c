/* A few blocks, and computing for half a second: whatever a probe costs, in an emulated machine too, it costs little of it. */
#include <stdlib.h>
#include <time.h>

int main(void) {
    for (int i = 0; i < 10; i++)
        free(malloc(48));
    while (clock() < CLOCKS_PER_SEC / 2)
        ;
    return 0;
}
