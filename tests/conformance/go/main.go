// Checks an execution trace with the packages of Go's own tools.
//
// Input: a trace as text, and the same trace in wire form. Output: JSON with what the trace holds:
// samples, samples per function, tasks, logs. It fails if the text is not what Go would write, the
// wire form is not what the text says, or the readers or their validator object to anything up to
// the end of the trace.
//
// Packages named internal can only be used from within Go's own source tree: build this with
// -overlay as cmd/profiler-trace-check, see tests/tests/go_trace.rs.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"internal/trace"
	"internal/trace/raw"
	"internal/trace/testtrace"
	"internal/trace/version"
	"io"
	"os"
	"strings"
)

type report struct {
	Version     int            `json:"version"`
	Samples     int            `json:"samples"`
	Functions   map[string]int `json:"functions"`
	Leaves      map[string]int `json:"leaves"`
	OutsideG    int            `json:"samples_outside_goroutine"`
	Tasks       []string       `json:"tasks"`
	OpenTasks   int            `json:"open_tasks"`
	Logs        []string       `json:"logs"`
	Goroutines  map[string]int `json:"goroutines"`
	Regions     map[string]sum `json:"regions"`
	OpenRegions int            `json:"open_regions"`
	Deepest     int            `json:"deepest_region"`
	Generations int            `json:"generations"`
	WallNS      []int64        `json:"wall_ns"`
	// Time of goroutines, by `name state reason`.
	States map[string]int64 `json:"states"`
	// Who unblocked whom: `waker > name`; waker is empty if it was no running goroutine.
	Unblocks map[string]int `json:"unblocks"`
	// Innermost functions of the stacks that goroutines left their Ps with.
	LeftIn map[string]int `json:"left_in"`
}

// sum is how many regions of one type there were, and how long they took.
type sum struct {
	Count int   `json:"count"`
	NS    int64 `json:"ns"`
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == "-events" {
		events()
		return
	}
	if len(os.Args) != 3 {
		fail(errors.New("usage: profiler-trace-check TEXT WIRE | -events"))
	}
	text, err := os.ReadFile(os.Args[1])
	fail(err)
	wire, err := os.ReadFile(os.Args[2])
	fail(err)

	v := checkForms(text, wire)
	result, err := json.Marshal(read(wire, v))
	fail(err)
	fmt.Println(string(result))
}

// events prints the events of each version: number, name and arguments.
func events() {
	all := map[version.Version][]string{}
	for _, v := range []version.Version{version.Go122, version.Go123, version.Go125, version.Go126} {
		for i, spec := range v.Specs() {
			// Those of experiments follow after 127.
			if spec.Name != "" && i < 128 {
				all[v] = append(all[v], fmt.Sprintf("%d %s %s", i, spec.Name, strings.Join(spec.Args, " ")))
			}
		}
	}
	result, err := json.Marshal(all)
	fail(err)
	fmt.Println(string(result))
}

// checkForms reads the text, and writes it in both forms.
func checkForms(text, wire []byte) version.Version {
	r, err := raw.NewTextReader(bytes.NewReader(text))
	fail(err)
	var againText, againWire bytes.Buffer
	tw, err := raw.NewTextWriter(&againText, r.Version())
	fail(err)
	ww, err := raw.NewWriter(&againWire, r.Version())
	fail(err)
	for {
		e, err := r.ReadEvent()
		if err == io.EOF {
			break
		}
		fail(err)
		fail(tw.WriteEvent(e))
		fail(ww.WriteEvent(e))
	}
	same("text", text, againText.Bytes())
	same("wire form", wire, againWire.Bytes())
	return r.Version()
}

