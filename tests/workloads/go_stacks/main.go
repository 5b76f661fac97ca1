// Goroutines whose stacks are known, in the phases that Go's runtime treats in its own ways.
//
// Usage: main SECONDS [PHASE], each of which takes so much CPU time, however busy the machine is. Phases: spin (a chain of five functions), inline (the same with inlined ones),
// deep (recursion on a stack that grows), system (work on the thread's own stack: runtime.GC), syscall (a
// syscall in a chain). All of them in turn without a name.
package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

var sink uint64

//go:noinline
func leaf(until time.Duration) {
	for used() < until {
		for i := uint64(0); i < 200000; i++ {
			sink = sink*2862933555777941757 + i
		}
	}
}

//go:noinline
func middle(until time.Duration) {
	var room [64]uint64
	room[sink%64] = 1
	leaf(until)
	sink += room[sink%64]
}

//go:noinline
func outer(until time.Duration) { middle(until); sink++ }

func worker(until time.Duration, done chan<- bool) {
	outer(until)
	done <- true
}

func small(i uint64) uint64 { return sink*6364136223846793005 + i }

func twice(i uint64) uint64 { return small(i) ^ small(i+1) }

//go:noinline
func inlined(until time.Duration) {
	for used() < until {
		for i := uint64(0); i < 200000; i++ {
			sink = twice(i)
		}
	}
}

//go:noinline
func recurse(depth int, until time.Duration) uint64 {
	var room [32]uint64
	room[depth%32] = uint64(depth)
	if depth == 0 {
		leaf(until)
	} else {
		room[0] += recurse(depth-1, until)
	}
	return room[depth%32]
}

//go:noinline
func grow(depth int) uint64 {
	var room [128]uint64
	room[depth%128] = uint64(depth)
	if depth > 0 {
		room[0] += grow(depth - 1)
	}
	return room[depth%128]
}

// CPU time of the process.
func used() time.Duration {
	var usage syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

//go:noinline
func growing(until time.Duration) {
	for used() < until {
		done := make(chan uint64)
		go func() { done <- grow(2000) }()
		sink += <-done
	}
}

//go:noinline
func collect(until time.Duration) {
	for used() < until {
		runtime.GC()
	}
}

//go:noinline
func calls(until time.Duration) {
	for used() < until {
		for i := 0; i < 1000; i++ {
			syscall.Getppid()
		}
	}
}

func main() {
	seconds, err := strconv.ParseFloat(os.Args[1], 64)
	if err != nil {
		panic(err)
	}
	phases := []struct {
		name string
		run  func(time.Duration)
	}{
		{"spin", func(until time.Duration) {
			done := make(chan bool)
			go worker(until, done)
			<-done
		}},
		{"inline", inlined},
		{"deep", func(until time.Duration) { sink += recurse(60, until) }},
		{"grow", growing},
		{"system", collect},
		{"syscall", calls},
	}
	fmt.Println("ready")
	for _, phase := range phases {
		if len(os.Args) < 3 || os.Args[2] == phase.name {
			phase.run(used() + time.Duration(seconds*float64(time.Second)))
		}
	}
}
