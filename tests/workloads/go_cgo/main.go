// A goroutine that calls C, which spins or calls Go again.
//
// Usage: main SECONDS down|back.
package main

/*
#include <stdint.h>
#include <time.h>

extern void fromC(void);

static volatile uint64_t c_sink;

__attribute__((noinline)) static void c_leaf(void) {
    for (int i = 0; i < 20000000; i++) c_sink = c_sink * 2862933555777941757u + i;
    __asm__ volatile("");
}

__attribute__((noinline)) static void c_outer(int back) {
    if (back) fromC(); else c_leaf();
    __asm__ volatile("");
}
*/
import "C"

import (
	"fmt"
	"os"
	"strconv"
	"time"
)

var sink uint64

//go:noinline
func goLeaf() {
	for i := uint64(0); i < 20000000; i++ {
		sink = sink*2862933555777941757 + i
	}
}

//export fromC
func fromC() { goLeaf() }

//go:noinline
func callC(back C.int) { C.c_outer(back); sink++ }

func main() {
	seconds, err := strconv.ParseFloat(os.Args[1], 64)
	if err != nil {
		panic(err)
	}
	back := C.int(0)
	if os.Args[2] == "back" {
		back = 1
	}
	fmt.Println("ready")
	until := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	for time.Now().Before(until) {
		callC(back)
	}
}
