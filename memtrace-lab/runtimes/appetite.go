// Go's appetite: 128 MiB of slices, dropped, collected, handed back. Speaks like memtrace-lab's programs.
//
//	go run appetite.go             each phase waits for a line on standard input
//
// Phases: base, full, dropped (nothing refers to the slices any more), collected (after runtime.GC), later, released
// (after debug.FreeOSMemory).
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"time"
)

var (
	held  [][]byte
	lines = bufio.NewReader(os.Stdin)
)

func main() {
	phase("base")
	held = make([][]byte, 2048)
	for i := range held {
		held[i] = make([]byte, 65536)
		for at := 0; at < len(held[i]); at += 4096 {
			held[i][at] = 1
		}
	}
	phase("full")
	held = nil
	phase("dropped")
	runtime.GC()
	phase("collected")
	time.Sleep(2 * time.Second)
	phase("later")
	debug.FreeOSMemory()
	phase("released")
}

func phase(name string) {
	fmt.Printf("phase=%s pid=%d\n", name, os.Getpid())
	lines.ReadString('\n')
}
