/* Eight threads, each a known number of calls of every entry point. */
#include "handshake.h"
#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>

static void *work(void *unused)
{
	for (int i = 0; i < 1000; i++)
		free(malloc(10 + i));
	for (int i = 0; i < 500; i++)
		free(calloc(3, i));
	for (int i = 0; i < 100; i++) {
		void *p = realloc(NULL, 40 + i); /* a new block, malloc is hit again */
		p = realloc(p, 4000 + i);
		realloc(p, 0); /* a free, free is hit again */
	}
	for (int i = 0; i < 10; i++) {
		void *p;
		free(memalign(16, 100)); /* malloc is hit again */
		free(memalign(64, 100));
		free(aligned_alloc(16, 160));
		free(aligned_alloc(256, 512));
		if (posix_memalign(&p, 16, 100) == 0)
			free(p);
		if (posix_memalign(&p, 128, 100) == 0)
			free(p);
		free(valloc(100));
		free(pvalloc(100));
		free(NULL);
	}
	return unused;
}

int main(void)
{
	pthread_t threads[8];
	ready();
	for (int i = 0; i < 8; i++)
		pthread_create(&threads[i], NULL, work, NULL);
	for (int i = 0; i < 8; i++)
		pthread_join(threads[i], NULL);
	say("done\n");
	wait_for_go();
	return 0;
}
