/* Two threads whose ids end in the same bits, found by starting threads until one has them. Each that has not calls malloc
   all the same, so that room is made for it and given back. When two are found it says so and waits; then they call malloc
   in turn, the second three times as often, and at last each unmaps nothing. */
#include "handshake.h"
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>

enum { SAME_BITS = (1 << 14) - 1, TURNS = 1000 };

static pthread_barrier_t turn;
static long first, second;

static void work(int times)
{
	for (int n = 0; n < TURNS; n++) {
		pthread_barrier_wait(&turn);
		for (int k = 0; k < times; k++)
			free(malloc(32));
	}
	munmap((void *)0x10000, 0);
}

static void *stays(void *unused)
{
	first = syscall(SYS_gettid);
	pthread_barrier_wait(&turn);
	work(1);
	return unused;
}

static void *comes(void *unused)
{
	long id = syscall(SYS_gettid);
	if ((id & SAME_BITS) != (first & SAME_BITS)) {
		free(malloc(32));
		return unused;
	}
	second = id;
	say("found\n");
	wait_for_go();
	work(3);
	return unused;
}

int main(void)
{
	pthread_t one, other;
	int gone = -1;
	pthread_barrier_init(&turn, NULL, 2);
	ready();
	pthread_create(&one, NULL, stays, NULL);
	pthread_barrier_wait(&turn);
	while (second == 0) {
		pthread_create(&other, NULL, comes, NULL);
		pthread_join(other, NULL);
		gone++;
	}
	pthread_join(one, NULL);
	say("done %ld %ld %d\n", first, second, gone);
	wait_for_go();
	return 0;
}
