#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#define ALLOW(call) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
int main(void) {
  struct sock_filter filter[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    ALLOW(__NR_read), ALLOW(__NR_write), ALLOW(__NR_brk), ALLOW(__NR_mmap), ALLOW(__NR_munmap),
    ALLOW(__NR_mremap), ALLOW(__NR_madvise), ALLOW(__NR_exit_group),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
  };
  struct sock_fprog program = { sizeof filter / sizeof *filter, filter };
  free(malloc(1));
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) return 1;
  char byte = '.';
  write(1, &byte, 1);
  while (read(0, &byte, 1) == 1) {
    for (int n = 0; n < 100; n++) {
      char *block = realloc(malloc(100), 1000);
      block = realloc(block, 300000);
      free(realloc(block, 10));
      free(calloc(50, 50));
      free(memalign(64, 200000));
    }
    malloc_trim(0);
    write(1, &byte, 1);
  }
  return 0;
}
