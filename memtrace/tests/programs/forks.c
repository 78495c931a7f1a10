/* A child of 1,000 mallocs between a parent's 10. Prints the child's id. */
#include "handshake.h"
#include <stdlib.h>
#include <sys/wait.h>

static void *volatile sink;

static void allocate(int count)
{
	for (int i = 0; i < count; i++)
		sink = malloc(1000);
}

int main(void)
{
	ready();
	allocate(5);
	pid_t child = fork();
	if (child == 0) {
		allocate(1000);
		_exit(7);
	}
	waitpid(child, NULL, 0);
	allocate(5);
	say("done %d\n", (int)child);
	wait_for_go();
	return 0;
}
