/* Memory system calls of the allocator and of the program, in one thread, each told by a size of its own. */
#include "handshake.h"
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#define PAGE ((unsigned long)sysconf(_SC_PAGESIZE))
#define NOINLINE __attribute__((noinline, noclone))

static void *volatile sink;

static NOINLINE void own_mapping(size_t bytes)
{
	sink = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static NOINLINE void from_the_same_function(void)
{
	sink = malloc(64);
	sink = mmap(NULL, 0x11000, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static NOINLINE void from_a_deeper_one(void)
{
	sink = malloc(64);
	own_mapping(0x12000);
}

static NOINLINE void without_a_wrapper(void)
{
	sink = malloc(64);
#ifdef __x86_64__
	register long r10 __asm__("r10") = MAP_PRIVATE | MAP_ANONYMOUS;
	register long r8 __asm__("r8") = -1;
	register long r9 __asm__("r9") = 0;
	long result = SYS_mmap;
	__asm__ volatile("syscall"
			 : "+a"(result)
			 : "D"(0), "S"(0x13000), "d"(PROT_READ), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	sink = (void *)result;
#else
	sink = (void *)syscall(SYS_mmap, 0, 0x13000, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
#endif
}

static NOINLINE void allocate_at_depth(int depth)
{
	volatile char room[64];
	room[0] = depth;
	if (depth > 0)
		allocate_at_depth(depth - 1);
	else
		sink = malloc(64);
	room[1] = room[0];
}

/* The frames of the call before lie untouched inside this one's array, return addresses and all. */
static NOINLINE void over_old_frames(void)
{
	volatile char untouched[4096];
	sink = (void *)&untouched[2048];
	own_mapping(0x14000);
}

static void *start(void *unused)
{
	return unused;
}

static NOINLINE void thread_stack_over_old_frames(void)
{
	pthread_attr_t attributes;
	pthread_t thread;
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, 0x150000);
	allocate_at_depth(0);
	pthread_create(&thread, &attributes, start, NULL);
	pthread_join(thread, NULL);
}

static char *guarded;

static void on_fault(int signal)
{
	(void)signal;
	own_mapping(0x16000);
	mprotect(guarded, PAGE, PROT_READ | PROT_WRITE);
}

/* malloc runs into a page that cannot be read; the handler of that makes it readable, and malloc goes on to grow. */
static NOINLINE void inside_an_interrupted_malloc(void)
{
	struct sigaction action = {.sa_handler = on_fault};
	sigaction(SIGSEGV, &action, NULL);
	char *last = malloc(24);
	/* Its chunk is followed by the top chunk, whose header is the next thing that malloc reads. */
	char *top = last + 24;
	while (((uintptr_t)(top + 8) & (PAGE - 1)) < 512) {
		last = malloc(24);
		top = last + 24;
	}
	guarded = (char *)((uintptr_t)top & ~(PAGE - 1));
	mprotect(guarded, PAGE, PROT_NONE);
	sink = malloc(126000);
	sink = malloc(126000);
}

int main(void)
{
	void *heap = malloc(1);
	ready();
	from_the_same_function();
	from_a_deeper_one();
	without_a_wrapper();
	for (int depth = 0; depth < 24; depth++) {
		allocate_at_depth(depth);
		over_old_frames();
	}
	for (int i = 0; i < 8; i++)
		thread_stack_over_old_frames();
	sink = malloc(64);
	sink = sbrk(0x17000);
	/* libc's own functions call free, then map files, with the same stack pointer. */
	setlocale(LC_ALL, "C.UTF-8");

	/* The allocator's own. */
	char *block = malloc(0x200000);
	block = realloc(block, 0x300000);
	free(block);
	inside_an_interrupted_malloc();
	say("done\n");
	wait_for_go();
	free(heap);
	return 0;
}
