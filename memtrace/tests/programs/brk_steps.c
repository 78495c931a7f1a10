/* 10,000 blocks of 64 bytes, all freed, then malloc_trim(0). Prints the break before and what the trim gave back. */
#include "handshake.h"
#include <malloc.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define BLOCKS 10000
#define PAGE ((unsigned long)sysconf(_SC_PAGESIZE))

static void *blocks[BLOCKS];

/* Resident bytes of [begin, end). */
static unsigned long resident(char *begin, char *end)
{
	static unsigned char pages[4096];
	unsigned long length = (unsigned long)(end - begin), found = 0;
	if (length / PAGE > sizeof pages || mincore(begin, length, pages) != 0)
		return 0;
	for (unsigned long i = 0; i < length / PAGE; i++)
		found += pages[i] & 1 ? PAGE : 0;
	return found;
}

int main(void)
{
	char *begin = sbrk(0);
	ready();
	for (int i = 0; i < BLOCKS; i++)
		blocks[i] = memset(malloc(64), 1, 64);
	for (int i = 0; i < BLOCKS; i++)
		free(blocks[i]);
	char *full = sbrk(0);
	unsigned long before = resident(begin, full);
	malloc_trim(0);
	unsigned long after = resident(begin, sbrk(0));
	say("done %lu %lu\n", (unsigned long)begin, before - after);
	wait_for_go();
	return 0;
}
