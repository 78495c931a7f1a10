/*
 * The tests' oracle: a preloaded library that counts every call at the allocator's interface, and forwards it.
 *
 * The counts lie in a file that is mapped shared, COUNTER_FILES.PID, so they are exact up to the last instruction,
 * however the process ends. A forked child counts in a file of its own; a program that replaces another in the same
 * process starts the file anew, as a tracer starts its books anew.
 *
 * The order of the words is that of support/src/counter.rs.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum entry { MALLOC, CALLOC, REALLOC, MEMALIGN, ALIGNED_ALLOC, POSIX_MEMALIGN, VALLOC, PVALLOC, FREE, MALLOC_TRIM, ENTRIES };

struct counts {
    atomic_ulong calls[ENTRIES];
    atomic_ulong failed[ENTRIES];     /* returned no block although one was asked for */
    atomic_ulong bytes[ENTRIES];      /* asked for by calls that returned a new block */
    atomic_ulong free_null;
    atomic_ulong freed_chunk_bytes;   /* from the size fields of chunks given to free, or to realloc with size 0 */
    atomic_ulong freed_mapped;
    atomic_ulong realloc_null, realloc_zero, realloc_in_place, realloc_moved;
};

/* glibc's own names: reaching them needs no dlsym, which may allocate before it can answer. */
void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t), *__libc_valloc(size_t), *__libc_pvalloc(size_t);
void __libc_free(void *);

static void *(*next_aligned_alloc)(size_t, size_t);
static int (*next_posix_memalign)(void **, size_t, size_t);
static int (*next_malloc_trim)(size_t);

static struct counts early;             /* before the file is mapped, and after it could not be */
static struct counts *counts = &early;

static void stop(const char *why) {
    if (write(2, why, strlen(why)) < 0) _exit(98);
    _exit(99);
}

/* Decimal digits of n, without stdio, which allocates. */
static char *decimal(char *end, unsigned n) {
    *end = 0;
    do *--end = '0' + n % 10; while (n /= 10);
    return end;
}

static void open_file(void) {
    const char *prefix = getenv("COUNTER_FILES");
    char path[4096], digits[16];
    char *pid = decimal(digits + 15, getpid());
    if (!prefix) return;
    if (strlen(prefix) + strlen(pid) + 2 > sizeof path) stop("counter: COUNTER_FILES is too long\n");
    strcpy(path, prefix); strcat(path, "."); strcat(path, pid);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0 || ftruncate(fd, sizeof *counts)) stop("counter: the file for the counts cannot be made\n");
    struct counts *file = mmap(0, sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (file == MAP_FAILED) stop("counter: the file for the counts cannot be mapped\n");
    close(fd);
    memcpy(file, &early, sizeof early);
    counts = file;
}

static void in_child(void) {
    memset(&early, 0, sizeof early);
    counts = &early;
    open_file();
}

static void resolve(void) {
    next_aligned_alloc = dlsym(RTLD_NEXT, "aligned_alloc");
    next_posix_memalign = dlsym(RTLD_NEXT, "posix_memalign");
    next_malloc_trim = dlsym(RTLD_NEXT, "malloc_trim");
    if (!next_aligned_alloc || !next_posix_memalign || !next_malloc_trim) stop("counter: libc lacks an entry point\n");
}

__attribute__((constructor)) static void begin(void) {
    open_file();
    resolve();
    if (pthread_atfork(0, 0, in_child)) stop("counter: no fork handler can be set\n");
}

static void add(atomic_ulong *count, unsigned long n) { atomic_fetch_add_explicit(count, n, memory_order_relaxed); }

static void called(enum entry entry) { add(&counts->calls[entry], 1); }

static void *returned(enum entry entry, void *block, size_t bytes) {
    if (block) add(&counts->bytes[entry], bytes);
    else add(&counts->failed[entry], 1);
    return block;
}

void *malloc(size_t n) { called(MALLOC); return returned(MALLOC, __libc_malloc(n), n); }

void *calloc(size_t n, size_t size) { called(CALLOC); return returned(CALLOC, __libc_calloc(n, size), n * size); }

/* The size field of a chunk: its low bits are flags, 2: a mapping of its own. */
static void freed(void *block) {
    size_t field = ((size_t *)block)[-1];
    add(&counts->freed_chunk_bytes, field & ~(size_t)7);
    if (field & 2) add(&counts->freed_mapped, 1);
}

void *realloc(void *old, size_t n) {
    uintptr_t before = (uintptr_t)old;   /* as a number: the pointer must not be used once it may have been freed */
    called(REALLOC);
    if (old && !n) { add(&counts->realloc_zero, 1); freed(old); }
    void *new = __libc_realloc(old, n);
    if (!before) { add(&counts->realloc_null, 1); return returned(REALLOC, new, n); }
    if (!n) return new;
    if (new) add((uintptr_t)new == before ? &counts->realloc_in_place : &counts->realloc_moved, 1);
    return returned(REALLOC, new, 0);
}

void *memalign(size_t alignment, size_t n) {
    called(MEMALIGN);
    return returned(MEMALIGN, __libc_memalign(alignment, n), n);
}

void *aligned_alloc(size_t alignment, size_t n) {
    called(ALIGNED_ALLOC);
    if (!next_aligned_alloc) resolve();
    return returned(ALIGNED_ALLOC, next_aligned_alloc(alignment, n), n);
}

int posix_memalign(void **block, size_t alignment, size_t n) {
    called(POSIX_MEMALIGN);
    if (!next_posix_memalign) resolve();
    int error = next_posix_memalign(block, alignment, n);
    returned(POSIX_MEMALIGN, error ? 0 : *block, n);
    return error;
}

void *valloc(size_t n) { called(VALLOC); return returned(VALLOC, __libc_valloc(n), n); }

void *pvalloc(size_t n) { called(PVALLOC); return returned(PVALLOC, __libc_pvalloc(n), n); }

void free(void *block) {
    called(FREE);
    if (!block) add(&counts->free_null, 1);
    else freed(block);
    __libc_free(block);
}

int malloc_trim(size_t pad) {
    called(MALLOC_TRIM);
    if (!next_malloc_trim) resolve();
    return next_malloc_trim(pad);
}
