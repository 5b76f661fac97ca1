// What Go programs do: stacks that grow, goroutines, panics that are recovered, garbage.
// Output: results of each, the same in every run. Ends with status 8.
package main

import (
	"fmt"
	"os"
	"runtime"
	"sort"
	"strings"
	"sync"
)

func deep(n int) int {
	var block [256]byte
	block[n%256] = 1
	if n == 0 {
		return int(block[0])
	}
	return deep(n-1) + int(block[n%256])
}

func recovered(index int) (what string) {
	defer func() { what = fmt.Sprint(recover()) }()
	return fmt.Sprint(make([]int, 3)[index])
}

func main() {
	var group sync.WaitGroup
	depths := make(chan int, 10)
	for i := 0; i < 8; i++ {
		group.Add(1)
		go func(i int) {
			defer group.Done()
			depths <- deep(i * 100)
		}(i)
	}
	group.Wait()
	close(depths)
	sum := 0
	for depth := range depths {
		sum += depth
	}
	sums := map[string]int{}
	for i := 0; i < 500; i++ {
		sums[fmt.Sprint(i*7919%1009)] += i
	}
	runtime.GC()
	keys := []string{}
	for key := range sums {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	fmt.Println(sum, strings.Join(keys[:10], ","))
	fmt.Println(recovered(2), recovered(7))
	os.Exit(8)
}