func same(what string, ours, gos []byte) {
	for i := range min(len(ours), len(gos)) {
		if ours[i] != gos[i] {
			from, to := max(0, i-40), min(len(ours), len(gos), i+40)
			fail(fmt.Errorf("%s differs at byte %d: %q, Go writes %q", what, i, ours[from:to], gos[from:to]))
		}
	}
	if len(ours) != len(gos) {
		fail(fmt.Errorf("%s has %d bytes, Go writes %d", what, len(ours), len(gos)))
	}
}

func read(wire []byte, v version.Version) report {
	rep := report{
		Version:    int(v),
		Functions:  map[string]int{},
		Leaves:     map[string]int{},
		Goroutines: map[string]int{},
		Regions:    map[string]sum{},
		States:     map[string]int64{},
		Unblocks:   map[string]int{},
		LeftIn:     map[string]int{},
	}
	names := map[trace.GoID]string{}
	since := map[trace.GoID]trace.Time{}
	reasons := map[trace.GoID]string{}
	regions := map[trace.GoID][]trace.Time{}
	r, err := trace.NewReader(bytes.NewReader(wire))
	fail(err)
	validator := testtrace.NewValidator()
	validator.GoVersion = v
	running := map[trace.GoID]bool{}
	for {
		e, err := r.ReadEvent()
		if err == io.EOF {
			return rep
		}
		fail(err)
		fail(validator.Event(e))
		switch e.Kind() {
		case trace.EventStackSample:
			rep.Samples++
			if !running[e.Goroutine()] {
				rep.OutsideG++
			}
			leaf := true
			for f := range e.Stack().Frames() {
				rep.Functions[f.Func]++
				if leaf {
					rep.Leaves[f.Func]++
				}
				leaf = false
			}
		case trace.EventTaskBegin:
			rep.Tasks = append(rep.Tasks, e.Task().Type)
			rep.OpenTasks++
		case trace.EventTaskEnd:
			rep.OpenTasks--
		case trace.EventRegionBegin:
			g := e.Goroutine()
			regions[g] = append(regions[g], e.Time())
			rep.OpenRegions++
			rep.Deepest = max(rep.Deepest, len(regions[g]))
		case trace.EventRegionEnd:
			// The reader itself checks that it is the innermost one that ends.
			g, n := e.Goroutine(), e.Region().Type
			open := regions[g]
			began := open[len(open)-1]
			regions[g] = open[:len(open)-1]
			rep.OpenRegions--
			s := rep.Regions[n]
			s.Count++
			s.NS += int64(e.Time().Sub(began))
			rep.Regions[n] = s
		case trace.EventLog:
			l := e.Log()
			rep.Logs = append(rep.Logs, l.Category+": "+l.Message)
		case trace.EventSync:
			rep.Generations = e.Sync().N - 1
			if s := e.Sync().ClockSnapshot; s != nil {
				rep.WallNS = append(rep.WallNS, s.Wall.UnixNano())
			}
		case trace.EventStateTransition:
			t := e.StateTransition()
			if t.Resource.Kind != trace.ResourceGoroutine {
				break
			}
			from, to := t.Goroutine()
			g := t.Resource.Goroutine()
			if from == trace.GoNotExist || from == trace.GoUndetermined {
				for f := range t.Stack.Frames() {
					names[g] = f.Func
				}
			} else {
				key := strings.TrimSpace(names[g] + " " + from.String() + " " + reasons[g])
				rep.States[key] += int64(e.Time().Sub(since[g]))
			}
			since[g] = e.Time()
			reasons[g] = t.Reason
			if from == trace.GoWaiting && to == trace.GoRunnable {
				rep.Unblocks[names[e.Goroutine()]+" > "+names[g]]++
			}
			if from == trace.GoRunning && to != trace.GoNotExist {
				for f := range t.Stack.Frames() {
					rep.LeftIn[f.Func]++
					break
				}
			}
			running[t.Resource.Goroutine()] = to.Executing()
			if to == trace.GoRunnable {
				for f := range t.Stack.Frames() {
					rep.Goroutines[f.Func]++
				}
			}
		}
	}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
