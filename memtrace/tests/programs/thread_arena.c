/* 3,000 blocks of 1,000 bytes in a thread, whose arena grows by mprotect. */
#include "handshake.h"
#include <pthread.h>
#include <stdlib.h>

static void *volatile sink;

static void *work(void *unused)
{
	for (int i = 0; i < 3000; i++)
		sink = malloc(1000);
	return unused;
}

int main(void)
{
	pthread_t thread;
	sink = malloc(1);
	ready();
	pthread_create(&thread, NULL, work, NULL);
	pthread_join(thread, NULL);
	say("done\n");
	wait_for_go();
	return 0;
}
