// Goroutines that are handed on to other threads in the middle of their calls, several on each thread.
//
// Usage: trace_go_moves ROUNDS
// Output: {"calls": {"main.outer": N, "main.inner": M}}
package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"
)

const goroutines = 8

// Waits, and goes on wherever there is room.
//
//go:noinline
func inner(n int) int {
	time.Sleep(time.Duration(n%3) * 200 * time.Microsecond)
	return n + 1
}

//go:noinline
func outer(n int) int {
	runtime.Gosched()
	first := inner(n)
	runtime.Gosched()
	return first + inner(n+1)
}

func main() {
	rounds, err := strconv.Atoi(os.Args[1])
	if err != nil {
		os.Exit(2)
	}
	var all sync.WaitGroup
	for count := 0; count < goroutines; count++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for round := 0; round < rounds; round++ {
				outer(round)
			}
		}()
	}
	all.Wait()
	fmt.Printf("{\"calls\": {\"main.outer\": %d, \"main.inner\": %d}}\n", goroutines*rounds, 2*goroutines*rounds)
}
