// Calls one function for each way to pass a value of Go; see arguments.c for the lines with `//=`.
package main

import (
	"errors"
	"runtime"
)

type point struct{ x, y int32 }
type big struct{ a, b, c, d, e, f, g, h, i, j int }
type named struct {
	name string
	at   point
}
type color uint8

var sink int

//= signedInts(a: -1, b: -2, c: -3, d: -4, e: -5) -> -15
//go:noinline
func signedInts(a int8, b int16, c int32, d int64, e int) int32 {
	return int32(a) + int32(b) + c + int32(d) + int32(e)
}

//= unsignedInts(a: 255, b: 65535, c: 4294967295, d: true, e: 200) -> false
//go:noinline
func unsignedInts(a byte, b uint16, c uint32, d bool, e color) bool {
	sink += int(a) + int(b) + int(c) + int(e)
	return !d
}

//= texts(text: "text", empty: "", after: 7) -> "ext"
//go:noinline
func texts(text, empty string, after int) string {
	sink += len(empty) + after
	return text[1:]
}

//= slices(s: {array: 0x*, len: 3, cap: 4}, p: 0x*, after: 8) -> 0x*
//go:noinline
func slices(s []int, p *int, after int) *int {
	sink += len(s) + after
	return p
}

//= reals(a: <unavailable>, n: 2, b: <unavailable>) -> <unavailable>
//go:noinline
func reals(a float64, n int, b float32) float64 { return a + float64(n) + float64(b) }

//= structs(p: {x: 1, y: 2}, n: {name: {pointer: 0x*, length: 4}, at: {x: 3, y: 4}}, after: <unavailable>) -> {x: 2, y: 5}
//go:noinline
func structs(p point, n named, after int32) point {
	sink += len(n.name) + int(n.at.x)
	return point{p.y, after}
}

//= onStack(a: 1, b: {a: 1, b: 2, c: 3, d: 4, e: 5, f: 6, g: 7, h: 8, i: 9, j: 10}, c: 3) -> 11
//go:noinline
func onStack(a int, b big, c int) int { return a + b.j + c*0 }

//= several(n: 4) -> {~r0: 5, ~r1: *
//go:noinline
func several(n int) (int, error) { return n + 1, errors.New("no") }

// Only this thread stops at breakpoints of who has started the program.
func init() { runtime.LockOSThread() }

func main() {
	signedInts(-1, -2, -3, -4, -5)
	unsignedInts(255, 65535, 4294967295, true, 200)
	texts("text", "", 7)
	i := 1
	slices(make([]int, 3, 4), &i, 8)
	reals(1.5, 2, 2.5)
	structs(point{1, 2}, named{"name", point{3, 4}}, 5)
	onStack(1, big{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 3)
	several(4)
}
