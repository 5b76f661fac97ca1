// A program for profile-guided optimization, like pgo.cpp: its hot function is too long for the compiler's budget of inlining.
//
// pgo STEPS -> prints a sum.
package main

import (
	"fmt"
	"os"
	"strconv"
)

type state struct{ a, b, c, d, odd uint64 }

// What seldom happens is spelled out at length, as checks are.
func (s *state) add(value uint64) {
	s.a += value
	s.b ^= s.a
	if value>>48 != 0 {
		s.odd++
		for i, rest := uint64(0), value; rest != 0; i, rest = i+1, rest>>5 {
			switch (rest ^ i) & 3 {
			case 0:
				s.a = s.a*31 + s.d
				s.b -= s.c ^ i
			case 1:
				s.b = s.b*37 + s.a
				s.c -= s.d ^ i
			case 2:
				s.c = s.c*41 + s.b
				s.d -= s.a ^ i
			default:
				s.d = s.d*43 + s.c
				s.a -= s.b ^ i
			}
			if (s.a^s.b)%1021 == 17 {
				s.a, s.b, s.c, s.d = s.c, s.a, s.d, s.b
			}
		}
	}
	s.c = (s.c<<13 | s.c>>51) + s.b
	s.d ^= s.c
}

func run(records []uint64, steps uint64) uint64 {
	s := state{a: 1, b: 2, c: 3, d: 4}
	for i := uint64(0); i < steps; i++ {
		record := records[i&1023]
		s.add(record & 0xffff)
		if record&1 != 0 {
			s.add(record)
		} else {
			s.add(i)
		}
	}
	return s.a ^ s.b ^ s.c ^ s.d ^ s.odd
}

func main() {
	steps := uint64(100000000)
	if len(os.Args) > 1 {
		steps, _ = strconv.ParseUint(os.Args[1], 10, 64)
	}
	records := make([]uint64, 1024)
	for i := range records {
		records[i] = uint64(i) * 2654435761 & 0xffffffff
	}
	fmt.Printf("%x\n", run(records, steps))
}
