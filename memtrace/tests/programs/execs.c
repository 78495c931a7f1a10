/* 100 mallocs, then itself again, which makes 200. */
#include "handshake.h"
#include <stdlib.h>

static void *volatile sink;

static void allocate(int count)
{
	for (int i = 0; i < count; i++)
		sink = malloc(100);
}

int main(int argc, char **argv)
{
	if (argc > 1) {
		allocate(200);
		say("done\n");
		wait_for_go();
		return 0;
	}
	char *again[] = {argv[0], "again", NULL};
	ready();
	allocate(100);
	say("again\n");
	wait_for_go();
	execv(argv[0], again);
	return 1;
}
