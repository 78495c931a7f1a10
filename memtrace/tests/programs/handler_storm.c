/* Allocates and grows its heap until it is told to stop, while a timer's handler interrupts it wherever it is, malloc included:
   that maps memory of its own, makes many system calls, and unmaps it. Another handler, which interrupts no malloc, allocates and
   frees. At last it tells how many mappings each of the two has made. */
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>
#define OWN 0x16000
#define ALLOCATED 400000
static void *volatile kept[64];
static volatile unsigned long own, allocated;
static void calls(int count) {
    for (int i = 0; i < count; i++)
        syscall(SYS_getppid);
}
static void on_timer(int signal) {
    (void)signal;
    void *memory = mmap(NULL, OWN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    own++;
    calls(5000);
    munmap(memory, OWN);
}
static void on_request(int signal) {
    (void)signal;
    void *block = malloc(ALLOCATED);
    allocated++;
    calls(1000);
    free(block);
}
static void handle(int signal, void (*handler)(int)) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    sigaction(signal, &action, NULL);
}
static void every(int microseconds) {
    struct itimerval timer = { { 0, microseconds }, { 0, microseconds } };
    setitimer(ITIMER_REAL, &timer, NULL);
}
int main(void) {
    static char out[1 << 12];
    setvbuf(stdout, out, _IOFBF, sizeof out);
    /* Else the first block that is freed would move it. */
    mallopt(M_MMAP_THRESHOLD, 128 * 1024);
    puts("ready");
    fflush(stdout);
    handle(SIGALRM, on_timer);
    handle(SIGUSR2, on_request);
    every(4000);
    struct pollfd in = { 0, POLLIN, 0 };
    for (unsigned long round = 1; poll(&in, 1, 0) <= 0; round++) {
        for (int i = 0; i < 2000; i++) {
            free(kept[i % 64]);
            kept[i % 64] = malloc(2000 + i * 37 % 3000);
        }
        /* Never freed. */
        *(volatile char *)malloc(60000) = 1;
        raise(SIGUSR2);
    }
    every(0);
    getchar();
    printf("rests\nown %lu\nallocated %lu\n", own, allocated);
    fflush(stdout);
    poll(&in, 1, -1);
    return 0;
}
