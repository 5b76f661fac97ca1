// Go functions that are traced while their stacks grow and their goroutines move between threads.
//
// Usage: trace_go ROUNDS [--wait]; in each of 8 goroutines, each round:
//
//	main.deep, recursing 50 deep with frames of 1 KiB on a fresh goroutine (its stack grows from
//	2 KiB, and is copied, while the calls are pending)
//	main.work > main.leaf, with a yield in between, so that a call may end on another thread
//
// Output: {"calls": {..}, "returns": {..}, "good": true}; all calls return but those that panic:
// main.recovers > main.panics, whose panic main.recovers recovers from.
//
// Under a return probe of the kernel the runtime finds an "unexpected return pc" and dies, status 2.
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
)

var calls, returns struct{ deep, work, leaf, recovers, panics, swap atomic.Int64 }

const goroutines = 8

//go:noinline
func deep(depth int) int {
	calls.deep.Add(1)
	var room [1024]byte
	room[depth%1024] = 1
	below := 0
	if depth > 1 {
		below = deep(depth - 1)
	}
	returns.deep.Add(1)
	return below + int(room[depth%1024])
}

//go:noinline
func leaf(n int) int {
	calls.leaf.Add(1)
	returns.leaf.Add(1)
	return n ^ 1
}

//go:noinline
func work(n int) int {
	calls.work.Add(1)
	result := leaf(n)
	runtime.Gosched()
	result += leaf(n + 1)
	returns.work.Add(1)
	return result
}

//go:noinline
func swap(a int, b string) (string, int) {
	calls.swap.Add(1)
	returns.swap.Add(1)
	return b, a
}

//go:noinline
func panics(n int) int {
	calls.panics.Add(1)
	panic(n)
}

//go:noinline
func recovers(n int) (result int) {
	calls.recovers.Add(1)
	defer func() {
		result = recover().(int)
		returns.recovers.Add(1)
	}()
	return panics(n)
}

func round(n int, good *atomic.Bool) {
	done := make(chan int)
	go func() { done <- deep(50) }()
	name, number := swap(n, "swap")
	if <-done != 50 || work(n) != (n^1)+((n+1)^1) || recovers(n) != n || name != "swap" || number != n {
		good.Store(false)
	}
}

func main() {
	arguments := os.Args[1:]
	if last := len(arguments) - 1; last >= 0 && arguments[last] == "--wait" {
		arguments = arguments[:last]
		fmt.Printf("{\"at\": \"start\", \"pid\": %d}\n", os.Getpid())
		if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
			os.Exit(3)
		}
	}
	rounds := 100
	if len(arguments) > 0 {
		rounds, _ = strconv.Atoi(arguments[0])
	}
	var good atomic.Bool
	good.Store(true)
	var group sync.WaitGroup
	for g := range goroutines {
		group.Add(1)
		go func() {
			defer group.Done()
			for n := range rounds {
				round(n+g, &good)
			}
		}()
	}
	group.Wait()
	runtime.GC()
	counts := func(of *struct{ deep, work, leaf, recovers, panics, swap atomic.Int64 }) string {
		return fmt.Sprintf(`{"main.deep": %d, "main.work": %d, "main.leaf": %d, "main.recovers": %d, "main.panics": %d, "main.swap": %d}`,
			of.deep.Load(), of.work.Load(), of.leaf.Load(), of.recovers.Load(), of.panics.Load(), of.swap.Load())
	}
	fmt.Printf("{\"calls\": %s, \"returns\": %s, \"good\": %v}\n", counts(&calls), counts(&returns), good.Load())
	if !good.Load() {
		os.Exit(1)
	}
}
