/* Four threads, each 1,000 times malloc, free and mremap as fast as they can. */
#include "handshake.h"
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

static void *work(void *unused)
{
	size_t page = 4096;
	char *mapping = mmap(NULL, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < 1000; i++) {
		free(malloc(100));
		mapping = mremap(mapping, page, 3 * 4096 - page, MREMAP_MAYMOVE);
		page = 3 * 4096 - page;
	}
	return unused;
}

int main(void)
{
	pthread_t threads[4];
	ready();
	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, work, NULL);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	say("done\n");
	wait_for_go();
	return 0;
}
